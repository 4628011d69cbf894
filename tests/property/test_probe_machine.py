"""Whatever is lost, late or answered twice: a path is DOWN only with proof, and nothing makes the loop spin."""

from dataclasses import dataclass
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from linkpass.model import PathId, PortState
from linkpass_agent.judge.holddown import HoldDownRule
from linkpass_agent.judge.probe import MOVES, ProbeRule
from linkpass_agent.judge.probing import Probing
from linkpass_agent.judge.schedule import ScheduleRule

S = PortState
PATHS = [PathId(peer, f"rail{n}", f"a-rail{n}") for peer in ("b", "c") for n in range(3)]
RULE = ProbeRule(HoldDownRule(0.5, 60.0, 10.0), timeout=0.015, lost=3, grace=0.003)


@dataclass
class Probe:
    """The model's own record of one probe."""

    path: PathId
    seq: int
    sent: float
    answered: float | None = None


class ProbeMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1000), period=st.sampled_from([0.004, 0.05, 0.3]))
    def begin(self, seed: int, period: float) -> None:
        self.probing = Probing(RULE, ScheduleRule(period, 1.0, 500.0), Random(seed))
        self.random = Random(seed)
        self.now = 50.0
        self.paths = PATHS
        self.probing.set_paths(PATHS, PATHS, self.now)
        self.probes: list[Probe] = []
        self.states = dict.fromkeys(PATHS, S.UNKNOWN)
        self.held_since: dict[PathId, float] = {}

    def settle(self) -> None:
        """Compare all states with those before, and hold every change to the rules."""
        for path in self.paths:
            old, new = self.states[path], self.probing.get(path).state
            self.states[path] = new
            if old == new:
                continue
            assert new in MOVES[old]
            if new == S.DOWN:
                self.check_proof(path)
            if new == S.HELD:
                self.held_since[path] = self.now
            if new == S.UP and old == S.HELD:
                assert self.now - self.held_since[path] >= RULE.hold.first - 1e-9

    def check_proof(self, path: PathId) -> None:
        mine = [p for p in self.probes if p.path == path]
        last_answered = max((n for n, p in enumerate(mine) if p.answered is not None), default=-1)
        lost = [p for p in mine[last_answered + 1 :] if self.now >= p.sent + RULE.timeout]
        assert len(lost) >= 3, f"{path} is down after {len(lost)} lost probes"
        assert any(
            p.answered is not None and p.sent >= lost[2].sent and self.now >= p.answered + RULE.grace
            for p in self.probes
            if p.path.peer == path.peer and p.path != path
        ), f"{path} is down without a sign of {path.peer}'s agent"

    def answer(self, probe: Probe) -> bool:
        """An answer comes; whether anybody waits for it."""
        awaited = any(p.seq == probe.seq for p in self.probing.get(probe.path).waiting)
        if awaited:
            probe.answered = self.now
        self.probing.answered(probe.path, probe.seq, self.now)
        return awaited

    def wake(self) -> None:
        self.probing.tick(self.now)
        for path, seq in self.probing.due(self.now):
            if self.random.random() < 0.95:  # some can't leave
                self.probing.sent(path, seq, self.now)
                self.probes.append(Probe(path, seq, self.now))
        self.settle()

    @rule(
        steps=st.integers(1, 30), answer=st.sets(st.sampled_from(PATHS)), delay=st.sampled_from([0.0003, 0.01, 0.04])
    )
    def run(self, steps: int, answer: set[PathId], delay: float) -> None:
        """Wake whenever asked to; probes on some paths are answered `delay` later."""
        first = len(self.probes)
        for _ in range(steps):
            at = self.probing.next_at()
            ripe = [
                p for p in self.probes[first:] if p.path in answer and p.answered is None and p.path in self.paths
            ]
            soonest = min((p.sent + delay for p in ripe), default=float("inf"))
            if at is None and soonest == float("inf"):
                return
            self.now = max(self.now, min(at if at is not None else soonest, soonest))
            for probe in [p for p in ripe if p.sent + delay <= self.now]:
                self.answer(probe)
            self.settle()
            self.wake()

    @rule(seconds=st.floats(0.0, 3.0))
    def sleep_too_long(self, seconds: float) -> None:
        """The loop was busy: it wakes late."""
        self.now += seconds
        self.wake()

    @precondition(lambda self: self.probes)
    @rule(data=st.data())
    def answer_something_old(self, data: st.DataObject) -> None:
        probe = data.draw(st.sampled_from(self.probes[-40:]))
        before = self.probing.get(probe.path)
        assert self.answer(probe) or self.probing.get(probe.path) == before
        self.settle()

    @rule(keep=st.sets(st.sampled_from(PATHS), min_size=1), fast=st.sets(st.sampled_from(PATHS)))
    def change_paths(self, keep: set[PathId], fast: set[PathId]) -> None:
        self.paths = sorted(keep)
        self.probing.set_paths(keep, fast, self.now)
        for path in PATHS:
            if path not in keep:
                self.states[path] = S.UNKNOWN
                self.probes = [p for p in self.probes if p.path != path]
        self.settle()

    @invariant()
    def wake_up_is_not_in_the_past_after_a_wake_up(self) -> None:
        if not hasattr(self, "probing"):
            return
        self.wake()
        at = self.probing.next_at()
        assert at is None or at > self.now


ProbeMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestProbeMachine = ProbeMachine.TestCase
