"""The rules (`linkpass.rules`) applied to one port: looks in, findings out. No I/O, no clock of its own.

A finding opens when its rule's cause holds and goes when the cause has been absent for the rule's `clear` seconds.
What can't be observed is never a cause, nor does it keep a finding open.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from linkpass.model import Evidence, Finding
from linkpass.rules import Rule

from .counting import CounterKind, Grown, Reading, Sample, compare

GRAINS = 60  # a window is remembered in so many pieces at most
WORST = {"alarm": 0, "suspect": 1, "down": 2}
STATES = ("ok", "suspect", "down")  # by WORST
ADMIN_LOOKS = 2  # looks after an administrative change in which growth is the change's own

Fact = str | int | None


class Cause(NamedTuple):
    """Why a rule holds now."""

    text: str
    evidence: tuple[Evidence, ...]


FALLS = "link-downed"  # the role of counters that count a link's falls


@dataclass(slots=True)
class Window:
    """Growth of one counter over the last `length` seconds."""

    length: float
    pieces: deque[tuple[float, float]] = field(default_factory=deque)
    total: float = 0.0

    def add(self, now: float, by: float) -> None:
        """Growth since the last look."""
        if self.pieces and now - self.pieces[-1][0] < self.length / GRAINS:
            at, known = self.pieces[-1]
            self.pieces[-1] = (at, known + by)
        else:
            self.pieces.append((now, by))
        self.total += by

    def over(self, now: float) -> float:
        """The growth that isn't older than the window."""
        while self.pieces and self.pieces[0][0] <= now - self.length:
            self.total -= self.pieces.popleft()[1]
        if not self.pieces:
            self.total = 0.0
        return self.total


@dataclass(slots=True)
class Count:
    """One counter: its last value, and its growth as the rules need it."""

    kind: CounterKind
    windows: dict[str, Window]  # by rule
    value: int | None = None
    read_at: float | None = None
    reading: Reading = Reading.BLIND
    why: str = "not read yet"
    grew_at: float | None = None

    def take(self, sample: Sample, now: float, *, ours: bool) -> None:
        """A new reading. `ours`: growth now is the administrator's own doing."""
        grown = compare(self.value, sample.value, self.kind)
        self.reading, self.why = grown.reading, sample.why
        if sample.value is None:
            return
        if grown.by and not ours:
            self._grew(grown, now)
        self.value, self.read_at = sample.value, now

    def _grew(self, grown: Grown, now: float) -> None:
        assert grown.by is not None
        self.grew_at = now
        gap = now - self.read_at if self.read_at is not None else 0.0
        for window in self.windows.values():
            # After a pause longer than the window only the window's share of the growth falls into it.
            window.add(now, grown.by if gap <= window.length else grown.by * window.length / gap)


@dataclass(frozen=True, slots=True)
class Baselines:
    """What a restart remembers of a port's counters: each one's last value and how long ago it was read (s), its
    growth within the rules' windows (how long ago, by how much), and the best values of facts."""

    counts: dict[str, tuple[int, float]] = field(default_factory=dict)  # by source
    grown: dict[str, dict[str, tuple[tuple[float, float], ...]]] = field(default_factory=dict)  # by source and rule
    best: dict[str, int] = field(default_factory=dict)

    def after(self, gap: float) -> "Baselines":
        """The same, `gap` seconds later."""
        return replace(
            self,
            counts={source: (value, ago + gap) for source, (value, ago) in self.counts.items()},
            grown={
                source: {rule: tuple((ago + gap, by) for ago, by in pieces) for rule, pieces in rules.items()}
                for source, rules in self.grown.items()
            },
        )


@dataclass(slots=True)
class Held:
    """A rule's state: since when its cause holds, and its finding while one is open."""

    cause_since: float | None = None
    cause_at: float = 0.0
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """What one look changed. `state`: ok, suspect or down, for the worst finding that is open, which `text` tells."""

    opened: tuple[Finding, ...]
    closed: tuple[Finding, ...]
    state: str
    text: str


