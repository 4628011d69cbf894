"""What an agent reads off the fabric's file."""

from pathlib import Path

import pytest

from linkpass.errors import ConfigError
from linkpass.settings import Settings, parse
from linkpass_agent.from_fabric import fill
from linkpass_topology.fabric import dump, grid

OWN = {"10.10.0.2": "ens1", "10.11.0.2": "ens2", "10.99.0.2": "eno1", "127.0.0.1": "lo"}


@pytest.fixture
def fabric(tmp_path: Path) -> Path:
    file = tmp_path / "fabric.toml"
    file.write_text(dump(grid(3, 2)))
    return file


def config(text: str, tmp_path: Path) -> Settings:
    return parse(text, tmp_path / "linkpass.toml", lambda data, path: fill(data, path, lambda: OWN))


def test_fabric_file_gives_ports_management_seeds_and_addresses(fabric: Path, tmp_path: Path) -> None:
    settings = config(f'host = "b"\nfabric = "{fabric}"\n[share]\nkeyring = "/etc/k"\n', tmp_path)
    assert [(p.name, p.rail) for p in settings.ports] == [("ens1", "rail0"), ("ens2", "rail1")]
    assert str(settings.share.listen) == "10.99.0.2:7471"
    assert [str(s) for s in settings.share.seeds] == ["10.99.0.1:7471", "10.99.0.3:7471"]
    assert settings.routes.addresses == ("10.255.0.2",)


def test_own_words_win_over_the_fabric(fabric: Path, tmp_path: Path) -> None:
    settings = config(
        f'host = "b"\nfabric = "{fabric}"\n[[port]]\nname = "x0"\nrail = "rail0"\n'
        '[share]\nkeyring = "/etc/k"\nlisten = "10.99.0.2:9"\n[routes]\naddresses = []\n',
        tmp_path,
    )
    assert [p.name for p in settings.ports] == ["x0"]
    assert settings.share.listen.port == 9
    assert settings.routes.addresses == ()


def test_missing_rail_address_leaves_that_port_out(fabric: Path, tmp_path: Path) -> None:
    data = fill({"host": "b", "fabric": str(fabric)}, tmp_path / "c", lambda: {"10.11.0.2": "ens2"})
    assert data["port"] == [{"name": "ens2", "rail": "rail1"}]


@pytest.mark.parametrize(
    ("host", "own", "key", "words"),
    [
        ("z", OWN, "host", "it has a, b, c"),
        ("b", {}, "fabric", "10.10.0.2 on rail0, 10.11.0.2 on rail1"),
    ],
)
def test_fabric_that_does_not_fit_is_refused(
    fabric: Path, tmp_path: Path, host: str, own: dict[str, str], key: str, words: str
) -> None:
    with pytest.raises(ConfigError) as e:
        fill({"host": host, "fabric": str(fabric)}, tmp_path / "c", lambda: own)
    assert e.value.key == key
    assert words in str(e.value)


def test_without_a_fabric_nothing_is_filled_in(tmp_path: Path) -> None:
    assert fill({"host": "b"}, tmp_path / "c", dict) == {"host": "b"}
