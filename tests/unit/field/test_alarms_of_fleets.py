"""Public threads about alarms: those that cry wolf, those that stick, and repairs that take hours."""

from itertools import pairwise
from random import Random

from linkpass.model import EventKind, HostRecord, Observation, PathId, PortRecord, PortState, Signal, Verdict
from linkpass_agent.decide.limits import Limits, Out, keep_in_use
from linkpass_agent.judge.holddown import HoldDownRule
from linkpass_agent.judge.probe import ProbeRule
from linkpass_agent.judge.probing import Probing
from linkpass_agent.judge.schedule import ScheduleRule
from tests.fakes.clock import FakeClock
from tests.unit.agent.test_alarms import Watch

S = PortState
HOSTS = 200


def test_nvsentinel_1701_maintenance_reboot_of_200_hosts_flags_nobody_but_the_one_port_that_stays_dead() -> None:
    random, alarms = Random(1701), list[tuple[int, str]]()
    for host in range(HOSTS):
        clock = FakeClock(1000.0 + random.random() * 600)  # each at its own time
        watch = Watch("p", "q", booted=clock.now(), clock=clock)
        for _ in range(random.randint(2, 8)):  # switches reboot as well: links come and go
            watch.flap(random.choice("pq"))
        if host == 17:
            watch.see("q", Signal.CARRIER, False)  # its optic doesn't come back
        watch.run(1900, step=20)
        alarms += [(host, a) for a in watch.events()]
        assert not any(e.kind is EventKind.REFUSED for e in watch.told)
    assert alarms == [(17, "q: alarm port-outage: outage is out")]


def test_nvsentinel_1701_rule_that_is_wrong_everywhere_takes_a_quarter_of_a_rail_at_most() -> None:
    barred = {"p0": Out("rail0", Verdict(S.HELD, 0.0, "rule receive-errors"))}
    view = {f"h{n}": record(f"h{n}", S.HELD) for n in range(HOSTS)}  # all hosts in the same second
    for host in view:
        others = {name: r for name, r in view.items() if name != host}
        if keep_in_use(host, barred, 8, others, Limits(), 100.0):
            view[host] = record(host, S.SUSPECT)
    states = [r.ports[0].state for r in view.values()]
    assert (states.count(S.HELD), states.count(S.SUSPECT)) == (HOSTS // 4, HOSTS - HOSTS // 4)


def record(host: str, state: PortState) -> HostRecord:
    return HostRecord(host, 1, 1, (), (PortRecord("p0", "rail0", state, ""),))


def test_gpud_1110_1247_989_alarm_is_over_by_itself_when_its_cause_is_and_stays_in_the_history() -> None:
    watch = Watch("p", "q")
    watch.flap("p", times=3)
    watch.see("q", Signal.CARRIER, False)
    watch.run(60)
    assert watch.active == [("p", "port-flaps"), ("q", "port-outage")]
    watch.see("q", Signal.CARRIER, True)
    watch.run(20)
    assert watch.active == [("p", "port-flaps")]
    watch.run(700, step=5)
    assert watch.active == []  # nobody had to set anything back
    assert [(a.rule, a.over) for a in watch.alarming.history()] == [
        ("port-outage", "the cause is gone"),
        ("port-flaps", "the cause is gone"),
    ]


def test_nccl_2323_path_that_is_dead_for_hours_is_probed_for_ever_and_comes_back_after_its_hold_down() -> None:
    hold = HoldDownRule(1.0, 300.0, 10.0)
    probing = Probing(ProbeRule(hold), ScheduleRule(0.05, 1.0, 2000), Random(1))
    dead, alive = PathId("b", "rail0", "p"), PathId("b", "rail1", "q")
    probing.set_paths([dead, alive], [], 0.0)
    now, mended, asked = 0.0, 6 * 3600.0, list[float]()
    while now < mended + 5:
        now = max(now, probing.next_at() or now + 1)
        probing.tick(now)
        for path, seq in probing.due(now):
            probing.sent(path, seq, now)
            if path == dead:
                asked.append(now)
            if path == alive or 1 < now < 2 or now >= mended:
                probing.answered(path, seq, now + 0.0001)
        if 2 < now < mended - 2 and probing.get(dead).state is S.DOWN:
            now += 60.0  # nothing else can happen: pass the hours quickly
    gaps = [b - a for a, b in pairwise(asked) if a > 60]
    assert max(gaps) <= 62 and asked[-1] > mended
    assert probing.get(dead).state is S.UP


def test_reroute_is_told_apart_from_the_alarm_that_comes_later() -> None:
    watch = Watch("p", "q")
    watch.reactor.observe([Observation(watch.clock.now(), "carrier", "p", Signal.CARRIER, False)])
    assert watch.reactor.record.ports[0].state is S.DOWN and watch.events() == []
    watch.run(31)
    assert watch.events() == ["p: alarm port-outage: outage is out"]
