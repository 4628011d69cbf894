"""Scenario files: what they mean, and how errors are told."""

from pathlib import Path

import pytest

from linkpass.errors import ConfigError, NotFoundError
from linkpass_lab import checks, scenario, traffic
from linkpass_lab.scenario import Check, Step

GOOD = """
title = "t"
fabric = "2x2"
agents.config.probe.period = 0.1
[[traffic]]
name = "s"
kind = "udpstream"
source = "a"
target = "b"
rate = 100
[[step]]
name = "cut"
wait = 0.5
fault = { kind = "carrier", host = "b", rail = "in-use:s" }
[[step]]
until = { check = "port", host = "b", rail = "cut", state = "down" }
within = 3
[[step]]
repair = "cut"
[[hold]]
check = "gap"
traffic = "s"
most_ms = 10
"""


def load(tmp_path: Path, text: str) -> scenario.Scenario:
    (tmp_path / "scenario.toml").write_text(text)
    return scenario.load(tmp_path)


def test_scenario_loaded_holds_steps_in_their_order(tmp_path: Path) -> None:
    made = load(tmp_path, GOOD)
    assert made.name == tmp_path.name
    assert made.agents
    assert made.config == {"probe": {"period": 0.1}}
    assert made.traffic[0].parameters == {"rate": 100}
    assert made.steps == (
        Step("cut", wait=0.5, fault={"kind": "carrier", "host": "b", "rail": "in-use:s"}),
        Step("step1", until=Check("port", {"host": "b", "rail": "cut", "state": "down"}), within=3.0),
        Step("step2", repair="cut"),
    )
    assert made.holds == (Check("gap", {"traffic": "s", "most_ms": 10}),)


@pytest.mark.parametrize(
    ("old", "new", "key", "problem"),
    [
        ('title = "t"', "", "title", "missing"),
        ('title = "t"', 'title = "t"\ncolour = 1', "colour", "unknown key"),
        ('fabric = "2x2"', 'fabric = "9x9"', "fabric", "no fabric '9x9'"),
        ('source = "a"', 'source = "z"', "traffic[0].source", "no host 'z'"),
        ("wait = 0.5", "wait = -1", "step[0].wait", "between 0 and 600"),
        ('kind = "carrier"', 'kind = "carier"', "step[0].fault", "not a kind of fault"),
        ('repair = "cut"', 'repair = "cat"', "step[2].repair", "no earlier step"),
        ('repair = "cut"', 'name = "x"', "step[2]", "exactly one of"),
        ('repair = "cut"', 'repair = "cut"\nname = "cut"', "step[2].name", "used twice"),
        ('repair = "cut"', 'agent = { host = "a", do = "sing" }', "step[2].agent.do", "start, stop or kill"),
        ('repair = "cut"', 'run = { host = "a", argv = "ls" }', "step[2].run.argv", "list of words"),
        ('repair = "cut"', 'repair = "cut"\nextra = 1', "step[2].extra", "unknown key"),
        ("within = 3", 'within = "long"', "step[1].within", "not a time"),
        ("agents.config.probe.period = 0.1", 'agents.run = "yes"', "agents.run", "true or false"),
        ('check = "gap"', "", "hold[0].check", "missing"),
    ],
)
def test_scenario_misspelt_names_file_key_and_problem(
    tmp_path: Path, old: str, new: str, key: str, problem: str
) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert caught.value.path == tmp_path / "scenario.toml"
    assert caught.value.key == key
    assert problem in str(caught.value)


def test_scenario_with_broken_toml_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, 'title = "t"\nfabric = \n')
    assert caught.value.line == 2


def test_scenario_unknown_lists_those_there_are() -> None:
    with pytest.raises(NotFoundError, match="far-carrier"):
        scenario.find("no-such")


@pytest.mark.parametrize("name", scenario.names())
def test_every_scenario_loads_and_asks_for_what_exists(name: str) -> None:
    made = scenario.find(name)
    assert made.why
    assert made.holds
    assert {t.kind for t in made.traffic} <= set(traffic.KINDS)
    asked = [*made.holds, *(s.until for s in made.steps if s.until)]
    assert {c.kind for c in asked} <= set(checks.CHECKS)
    flows = {t.name for t in made.traffic}
    assert {c.parameters["traffic"] for c in asked if "traffic" in c.parameters} <= flows
    steps = {s.name for s in made.steps}
    assert {c.parameters["after"] for c in asked if "after" in c.parameters} <= steps
