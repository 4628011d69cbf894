"""The price of coming back: doubling, ceiling, decay."""

from linkpass_agent.judge.holddown import NEVER_FELL, HoldDown, HoldDownRule

RULE = HoldDownRule(first=1.0, maximum=300.0, decay=10.0)


def fall(hold: HoldDown, times: int, rule: HoldDownRule = RULE) -> HoldDown:
    for _ in range(times):
        hold = hold.fell(rule, 0.0)
    return hold


def test_first_fall_costs_the_first_price() -> None:
    assert NEVER_FELL.fell(RULE, 5.0).length == 1.0


def test_each_further_fall_doubles_until_the_ceiling() -> None:
    lengths = [fall(NEVER_FELL, n).length for n in range(1, 12)]
    assert lengths == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_ceiling_that_no_doubling_hits_is_kept_exactly() -> None:
    assert fall(NEVER_FELL, 20, HoldDownRule(first=0.3, maximum=7.0)).length == 7.0


def test_worth_stays_while_the_port_is_not_trusted() -> None:
    assert fall(NEVER_FELL, 3).worth(RULE, 1e9) == 4.0


def test_worth_halves_after_decay_times_the_last_hold_down() -> None:
    hold = fall(NEVER_FELL, 3).trusted(100.0)  # 4 s, so half is paid off after 40 s, a quarter after 20 s more
    assert hold.worth(RULE, 139.9) == 4.0
    assert hold.worth(RULE, 140.0) == 2.0
    assert hold.worth(RULE, 159.9) == 2.0
    assert hold.worth(RULE, 160.0) == 1.0


def test_worth_of_the_first_price_is_forgiven_whole() -> None:
    hold = fall(NEVER_FELL, 1).trusted(0.0)
    assert (hold.worth(RULE, 9.9), hold.worth(RULE, 10.0)) == (1.0, 0.0)


def test_fall_after_good_behaviour_costs_double_of_what_is_left() -> None:
    hold = fall(NEVER_FELL, 4).trusted(0.0)  # 8 s: 4 s left after 80 s, 2 s after 120 s
    assert hold.fell(RULE, 79.0).length == 16.0
    assert hold.fell(RULE, 81.0).length == 8.0
    assert hold.fell(RULE, 121.0).length == 4.0
    assert hold.fell(RULE, 1e6).length == 1.0


def test_price_from_an_odd_ceiling_decays_below_the_first_and_is_then_forgiven() -> None:
    rule = HoldDownRule(first=1.0, maximum=3.0, decay=1.0)
    hold = fall(NEVER_FELL, 3, rule).trusted(0.0)  # 3 s, halves: 1.5 at 3 s, 0.75 at 4.5 s, 0 at 5.25 s
    assert [hold.worth(rule, t) for t in (2.9, 3.0, 4.5, 5.25)] == [3.0, 1.5, 0.75, 0.0]
    assert hold.fell(rule, 4.6).length == 1.5


def test_worth_after_a_very_long_time_is_found_without_a_long_loop() -> None:
    assert fall(NEVER_FELL, 12).trusted(0.0).worth(RULE, 1e12) == 0.0
