"""Rotating keys on one host: what is allowed, what is written, what is told."""

import stat
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from linkpass.errors import NotFoundError, RefusedError
from linkpass.model import Event
from linkpass_agent.events import EventLog
from linkpass_agent.keys import KeyDesk
from linkpass_topology.gossip.keyring import Key, Keyring, load
from linkpass_topology.gossip.row import Row, Status

ONE, TWO = bytes(range(32)), bytes(range(100, 132))
A, B = Key("2026a", ONE), Key("2026b", TWO)


class Still:
    def now(self) -> float:
        return 1.0

    def wall(self) -> float:
        return 2.0


@dataclass
class Host:
    desk: KeyDesk
    path: Path
    rows: list[Row]
    used: list[Keyring] = field(default_factory=list)
    told: list[Event] = field(default_factory=list)


def host(tmp_path: Path, *others: tuple[Key, ...], keys: tuple[Key, ...] = (A,)) -> Host:
    """Host a, with members b, c, ... that accept these keys."""
    path = tmp_path / "fleet.keys"
    path.write_text("# ours\n" + "".join(f"{k.id} {k.secret.hex()}\n" for k in keys))
    path.chmod(0o600)
    rows = [Row(chr(98 + i), 1, 0, Status.ALIVE, None, Keyring(ring).ring) for i, ring in enumerate(others)]
    used: list[Keyring] = []
    told: list[Event] = []
    return Host(KeyDesk(path, "a", used.append, lambda: rows, EventLog(Still(), told.append)), path, rows, used, told)


def test_installed_key_is_accepted_written_and_told_without_its_secret(tmp_path: Path) -> None:
    a = host(tmp_path, (A,))
    answer = a.desk.install("2026b", TWO.hex(), "root")
    assert a.used == [Keyring((A, B))] and load(a.path) == Keyring((A, B))
    assert stat.S_IMODE(a.path.stat().st_mode) == 0o600
    assert a.path.read_text().startswith("# ours\n")
    assert [p.name for p in tmp_path.iterdir()] == ["fleet.keys"]
    assert [(k.key, k.here, k.sends, k.accepted_by, k.sent_by, k.members) for k in answer.keys] == [
        ("2026a", True, True, 2, 2, 2),
        ("2026b", True, False, 1, 0, 2),
    ]
    assert TWO.hex() not in answer.model_dump_json() + repr(a.told) + repr(a.used)
    assert [e.text for e in a.told] == ["key 2026b installed"]


def test_same_key_again_changes_nothing_and_another_of_its_name_is_refused(tmp_path: Path) -> None:
    a = host(tmp_path)
    assert "already" in a.desk.install("2026a", ONE.hex(), "root").text
    with pytest.raises(RefusedError, match="another key is called 2026a"):
        a.desk.install("2026a", TWO.hex(), "root")
    assert a.used == []


@pytest.mark.parametrize("secret", ["00" * 32, "zz" * 32, "ab" * 31, ""])
def test_bad_secret_is_refused_and_not_shown(tmp_path: Path, secret: str) -> None:
    a = host(tmp_path)
    with pytest.raises(RefusedError) as refusal:
        a.desk.install("2026b", secret, "root")
    assert not secret or secret not in str(refusal.value)
    assert load(a.path) == Keyring((A,))


def test_key_is_used_only_when_every_living_member_accepts_it(tmp_path: Path) -> None:
    a = host(tmp_path, (A, B), (A,), keys=(A, B))
    with pytest.raises(RefusedError, match="isn't accepted yet by c;"):
        a.desk.use("2026b", "root", force=False)
    assert a.used == []
    a.rows[1] = Row("c", 1, 1, Status.DEAD, None, Keyring((A,)).ring)
    a.desk.use("2026b", "root", force=False)
    assert a.used == [Keyring((B, A))] and load(a.path).sending == B


def test_other_secret_under_the_same_name_does_not_count_as_accepted(tmp_path: Path) -> None:
    a = host(tmp_path, (A, Key("2026b", bytes(range(50, 82)))), keys=(A, B))
    with pytest.raises(RefusedError, match="by b;"):
        a.desk.use("2026b", "root", force=False)
    assert [(k.here, k.accepted_by) for k in a.desk.views() if k.key == "2026b"] == [(True, 1), (False, 1)]


def test_key_is_removed_only_when_nobody_sends_with_it(tmp_path: Path) -> None:
    a = host(tmp_path, (B, A), (A, B), keys=(B, A))
    with pytest.raises(RefusedError, match="still used to send by c;"):
        a.desk.remove("2026a", "root", force=False)
    with pytest.raises(RefusedError, match="what we send with"):
        a.desk.remove("2026b", "root", force=True)
    a.desk.remove("2026a", "root", force=True)
    assert a.used == [Keyring((B,))] and load(a.path) == Keyring((B,))


def test_unknown_key_is_named(tmp_path: Path) -> None:
    a = host(tmp_path)
    for act in (a.desk.use, a.desk.remove):
        with pytest.raises(NotFoundError, match="no key 'x' here; there are 2026a"):
            act("x", "root", force=False)


def test_file_that_can_not_be_written_leaves_everything_as_it_was(tmp_path: Path) -> None:
    a = host(tmp_path)
    (tmp_path / "fleet.keys.new").mkdir()  # stands in the way, also for root
    with pytest.raises(RefusedError, match="can't be written"):
        a.desk.install("2026b", TWO.hex(), "root")
    assert a.used == [] and a.desk.keyring == Keyring((A,)) and load(a.path) == Keyring((A,))
