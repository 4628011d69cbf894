"""One port's state machine, move by move."""

from dataclasses import replace

import pytest

from linkpass.model import Observation, PortState, Signal, Value
from linkpass_agent.judge.holddown import HoldDownRule, Past
from linkpass_agent.judge.port import MOVES, UNUSABLE_OPERSTATES, Port

S = PortState
RULE = HoldDownRule(first=1.0, maximum=300.0, decay=10.0)


def see(port: Port, at: float, **facts: Value | None) -> Port:
    for name, value in facts.items():
        port = port.observe(Observation(at, "test", "p", Signal(name), value))
    return port


def up(at: float = 10.0) -> Port:
    return see(Port(RULE), at, present=True, admin=True, carrier=True)


def down(at: float = 20.0) -> Port:
    return see(up(), at, carrier=False)


def doubt(port: Port, at: float, says: str, text: str = "symbol-errors: grew") -> Port:
    return port.observe(Observation(at, "rules", "p", Signal.RULES, says, text))


def suspect(at: float = 30.0) -> Port:
    return doubt(up(), at, "suspect")


def held(at: float = 21.0) -> Port:
    return see(down(), at, carrier=True)


def absent(at: float = 20.0) -> Port:
    return see(up(), at, present=False)


REACHED = {
    (S.UNKNOWN, S.UP): lambda: (Port(RULE), up()),
    (S.UNKNOWN, S.DOWN): lambda: (Port(RULE), see(Port(RULE), 10.0, carrier=False)),
    (S.UNKNOWN, S.ABSENT): lambda: (Port(RULE), see(Port(RULE), 10.0, present=False)),
    (S.UNKNOWN, S.HELD): lambda: (
        (waiting := Port(RULE).recall(Past(4.0, owes=3.0), 5.0)),
        see(waiting, 10.0, present=True, admin=True, carrier=True),
    ),
    (S.UP, S.DOWN): lambda: (up(), down()),
    (S.UP, S.ABSENT): lambda: (up(), absent()),
    (S.UP, S.UNKNOWN): lambda: (up(), see(up(), 20.0, carrier=None)),
    (S.UP, S.HELD): lambda: (up().drain("x", 11.0), up().drain("x", 11.0).undrain(12.0)),
    (S.DOWN, S.HELD): lambda: (down(), held()),
    (S.DOWN, S.ABSENT): lambda: (down(), see(down(), 22.0, present=False)),
    (S.HELD, S.UP): lambda: (held(), held().tick(22.0)),
    (S.HELD, S.DOWN): lambda: (held(), see(held(), 21.5, carrier=False)),
    (S.HELD, S.ABSENT): lambda: (held(), see(held(), 21.5, present=False)),
    (S.UNKNOWN, S.SUSPECT): lambda: (
        (blind := doubt(Port(RULE), 5.0, "suspect")),
        see(blind, 10.0, present=True, admin=True, carrier=True),
    ),
    (S.UP, S.SUSPECT): lambda: (up(), suspect()),
    (S.SUSPECT, S.UP): lambda: (suspect(), doubt(suspect(), 31.0, "ok", "")),
    (S.SUSPECT, S.DOWN): lambda: (suspect(), see(suspect(), 31.0, carrier=False)),
    (S.SUSPECT, S.ABSENT): lambda: (suspect(), see(suspect(), 31.0, present=False)),
    (S.SUSPECT, S.UNKNOWN): lambda: (suspect(), see(suspect(), 31.0, carrier=None)),
    (S.SUSPECT, S.HELD): lambda: (suspect(), suspect().drain("x", 31.0).undrain(32.0)),
    (S.HELD, S.SUSPECT): lambda: (
        (waiting := doubt(held(21.0), 21.5, "suspect")),
        waiting.tick(22.0),
    ),
    (S.ABSENT, S.DOWN): lambda: (absent(), see(absent(), 22.0, present=True, admin=False)),
    (S.ABSENT, S.HELD): lambda: (absent(), see(absent(), 22.0, present=True, admin=True, carrier=True)),
}


def test_moves_has_a_row_for_every_state_of_the_link_and_no_more() -> None:
    assert set(MOVES) == set(S) - {S.DRAINED}
    assert {(a, b) for a, row in MOVES.items() for b in row} == set(REACHED)


@pytest.mark.parametrize(("move"), list(REACHED), ids=lambda m: f"{m[0]}-{m[1]}")
def test_port_makes_every_move_of_the_table(move: tuple[PortState, PortState]) -> None:
    before, after = REACHED[move]()
    assert (before.state, after.state) == move


