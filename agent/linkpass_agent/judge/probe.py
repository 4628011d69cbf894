"""What probes say of one path.

A probe that isn't answered within the path's patience (`timeout`, or three times the usual round trip where that is
longer) is lost until its answer comes after all. One lost probe makes the path SUSPECT: still used, and probed
together with the peer's other paths. `lost` of them in a row make it DOWN, but only with proof that the peer's agent
was alive to answer: an answer, over another path, to a probe that left no earlier than the last of the lost ones.

The proof must have come promptly, and after it the lost probes get `grace` more: an agent that was held up answers
what waits on its sockets one path after the other. And only probes count that left while the peer was already
answering on that other path: those lost while its agent was being restarted say nothing of the path. Without proof
nothing tells a dead path from a dead or busy agent, so the path stays SUSPECT and in use.
"""

from dataclasses import dataclass, replace

from linkpass.model import PortState, Verdict

from .holddown import NEVER_FELL, HoldDown, HoldDownRule, Past, past_of

S = PortState

MOVES: dict[PortState, frozenset[PortState]] = {
    S.UNKNOWN: frozenset({S.UP, S.SUSPECT, S.HELD}),  # HELD: what it owed before a restart
    S.UP: frozenset({S.SUSPECT}),
    S.SUSPECT: frozenset({S.UP, S.DOWN, S.HELD}),
    S.DOWN: frozenset({S.HELD}),
    S.HELD: frozenset({S.UP, S.DOWN}),
}

# Round trips that a probe may take before it counts as lost, and the weight of the newest in their mean: RFC 6298's
# smoothing, and about its variance term.
ROUND_TRIPS = 3.0
NEWEST = 1 / 8
LONGEST_PATIENCE = 1.0  # s
OUTSTANDING = 64  # unanswered probes that are remembered; older ones can't be answered any more


@dataclass(frozen=True, slots=True)
class ProbeRule:
    """`timeout` in seconds, `lost` in probes. `grace` (s): how long after the proof an answer still counts."""

    hold: HoldDownRule
    timeout: float = 0.015
    lost: int = 3
    grace: float = 0.015


@dataclass(frozen=True, slots=True)
class Sent:
    """A probe on its way."""

    seq: int
    at: float


@dataclass(frozen=True, slots=True)
class Proof:
    """The peer's agent answered, at `received`, a probe that left at `sent`, over another path.

    It has answered all probes on that path since `since`.
    """

    sent: float
    received: float
    since: float = float("-inf")


NO_PROOF = Proof(float("-inf"), float("-inf"))


