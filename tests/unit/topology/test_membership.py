"""Membership's table alone: ages of rows, suspicion, denial, health. Times are virtual seconds."""

from math import log
from random import Random

from linkpass_topology.gossip.membership import Membership
from linkpass_topology.gossip.row import (
    Ask,
    AskVia,
    Report,
    Row,
    Spread,
    Status,
    Turned,
    Warn,
)
from linkpass_topology.gossip.suspicion import SwimRule, suspect

RULE = SwimRule()
ALIVE, SUSPECT, DEAD, LEFT = Status


def table(*others: str, rule: SwimRule = RULE) -> Membership:
    made = Membership("a", rule, Random(1))
    made.announce(5, ("10.99.0.1", 7471), (), 0.0)
    for host in others:
        made.offer(Row(host, 1, 0, ALIVE), 0.0)
    made.start(0.0)
    made.take()
    return made


def let_pass(t: Membership, now: float, seconds: float) -> tuple[float, list[object]]:
    """All acts until then; each timer is served on time."""
    end, acts = now + seconds, []
    while (due := t.next_at()) is not None and due <= end:
        now = max(now, due)
        t.tick(now)
        acts += t.take()
    return end, acts


def status(t: Membership, host: str) -> Status:
    return t.members[host].row.status


def test_rows_higher_life_then_count_then_status_wins() -> None:
    rows = [Row("b", life, count, s) for life in (1, 2) for count in (0, 1) for s in (ALIVE, SUSPECT, DEAD, LEFT)]
    for low, first in enumerate(rows):
        for later in rows[low + 1 :]:
            t = table("b")
            t.offer(Row("b", 0, 0, ALIVE), 0.0)
            t.offer(first, 0.0)
            assert t.offer(later, 0.0) and t.members["b"].row == later
            assert not t.offer(first, 0.0) and t.members["b"].row == later


def test_dead_row_of_an_unknown_host_is_not_taken() -> None:
    t = table()
    assert not t.offer(Row("b", 1, 0, DEAD), 0.0)
    assert not t.offer(Row("b", 1, 0, LEFT), 0.0)
    assert list(t.members) == ["a"]


def test_silent_member_is_asked_three_times_then_by_all_roads_and_helpers_then_suspected() -> None:
    t = table("b")
    t.heard("b", 0.0)
    _, acts = let_pass(t, 0.0, 2.5)
    asks = [a for a in acts if isinstance(a, Ask)]
    assert [a.wide for a in asks[:5]] == [False, False, False, True, True]
    assert status(t, "b") is SUSPECT


def test_helpers_are_asked_and_a_report_of_life_ends_the_probe() -> None:
    t = table("b", "c", "d", "e")
    now, wide = 0.0, []
    while not wide:
        now = t.next_at() or now
        t.tick(now)
        wide = [a for a in t.take() if isinstance(a, AskVia)]
    target = wide[0].target
    assert {a.target for a in wide} == {target} and {a.helper for a in wide} == {"b", "c", "d", "e"} - {target}
    t.report(wide[0].helper, target, wide[0].token, True, now)
    for host in "bcde":
        t.heard(host, now)
    assert t.next_at() is not None
    t.tick(now)
    assert status(t, target) is ALIVE


def test_report_with_a_strange_token_or_of_a_stranger_counts_nothing() -> None:
    t = table("b", "c", "d")
    now, wide = 0.0, []
    while not wide:
        now = t.next_at() or now
        t.tick(now)
        wide = [a for a in t.take() if isinstance(a, AskVia)]
    t.report(wide[0].helper, wide[0].target, wide[0].token ^ 1, True, now)
    t.report("z", wide[0].target, wide[0].token, True, now)
    t.heard(wide[0].helper, now + 1.0)
    let_pass(t, now, 1.0)
    assert status(t, wide[0].target) is SUSPECT


def test_suspected_member_that_stays_silent_is_dead_sooner_when_our_own_probe_fails_too() -> None:
    t = table("b", "c", "d", "e")
    t.heard("c", 0.0)
    t.offer(Row("b", 1, 0, SUSPECT, by="c"), 0.0)
    now = 0.0
    while status(t, "b") is SUSPECT:
        now += 0.25
        for host in "cde":
            t.heard(host, now)
        t.tick(now)
    # least: 4 intervals (log10 of 5 is below 1), longest: 6 times that; two accusers: 24 - 20 x log 2 / log 4
    assert now == 14.0
    assert status(t, "b") is DEAD and t.here == 4


def test_each_confirmation_shortens_the_suspicion_by_the_logarithm() -> None:
    s = suspect(100.0, "c", 1000, RULE)
    least, most = 12.0, 72.0  # 4 x log10(1000) x 1 s
    for accusers, name in enumerate(["c", "d", "e", "f"], 1):
        s.confirm(name)
        assert abs(s.ends - (100.0 + most - (most - least) * log(accusers) / log(4))) < 1e-9
    assert abs(s.ends - 112.0) < 1e-9
    assert not s.confirm("g") and not s.confirm("c")


