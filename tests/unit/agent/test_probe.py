"""What lost and answered probes make of one path."""

from dataclasses import replace

import pytest

from linkpass.model import PortState
from linkpass_agent.judge.holddown import HoldDownRule, Past
from linkpass_agent.judge.probe import MOVES, OUTSTANDING, ProbedPath, ProbeRule, Proof

S = PortState
RULE = ProbeRule(HoldDownRule(1.0, 300.0, 10.0), timeout=0.015, lost=3, grace=0.003)


def fresh() -> ProbedPath:
    return ProbedPath(RULE)


def up() -> ProbedPath:
    """Probed at 1.0 s, answered 1 ms later."""
    return fresh().sent(1, 1.0).answered(1, 1.001)


def lose(path: ProbedPath, first: int, at: float, count: int = 3) -> ProbedPath:
    """Probes `first`, `first + 1`, ... at `at`, `at` + 50 ms, ... and no answers."""
    for n in range(count):
        path = path.sent(first + n, at + 0.05 * n).tick(at + 0.05 * n + 0.015)
    return path


def down() -> ProbedPath:
    """Probes at 2.00, 2.05, 2.10 lost; proof of one sent at 2.10 and answered at 2.101."""
    return lose(up(), 2, 2.0).tick(2.115, Proof(2.10, 2.101))


def held() -> ProbedPath:
    return down().sent(5, 3.0).answered(5, 3.001)


def test_table_of_moves_is_the_one_that_was_designed() -> None:
    assert {
        S.UNKNOWN: {S.UP, S.SUSPECT, S.HELD},  # HELD: what was owed before a restart
        S.UP: {S.SUSPECT},
        S.SUSPECT: {S.UP, S.DOWN, S.HELD},
        S.DOWN: {S.HELD},
        S.HELD: {S.UP, S.DOWN},
    } == MOVES


@pytest.mark.parametrize("state", list(MOVES))
def test_path_refuses_a_move_that_is_not_in_the_table(state: PortState) -> None:
    for to in set(S) - MOVES[state]:
        with pytest.raises(AssertionError, match=f"no move from {state} to {to}"):
            replace(fresh(), state=state)._move(to, 1.0, "test")


def test_answer_makes_a_path_up_and_gives_its_round_trip() -> None:
    path = up()
    assert path.state == S.UP
    assert path.rtt == pytest.approx(0.001)
    assert path.waiting == ()


def test_probe_is_lost_at_its_timeout_and_not_before() -> None:
    path = up().sent(2, 2.0)
    assert path.tick(2.0149).state == S.UP
    assert path.tick(2.015).state == S.SUSPECT


def test_path_that_never_answered_is_in_doubt_after_one_lost_probe() -> None:
    assert fresh().sent(1, 1.0).tick(1.015).state == S.SUSPECT


def test_late_answer_ends_the_doubt() -> None:
    path = lose(up(), 2, 2.0, count=2)
    assert path.state == S.SUSPECT
    path = path.answered(3, 2.2)
    assert (path.state, path.waiting) == (S.UP, ())  # older probes' answers were overtaken
    assert path.rtt == pytest.approx(0.15)


def test_answer_to_an_older_probe_leaves_the_newer_ones_waiting() -> None:
    path = lose(up(), 2, 2.0, count=2).answered(2, 2.07)
    assert [p.seq for p in path.waiting] == [3]
    assert path.tick(2.09).state == S.SUSPECT  # number 3 is lost already


@pytest.mark.parametrize("seq", [1, 99])
def test_answer_that_nobody_waits_for_changes_nothing(seq: int) -> None:
    path = lose(up(), 2, 2.0)
    assert path.answered(seq, 2.2) is path


def test_two_lost_probes_are_never_down() -> None:
    path = lose(up(), 2, 2.0, count=2)
    assert path.tick(9.0, Proof(8.0, 8.001)).state == S.SUSPECT


def test_three_lost_probes_without_proof_stay_in_doubt_and_say_why() -> None:
    path = lose(up(), 2, 2.0).tick(60.0)
    assert (path.state, path.flaps) == (S.SUSPECT, 0)
    assert "no sign of the peer's agent" in path.cause


def test_proof_from_before_the_third_lost_probe_is_none() -> None:
    assert lose(up(), 2, 2.0).tick(2.2, Proof(2.0999, 2.1009)).state == S.SUSPECT


def test_probes_from_before_the_peer_came_back_are_not_counted() -> None:
    path = lose(
        up(), 2, 2.0, count=5
    )  # 2.00 to 2.20; the peer answers since 2.09: three of them count, the last 2.20
    assert path.tick(2.3, Proof(2.19, 2.191, since=2.09)).state == S.SUSPECT
    assert path.tick(2.3, Proof(2.20, 2.201, since=2.11)).state == S.SUSPECT  # two count
    assert path.tick(2.3, Proof(2.20, 2.201, since=2.09)).state == S.DOWN


