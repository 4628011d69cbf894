"""Alarms, joined: what rules find of the ports' own history and of their counters, less what needs no waking.

    Reactor (states, flaps) ──> PortRules of the alarm rules ─┐
    Observing's findings ─────────────────────────────────────┴─> Alarms ──> events, `linkpassctl alarms`

Called with each sweep. Rerouting never waits for any of this.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from linkpass.api import AlarmView
from linkpass.clock import Clock
from linkpass.model import EventKind, Finding, PortState, Signal
from linkpass.rules import AGENTS_OWN, Rule

from .events import EventLog
from .judge.alarms import Alarms, Graces, PastAlarm
from .judge.counting import CounterKind, Sample
from .judge.rules import Baselines, PortRules
from .observing import Observing
from .reactor import Reactor

# What alarm rules watch beside counters: the agent's own count of a port's falls, and whether it is out now.
FALLS, OUTAGE = AGENTS_OWN
FLAPS = CounterKind("agent", FALLS, FALLS, 63, "wraps")
UNEXPECTED = "not in the manifest"
OUT = (PortState.DOWN, PortState.ABSENT)
UPTIME = Path("/proc/uptime")


def of_ports(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules over the agent's own verdicts; all others are `Observing`'s."""
    return tuple(r for r in rules if r.watch in AGENTS_OWN)


def booted(now: float, uptime: Path = UPTIME) -> float:
    """When the host booted, in monotonic seconds; long ago if that can't be read."""
    try:
        return now - float(uptime.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return float("-inf")


class Alarming:
    """`past`, `windows` and `undrained` (s since each port's undrain) are what a restart remembered."""

    def __init__(
        self,
        rules: Iterable[Rule],
        graces: Graces,
        kept: int,
        reactor: Reactor,
        observing: Observing | None,
        events: EventLog,
        clock: Clock,
        booted: float,
        past: Iterable[PastAlarm] = (),
        windows: Mapping[str, Baselines] | None = None,
        expected: Callable[[str], bool] = lambda port: True,
        undrained: Mapping[str, float] | None = None,
    ) -> None:
        self._expected = expected
        self._graces, self._reactor, self._observing = graces, reactor, observing
        self._events, self._clock, self._booted = events, clock, booted
        rules = tuple(rules)
        now = clock.now()
        self._rules = {port: PortRules(port, of_ports(r for r in rules if r.enabled)) for port in reactor.ports}
        for port, baselines in (windows or {}).items():
            if port in self._rules:
                self._rules[port].recall(baselines, now)
        growth = {r.name for r in rules if r.kind in ("growth", "ratio")}
        self._alarms = Alarms(growth, kept, [a for a in past if a.port in reactor.ports], now)
        self._drained = {name: port.drained is not None for name, port in reactor.ports.items()}
        self._undrained = {port: now - ago for port, ago in (undrained or {}).items()}

    def look(self) -> None:
        """Judge all ports now."""
        now = self._clock.now()
        findings: dict[str, tuple[Finding, ...]] = {}
        quiet: dict[str, str] = {}
        for name, port in self._reactor.ports.items():
            drained = port.drained is not None
            if self._drained[name] and not drained:
                self._undrained[name] = now
            self._drained[name] = drained
            admin = port.facts.get(Signal.ADMIN)
            admin_up = admin if isinstance(admin, bool) else None
            quiet[name] = (
                UNEXPECTED
                if not self._expected(name)
                else self._graces.quiet(
                    now,
                    booted=self._booted,
                    undrained=self._undrained.get(name),
                    drained=drained,
                    admin_up=admin_up,
                )
            )
            rules = self._rules[name]
            # A quiet time's falls never count, and an outage is timed from its end.
            outage = None if quiet[name] else _outage(port.state)
            rules.look(now, {OUTAGE: outage}, [Sample(FLAPS, port.flaps)], not quiet[name])
            watched = self._observing.watched.get(name) if self._observing else None
            findings[name] = (*rules.findings, *(watched.rules.findings if watched else ()))
        for turn in self._alarms.look(now, self._clock.wall(), findings, quiet):
            self._tell(turn.alarm)

    def active(self) -> list[AlarmView]:
        """The alarms that are on, oldest first."""
        return [self._view(a) for a in sorted(self._alarms.active.values(), key=lambda a: a.raised)]

    def history(self) -> list[AlarmView]:
        """Those that are over, oldest first, then the active ones."""
        return [*(self._view(a) for a in self._alarms.history), *self.active()]

    def past(self) -> tuple[PastAlarm, ...]:
        """What a restart should remember of the alarms."""
        return self._alarms.past()

    def windows(self) -> dict[str, Baselines]:
        """What a restart should remember of the falls that were counted."""
        now = self._clock.now()
        return {port: rules.baselines(now) for port, rules in self._rules.items()}

    def undrained(self) -> dict[str, float]:
        """How long ago each port was undrained, s, while that explains trouble."""
        now = self._clock.now()
        ages = {port: max(0.0, now - at) for port, at in self._undrained.items()}
        return {port: ago for port, ago in ages.items() if ago < self._graces.undrain}

    # -- inside -----------------------------------------------------------------------------------------------

    def _tell(self, alarm: PastAlarm) -> None:
        if alarm.cleared is None:
            text, cause = f"alarm {alarm.rule}: {alarm.text}", alarm.evidence
        else:
            text, cause = f"alarm {alarm.rule} is over", alarm.over
        self._events.add(
            EventKind.ALARM,
            alarm.port,
            text,
            cause,
            {"rule": alarm.rule, "act": alarm.act, "active": alarm.cleared is None},
        )

    def _view(self, a: PastAlarm) -> AlarmView:
        rail = self._reactor.rails.get(a.port, "")
        return AlarmView(
            port=a.port, rail=rail, rule=a.rule, act=a.act, text=a.text, evidence=a.evidence,
            raised=a.raised, cleared=a.cleared, over=a.over,
        )  # fmt: skip


def _outage(state: PortState) -> str | None:
    """None where nothing can be told: neither a cause, nor does it keep an alarm on."""
    if state is PortState.UNKNOWN:
        return None
    return "out" if state in OUT else "in"