@pytest.mark.parametrize("state", list(MOVES))
def test_port_refuses_a_move_that_is_not_in_the_table(state: PortState) -> None:
    for to in set(S) - MOVES[state]:
        with pytest.raises(AssertionError, match=f"no move from {state} to {to}"):
            replace(Port(RULE), state=state)._move(to, 1.0, "test")


def test_port_first_seen_up_is_trusted_at_once() -> None:
    assert (up().state, up().flaps, up().held_until) == (S.UP, 0, None)


def test_port_first_seen_down_counts_no_flap_but_serves_a_hold_down() -> None:
    port = see(Port(RULE), 10.0, carrier=False)
    assert (port.state, port.flaps, port.last_flap) == (S.DOWN, 0, None)
    port = see(port, 50.0, carrier=True)
    assert (port.state, port.held_until) == (S.HELD, 51.0)


def test_carrier_lost_is_believed_at_once_with_its_source() -> None:
    port = up().observe(Observation(20.0, "carrier", "p", Signal.CARRIER, False, "poll"))
    assert (port.state, port.since, port.flaps, port.last_flap) == (S.DOWN, 20.0, 1, 20.0)
    assert port.cause == "carrier lost (carrier: poll)"


def test_carrier_back_is_held_for_the_hold_down_exactly() -> None:
    port = held(21.0)
    assert (port.state, port.held_until, port.wakes_at) == (S.HELD, 22.0, 22.0)
    assert port.tick(21.999) is port
    assert (port.tick(22.0).state, port.tick(22.0).wakes_at) == (S.UP, None)


def test_hold_down_doubles_with_each_fall_while_held() -> None:
    port, now, waits = up(), 20.0, []
    for _ in range(4):
        port = see(port, now, carrier=False)
        port = see(port, now + 0.1, carrier=True)
        waits.append(round(port.held_until - now - 0.1, 9) if port.held_until else None)
        now += 0.2
    assert waits == [1.0, 2.0, 4.0, 8.0]
    assert port.flaps == 4


def test_same_fact_again_changes_nothing() -> None:
    port = held()
    assert see(port, 21.5, carrier=True) is port


@pytest.mark.parametrize("operstate", sorted(UNUSABLE_OPERSTATES))
def test_operstate_that_carries_nothing_is_down_in_spite_of_carrier(operstate: str) -> None:
    port = see(up(), 20.0, operstate=operstate)
    assert (port.state, port.cause) == (S.DOWN, f"operstate {operstate} (test)")
    assert see(port, 21.0, operstate="up").state == S.HELD


@pytest.mark.parametrize("operstate", ["up", "unknown", "down"])
def test_operstate_that_says_less_than_carrier_is_not_believed(operstate: str) -> None:
    assert see(up(), 20.0, operstate=operstate).state == S.UP


def test_admin_down_is_down_and_names_it() -> None:
    port = see(up(), 20.0, admin=False, carrier=None)
    assert (port.state, port.cause) == (S.DOWN, "administratively down (test)")
    assert see(port, 21.0, admin=True).state == S.DOWN  # carrier isn't known yet
    assert see(port, 21.0, admin=True, carrier=True).state == S.HELD


def test_unobservable_carrier_of_an_up_port_is_unknown_and_counts_no_flap() -> None:
    port = see(up(), 20.0, carrier=None)
    assert (port.state, port.flaps) == (S.UNKNOWN, 0)
    assert see(port, 21.0, carrier=True).state == S.UP


@pytest.mark.parametrize("signal", list(Signal))
def test_unobservable_fact_never_takes_a_port_down_nor_shortens_its_hold_down(signal: Signal) -> None:
    for port in (up(), down(), held()):
        after = port.observe(Observation(21.1, "test", "p", signal, None))
        assert after.state == port.state or (port.state, after.state) == (S.UP, S.UNKNOWN)
        assert (after.held_until, after.flaps, after.hold) == (port.held_until, port.flaps, port.hold)


@pytest.mark.parametrize("signal", [s for s in Signal if s != Signal.CARRIER])
def test_fact_that_is_unobservable_keeps_its_last_value(signal: Signal) -> None:
    port = see(up(), 11.0, operstate="dormant", addresses=("10.0.0.1",), mtu=9000)
    assert port.observe(Observation(12.0, "test", "p", signal, None)) is port  # and so it isn't better either


def test_blindness_hides_no_fall() -> None:
    port = see(up(), 20.0, carrier=None)
    port = see(port, 21.0, carrier=False)
    assert (port.state, port.flaps) == (S.DOWN, 1)


