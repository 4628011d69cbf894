"""The state machine of one port: facts and time in, a verdict out.

Down is believed at once. Up is believed late: a port that was down is HELD until its hold-down has run. Facts that
could not be observed keep their last value; an UP port whose carrier can't be observed any more goes UNKNOWN, which
the planner treats as usable, because losing sight of a port isn't a failure of the port.

Gates (`judge/gates.py`) hold a port back after its hold-down; what they say comes as `Signal.GATE`.

What the rules say of the counters (`Signal.RULES`) makes a working port SUSPECT, which is still used, or HELD where a
rule says "down". So HELD always means: the link works, and not using it is our own choice. That choice has limits
(`decide/limits.py`): a port that they keep in use is SUSPECT (`keep`).
"""

from dataclasses import dataclass, field, replace

from linkpass.model import Observation, PortState, Signal, Value, Verdict

from .holddown import NEVER_FELL, HoldDown, HoldDownRule, Past, past_of

S = PortState

# Every move that exists. DRAINED isn't here: a drain lies over the link's own state (see `Port.verdict`).
MOVES: dict[PortState, frozenset[PortState]] = {
    S.UNKNOWN: frozenset({S.UP, S.SUSPECT, S.DOWN, S.ABSENT, S.HELD}),  # HELD: what it owed before a restart
    S.UP: frozenset({S.SUSPECT, S.DOWN, S.ABSENT, S.UNKNOWN, S.HELD}),  # HELD: after an undrain
    S.SUSPECT: frozenset({S.UP, S.DOWN, S.ABSENT, S.UNKNOWN, S.HELD}),
    S.DOWN: frozenset({S.HELD, S.ABSENT}),
    S.HELD: frozenset({S.UP, S.SUSPECT, S.DOWN, S.ABSENT}),
    S.ABSENT: frozenset({S.DOWN, S.HELD}),
}

# RFC 2863 ifOperStatus values (include/uapi/linux/if.h) in which a link with carrier still can't carry traffic.
UNUSABLE_OPERSTATES = frozenset({"lowerlayerdown", "dormant", "testing", "notpresent"})

# ibv_query_port(3) states in which no queue pair can carry data, whatever the net device says.
UNUSABLE_RDMA = frozenset({"down", "init", "armed"})


@dataclass(frozen=True, slots=True)
class Reading:
    """What the facts say of the link: `good` None when they don't tell."""

    good: bool | None
    present: bool
    cause: str
    doubt: str = ""  # why a good link is SUSPECT
    bar: str = ""  # why a good link isn't used until that is over


WORKS = (S.UP, S.SUSPECT)
UNSEEN = "not looked at since the port came back"


