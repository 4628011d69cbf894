"""When each path is probed next. Pure: time and randomness come in.

Paths to peers in use get the fast period, the rest the idle one. Every interval is shortened by up to a quarter at
random, so that hosts don't fall into step (RFC 5880, section 6.8.7, does the same for BFD). A path in doubt is probed
twice as often as one in use, for a few probes. If all paths together would pass `max_rate`, all intervals stretch
alike. The paths to one peer fall into step: a probe that is nearly due leaves with its sibling's, and both draw the
same interval, so that either end wakes once for all of them.
"""

import heapq
from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from linkpass.model import PathId

JITTER = 0.25  # share of an interval, RFC 5880 section 6.8.7
# Share of the fast period between probes of a path in doubt. Three losses then still span a whole period and more,
# longer than a busy switch queue holds packets; and detection isn't slower than BFD's with the same timers.
DOUBT = 0.5


@dataclass(frozen=True, slots=True)
class ScheduleRule:
    """`period`, `idle_period` in seconds; `max_rate` in probes per second over all paths."""

    period: float = 0.05
    idle_period: float = 1.0
    max_rate: float = 2000.0


class ProbeSchedule:
    """The queue of probes to come."""

    def __init__(self, rule: ScheduleRule, random: Random) -> None:
        self._rule = rule
        self._random = random
        self._fast: frozenset[PathId] = frozenset()
        self._all: frozenset[PathId] = frozenset()
        self._peers: dict[str, list[PathId]] = {}
        self._doubted: set[PathId] = set()
        self._queue: list[tuple[float, PathId]] = []
        self._next: dict[PathId, float] = {}
        self._spent: float = 0.0  # probes of the current allowance already used
        self._spent_at: float = float("-inf")

    def set_paths(self, paths: Collection[PathId], in_use: Collection[PathId], now: float) -> None:
        """The paths to probe from now on, and those of them that are in use. Paths that speed up start soon.

        The order of `paths` is that of the random draws: a run can be repeated if it doesn't hang on hashes.
        """
        faster = frozenset(in_use) - self._fast
        self._all, self._fast = frozenset(paths), frozenset(in_use) & frozenset(paths)
        self._peers = {}
        for path in paths:
            self._peers.setdefault(path.peer, []).append(path)
        for path in paths:
            if path not in self._next or path in faster:
                self._put(path, now + self._random.random() * self.interval(path))
        for path in set(self._next) - self._all:
            del self._next[path]
        self._doubted &= self._all

    def doubt(self, path: PathId, doubted: bool, now: float) -> None:
        """`path` is, or is no longer, in doubt: a doubted one is probed again soon."""
        if not doubted:
            self._doubted.discard(path)
        elif path in self._next and path not in self._doubted:
            self._doubted.add(path)
            soon = now + self.interval(path)
            if soon < self._next[path]:
                self._put(path, soon)

    def interval(self, path: PathId) -> float:
        """Seconds between two probes of `path`, before jitter."""
        rule = self._rule
        rate = len(self._fast) / rule.period + (len(self._all) - len(self._fast)) / rule.idle_period
        # Jitter makes the mean interval shorter by half of JITTER; the bound holds for what really leaves.
        stretch = max(1.0, rate / (1 - JITTER / 2) / rule.max_rate)
        if path in self._doubted:
            return DOUBT * rule.period * stretch
        return (rule.period if path in self._fast else rule.idle_period) * stretch

    def due(self, now: float) -> list[PathId]:
        """The paths whose time has come, and those of their peers' whose time has nearly; each is put back."""
        found = []
        drawn: dict[str, float] = {}
        while self._queue and self._queue[0][0] <= now:
            at, path = heapq.heappop(self._queue)
            if self._next.get(path) != at:
                continue  # rescheduled or dropped meanwhile
            if path.peer not in drawn:
                drawn[path.peer] = 1 - JITTER * self._random.random()
            for sibling in self._together(path, now):
                self._put(sibling, now + self.interval(sibling) * drawn[path.peer])
                if self.allow(now):
                    found.append(sibling)
        return found

    def _together(self, path: PathId, now: float) -> list[PathId]:
        """`path`, and its peer's others that jitter alone could have made due now."""
        planned = [p for p in self._peers[path.peer] if p in self._next and p != path]
        return [path, *(p for p in planned if now < self._next[p] <= now + JITTER * self.interval(p))]

    def allow(self, now: float) -> bool:
        """May one more probe leave now? Also asked for probes out of turn, so that the bound holds for all."""
        burst = max(1.0, self._rule.max_rate / 10)
        self._spent = max(0.0, self._spent - max(0.0, now - self._spent_at) * self._rule.max_rate)
        self._spent_at = now
        if self._spent + 1 > burst:
            return False
        self._spent += 1
        return True

    def next_at(self) -> float | None:
        """When `due` will have something."""
        while self._queue and self._next.get(self._queue[0][1]) != self._queue[0][0]:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def _put(self, path: PathId, at: float) -> None:
        self._next[path] = at
        heapq.heappush(self._queue, (at, path))