def test_down_port_that_disappears_and_returns_down_costs_one_fall() -> None:
    port = see(down(), 22.0, present=False)
    port = see(port, 23.0, present=True, admin=True, carrier=False)
    assert (port.state, port.flaps, port.hold.length) == (S.DOWN, 1, 1.0)


def test_device_that_returns_is_judged_by_its_new_facts_only() -> None:
    # A device is deleted while up, and one of the same name is made: administratively down at first.
    port = see(absent(), 30.0, present=True)
    assert port.state == S.ABSENT  # the carrier of the old device says nothing of the new one
    port = see(port, 30.0, admin=False, carrier=None)
    assert (port.state, port.flaps, port.hold.length) == (S.DOWN, 1, 1.0)


def test_device_that_is_gone_has_no_addresses() -> None:
    port = see(up(), 11.0, addresses=("10.0.0.1",), mtu=9000)
    assert see(port, 20.0, present=False).facts == {Signal.PRESENT: False}


# -- drains ------------------------------------------------------------------------------------------------------


def test_drain_lies_over_a_working_link() -> None:
    port = up().drain("optic", 30.0)
    verdict = port.verdict
    assert (verdict.state, verdict.since, verdict.cause) == (S.DRAINED, 30.0, "drained: optic")
    assert port.state == S.UP


@pytest.mark.parametrize(("make", "shown"), [(down, S.DOWN), (absent, S.ABSENT)])
def test_drained_port_whose_link_fails_shows_both(make: object, shown: PortState) -> None:
    verdict = make().drain("optic", 30.0).verdict  # type: ignore[operator]
    assert verdict.state == shown
    assert "drained: optic" in verdict.cause
    assert verdict.cause.split(";")[0] in ("carrier lost (test)", "the device is gone (test)")


def test_drain_does_not_stop_the_link_machine() -> None:
    port = held(21.0).drain("optic", 21.2).tick(22.0)
    assert (port.state, port.verdict.state) == (S.UP, S.DRAINED)


def test_undrain_re_admits_at_the_first_price() -> None:
    port = up().drain("optic", 30.0).undrain(40.0)
    assert (port.verdict.state, port.held_until, port.drained) == (S.HELD, 41.0, None)
    assert (port.tick(40.9).state, port.tick(41.0).state) == (S.HELD, S.UP)


def test_undrain_counts_no_flap_and_leaves_the_price_of_the_next_fall() -> None:
    port = up().drain("optic", 30.0).undrain(40.0).tick(41.0)
    assert port.flaps == 0
    assert see(port, 42.0, carrier=False).hold.length == 1.0


def test_drain_and_undrain_shorten_no_hold_down() -> None:
    port = held(21.0)
    port = see(see(port, 21.1, carrier=False), 21.2, carrier=True)  # 2 s, until 23.2
    assert port.drain("x", 21.3).undrain(21.4).held_until == 23.2


@pytest.mark.parametrize("make", [down, absent, lambda: Port(RULE)])
def test_undrain_of_a_link_that_is_not_up_leaves_its_state(make: object) -> None:
    port = make()  # type: ignore[operator]
    assert port.drain("x", 30.0).undrain(31.0).state == port.state


def test_verdict_shows_the_hold_down_only_while_the_link_works() -> None:
    assert held(21.0).verdict.held_until == 22.0
    assert see(held(21.0), 21.5, carrier=False).verdict.held_until is None


def test_working_port_that_a_rule_doubts_is_suspect_with_the_rule_as_cause_and_up_again_after_it() -> None:
    port = doubt(up(), 30.0, "suspect")
    assert (port.state, port.since, port.cause) == (S.SUSPECT, 30.0, "rule symbol-errors: grew")
    assert port.flaps == 0
    port = doubt(port, 40.0, "ok", "")
    assert (port.state, port.since) == (S.UP, 40.0)


def test_port_that_a_rule_calls_down_is_held_while_it_does_and_for_a_hold_down_then() -> None:
    port = doubt(up(), 30.0, "down")
    assert (port.state, port.cause, port.held_until, port.flaps) == (S.HELD, "rule symbol-errors: grew", None, 0)
    assert port.tick(10_000.0) is port
    port = doubt(port, 40.0, "ok", "")
    assert (port.state, port.held_until, port.since) == (S.HELD, 41.0, 40.0)
    assert port.tick(41.0).state == S.UP