class PortRules:
    """The rules of one port, and what they must remember."""

    def __init__(self, port: str, rules: Iterable[Rule], expected: Mapping[str, int] | None = None) -> None:
        self.port = port
        self._expected = dict(expected or {})  # by fact: what the manifest says; else the best that was seen counts
        self._rules = tuple(rules)
        self._held = {_key(r): Held() for r in self._rules}
        self.counts: dict[str, Count] = {}
        self._best: dict[str, int] = {}
        self._before, self._recalled_at = Baselines(), 0.0  # counters as they were before a restart
        self._admin: bool | None = None
        self._admin_looks = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Those that are open, worst first."""
        found = (h.finding for h in self._held.values() if h.finding)
        return tuple(sorted(found, key=lambda f: (-WORST[f.act], f.since)))

    def look(
        self, now: float, facts: Mapping[str, Fact], samples: Iterable[Sample], admin: bool | None = True
    ) -> Judged:
        """Judge one look. `facts` by name (rate, width, mtu, phys); `admin`: the device is administratively up."""
        if admin is not None and admin != self._admin:
            self._admin_looks = ADMIN_LOOKS if self._admin is not None else 0
            self._admin = admin
        ours = self._admin is False or self._admin_looks > 0
        self._admin_looks = max(0, self._admin_looks - 1)
        for sample in samples:
            count = self.counts.get(sample.kind.source)
            if count is None:
                count = self.counts[sample.kind.source] = self._count(sample.kind)
            count.take(sample, now, ours=ours)
        opened, closed = [], []
        for rule in self._rules:
            held = self._held[_key(rule)]
            before = held.finding
            self._judge(rule, held, self._cause(rule, now, facts), now)
            if held.finding and not before:
                opened.append(held.finding)
            elif before and not held.finding:
                closed.append(before)
        state, text = self.state()
        return Judged(tuple(opened), tuple(closed), state, text)

    def state(self) -> tuple[str, str]:
        """The worst of the open findings as ok, suspect or down, and its text."""
        worst = next((f for f in self.findings if WORST[f.act]), None)
        return (STATES[WORST[worst.act]], f"{worst.rule}: {worst.text}") if worst else ("ok", "")

    def baselines(self, now: float) -> Baselines:
        """What to remember."""
        counts = {
            source: (count.value, max(0.0, now - count.read_at))
            for source, count in self.counts.items()
            if count.value is not None and count.read_at is not None
        }
        grown = {
            source: {
                rule: tuple((max(0.0, now - at), by) for at, by in window.pieces)
                for rule, window in count.windows.items()
                if window.over(now)
            }
            for source, count in self.counts.items()
        }
        return Baselines(counts, {source: rules for source, rules in grown.items() if rules}, dict(self._best))

    def recall(self, past: Baselines, now: float) -> None:
        """Go on from there: what grew while no agent looked is growth too."""
        self._before, self._recalled_at = past, now
        self._best = dict(past.best)

    def expect(self, expected: Mapping[str, int]) -> None:
        """Something else is expected from now on."""
        self._expected = dict(expected)

    def wanted(self) -> dict[str, int]:
        """What a port that comes back should have: what is expected, else the best that was seen."""
        return {**self._best, **self._expected}

    def forget_best(self) -> None:
        """What the port has now is right from now on: another device came, or an operator gave the port back."""
        self._best.clear()

    def device_came(self) -> None:
        """Another device, or the same one made anew: its counters have another beginning."""
        self.forget_best()
        self._before = Baselines()
        self.counts.clear()

    def quiet(self, now: float, seconds: float) -> tuple[bool | None, str]:
        """Whether no counter that rules watch grew in the last `seconds`; None if none could be read in that time."""
        read = [c for c in self.counts.values() if c.read_at is not None and c.read_at > now - seconds]
        grew = [c for c in read if c.grew_at is not None and c.grew_at > now - seconds]
        loud = [c for c in grew if c.kind.role != FALLS]  # a fall's price is the hold-down
        if loud:
            return False, ", ".join(sorted(f"{c.kind.source} grew" for c in loud))
        useful = [c for c in read if c.reading is not Reading.SATURATED]
        return (True, "") if useful else (None, "no counter can be read")

    def blind(self) -> dict[str, str]:
        """Counters that tell nothing now, and why."""
        found = {}
        for source, count in self.counts.items():
            if count.reading is Reading.BLIND:
                found[source] = count.why or "can't be read"
            elif count.reading is Reading.SATURATED:
                found[source] = f"saturated at {count.value}"
        return found

    # -- inside -----------------------------------------------------------------------------------------------

    def _count(self, kind: CounterKind) -> Count:
        """A counter that is seen for the first time, with what is remembered of it."""
        then, windows = self._recalled_at, self._windows(kind.role)
        for rule, pieces in self._before.grown.get(kind.source, {}).items():
            for ago, by in sorted(pieces, reverse=True):
                if rule in windows and ago >= 0 and by >= 0:
                    windows[rule].add(then - ago, by)
        value, ago = self._before.counts.get(kind.source, (None, 0.0))
        return Count(kind, windows, value, None if value is None else then - max(0.0, ago))

    def _windows(self, role: str) -> dict[str, Window]:
        return {_key(r): Window(r.window) for r in self._rules if role in (r.watch, r.per)}

    def _cause(self, rule: Rule, now: float, facts: Mapping[str, Fact]) -> Cause | None:
        match rule.kind:
            case "growth":
                return self._growth(rule, now)
            case "ratio":
                return self._ratio(rule, now)
            case "drop":
                return self._drop(rule, now, facts.get(rule.watch))
            case "value":
                value = facts.get(rule.watch)
                if value is not None and str(value).partition(":")[0] in rule.values:
                    return Cause(f"{rule.watch} is {value}", (Evidence(now, rule.watch, str(value)),))
        return None

    def _growth(self, rule: Rule, now: float) -> Cause | None:
        key = _key(rule)
        over = [
            (count, grown)
            for count in self._watching(rule.watch)
            if (grown := count.windows[key].over(now)) > rule.limit and grown > 0
        ]
        if not over:
            return None
        worst, grown = max(over, key=lambda found: found[1])
        text = f"{worst.kind.source} grew by {grown:.0f} in {rule.window:g} s, more than {rule.limit:g}"
        return Cause(text, tuple(_evidence(count, grown) for count, grown in over))

    def _ratio(self, rule: Rule, now: float) -> Cause | None:
        key = _key(rule)
        part = sum(c.windows[key].over(now) for c in self._watching(rule.watch))
        whole = sum(c.windows[key].over(now) for c in self._watching(rule.per))
        if whole <= 0 or part / whole <= rule.limit:
            return None
        text = f"{rule.watch} / {rule.per} is {part / whole:.1e} over {rule.window:g} s, above {rule.limit:.0e}"
        counts = (*self._watching(rule.watch), *self._watching(rule.per))
        return Cause(text, tuple(_evidence(c, c.windows[key].over(now)) for c in counts))

    def _drop(self, rule: Rule, now: float, value: Fact) -> Cause | None:
        if not isinstance(value, int):
            return None
        if (expected := self._expected.get(rule.watch)) is not None:
            if value >= expected:
                return None
            evidence = Evidence(now, rule.watch, f"{value}, expected {expected}")
            return Cause(f"{rule.watch} is {value}, expected {expected}", (evidence,))
        best = self._best[rule.watch] = max(value, self._best.get(rule.watch, value))
        if value >= best:
            return None
        return Cause(f"{rule.watch} is {value}, was {best}", (Evidence(now, rule.watch, f"{best} -> {value}"),))

    def _watching(self, role: str) -> list[Count]:
        return [c for c in self.counts.values() if c.kind.role == role]

    def _judge(self, rule: Rule, held: Held, cause: Cause | None, now: float) -> None:
        if cause is None:
            held.cause_since = None
            if held.finding and now >= held.cause_at + rule.clear:
                held.finding = None
            return
        held.cause_at = now
        if held.cause_since is None:
            held.cause_since = now
        if held.finding:
            held.finding = replace(held.finding, text=cause.text, evidence=cause.evidence)
            return
        # Growth has its window behind it; a fact must have held for the window.
        if rule.kind in ("growth", "ratio") or now - held.cause_since >= rule.window:
            held.finding = Finding(rule.name, self.port, now, rule.act, cause.text, cause.evidence)


def _key(rule: Rule) -> str:
    return f"{rule.name}/{','.join(rule.drivers)}"


def _evidence(count: Count, grown: float) -> Evidence:
    note = f", {count.reading}" if count.reading in (Reading.SATURATED, Reading.WRAPPED) else ""
    return Evidence(count.read_at or 0.0, count.kind.source, f"{count.value} (grew by {grown:.0f}{note})")
