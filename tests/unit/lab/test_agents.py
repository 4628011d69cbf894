"""What the lab writes for agents and reads of the kernel, without any of either."""

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from linkpass import settings
from linkpass_lab.agents import Agents, kernel_hops, laid_over, toml
from linkpass_lab.lab import LabError
from linkpass_topology.fabric import grid


class FakeLab:
    """A lab that answers programs with prepared words."""

    kind = "guests"

    def __init__(self, folder: Path, said: str = "", code: int = 0) -> None:
        self.fabric = grid(3, 2)
        self.folder = folder
        self.said, self.code = said, code

    def port(self, host: str, rail: str) -> str:
        return f"{host}-{rail}"

    def local(self, host: str) -> Path:
        return self.folder / host

    def run(self, host: str, argv: list[str], **_: Any) -> Any:
        return SimpleNamespace(stdout=self.said, stderr="oh", returncode=self.code)


def agents(tmp_path: Path, config: dict[str, Any] | None = None, **said: Any) -> Agents:
    lab: Any = FakeLab(tmp_path, **said)
    return Agents(lab, config)


def test_configuration_written_is_one_that_an_agent_accepts(tmp_path: Path) -> None:
    made = agents(tmp_path, {"hold_down": {"first": 0.5}})
    made.write()
    read = settings.load(tmp_path / "b" / "linkpass.toml")
    assert read.host == "b"
    assert [(p.name, p.rail) for p in read.ports] == [("b-rail0", "rail0"), ("b-rail1", "rail1")]
    assert [str(s) for s in read.share.seeds] == ["10.99.0.1:7471", "10.99.0.3:7471"]
    assert str(read.share.listen) == "10.99.0.2:7471"
    assert read.routes.addresses == ("10.255.0.2",)
    assert read.hold_down.first == 0.5
    assert read.mode == "act"


def test_key_written_is_for_the_owner_alone_and_stays(tmp_path: Path) -> None:
    made = agents(tmp_path)
    made.write()
    key = tmp_path / "fleet.keys"
    before = key.read_text()
    made.write()
    assert key.read_text() == before
    assert key.stat().st_mode & 0o077 == 0
    name, secret = before.split()
    assert len(bytes.fromhex(secret)) == 32
    assert name


def test_table_laid_over_another_keeps_what_it_does_not_name() -> None:
    base = {"a": {"x": 1, "y": 2}, "b": 3}
    assert laid_over(base, {"a": {"y": 5}, "c": 6}) == {"a": {"x": 1, "y": 5}, "b": 3, "c": 6}
    assert base == {"a": {"x": 1, "y": 2}, "b": 3}


def test_toml_written_is_read_back_as_the_same() -> None:
    table = {
        "s": 'a "q" \\ b',
        "n": 1.5,
        "t": True,
        "l": ["x"],
        "e": [],
        "d": {"k": 1, "u": {"v": 2}},
        "p": [{"q": 1}],
    }
    assert tomllib.loads(toml(table)) == table


def test_answer_that_is_no_json_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="status on a: exit 0: oh"):
        agents(tmp_path, said="hello").ask("a", "status")


def test_answer_of_an_unreachable_agent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="exit 3"):
        agents(tmp_path, said="[]", code=3).ports("a")


def test_answer_of_a_degraded_host_is_an_answer(tmp_path: Path) -> None:
    assert agents(tmp_path, said='[{"name": "x"}]', code=1).ports("a") == [{"name": "x"}]


@pytest.mark.parametrize(
    ("routes", "devices"),
    [
        ([], []),
        ([{"dev": "r0", "metric": 50}], ["r0"]),
        ([{"dev": "r0", "metric": 1024}, {"dev": "r1", "metric": 50}], ["r1"]),
        ([{"metric": 50, "nexthops": [{"dev": "r1", "flags": []}, {"dev": "r0", "flags": []}]}], ["r0", "r1"]),
        ([{"nexthops": [{"dev": "r1", "flags": ["dead", "linkdown"]}, {"dev": "r0"}]}], ["r0"]),
        ([{"type": "unreachable", "metric": 1}], []),
    ],
)
def test_hops_are_those_of_the_best_route(tmp_path: Path, routes: list[Any], devices: list[str]) -> None:
    lab: Any = FakeLab(tmp_path, said=json.dumps(routes))
    assert kernel_hops(lab, "a", "10.255.0.2") == devices