def test_port_that_comes_back_while_a_rule_bars_it_is_held_by_the_rule() -> None:
    port = doubt(down(), 21.0, "down")
    assert port.state == S.DOWN
    port = see(port, 22.0, carrier=True)
    assert (port.state, port.held_until, port.cause) == (S.HELD, None, "rule symbol-errors: grew")
    assert see(port, 23.0, carrier=False).state == S.DOWN


def test_rule_that_comes_and_goes_costs_more_each_time() -> None:
    port, now = up(), 30.0
    for length in (1.0, 2.0, 4.0):
        port = doubt(doubt(port, now, "down"), now + 1.0, "ok", "")
        assert port.held_until == now + 1.0 + length
        now = port.held_until
        port = port.tick(now)


def test_held_port_that_a_limit_keeps_in_use_is_suspect_until_the_limit_or_the_hold_is_gone() -> None:
    port = doubt(up(), 30.0, "down").keep("no more than 1 of 4")
    assert port.state == S.HELD
    verdict = port.verdict
    assert (verdict.state, verdict.held_until) == (S.SUSPECT, None)
    assert verdict.cause == "kept in use: no more than 1 of 4; else held: rule symbol-errors: grew"
    assert port.keep("").verdict.state == S.HELD
    assert port.drain("optic", 31.0).verdict.state == S.DRAINED
    fallen = see(port, 32.0, carrier=False)
    assert (fallen.verdict.state, fallen.kept) == (S.DOWN, "")


def test_held_port_that_a_rule_doubts_ends_its_hold_down_as_suspect() -> None:
    port = doubt(held(21.0), 21.5, "suspect")
    assert port.state == S.HELD
    port = port.tick(22.0)
    assert port.state == S.SUSPECT
    assert port.cause.endswith("rule symbol-errors: grew")


def test_suspect_port_whose_carrier_goes_is_down_at_once() -> None:
    assert see(doubt(up(), 30.0, "suspect"), 31.0, carrier=False).state == S.DOWN


def test_rules_alone_do_not_make_a_port_whose_carrier_is_unknown_usable() -> None:
    assert doubt(Port(RULE), 30.0, "ok", "").state == S.UNKNOWN


# -- over a restart of the agent ---------------------------------------------------------------------------------


def restarted(port: Port, at: float, now: float) -> Port:
    """Another agent's first sight, with what the one before remembered at `at`."""
    return Port(RULE).recall(port.past(at), now)


def test_restart_while_held_serves_the_rest_of_the_hold_down() -> None:
    before = held(21.0)  # until 22.0
    after = see(restarted(before, 21.25, 500.0), 500.0, carrier=True)
    assert after.state is S.HELD and after.held_until == pytest.approx(500.75)
    assert "before the agent's restart" in after.cause
    assert after.tick(501.0).state is S.UP


def test_restart_while_down_serves_the_whole_hold_down_when_the_port_is_back() -> None:
    after = see(restarted(down(), 20.5, 30.0), 30.0, carrier=True)
    assert after.state is S.HELD and after.held_until == pytest.approx(30.0 + down().hold.length)


def test_restart_while_down_and_still_down_is_no_new_fall() -> None:
    after = see(restarted(down(), 20.5, 30.0), 30.0, carrier=False)
    assert after.state is S.DOWN
    assert (after.hold.length, after.flaps) == (down().hold.length, down().flaps)


def test_flapping_port_keeps_its_price_and_its_count_over_a_restart() -> None:
    port, now = up(), 20.0
    for _ in range(3):
        port = see(see(port, now, carrier=False), now + 0.1, carrier=True)
        now = port.wakes_at or 0.0
        port = port.tick(now)
    after = see(restarted(port, now, now + 1.0), now + 1.0, carrier=True)
    assert after.state is S.UP and after.flaps == 3
    fallen = see(after, now + 2.0, carrier=False)
    assert fallen.hold.length == see(port, now + 1.0, carrier=False).hold.length > RULE.first


def test_time_without_an_agent_pays_no_penalty_off() -> None:
    port = held().tick(22.0)
    assert see(port, 22.0 + 1e6, carrier=False).hold.length == RULE.first  # with an agent it does
    after = see(restarted(port, 22.5, 22.5 + 1e6), 22.5 + 1e6, carrier=True)
    assert see(after, 23.0 + 1e6, carrier=False).hold.length == 2 * RULE.first


def test_remembered_nonsense_holds_no_longer_than_the_rule_allows() -> None:
    wild = Past(length=1e300, good_for=-5.0, owes=1e300, flaps=-3, last_flap=-1.0)
    after = see(Port(RULE).recall(wild, 5.0), 10.0, carrier=True)
    assert after.held_until == 10.0 + RULE.maximum and after.flaps == 0
