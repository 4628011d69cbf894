"""The evaluator of rules, by hand-made looks."""

from dataclasses import dataclass

import pytest

from linkpass import rules as shipped_rules
from linkpass.rules import AGENTS_OWN, Act, Rule, changed, for_driver, shipped
from linkpass_agent.judge.counting import CounterKind, Reading, Sample, compare
from linkpass_agent.judge.rules import PortRules
from linkpass_agent.see.counters import driver, roles

ERRORS = CounterKind("counters", "errors", "errors", 16, "sticks")
BITS = CounterKind("ethtool", "bits", "bits", 64, "wraps")
FIXED = CounterKind("ethtool", "fixed", "fixed", 64, "wraps")


def rule(**other: object) -> Rule:
    fields: dict[str, object] = {
        "name": "r", "watch": "errors", "kind": "growth", "limit": 10.0, "window": 60.0, "clear": 100.0,
        "act": "suspect", "source": "a test",
    }  # fmt: skip
    return Rule(**{**fields, **other})  # type: ignore[arg-type]


class Looks:
    """A port's rules, looked at with one value of the counter a time."""

    def __init__(self, *of: Rule) -> None:
        self.rules = PortRules("p", of)

    def __call__(self, now: float, value: int | None, **facts: str | int | None) -> list[str]:
        self.rules.look(now, facts, [Sample(ERRORS, value)])
        return [f.text for f in self.rules.findings]


def test_growth_beyond_the_limit_within_the_window_opens_and_clear_closes() -> None:
    look = Looks(rule())
    assert look(0, 100) == []  # what was there before we came isn't growth
    assert look(30, 110) == []
    assert look(59, 111) == ["counters/errors grew by 11 in 60 s, more than 10"]
    assert look(91, 111) != []  # the first 10 are too old, the cause is gone: not yet clear
    assert look(158, 111) != []
    assert look(159, 111) == []


def test_growth_after_a_pause_longer_than_the_window_counts_for_the_windows_share() -> None:
    look = Looks(rule())
    look(0, 0)
    assert look(600, 100) == []  # 100 in 600 s are 10 in 60 s
    assert look(1200, 210) == ["counters/errors grew by 11 in 60 s, more than 10"]


def test_slow_steady_growth_leaves_the_window_as_time_goes_by() -> None:
    look = Looks(rule())
    assert [look(n * 6.0, n) for n in range(200)] == [[]] * 200  # 10 a window, never 11


def test_finding_keeps_its_start_and_tells_the_latest_evidence() -> None:
    look = Looks(rule())
    look(0, 0)
    look(1, 20)
    look(2, 30)
    (finding,) = look.rules.findings
    assert (finding.since, finding.text) == (1, "counters/errors grew by 30 in 60 s, more than 10")
    assert [(e.at, e.source, e.text) for e in finding.evidence] == [(2, "counters/errors", "30 (grew by 30)")]


def test_ratio_needs_both_counters_and_compares_their_growth() -> None:
    rules = PortRules("p", [rule(kind="ratio", watch="fixed", per="bits", limit=1e-5)])

    def look(now: float, fixed: int | None, bits: int | None) -> str:
        return rules.look(now, {}, [Sample(FIXED, fixed), Sample(BITS, bits)]).state

    assert look(0, 0, 0) == "ok"
    assert look(10, 10, 1_000_000) == "ok"  # just 1e-5
    assert look(20, 21, 2_000_000) == "suspect"
    assert [e.source for e in rules.findings[0].evidence] == ["ethtool/fixed", "ethtool/bits"]
    rules = PortRules("p", [rule(kind="ratio", watch="fixed", per="bits", limit=1e-5)])
    look(0, 0, None)
    assert look(10, 10_000, None) == "ok"  # without the whole the part says nothing


def test_drop_below_the_best_must_last_for_the_window_and_is_forgotten_on_request() -> None:
    look = Looks(rule(kind="drop", watch="rate", window=2.0, clear=5.0))
    look(0, 0, rate=400)
    assert look(1, 0, rate=200) == []
    assert look(2, 0, rate=400) == []  # too short
    assert look(3, 0, rate=200) == []
    assert look(5, 0, rate=200) == ["rate is 200, was 400"]
    assert look(6, 0, rate=None) != []
    assert look(10, 0, rate=None) == []  # blindness keeps no finding open
    look(11, 0, rate=200)
    assert look(13, 0, rate=200) != []
    look.rules.forget_best()
    look(14, 0, rate=200)
    assert look(18, 0, rate=200) == []


def test_value_before_a_colon_is_compared_and_the_rest_is_told() -> None:
    look = Looks(rule(kind="value", watch="members", values=("degraded",), window=1.0))
    look(0, 0, members="degraded: eth2 down of 2")
    assert look(1, 0, members="degraded: eth2 down of 2") == ["members is degraded: eth2 down of 2"]


