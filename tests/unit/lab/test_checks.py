"""Checks against prepared facts."""

from typing import Any

import pytest

from linkpass_lab.checks import Facts, evaluate, in_order
from linkpass_lab.scenario import Check
from linkpass_topology.fabric import grid


class FakeAgents:
    """Says what it was given."""

    def __init__(self, ports: list[Any] = [], events: list[Any] = []) -> None:  # noqa: B006
        self._ports, self._events = ports, events

    def ports(self, host: str) -> list[Any]:
        return self._ports

    def events(self, host: str) -> list[Any]:
        return self._events


def facts(agents: FakeAgents | None = None, **more: Any) -> Facts:
    lab: Any = type("Lab", (), {"fabric": grid(2, 2)})()
    given: Any = agents
    return Facts(lab, given, **more)


def ok(f: Facts, kind: str, **parameters: Any) -> bool:
    return evaluate(Check(kind, parameters), f).ok


def test_gap_counts_only_after_the_step() -> None:
    gaps = [{"ms": 500.0, "end": 1.0, "start": 0.5}, {"ms": 20.0, "end": 3.0, "start": 2.98}]
    f = facts(results={"s": {"gaps": gaps}}, times={"cut": 2.0})
    assert ok(f, "gap", traffic="s", after="cut", most_ms=20)
    assert not ok(f, "gap", traffic="s", after="cut", most_ms=19)
    assert not ok(f, "gap", traffic="s", most_ms=100)
    assert ok(f, "gap", traffic="s", least_ms=500)


def test_transfer_that_ended_with_an_error_did_not_hold() -> None:
    f = facts(results={"t": {"bytes": 10**9, "error": "control socket closed"}})
    assert not ok(f, "moved", traffic="t", least=1)


def test_port_is_found_by_the_rail_that_a_step_struck() -> None:
    agents = FakeAgents(
        ports=[{"rail": "rail0", "state": "up", "cause": ""}, {"rail": "rail1", "state": "held", "cause": "x"}]
    )
    f = facts(agents, rails={"cut": "rail1"})
    assert ok(f, "port", host="a", rail="cut", state=["held", "up"])
    assert ok(f, "port", host="a", rail="rail0", state="up")
    assert not ok(f, "port", host="a", rail="cut", state="up")
    assert not ok(f, "port", host="a", rail="rail7", state="up")


def test_route_changes_are_the_acts_after_the_step() -> None:
    agents = FakeAgents(
        events=[{"kind": k, "at": float(at)} for at, k in enumerate(("acted", "seen", "acted", "acted"))]
    )
    f = facts(agents, times={"cut": 0.5})
    assert ok(f, "route-changes", host="a", after="cut", least=2, most=2)
    assert not ok(f, "route-changes", host="a", most=2)


@pytest.mark.parametrize(
    ("seen", "wanted", "expected"),
    [
        (["seen", "verdict", "shared", "acted"], ["seen", "acted"], True),
        (["acted", "seen"], ["seen", "acted"], False),
        (["seen"], ["seen", "seen"], False),
        ([], [], True),
    ],
)
def test_order_is_that_of_a_subsequence(seen: list[str], wanted: list[str], expected: bool) -> None:
    assert in_order(seen, wanted) is expected


def test_check_unknown_or_short_of_a_parameter_does_not_hold_and_says_why() -> None:
    assert "no such check" in evaluate(Check("gapp", {}), facts()).text
    assert "needs 'traffic'" in evaluate(Check("gap", {}), facts()).text
    assert "runs none" in evaluate(Check("port", {"host": "a", "rail": "rail0", "state": "up"}), facts()).text


def test_exits_need_agents_that_all_ended_with_zero() -> None:
    assert ok(facts(exits={"a": 0, "b": 0}), "exits")
    assert not ok(facts(exits={"a": 0, "b": -9}), "exits")
    assert not ok(facts(), "exits")
