"""Limits on own choice: nobody empties a rail, everybody comes to the same end, and nothing swings."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass.model import EventKind, HostRecord, Observation, PortRecord, PortState, Signal, Verdict
from linkpass_agent.decide.limits import YOUNG, Limits, Out, keep_in_use
from tests.unit.agent.test_alarms import Watch

S = PortState
BARRED = Verdict(S.HELD, 0.0, "rule x")


def record(host: str, *states: PortState) -> HostRecord:
    return HostRecord(
        host, 1, 1, (), tuple(PortRecord(f"p{n}", f"rail{n}", state, "") for n, state in enumerate(states))
    )


def hold(held: int, up: int, *, dead: int = 0, limits: Limits | None = None) -> dict[str, str]:
    """What host `me` may do with its rail0 barred, among others of whom `held` hold theirs, of 8 rails."""
    states = [S.HELD] * held + [S.UP] * up + [S.DOWN] * dead
    peers = {f"h{n}": record(f"h{n}", state) for n, state in enumerate(states)}
    return keep_in_use("me", {"p0": Out("rail0", BARRED)}, 8, peers, limits or Limits(), 100.0)


def test_port_may_be_held_while_few_others_are() -> None:
    assert hold(0, 19) == {}
    assert hold(0, 1) == {}  # one at least, also of two


def test_port_stays_in_use_when_enough_others_that_come_first_are_held() -> None:
    assert hold(199, 0) == {"p0": "no more than 50 of 200 hosts may hold their port on rail0"}


def test_dead_ports_dont_count_as_own_choice() -> None:
    assert hold(0, 3, dead=96) == {}


def test_half_of_a_hosts_ports_may_be_held_those_that_were_first() -> None:
    out = {f"p{n}": Out(f"rail{n}", replace(BARRED, since=float(n))) for n in range(3)}
    assert list(keep_in_use("me", out, 4, {}, Limits(), 100.0)) == ["p2"]
    assert keep_in_use("me", {"p0": out["p0"]}, 1, {}, Limits(), 100.0) == {
        "p0": "no more than 0 of this host's 1 ports may be held"
    }


def test_young_hold_downs_are_no_exclusion_and_old_ones_are() -> None:
    out = {"p0": Out("rail0", Verdict(S.HELD, 100.0, "hold-down", held_until=400.0))}
    assert keep_in_use("me", out, 1, {}, Limits(), 100.0 + YOUNG - 0.1) == {}
    assert list(keep_in_use("me", out, 1, {}, Limits(), 100.0 + YOUNG)) == ["p0"]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
@given(wish=st.sets(st.integers(0, 39)), order=st.randoms(use_true_random=False))
def test_whoever_wants_out_in_whatever_order_the_limit_holds_in_the_end_and_nothing_swings(
    share: float, wish: set[int], order: "object"
) -> None:
    limits, hosts = Limits(host=1.0, rail=share), [f"h{n}" for n in range(40)]
    view = {h: record(h, S.HELD if int(h[1:]) in wish else S.UP) for h in hosts}
    turns = 0
    for _ in range(10):
        before = dict(view)
        order.shuffle(hosts)  # type: ignore[attr-defined]
        for h in hosts:
            if int(h[1:]) in wish:
                peers = {name: r for name, r in view.items() if name != h}
                kept = keep_in_use(h, {"p0": Out("rail0", BARRED)}, 8, peers, limits, 100.0)
                view[h] = record(h, S.SUSPECT if kept else S.HELD)
        if view == before:
            break
        turns += 1
    assert turns <= 1, "one round settles it"
    held = sum(r.ports[0].state is S.HELD for r in view.values())
    assert held == min(len(wish), max(1, int(share * 40)) if wish else 0)


# -- in the agent ------------------------------------------------------------------------------------------------


def test_agent_shares_and_tells_that_a_limit_keeps_its_port_in_use() -> None:
    watch = Watch("p", "q")
    for n in range(3):
        watch.reactor.learned(record(f"h{n}", S.UP, S.UP))
    bar = Observation(watch.clock.now(), "rules", "p", Signal.RULES, "down", "receive-errors: grew")
    watch.reactor.observe([bar])
    assert watch.reactor.record.ports[0].state is S.HELD
    watch.reactor.observe([replace(bar, port="q")])
    q = watch.reactor.record.ports[1]
    assert q.state is S.SUSPECT and "no more than 1 of this host's 2 ports" in q.cause
    assert [e.subject for e in watch.told if e.kind is EventKind.REFUSED] == ["q"]
    assert any("q is not held" in r for r in watch.reactor.plan().refused)
    watch.reactor.observe([replace(bar, value="ok", detail="")])
    watch.run(5)
    assert watch.reactor.record.ports[0].state is S.UP
    assert watch.reactor.record.ports[1].state is S.HELD
    assert [e.text for e in watch.told if e.kind is EventKind.REFUSED][-1] == "q may be held again"
