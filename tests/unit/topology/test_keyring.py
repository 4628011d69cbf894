"""Keyring files: what is refused, naming file and line, without ever showing a secret."""

from pathlib import Path

import pytest

from linkpass.errors import ConfigError
from linkpass_topology.gossip import keyring

HEX = bytes(range(32)).hex()
HEX2 = bytes(range(32, 64)).hex()


def write(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "fleet.keys"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_load_keeps_order_and_skips_comments(tmp_path: Path) -> None:
    ring = keyring.load(write(tmp_path, f"# fleet\n\n2026b {HEX2}\n  2026a   {HEX.upper()} \n"))
    assert [k.id for k in ring.keys] == ["2026b", "2026a"]
    assert ring.sending.secret == bytes(range(32, 64))
    assert ring.find("2026a") == keyring.Key("2026a", bytes(range(32))) and ring.find("x") is None


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (f"a {HEX}\nb\n", 2, "KEYID HEX"),
        (f"a {HEX} extra\n", 1, "KEYID HEX"),
        (f"a!b {HEX}\n", 1, "name"),
        (f"{'k' * 17} {HEX}\n", 1, "name"),
        (f"a {HEX[:-1]}\n", 1, "64 hexadecimal"),
        (f"a {HEX}00\n", 1, "64 hexadecimal"),
        (f"a {'zz' * 32}\n", 1, "64 hexadecimal"),
        (f"a {HEX}\n# x\na {HEX2}\n", 3, "twice"),
        (f"a {'00' * 32}\n", 1, "random"),
        ("# nothing\n", 0, "holds no key"),
        ("", 0, "holds no key"),
        ("".join(f"k{i} {HEX}\n" for i in range(17)), 17, "more than 16"),
        ("x" * 70_000, 0, "larger than"),
    ],
)
def test_load_bad_file_names_file_and_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=problem) as e:
        keyring.load(path)
    assert (e.value.path, e.value.line) == (path, line)
    assert HEX not in str(e.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644])
def test_load_file_open_to_others_is_refused_with_remedy(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path, f"a {HEX}\n", mode)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        keyring.load(path)


def test_load_missing_or_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        keyring.load(tmp_path / "none")
    with pytest.raises(ConfigError):
        keyring.load(tmp_path)


def test_generated_line_loads(tmp_path: Path) -> None:
    ring = keyring.load(write(tmp_path, keyring.generate_line("new") + "\n"))
    assert ring.sending.id == "new"
    assert keyring.generate_line("k", lambda n: bytes(range(n))) == f"k {HEX}"
    with pytest.raises(ValueError, match="name"):
        keyring.generate_line("not a name")


def test_key_does_not_show_its_secret() -> None:
    assert repr(keyring.Key("a", bytes(range(32)))) == "Key(id='a')"
