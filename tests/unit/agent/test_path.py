"""A path is as bad as the worst of its three parts."""

import pytest

from linkpass.model import PathId, PortState, Verdict
from linkpass_agent.judge.path import ORDER, judge

S = PortState
PATH = PathId("b", "rail0", "a-rail0")
# From best to worst, as the planner must see them: written down here, not taken from the code.
BEST_TO_WORST = [S.UP, S.UNKNOWN, S.SUSPECT, S.HELD, S.DRAINED, S.DOWN, S.ABSENT]


def test_order_names_every_state_once() -> None:
    assert sorted(ORDER) == sorted(PortState)


@pytest.mark.parametrize("local", BEST_TO_WORST)
@pytest.mark.parametrize("remote", BEST_TO_WORST)
@pytest.mark.parametrize("probe", [S.UNKNOWN, S.UP, S.SUSPECT, S.HELD, S.DOWN])
def test_path_has_the_worst_state_and_its_cause(local: PortState, remote: PortState, probe: PortState) -> None:
    found = judge(PATH, Verdict(local, 1.0, "LOCAL"), remote, "REMOTE", Verdict(probe, 2.0, "PROBE"), 0.001)
    worst = max(local, remote, probe, key=BEST_TO_WORST.index)
    assert found.verdict.state == worst
    blamed = [c for c, s in (("LOCAL", local), ("REMOTE", remote), ("PROBE", probe)) if s == worst]
    assert (blamed[0] in found.verdict.cause) == (worst != S.UP)  # nobody is to blame for a path that works
    assert (found.local, found.remote, found.probe, found.rtt) == (local, remote, probe, 0.001)


def test_causes_say_whose_port_it_is() -> None:
    up = Verdict(S.UP, 0.0, "carrier")
    assert judge(PATH, Verdict(S.DOWN, 0.0, "cut"), S.UP, "", up, None).verdict.cause == "a-rail0: cut"
    assert judge(PATH, up, S.DOWN, "cut", up, None).verdict.cause == "b's port on rail0: cut"
    assert judge(PATH, up, S.UP, "", Verdict(S.DOWN, 0.0, "cut"), None).verdict.cause == "path: cut"


def test_flaps_of_port_and_path_add_up_and_the_later_one_is_shown() -> None:
    found = judge(
        PATH, Verdict(S.UP, 0.0, "", 2, 5.0), S.UP, "", Verdict(S.UP, 0.0, "", 3, 9.0), None
    ).verdict  # fmt: skip
    assert (found.flaps, found.last_flap) == (5, 9.0)


def test_hold_down_is_shown_only_while_the_path_is_held_and_the_longer_counts() -> None:
    local, probe = Verdict(S.HELD, 0.0, "", held_until=7.0), Verdict(S.HELD, 0.0, "", held_until=8.0)
    assert judge(PATH, local, S.UP, "", probe, None).verdict.held_until == 8.0
    assert judge(PATH, local, S.DOWN, "", probe, None).verdict.held_until is None