@dataclass(frozen=True, slots=True)
class Port:
    """One port's facts and state. A value: `observe`, `tick`, `drain` and `undrain` return the next one."""

    rule: HoldDownRule
    state: PortState = S.UNKNOWN
    since: float = 0.0
    cause: str = "not observed yet"
    facts: dict[Signal, Value | None] = field(default_factory=dict)
    hold: HoldDown = NEVER_FELL
    held_until: float | None = None
    flaps: int = 0
    last_flap: float | None = None
    drained: str | None = None
    drained_since: float = 0.0
    rules_text: str = ""  # which rule doubts the port, and why
    owes: float = 0.0  # s of hold-down from before a restart, served when the port is first seen to work
    served: bool = False  # the hold-down has run, and a gate holds the port
    kept: str = ""  # the limit that keeps a HELD port in use

    def recall(self, past: Past, now: float) -> "Port":
        """A port that nothing was seen of yet, with what is remembered of it."""
        hold = self.hold if past.clean else HoldDown(past.length).since(self.rule, past.good_for, now)
        owes = min(max(0.0, past.owes), self.rule.maximum)
        flapped = None if past.last_flap is None else now - past.last_flap
        return replace(self, hold=hold, owes=owes, flaps=max(0, past.flaps), last_flap=flapped)

    def past(self, now: float) -> Past:
        """What a restart should remember."""
        return past_of(
            self.hold,
            out=self.state in (S.DOWN, S.ABSENT, S.HELD),
            held_until=None if self.served else self.held_until,  # behind a gate it owes a whole hold-down again
            owes=self.owes,
            flaps=self.flaps,
            last_flap=self.last_flap,
            now=now,
        )

    def observe(self, seen: Observation) -> "Port":
        """Take in one observation."""
        if seen.signal in self.facts and self.facts[seen.signal] == seen.value:
            return self
        if seen.value is None and seen.signal != Signal.CARRIER:
            return self
        # What was known of a device that is gone says nothing of the one that may come under its name.
        gone = seen.signal == Signal.PRESENT and seen.value is False
        port = replace(self, facts={**({} if gone else self.facts), seen.signal: seen.value})
        if seen.signal == Signal.RULES:
            port = replace(port, rules_text=seen.detail)
        return port._follow(port.reading(), seen)

    def reading(self) -> Reading:
        """What the facts add up to."""
        f = self.facts
        if f.get(Signal.PRESENT) is False:
            return Reading(False, False, "the device is gone")
        if f.get(Signal.ADMIN) is False:
            return Reading(False, True, "administratively down")
        if f.get(Signal.CARRIER) is False:
            return Reading(False, True, "carrier lost")
        operstate = f.get(Signal.OPERSTATE)
        if operstate in UNUSABLE_OPERSTATES:
            return Reading(False, True, f"operstate {operstate}")
        if f.get(Signal.RDMA_FATAL) is True:
            return Reading(False, True, "the RDMA device failed")
        if f.get(Signal.RDMA) in UNUSABLE_RDMA:
            return Reading(False, True, f"RDMA port {f[Signal.RDMA]}")
        says = f.get(Signal.RULES)
        doubt, bar = (f"rule {self.rules_text}" if says == word else "" for word in ("suspect", "down"))
        if f.get(Signal.CARRIER) is True:
            return Reading(True, True, "carrier", doubt, bar)
        return Reading(None, True, "carrier can't be observed", bar=bar)

    def _follow(self, reading: Reading, seen: Observation) -> "Port":
        told = seen.detail if seen.signal != Signal.RULES else ""  # the reading's cause has it
        cause = f"{reading.cause} ({seen.source}{': ' + told if told else ''})"
        now = seen.at
        if reading.good is False:
            return self._fall(S.DOWN if reading.present else S.ABSENT, now, cause)
        if self.state == S.HELD and self.held_until is None and not reading.bar:
            text = f"{cause}; hold-down {self.hold.length:g} s"
            return replace(self, since=now, cause=text, held_until=now + self.hold.length)
        if reading.good is None:
            return self._move(S.UNKNOWN, now, cause) if self.state in WORKS else self
        if reading.bar:
            return self._bar(reading.bar, now)
        if self.state == S.UNKNOWN and self.owes:
            text = f"{cause}; {self.owes:.1f} s of hold-down left from before the agent's restart"
            return replace(self._move(S.HELD, now, text), held_until=now + self.owes, owes=0.0)
        if self.state in (S.UNKNOWN, *WORKS):
            return self._doubt(reading, now, cause)
        if self.state in (S.DOWN, S.ABSENT):
            held = self._move(S.HELD, now, f"{cause}; hold-down {self.hold.length:g} s")
            return replace(held, held_until=now + self.hold.length)
        return self

    def _doubt(self, reading: Reading, now: float, cause: str) -> "Port":
        """A working link is SUSPECT while a rule doubts it, else UP."""
        to = S.SUSPECT if reading.doubt else S.UP
        if self.state == to:
            return self if cause == self.cause or not reading.doubt else replace(self, cause=reading.doubt)
        return self._move(to, now, reading.doubt or cause)

    def _bar(self, bar: str, now: float) -> "Port":
        """Held until the bar is gone, and for a hold-down then. The link didn't fall, so it is no flap."""
        if self.state == S.HELD:
            return self if self.cause == bar else replace(self, cause=bar, held_until=None)
        hold = self.hold.fell(self.rule, now) if self.state in WORKS else self.hold
        return replace(self._move(S.HELD, now, bar), hold=hold, held_until=None, owes=0.0)

    def keep(self, limit: str) -> "Port":
        """A HELD port that stays in use because `limit` is reached; "" when it isn't any more."""
        return self if self.kept == limit else replace(self, kept=limit)

    def _fall(self, to: PortState, now: float, cause: str) -> "Port":
        if self.state == to:
            return self
        if self.state in (S.DOWN, S.ABSENT):
            return self._move(to, now, cause)
        if self.owes:  # it was out before the agent's restart, and still is: no new fall
            return replace(self._move(to, now, cause), owes=0.0)
        first_look = self.state == S.UNKNOWN and self.since == 0.0
        moved = replace(
            self._move(to, now, cause), hold=self.hold.fell(self.rule, now), held_until=None, facts=self._gates_anew()
        )
        return moved if first_look else replace(moved, flaps=self.flaps + 1, last_flap=now)

    def _gates_anew(self) -> dict[Signal, Value | None]:
        """What the gates said is of another time. Where nobody looks at gates, there is none to wait for."""
        return {**self.facts, Signal.GATE: UNSEEN} if Signal.GATE in self.facts else self.facts

    def tick(self, now: float) -> "Port":
        """Let time pass: a hold-down may end."""
        if self.state != S.HELD or self.held_until is None or now < self.held_until:
            return self
        if gate := self.facts.get(Signal.GATE):
            cause = f"hold-down served; gate: {gate}"
            return self if self.cause == cause else replace(self, cause=cause, served=True)
        served = now - self.since
        doubt = self.reading().doubt
        text = f"behaved for {served:.1f} s of hold-down"
        port = self._move(S.SUSPECT if doubt else S.UP, now, f"{text}; {doubt}" if doubt else text)
        return replace(port, hold=self.hold.trusted(now), held_until=None)

    def drain(self, reason: str, now: float) -> "Port":
        """An operator takes the port out of service."""
        return replace(self, drained=reason, drained_since=now)

    def undrain(self, now: float) -> "Port":
        """An operator gives the port back; it is re-admitted like one that returned, at the first price."""
        port = replace(self, drained=None)
        if port.state not in WORKS:
            return port
        held = port._move(S.HELD, now, f"undrained; hold-down {self.rule.first:g} s")
        return replace(held, held_until=now + self.rule.first, facts=self._gates_anew())

    def _move(self, to: PortState, now: float, cause: str) -> "Port":
        if to not in MOVES[self.state]:
            raise AssertionError(f"no move from {self.state} to {to}: {cause}")
        return replace(self, state=to, since=now, cause=cause, kept="", served=False)

    @property
    def wakes_at(self) -> float | None:
        """When `tick` will matter."""
        return (
            None if self.served and self.facts.get(Signal.GATE) else self.held_until
        )  # its opening is an observation

    @property
    def verdict(self) -> Verdict:
        """The state to tell others. A drained port whose link fails is DOWN, and says both."""
        link_works = self.state not in (S.DOWN, S.ABSENT)
        state, since, cause = self.state, self.since, self.cause
        if self.kept:
            state, cause = S.SUSPECT, f"kept in use: {self.kept}; else held: {cause}"
        if self.drained is not None:
            cause = f"drained: {self.drained}" if link_works else f"{cause}; drained: {self.drained}"
            if link_works:
                state, since = S.DRAINED, self.drained_since
        return Verdict(
            state, since, cause, self.flaps, self.last_flap, self.held_until if link_works and not self.kept else None
        )
