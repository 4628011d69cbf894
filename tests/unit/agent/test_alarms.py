"""Alarms: what wakes somebody, what doesn't, and that none sticks."""

from collections.abc import Iterable
from random import Random

import pytest

from linkpass.model import Event, EventKind, Finding, Observation, Signal
from linkpass.rules import shipped
from linkpass_agent.alarming import Alarming, booted, of_ports
from linkpass_agent.events import EventLog
from linkpass_agent.judge.alarms import Alarms, Graces, PastAlarm
from linkpass_agent.judge.holddown import HoldDownRule
from linkpass_agent.judge.probe import ProbeRule
from linkpass_agent.judge.probing import Probing
from linkpass_agent.judge.rules import Baselines
from linkpass_agent.judge.schedule import ScheduleRule
from linkpass_agent.reactor import Identity, Reactor
from tests.fakes.clock import FakeClock

HOLD = HoldDownRule(1.0, 300.0, 10.0)
LONG_AGO = float("-inf")


class Watch:
    """An agent's ports and alarms, a second at a time."""

    def __init__(
        self,
        *ports: str,
        booted: float = LONG_AGO,
        past: Iterable[PastAlarm] = (),
        falls: dict[str, Baselines] | None = None,
        clock: FakeClock | None = None,
        kept: int = 500,
        undrained: dict[str, float] | None = None,
    ) -> None:
        self.clock, self.told = clock or FakeClock(), list[Event]()
        events = EventLog(self.clock, self.told.append)
        rails = {p: f"rail{n}" for n, p in enumerate(ports or ("p", "q"))}
        self.reactor = Reactor(
            Identity("a", 1, (), rails), HOLD,
            Probing(ProbeRule(HOLD), ScheduleRule(0.05, 1.0, 2000), Random(1)),
            lambda record: None, lambda targets: None, None, events, self.clock, {},
        )  # fmt: skip
        self.alarming = Alarming(
            shipped(),
            Graces(),
            kept,
            self.reactor,
            None,
            events,
            self.clock,
            booted,
            past,
            falls,
            undrained=undrained,
        )
        for port in rails:
            self.see(port, Signal.PRESENT, True)
            self.see(port, Signal.ADMIN, True)
            self.see(port, Signal.CARRIER, True)
        self.alarming.look()

    def see(self, port: str, signal: Signal, value: bool) -> None:
        self.reactor.observe([Observation(self.clock.now(), "test", port, signal, value)])

    def run(self, seconds: float, step: float = 1.0) -> None:
        for _ in range(int(seconds / step)):
            self.clock.advance(step)
            self.reactor.tick(retry=False)
            self.alarming.look()

    def flap(self, port: str = "p", times: int = 1) -> None:
        for _ in range(times):
            self.see(port, Signal.CARRIER, False)
            self.run(2)
            self.see(port, Signal.CARRIER, True)
            self.run(2)

    @property
    def active(self) -> list[tuple[str, str]]:
        return [(a.port, a.rule) for a in self.alarming.active()]

    def events(self) -> list[str]:
        return [f"{e.subject}: {e.text}" for e in self.told if e.kind is EventKind.ALARM]


def test_two_flaps_are_no_alarm_and_the_third_within_ten_minutes_is() -> None:
    watch = Watch()
    watch.flap(times=2)
    assert watch.active == []
    watch.flap()
    assert watch.active == [("p", "port-flaps")]
    assert watch.events() == ["p: alarm port-flaps: agent/flaps grew by 3 in 600 s, more than 2"]


def test_flaps_alarm_clears_by_itself_and_stays_in_the_history() -> None:
    watch = Watch()
    watch.flap(times=3)
    watch.run(700)
    assert watch.active == []
    (over,) = watch.alarming.history()
    assert over.over == "the cause is gone" and over.cleared is not None and over.cleared > over.raised
    assert watch.events()[-1] == "p: alarm port-flaps is over"


def test_three_flaps_hours_apart_are_no_alarm_and_five_in_a_day_are() -> None:
    watch = Watch()
    for _ in range(4):
        watch.flap()
        watch.run(3600, step=20)
    assert watch.active == []
    watch.flap()
    assert watch.active == [("p", "port-flaps-often")]


def test_outage_is_an_alarm_after_thirty_seconds_and_not_before() -> None:
    watch = Watch()
    watch.see("p", Signal.CARRIER, False)
    watch.run(29)
    assert watch.active == []
    watch.run(3)
    assert watch.active == [("p", "port-outage")]
    watch.see("p", Signal.CARRIER, True)
    watch.run(15)
    assert watch.active == []


def test_device_that_is_gone_is_an_outage_too() -> None:
    watch = Watch()
    watch.see("p", Signal.PRESENT, False)
    watch.run(32)
    assert watch.active == [("p", "port-outage")]


def test_port_that_was_shut_down_on_purpose_is_no_fault() -> None:
    watch = Watch()
    for _ in range(6):
        watch.see("p", Signal.ADMIN, False)
        watch.run(60)
        watch.see("p", Signal.ADMIN, True)
        watch.run(10)
    assert watch.events() == []


