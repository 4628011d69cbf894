"""All probed paths of a host together: who is probed when, and which path's silence is proven.

Pure: the doer (`see/prober.py`) sends what `due` says, reports what came back, and calls `tick`.
"""

import heapq
from collections import deque
from collections.abc import Collection, Mapping
from random import Random

from linkpass.model import PathId, PortState

from .holddown import Past
from .probe import NO_PROOF, ProbedPath, ProbeRule, Proof
from .schedule import ProbeSchedule, ScheduleRule


class Probing:
    """The probe state of every path. A path that was never probed is UNKNOWN."""

    def __init__(
        self, rule: ProbeRule, schedule: ScheduleRule, random: Random, past: Mapping[PathId, Past] | None = None
    ) -> None:
        self._rule = rule
        self._past = dict(past or {})  # of paths that weren't there yet
        self._schedule = ProbeSchedule(schedule, random)
        self._paths: dict[PathId, ProbedPath] = {}
        self._siblings: dict[str, list[PathId]] = {}
        self._signs: dict[PathId, deque[Proof]] = {}  # each path's answers: the newest settled one, and those since
        self._unbroken: dict[PathId, float] = {}  # since when each path has answered all its probes
        self._seq = 0
        self._wakes: list[tuple[float, PathId]] = []  # a heap; an entry that `_wake_at` contradicts is stale
        self._wake_at: dict[PathId, float] = {}

    def set_paths(self, paths: Collection[PathId], in_use: Collection[PathId], now: float) -> None:
        """The paths to probe from now on. Those that stay keep their state."""
        wanted = frozenset(paths)
        for gone in set(self._paths) - wanted:
            del self._paths[gone]
            self._signs.pop(gone, None)
            self._unbroken.pop(gone, None)
            self._wake_at.pop(gone, None)
        self._siblings = {}
        for path in paths:  # in the order given, not that of hashes: a run must be repeatable
            if path not in self._paths:
                fresh, past = ProbedPath(self._rule, since=now), self._past.pop(path, None)
                self._paths[path] = fresh if past is None else fresh.recall(past, now)
            self._siblings.setdefault(path.peer, []).append(path)
        self._schedule.set_paths(paths, in_use, now)

    def get(self, path: PathId) -> ProbedPath:
        """The state of one path."""
        return self._paths.get(path) or ProbedPath(self._rule)

    def heard(self, path: PathId) -> float | None:
        """When the latest prompt answer came on a path."""
        signs = self._signs.get(path)
        return signs[-1].received if signs else None

    def past(self, now: float) -> dict[PathId, Past]:
        """What a restart should remember: of the paths that ever fell, also of those whose peer isn't back yet."""
        found = {path: state.past(now) for path, state in self._paths.items()}
        return {path: past for path, past in {**self._past, **found}.items() if not past.clean}

    def due(self, now: float) -> list[tuple[PathId, int]]:
        """Probes to send now, with their sequence numbers.

        With a path in doubt goes one probe on each of the peer's other paths, whose answer would be the proof that
        the peer's agent is alive.
        """
        paths = dict.fromkeys(self._schedule.due(now))
        for path in list(paths):
            if self._paths[path].state in (PortState.SUSPECT, PortState.HELD):
                for other in self._siblings[path.peer]:
                    if other not in paths and self._schedule.allow(now):
                        paths[other] = None
        found = []
        for path in paths:
            self._seq += 1
            found.append((path, self._seq))
        return found

    def sent(self, path: PathId, seq: int, now: float) -> None:
        """The probe left. One that couldn't leave isn't reported, and so never counts as lost."""
        if path in self._paths:
            self._put(path, self._paths[path].sent(seq, now), now)

    def answered(self, path: PathId, seq: int, now: float) -> bool:
        """An answer came. True if it changed the path's state."""
        before = self._paths.get(path)
        sent = next((p.at for p in before.waiting if p.seq == seq), None) if before else None
        if before is None or sent is None:
            return False
        # Late is no gap: a busy agent answers what waits on its sockets, also on paths that are in doubt. An answer
        # that overtakes an earlier one is, whatever this path's patience: the earlier one may never come.
        if path not in self._unbroken or before.waiting[0].seq != seq:
            self._unbroken[path] = now
        if now - sent <= before.patience:  # prompt: the agent wasn't held up when it answered this
            self._add_sign(path, Proof(sent, now, self._unbroken[path]))
        for other in self._siblings[path.peer]:
            if other != path and self._paths[other].waiting:
                self._wake(other, now + self._rule.grace)
        after = before.answered(seq, now)
        self._put(path, after, now)
        return after.state != before.state

    def tick(self, now: float) -> list[PathId]:
        """Let time pass. Returns the paths whose state changed."""
        changed = []
        while self._wakes and self._wakes[0][0] <= now:
            at, path = heapq.heappop(self._wakes)
            if self._wake_at.get(path) != at:
                continue
            del self._wake_at[path]
            before = self._paths[path]
            enough = len(before.waiting) >= self._rule.lost  # with fewer lost no proof convicts
            after = before.tick(now, self._proof(path, now) if enough else NO_PROOF)
            self._put(path, after, now)
            if after.state != before.state:
                changed.append(path)
        return changed

    def next_at(self) -> float | None:
        """When `due` or `tick` will matter next."""
        while self._wakes and self._wake_at.get(self._wakes[0][1]) != self._wakes[0][0]:
            heapq.heappop(self._wakes)
        times = [self._wakes[0][0]] if self._wakes else []
        scheduled = self._schedule.next_at()
        if scheduled is not None:
            times.append(scheduled)
        return min(times, default=None)

    def _put(self, path: PathId, state: ProbedPath, now: float) -> None:
        self._paths[path] = state
        # A doubt that more probes haven't settled, for want of proof, isn't worth hurrying for.
        fresh = len(state.waiting) <= 2 * self._rule.lost
        self._schedule.doubt(path, state.state is PortState.SUSPECT and fresh, now)
        at = state.wakes_at(now, self._next_sign(path, now) if state.waiting else NO_PROOF)
        if at is None:
            self._wake_at.pop(path, None)
        self._wake(path, at)

    def _wake(self, path: PathId, at: float | None) -> None:
        if at is not None and at < self._wake_at.get(path, float("inf")):
            self._wake_at[path] = at
            heapq.heappush(self._wakes, (at, path))

    def _add_sign(self, path: PathId, sign: Proof) -> None:
        signs = self._signs.setdefault(path, deque())
        if not signs or sign.sent >= signs[-1].sent:
            signs.append(sign)
        while len(signs) > 1 and self._settled(signs[1], sign.received):
            signs.popleft()

    def _settled(self, sign: Proof, now: float) -> bool:
        return now >= sign.received + self._rule.grace

    def _proof(self, path: PathId, now: float) -> Proof:
        """The newest settled answer on a sibling. A fresher one must not displace it, or a stream never proves."""
        signs = (s for p in self._siblings[path.peer] if p != path for s in self._signs.get(p, ()))
        return max((s for s in signs if self._settled(s, now)), key=lambda s: (s.sent, -s.since), default=NO_PROOF)

    def _next_sign(self, path: PathId, now: float) -> Proof:
        """The answer on a sibling that settles next."""
        signs = (s for p in self._siblings[path.peer] if p != path for s in self._signs.get(p, ()))
        return min((s for s in signs if not self._settled(s, now)), key=lambda s: s.received, default=NO_PROOF)
