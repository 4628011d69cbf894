"""When probes leave: periods, jitter, and the bound on their rate."""

from itertools import pairwise
from random import Random

import pytest

from linkpass.model import PathId
from linkpass_agent.judge.schedule import ProbeSchedule, ScheduleRule

RULE = ScheduleRule(period=0.05, idle_period=1.0, max_rate=2000.0)


def paths(count: int, peer: str = "b") -> list[PathId]:
    return [PathId(f"{peer}{n}", "rail0", "a-rail0") for n in range(count)]


def run(schedule: ProbeSchedule, start: float, end: float) -> list[tuple[float, PathId]]:
    """All that is sent between `start` and `end`, by a doer that always wakes in time."""
    sent, now = [], start
    while now <= end:
        sent += [(now, p) for p in schedule.due(now)]
        now = max(schedule.next_at() or end + 1, now + 1e-6)
    return sent


def made(rule: ScheduleRule, all_: list[PathId], fast: list[PathId], seed: int = 1) -> ProbeSchedule:
    schedule = ProbeSchedule(rule, Random(seed))
    schedule.set_paths(all_, fast, 0.0)
    return schedule


@pytest.mark.parametrize(("fast", "period"), [(True, 0.05), (False, 1.0)])
def test_intervals_lie_between_three_quarters_of_the_period_and_the_period(fast: bool, period: float) -> None:
    path = paths(1)
    times = [t for t, _ in run(made(RULE, path, path if fast else []), 0.0, 200 * period)]
    gaps = [b - a for a, b in pairwise(times)]
    assert times[0] <= period
    assert min(gaps) >= 0.75 * period - 1e-9
    assert max(gaps) <= period + 2e-6
    assert max(gaps) - min(gaps) > 0.15 * period  # jitter there is


def test_paths_of_many_hosts_start_out_of_step() -> None:
    firsts = {t for t, _ in run(made(RULE, paths(50), []), 0.0, 0.74)}
    assert len(firsts) > 30


def test_path_that_comes_into_use_is_probed_within_one_fast_period() -> None:
    path = paths(1)
    schedule = made(RULE, path, [])
    run(schedule, 0.0, 5.0)
    schedule.set_paths(path, path, 5.0)
    assert schedule.next_at() is not None
    assert 5.0 <= schedule.next_at() <= 5.05  # type: ignore[operator]


def test_path_that_goes_out_of_use_slows_down() -> None:
    path = paths(1)
    schedule = made(RULE, path, path)
    run(schedule, 0.0, 1.0)
    schedule.set_paths(path, [], 1.0)
    assert 9 <= len(run(schedule, 1.0, 11.0)) <= 15


def test_paths_that_stay_keep_their_time() -> None:
    both = paths(2)
    schedule = made(RULE, both[:1], [])
    before = schedule.next_at()
    for n in range(100):
        schedule.set_paths(both[:1], [], n / 1000)
    assert schedule.next_at() == before


def test_path_that_is_dropped_is_not_probed_any_more() -> None:
    both = paths(2)
    schedule = made(RULE, both, both)
    schedule.set_paths(both[:1], both, 0.0)
    assert {p for _, p in run(schedule, 0.0, 2.0)} == {both[0]}
    schedule.set_paths([], [], 2.0)
    assert (run(schedule, 2.0, 9.0), schedule.next_at()) == ([], None)


def test_path_in_use_that_is_not_among_the_paths_is_ignored() -> None:
    schedule = made(RULE, [], paths(3))
    assert (schedule.due(10.0), schedule.next_at()) == ([], None)


@pytest.mark.parametrize("max_rate", [7.0, 100.0, 300.0])
def test_intervals_stretch_alike_so_that_the_mean_rate_meets_the_bound(max_rate: float) -> None:
    all_ = paths(40)
    rule = ScheduleRule(0.05, 1.0, max_rate)
    seconds = 4000 / max_rate
    sent = run(made(rule, all_, all_[:20]), 0.0, seconds)
    # A burst of a tenth of a second's worth (at least one) may come on top.
    assert len(sent) <= max_rate * seconds + max(1.0, max_rate / 10)
    # The bound is used. Small bounds allow no burst, so that probes due together cost each other their turn.
    assert len(sent) >= (0.85 if max_rate >= 100 else 0.5) * max_rate * seconds
    counts = {p: sum(q == p for _, q in sent) for p in all_}
    assert min(counts.values()) > 0  # nobody starves
    assert min(counts[p] for p in all_[:20]) > 5 * max(counts[p] for p in all_[20:])  # fast ones stay faster


def test_doer_that_slept_sends_no_more_than_the_burst_at_once() -> None:
    all_ = paths(500)
    schedule = made(ScheduleRule(0.05, 1.0, 1000.0), all_, all_)
    assert len(schedule.due(60.0)) == 100


@pytest.mark.parametrize("max_rate", [0.5, 3.0, 50.0, 2000.0])
def test_allowance_over_any_stretch_of_time_is_bounded(max_rate: float) -> None:
    schedule = ProbeSchedule(ScheduleRule(max_rate=max_rate), Random(3))
    random, now, taken = Random(4), 0.0, []
    while len(taken) < 400:
        now += random.choice([0.0, 0.1 / max_rate, 3 / max_rate])
        if schedule.allow(now):
            taken.append(now)
    burst = max(1.0, max_rate / 10)
    for i in range(0, len(taken), 7):
        for j in range(i, len(taken), 11):
            assert j - i + 1 <= burst + (taken[j] - taken[i]) * max_rate + 1e-6


def test_allowance_survives_a_clock_that_stands_still_or_steps_back() -> None:
    schedule = ProbeSchedule(ScheduleRule(max_rate=10.0), Random(3))
    assert schedule.allow(5.0)
    assert not schedule.allow(5.0)
    assert not schedule.allow(4.0)
    assert not schedule.allow(4.05)
    assert schedule.allow(4.2)