def test_proof_counts_only_after_the_grace_for_an_answer_beside_it() -> None:
    path = lose(up(), 2, 2.0)
    proof = Proof(2.1, 2.114)
    assert path.tick(2.1169, proof).state == S.SUSPECT
    assert path.wakes_at(2.1169, proof) == pytest.approx(2.117)
    assert path.tick(2.1171, proof).state == S.DOWN


def test_three_lost_probes_with_proof_are_down_at_the_third_ones_timeout() -> None:
    path = lose(up(), 2, 2.0, count=2).sent(4, 2.1)
    proof = Proof(2.1, 2.101)
    assert path.tick(2.1149, proof).state == S.SUSPECT
    path = path.tick(2.115, proof)
    assert (path.state, path.since, path.flaps, path.last_flap) == (S.DOWN, 2.115, 1, 2.115)
    assert path.cause.startswith("3 probes in a row unanswered")


def test_down_path_that_answers_is_held_not_up() -> None:
    path = held()
    assert (path.state, path.held_until) == (S.HELD, pytest.approx(4.001))


def test_held_path_is_up_after_its_hold_down_and_not_before() -> None:
    assert held().tick(4.0).state == S.HELD
    path = held().tick(4.002)
    assert (path.state, path.held_until) == (S.UP, None)


def test_held_path_with_a_lost_probe_outstanding_is_not_trusted_yet() -> None:
    assert held().sent(6, 3.99).tick(4.002).state == S.UP  # it isn't lost yet
    path = held().sent(6, 3.98).tick(4.002)
    assert path.state == S.HELD
    assert path.answered(6, 4.01).tick(4.01).state == S.UP


def test_held_path_that_loses_three_with_proof_is_down_at_double_price() -> None:
    path = lose(held(), 6, 3.1)
    assert path.state == S.HELD
    path = path.tick(3.3, Proof(3.2, 3.201))
    assert (path.state, path.flaps, path.hold.length) == (S.DOWN, 2, 2.0)
    assert (path.sent(9, 4.0).answered(9, 4.001).held_until) == pytest.approx(6.001)


def test_held_path_that_loses_three_without_proof_waits() -> None:
    path = lose(held(), 6, 3.1)
    assert path.tick(50.0).state == S.HELD


def test_one_way_path_is_down_like_any_other_and_stays_so_while_answers_stay_out() -> None:
    path = down()
    for n in range(100):
        path = path.sent(10 + n, 3.0 + n).tick(3.5 + n, Proof(3.0 + n, 3.001 + n))
    assert (path.state, path.flaps) == (S.DOWN, 1)


def test_unanswered_probes_are_remembered_up_to_a_bound() -> None:
    path = up()
    for n in range(1000):
        path = path.sent(2 + n, 2.0 + n)
    assert len(path.waiting) == OUTSTANDING
    assert path.waiting[-1].seq == 1001


def test_path_wakes_at_the_next_timeout_or_the_end_of_its_hold_down() -> None:
    assert up().wakes_at(2.0) is None
    assert up().sent(2, 2.0).sent(3, 2.05).wakes_at(2.0) == pytest.approx(2.015)
    assert up().sent(2, 2.0).sent(3, 2.05).wakes_at(2.02) == pytest.approx(2.065)
    assert held().wakes_at(3.5) == pytest.approx(4.001)


def test_path_that_was_down_before_a_restart_serves_its_hold_down_when_it_answers() -> None:
    rule = ProbeRule(HoldDownRule(1.0, 300.0, 10.0))
    past = Past(length=4.0, owes=4.0, flaps=2)
    fresh = ProbedPath(rule).recall(past, 10.0)
    assert fresh.state is S.UNKNOWN
    answered = fresh.sent(1, 10.0).answered(1, 10.001)
    assert answered.state is S.HELD and answered.held_until == 14.001
    assert "before the agent's restart" in answered.cause
    assert answered.past(11.001) == Past(4.0, None, 3.0, 2, None)
    lost = fresh.sent(1, 10.0).tick(10.1)
    assert lost.state is S.SUSPECT
    assert lost.sent(2, 10.2).answered(2, 10.201).state is S.HELD


def test_path_that_was_up_before_a_restart_is_up_with_its_first_answer() -> None:
    fresh = ProbedPath(ProbeRule(HoldDownRule())).recall(Past(length=4.0, good_for=1.0, flaps=2), 10.0)
    assert fresh.sent(1, 10.0).answered(1, 10.001).state is S.UP