@dataclass(frozen=True, slots=True)
class ProbedPath:
    """A value: `sent`, `answered` and `tick` return the next one."""

    rule: ProbeRule
    state: PortState = S.UNKNOWN
    since: float = 0.0
    cause: str = "not probed yet"
    waiting: tuple[Sent, ...] = ()  # unanswered since the last answer, oldest first
    rtt: float | None = None
    mean_rtt: float = 0.0
    hold: HoldDown = NEVER_FELL
    held_until: float | None = None
    flaps: int = 0
    last_flap: float | None = None
    owes: float = 0.0  # s of hold-down from before a restart, served when the path first answers

    def recall(self, past: Past, now: float) -> "ProbedPath":
        """A path that wasn't probed yet, with what is remembered of it."""
        hold = HoldDown(past.length).since(self.rule.hold, past.good_for, now)
        owes = min(max(0.0, past.owes), self.rule.hold.maximum)
        flapped = None if past.last_flap is None else now - past.last_flap
        return replace(self, hold=hold, owes=owes, flaps=max(0, past.flaps), last_flap=flapped)

    def past(self, now: float) -> Past:
        """What a restart should remember."""
        return past_of(
            self.hold,
            out=self.state == S.DOWN,
            held_until=self.held_until,
            owes=self.owes,
            flaps=self.flaps,
            last_flap=self.last_flap,
            now=now,
        )

    @property
    def patience(self) -> float:
        """Seconds after which a probe of this path counts as lost."""
        return max(self.rule.timeout, min(LONGEST_PATIENCE, ROUND_TRIPS * self.mean_rtt))

    def sent(self, seq: int, now: float) -> "ProbedPath":
        """A probe left."""
        return replace(self, waiting=(*self.waiting, Sent(seq, now))[-OUTSTANDING:])

    def answered(self, seq: int, now: float) -> "ProbedPath":
        """An answer came; one that we don't wait for changes nothing."""
        asked = next((p for p in self.waiting if p.seq == seq), None)
        if asked is None:
            return self
        rtt = now - asked.at
        mean = self.mean_rtt + NEWEST * (rtt - self.mean_rtt)  # from 0: the first probe also waits for ARP
        path = replace(self, waiting=tuple(p for p in self.waiting if p.seq > seq), rtt=rtt, mean_rtt=mean)
        if self.state == S.DOWN:
            until = now + self.hold.length
            held = path._move(S.HELD, now, f"probes answered again; hold-down {self.hold.length:g} s")
            return replace(held, held_until=until)
        if self.owes and self.state in (S.UNKNOWN, S.SUSPECT):
            text = f"probes answered; {self.owes:.1f} s of hold-down left from before the agent's restart"
            return replace(path._move(S.HELD, now, text), held_until=now + self.owes, owes=0.0)
        if self.state in (S.UNKNOWN, S.SUSPECT):
            return path._move(S.UP, now, "probes answered")
        return path

    def tick(self, now: float, proof: Proof = NO_PROOF) -> "ProbedPath":
        """Let time pass. `proof` is the newest sign of life that the peer gave over its other paths."""
        lost = [p for p in self.waiting if now >= p.at + self.patience]
        if self.state == S.HELD:
            if self._proven(lost, now, proof):
                return self._down(len(lost), now)
            if self.held_until is not None and now >= self.held_until and not lost:
                path = self._move(S.UP, now, f"answered for {now - self.since:.1f} s of hold-down")
                return replace(path, hold=self.hold.trusted(now), held_until=None)
            return self
        if self.state == S.SUSPECT and len(lost) >= self.rule.lost:
            if self._proven(lost, now, proof):
                return self._down(len(lost), now)
            unsure = f"{self.rule.lost} or more probes unanswered, and no sign of the peer's agent: can't tell"
            return replace(self, cause=unsure) if self.cause != unsure else self
        if lost and self.state in (S.UP, S.UNKNOWN):
            return self._move(S.SUSPECT, now, "a probe wasn't answered")
        return self

    def _proven(self, lost: list[Sent], now: float, proof: Proof) -> bool:
        counted = [p for p in lost if p.at >= proof.since]
        enough = len(counted) >= self.rule.lost and proof.sent >= counted[self.rule.lost - 1].at
        return enough and now >= proof.received + self.rule.grace

    def _down(self, lost: int, now: float) -> "ProbedPath":
        path = self._move(S.DOWN, now, f"{lost} probes in a row unanswered, while the peer answered on another path")
        if self.owes:  # it was out before the agent's restart, and still is: no new fall
            return replace(path, owes=0.0)
        return replace(
            path, hold=self.hold.fell(self.rule.hold, now), held_until=None, flaps=self.flaps + 1, last_flap=now
        )

    def _move(self, to: PortState, now: float, cause: str) -> "ProbedPath":
        if to not in MOVES[self.state]:
            raise AssertionError(f"no move from {self.state} to {to}: {cause}")
        return replace(self, state=to, since=now, cause=cause)

    def wakes_at(self, now: float, proof: Proof = NO_PROOF) -> float | None:
        """When `tick` will matter next, as far as can be told now."""
        times = [p.at + self.patience for p in self.waiting]
        times.append(proof.received + self.rule.grace)
        if self.held_until is not None:
            if now >= self.held_until and all(now < p.at + self.patience for p in self.waiting):
                return now  # an answer was taken in after the hold-down's end, before `tick` saw it
            times.append(self.held_until)
        return min((t for t in times if t > now), default=None)

    @property
    def verdict(self) -> Verdict:
        return Verdict(self.state, self.since, self.cause, self.flaps, self.last_flap, self.held_until)
