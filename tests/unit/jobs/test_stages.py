"""Stages of a move, as a shim tells them, and of many moves as one."""

import pytest

from linkpass.shim import abi
from linkpass_agent.jobs import stages
from linkpass_agent.jobs.stages import Move

MS = 1_000_000


def state(**change: int) -> abi.ConnState:
    fields = dict.fromkeys(abi.ConnState.__slots__, 0) | {
        "migrations": 1, "trigger_ns": 10**9, "fence_ns": 2 * MS, "settle_ns": 3 * MS, "gap_ns": 4 * MS,
        "replay_ns": 5 * MS,
    }  # fmt: skip
    return abi.ConnState(**{**fields, **change})


def test_move_of_a_state_is_in_seconds() -> None:
    assert stages.of(state(), now=2.0) == Move(1.0, 0.002, 0.003, 0.004, 0.005)


@pytest.mark.parametrize("change", [{"migrations": 0}, {"trigger_ns": 0}])
def test_connection_that_never_moved_has_none(change: dict[str, int]) -> None:
    assert stages.of(state(**change), now=2.0) is None


def test_move_that_a_shim_sets_into_the_future_ends_now() -> None:
    move = stages.of(state(trigger_ns=10**18), now=2.0)
    assert move is not None and move.end == pytest.approx(2.0)


def test_moves_together_last_until_the_last_of_each_stage() -> None:
    one, other = Move(1.0, 0.125, 0.25, 0.5, 2.0), Move(1.5, 0.25, 0.25, 0.25, 0.5)
    assert stages.together([one, other]) == Move(1.0, 0.75, 0.75, 0.75, 2.0)


def test_latest_leaves_earlier_moves_out() -> None:
    old, new = Move(1.0, 0.125, 0.25, 0.5, 0.5), Move(9.0, 0.125, 0.25, 0.5, 0.5)
    assert stages.latest([old, new], within=1.0) == new
    assert stages.latest([], within=1.0) is None