def test_worst_open_finding_gives_the_state_and_alarms_give_none() -> None:
    rules = PortRules("p", [rule(name="a", act="alarm"), rule(name="s", act="suspect"), rule(name="d", act="down")])
    rules.look(0, {}, [Sample(ERRORS, 0)])
    judged = rules.look(1, {}, [Sample(ERRORS, 11)])
    assert [f.rule for f in judged.opened] == ["a", "s", "d"]
    assert (judged.state, judged.text.partition(":")[0]) == ("down", "d")
    assert [f.rule for f in rules.findings] == ["d", "s", "a"]
    only = PortRules("p", [rule(act="alarm")])
    only.look(0, {}, [Sample(ERRORS, 0)])
    assert only.look(1, {}, [Sample(ERRORS, 11)]).state == "ok"


def test_falls_own_counter_is_no_noise() -> None:
    falls = CounterKind("netdev", "carrier_down_count", "link-downed", 32, "wraps")
    rules = PortRules("p", [rule(watch="link-downed"), rule(name="e")])
    for now in (0, 1):
        rules.look(now, {}, [Sample(falls, now), Sample(ERRORS, 5)])
    assert rules.quiet(1, 10) == (True, "")


def test_quiet_is_known_only_of_counters_that_can_be_read() -> None:
    look = Looks(rule())
    assert look.rules.quiet(0, 10) == (None, "no counter can be read")
    look(0, None)
    assert look.rules.quiet(0, 10) == (None, "no counter can be read")
    look(1, 5)
    assert look.rules.quiet(1, 10) == (True, "")
    look(2, 6)
    assert look.rules.quiet(3, 10) == (False, "counters/errors grew")
    look(13, 6)
    assert look.rules.quiet(13, 10) == (True, "")
    look(14, 65535)
    look(30, 65535)
    assert look.rules.quiet(30, 10) == (None, "no counter can be read")  # saturated


@pytest.mark.parametrize(
    ("before", "value", "full", "bits", "reading", "by"),
    [
        (None, 5, "sticks", 8, Reading.FIRST, None),
        (5, 9, "sticks", 8, Reading.COUNTED, 4),
        (5, 5, "sticks", 8, Reading.COUNTED, 0),
        (250, 255, "sticks", 8, Reading.SATURATED, 5),
        (255, 255, "sticks", 8, Reading.SATURATED, None),
        (None, 255, "sticks", 8, Reading.SATURATED, None),
        (255, 3, "sticks", 8, Reading.RESET, None),
        (2**32 - 10, 5, "wraps", 32, Reading.WRAPPED, 15),
        (2**32 - 1, 0, "wraps", 32, Reading.WRAPPED, 1),
        (2**31, 5, "wraps", 32, Reading.RESET, None),
        (7, None, "wraps", 32, Reading.BLIND, None),
    ],
)
def test_two_readings_tell_growth_or_that_it_cannot_be_known(
    before: int | None, value: int | None, full: str, bits: int, reading: Reading, by: int | None
) -> None:
    grown = compare(before, value, CounterKind("counters", "c", "r", bits, full))  # type: ignore[arg-type]
    assert (grown.reading, grown.by) == (reading, by)


# -- rules as data -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    name: str
    drivers: tuple[str, ...] = ()
    limit: float | None = None
    window: float | None = None
    clear: float | None = None
    act: Act | None = None
    enabled: bool | None = None


def find(rules: tuple[Rule, ...], name: str, of: str) -> list[tuple[float, str]]:
    return [(r.limit, r.act) for r in for_driver(rules, of) if r.name == name]


def test_change_for_all_changes_only_what_it_says() -> None:
    after = changed([Said("symbol-errors", limit=5.0)])
    assert find(after, "symbol-errors", "rxe") == [(5.0, "suspect")]
    assert [r for r in after if r.name != "symbol-errors"] == [r for r in shipped() if r.name != "symbol-errors"]


def test_change_for_one_driver_leaves_all_others_and_the_later_one_wins() -> None:
    after = changed(
        [
            Said("symbol-errors", ("mlx5", "efa"), limit=5.0),
            Said("symbol-errors", ("mlx5",), act="down"),
            Said("symbol-errors", ("efa",), enabled=False),
        ]
    )
    assert find(after, "symbol-errors", "mlx5") == [(5.0, "down")]
    assert find(after, "symbol-errors", "rxe") == [(120.0, "suspect")]
    assert find(after, "symbol-errors", "efa") == []


def test_shipped_rules_watch_what_exists_have_names_of_their_own_and_say_where_they_come_from() -> None:
    names = [r.name for r in shipped()]
    assert len(names) == len(set(names))
    facts = {"rate", "speed", "width", "mtu", "phys", "members"}
    for r in (r for r in shipped() if r.watch not in AGENTS_OWN):
        assert r.watch in (roles() if r.kind in ("growth", "ratio") else facts), r.name
        assert len(r.source) > 10 and r.window > 0 and r.clear > 0


def test_no_shipped_rule_takes_a_port_out_of_use() -> None:
    assert {r.act for r in shipped()} == {"alarm", "suspect"}


def test_drivers_of_rules_and_of_tables_are_the_same() -> None:
    modules = ("mlx5_core", "bnxt_en", "ice", "ionic", "efa", "rdma_rxe", "newnic")
    assert tuple(driver(m).name for m in modules) == shipped_rules.DRIVERS
