"""The two files: what the ledger and the memory make of whole, torn and foreign contents."""

import json
from pathlib import Path

import pytest

from linkpass_agent.act.ledger import Ledger, Made
from linkpass_agent.memory import Drained, Memory, State, boot_id, next_incarnation

MADE = Made({("a-rail0", "10.10.0.2"): 7, ("a-rail1", "fd11::2"): 8}, {"10.255.0.2": 9})
REMEMBERED = State(5, "boot", {"a-rail0": Drained("optic", "root", 12.5)})

DAMAGES = {
    "empty": b"",
    "torn": b'{"schema": 1, "nexthops": [{"dev',
    "not JSON": b"hello",
    "not text": b"\xff\xfe\x00garbage\x80",
    "zeros after a crash": b"\0" * 4096,
    "a list": b"[]",
    "null": b"null",
    "a number": b"17",
    "no schema": b"{}",
    "a later schema": b'{"schema": 999}',
    "wrong types": b'{"schema": 1, "nexthops": 3, "groups": 4, "incarnation": [], "boot_id": 1, "drains": 7}',
    "wrong entries": b'{"schema": 1, "nexthops": [1], "groups": {"x": null}, "incarnation": 1, "boot_id": "",'
    b' "drains": {"p": 4}}',
    "infinite": b'{"schema": 1, "nexthops": [], "groups": {"x": 1e999}, "incarnation": 1e999, "boot_id": "",'
    b' "drains": {}}',
    "too deep": b"[" * 200_000,
}


@pytest.fixture(params=list(DAMAGES))
def damage(request: pytest.FixtureRequest) -> bytes:
    return DAMAGES[request.param]


# -- ledger ------------------------------------------------------------------------------------------------------


def test_ledger_reads_back_what_it_saved(tmp_path: Path) -> None:
    Ledger(tmp_path / "l.json").save(MADE)
    assert Ledger(tmp_path / "l.json").load() == (MADE, "")


def test_ledger_that_is_missing_is_empty_without_complaint(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "l.json").load() == (Made(), "")


def test_ledger_that_is_damaged_is_set_aside_and_complained_of(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "l.json"
    file.write_bytes(damage)
    made, complaint = Ledger(file).load()
    assert made == Made()
    assert str(file) in complaint
    assert "l.bad" in complaint
    assert not file.exists()
    assert (tmp_path / "l.bad").read_bytes() == damage


def test_ledger_cut_short_anywhere_is_never_believed_in_part(tmp_path: Path) -> None:
    file = tmp_path / "l.json"
    Ledger(file).save(MADE)
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        made, complaint = Ledger(file).load()
        assert (made, bool(complaint)) == (Made(), True)


def test_ledger_that_cannot_be_read_is_empty_with_a_complaint(tmp_path: Path) -> None:
    (tmp_path / "l.json").mkdir()
    made, complaint = Ledger(tmp_path / "l.json").load()
    assert made == Made()
    assert "l.json" in complaint


def test_ledger_writes_only_changes_and_leaves_no_other_file(tmp_path: Path) -> None:
    file = tmp_path / "l.json"
    ledger = Ledger(file)
    ledger.save(MADE)
    file.write_text("untouched")
    ledger.save(MADE)
    assert file.read_text() == "untouched"
    ledger.save(Made())
    assert json.loads(file.read_text())["groups"] == {}
    assert [p.name for p in tmp_path.iterdir()] == ["l.json"]


def test_ledger_removed_is_written_anew_when_something_is_made_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.json")
    ledger.save(MADE)
    ledger.remove()
    ledger.remove()
    assert list(tmp_path.iterdir()) == []
    ledger.save(MADE)
    assert ledger.load() == (MADE, "")


# -- memory ------------------------------------------------------------------------------------------------------


def test_memory_reads_back_what_it_saved(tmp_path: Path) -> None:
    Memory(tmp_path).save(REMEMBERED)
    assert Memory(tmp_path).load() == (REMEMBERED, "")
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_memory_that_is_missing_is_empty_without_complaint(tmp_path: Path) -> None:
    assert Memory(tmp_path).load() == (State(), "")


def test_memory_that_is_damaged_is_set_aside_and_says_that_drains_are_lost(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "state.json").write_bytes(damage)
    state, complaint = Memory(tmp_path).load()
    assert state == State()
    assert "drains are lost" in complaint
    assert (tmp_path / "state.json.corrupt-1").read_bytes() == damage
    Memory(tmp_path).save(REMEMBERED)
    assert Memory(tmp_path).load() == (REMEMBERED, "")


def test_memory_cut_short_anywhere_is_never_believed_in_part(tmp_path: Path) -> None:
    Memory(tmp_path).save(REMEMBERED)
    whole = (tmp_path / "state.json").read_bytes()
    for length in range(len(whole) - 1):  # the last byte is the newline
        (tmp_path / "state.json").write_bytes(whole[:length])
        state, complaint = Memory(tmp_path).load()
        assert (state, bool(complaint)) == (State(), True)


def test_half_written_new_file_of_a_crash_is_ignored_and_overwritten(tmp_path: Path) -> None:
    Memory(tmp_path).save(REMEMBERED)
    (tmp_path / "state.json.new").write_text("{")
    assert Memory(tmp_path).load() == (REMEMBERED, "")
    Memory(tmp_path).save(State())
    assert Memory(tmp_path).load() == (State(), "")


def test_incarnation_is_the_time_in_seconds_or_one_more_than_the_last() -> None:
    assert next_incarnation(State(5), 1000.7) == 1000
    assert next_incarnation(State(5000), 1000.7) == 5001
    assert next_incarnation(State(1000), 1000.7) == 1001  # two starts within a second
    assert next_incarnation(State(), 0.0) == 1


def test_boot_id_is_that_of_the_kernel() -> None:
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