def test_drain_ends_a_ports_alarm_and_work_on_it_and_two_minutes_more_raise_none() -> None:
    watch = Watch()
    watch.see("p", Signal.CARRIER, False)
    watch.run(40)
    assert watch.active == [("p", "port-outage")]
    watch.reactor.drain("p", "new optic", dry_run=False)
    watch.run(1)
    assert watch.active == [] and watch.alarming.history()[-1].over == "drained"
    watch.flap(times=6)
    watch.reactor.undrain("p")
    watch.run(1)
    watch.flap(times=6)
    assert watch.active == []
    watch.run(600)  # the outage that was an alarm is a fall of its own
    watch.flap(times=2)
    assert watch.active == []
    watch.flap()
    assert watch.active == [("p", "port-flaps")]


def test_flaps_in_the_boots_grace_never_alarm_and_a_port_that_stays_dead_does_when_it_ends() -> None:
    watch = Watch(booted=100.0)
    watch.flap("p", times=8)
    watch.see("q", Signal.CARRIER, False)
    watch.run(1700, step=5)
    assert watch.events() == []
    watch.run(160)
    assert watch.active == [("q", "port-outage")]


def test_rerouting_doesnt_wait_for_alarms_graces() -> None:
    watch = Watch(booted=100.0)
    watch.see("p", Signal.CARRIER, False)
    assert watch.reactor.record.port_on("rail0").state == "down"  # type: ignore[union-attr]


def test_blindness_raises_nothing_and_keeps_nothing_on() -> None:
    watch = Watch()
    watch.see("p", Signal.CARRIER, False)
    watch.run(40)
    fresh = Watch(past=watch.alarming.past(), falls=watch.alarming.windows(), clock=watch.clock)
    assert fresh.active == [("p", "port-outage")]
    fresh.run(70)
    assert fresh.active == []


# -- over a restart ----------------------------------------------------------------------------------------------


def test_alarm_goes_on_over_a_restart_with_its_time_and_is_told_once() -> None:
    watch = Watch()
    watch.flap(times=3)
    (raised,) = watch.alarming.active()
    later = Watch(past=watch.alarming.past(), falls=watch.alarming.windows(), clock=watch.clock)
    later.run(100)
    (still,) = later.alarming.active()
    assert still.raised == raised.raised and later.events() == []
    later.run(700)
    assert later.active == []


def test_undrains_grace_goes_on_over_a_restart_and_ends_when_it_would_have() -> None:
    watch = Watch()
    watch.reactor.drain("p", "new optic", dry_run=False)
    watch.run(1)
    watch.reactor.undrain("p")
    watch.run(50)
    later = Watch(undrained=watch.alarming.undrained(), clock=watch.clock)
    later.see("p", Signal.CARRIER, False)
    later.run(65)
    assert later.active == []
    later.run(40)
    assert later.active == [("p", "port-outage")]
    assert later.alarming.undrained() == {}


def test_history_is_kept_over_a_restart_and_bounded() -> None:
    past = [PastAlarm("p", "port-flaps", "alarm", f"n{n}", "", n, n + 1.0, "the cause is gone") for n in range(20)]
    watch = Watch(past=past, kept=5)
    assert [a.text for a in watch.alarming.history()] == ["n15", "n16", "n17", "n18", "n19"]


def test_alarm_of_a_port_that_isnt_configured_any_more_is_forgotten() -> None:
    assert Watch(past=[PastAlarm("gone", "port-flaps", "alarm", "", "", 1.0)]).active == []


# -- the decider alone -------------------------------------------------------------------------------------------


def finding(rule: str, since: float, port: str = "p") -> Finding:
    return Finding(rule, port, since, "suspect", "text")


def test_growth_found_in_a_quiet_time_is_no_alarm_later_but_what_still_holds_is() -> None:
    alarms = Alarms({"symbol-errors"}, 10, (), 0.0)
    found = {"p": [finding("symbol-errors", 5.0), finding("rate-lost", 5.0)]}
    assert alarms.look(6.0, 6.0, found, {"p": "drained"}) == []
    (turn,) = alarms.look(7.0, 7.0, found, {"p": ""})
    assert turn.alarm.rule == "rate-lost"
    again = {"p": [finding("symbol-errors", 50.0), finding("rate-lost", 5.0)]}
    assert [t.alarm.rule for t in alarms.look(50.0, 50.0, again, {})] == ["symbol-errors"]


def test_two_ports_alarms_are_apart() -> None:
    alarms = Alarms((), 10, (), 0.0)
    alarms.look(1.0, 1.0, {"p": [finding("x", 1.0)], "q": [finding("x", 1.0, "q")]}, {})
    turns = alarms.look(2.0, 2.0, {"p": [finding("x", 1.0)], "q": []}, {})
    assert [(t.alarm.port, t.alarm.cleared) for t in turns] == [("q", 2.0)]
    assert set(alarms.active) == {("p", "x")}


@pytest.mark.parametrize("text", ["", "x", "12.5 3\n"])
def test_boot_time_comes_from_proc_uptime_or_is_long_ago(tmp_path: object, text: str) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "uptime"
    file.write_text(text)
    assert booted(100.0, file) == (87.5 if text.startswith("12") else LONG_AGO)
    assert booted(100.0, file.parent / "none") == LONG_AGO


def test_shipped_alarm_rules_have_the_fields_defaults() -> None:
    found = {r.name: (r.kind, r.limit, r.window, r.act) for r in of_ports(shipped())}
    assert found == {
        "port-flaps": ("growth", 2, 600.0, "alarm"),  # 3 in 10 min
        "port-flaps-often": ("growth", 4, 86400.0, "alarm"),  # 5 in 24 h
        "port-outage": ("value", 0, 30.0, "alarm"),
    }