def test_confirmation_is_passed_on_once() -> None:
    t = table("b", "c", "d", "e")
    assert t.offer(Row("b", 1, 0, SUSPECT, by="c"), 0.0)
    assert t.offer(Row("b", 1, 0, SUSPECT, by="d"), 0.0)
    assert not t.offer(Row("b", 1, 0, SUSPECT, by="d"), 0.0)
    assert [a.row.by for a in t.take() if isinstance(a, Spread)] == ["c", "d"]


def test_host_that_is_suspected_denies_with_a_higher_count_and_doubts_its_own_health() -> None:
    t = table("b")
    t.offer(Row("a", 5, 0, SUSPECT, by="b"), 1.0)
    assert t.me is not None and t.me.age == (5, 1, ALIVE)
    assert t.health.score == 1
    assert any(isinstance(a, Spread) and a.row == t.me for a in t.take())


def test_host_that_lost_its_memory_jumps_above_what_the_fleet_holds_of_it() -> None:
    t = table("b")
    t.offer(Row("a", 9, 4, DEAD), 1.0)
    assert t.me is not None and t.me.age == (9, 5, ALIVE)


def test_two_hosts_of_one_name_outbid_each_other_ever_more_rarely() -> None:
    t = table("b")
    jumps = 0
    for tick in range(1000):
        me = t.me
        assert me is not None
        t.offer(Row("a", me.life, me.count + 1, ALIVE), tick / 10)
        jumps += t.me is not me
    assert jumps <= 8  # 100 s: at 0, 1, 3, 7, 15, 31, 63, ...


def test_member_that_is_heard_is_never_declared_dead_and_is_warned() -> None:
    t = table("b", "c", "d")
    t.offer(Row("b", 1, 0, SUSPECT, by="c"), 0.0)
    t.take()
    warned = 0
    for tick in range(1, 1000):
        for host in "bcd":
            t.heard(host, tick / 10)
        t.tick(tick / 10)
        warned += sum(isinstance(a, Warn) and a.row.host == "b" for a in t.take())
    assert status(t, "b") is SUSPECT
    assert warned > 20


def test_dead_member_that_denies_is_back() -> None:
    t = table("b")
    t.offer(Row("b", 1, 0, DEAD), 0.0)
    t.take()
    assert t.offer(Row("b", 1, 1, ALIVE), 1.0)
    (turned,) = [a for a in t.take() if isinstance(a, Turned)]
    assert turned.before is DEAD and turned.row.status is ALIVE and t.here == 2


def test_host_that_hears_nobody_accuses_nobody() -> None:
    t = table("b", "c", "d", "e")
    _, acts = let_pass(t, 0.0, 120.0)
    assert {status(t, h) for h in "bcde"} == {ALIVE}
    assert t.health.score == RULE.worst_health
    assert not any(isinstance(a, Spread) for a in acts)


def test_late_timer_takes_nobodys_silence_for_a_fault() -> None:
    t = table("b", "c", "d")
    t.heard("c", 0.0)
    t.offer(Row("b", 1, 0, SUSPECT, by="c"), 0.0)
    ends = t.members["b"].suspicion
    assert ends is not None
    before = ends.ends
    t.tick(0.1)
    t.tick(1000.0)  # frozen for a quarter of an hour
    assert status(t, "b") is SUSPECT and t.health.score >= 1
    assert ends.ends > before + 900.0


def test_helper_without_an_answer_says_so_before_the_asker_gives_up() -> None:
    t = table("b", "c")
    t.errand("b", "c", 7, 0.0)
    assert Ask("c", wide=True) in t.take()
    t.tick(0.8 * RULE.timeout - 0.01)
    assert not any(isinstance(a, Report) for a in t.take())
    t.tick(0.8 * RULE.timeout)
    assert Report("b", "c", 7, False) in t.take()


def test_helper_passes_on_any_sign_of_life() -> None:
    t = table("b", "c")
    t.errand("b", "c", 7, 10.0)
    t.take()
    t.heard("c", 10.1)
    assert t.take() == [Report("b", "c", 7, True)]


def test_answers_missing_from_helpers_cost_health_and_answered_probes_restore_it() -> None:
    t = table("b", "c", "d", "e")
    now, worst = 0.0, 0
    for _ in range(400):  # the others are heard, but none of them ever reports
        now += 0.05
        for host in "cde":
            t.heard(host, now)
        t.tick(now)
        worst = max(worst, t.health.score)
    assert status(t, "b") is not ALIVE and worst == 3
    t.offer(Row("b", 1, 9, ALIVE), now)
    for _ in range(3000):
        now += 0.05
        for host in "bcde":
            t.heard(host, now)
        t.tick(now)
    assert t.health.score == 0


def test_leaving_host_denies_nothing() -> None:
    t = table("b")
    row = t.leave(1.0)
    assert row is not None and row.status is LEFT
    t.offer(Row("a", 5, 0, DEAD), 2.0)
    assert t.me is not None and t.me.status is LEFT


def test_dead_are_forgotten_after_a_day_and_sum_holds_only_the_living() -> None:
    t, other = table("b", "c"), table("b")
    t.offer(Row("c", 1, 0, DEAD), 0.0)
    assert t.sum == other.sum and t.here == other.here
    _, acts = let_pass(t, 0.0, 30.0)
    assert "c" in t.members and Ask("c", wide=True) in acts
    t.tick(RULE.reap + 100.0)
    assert "c" not in t.members
