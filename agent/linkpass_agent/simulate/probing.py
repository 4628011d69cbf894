"""The daemon's probing, without the probes that can't tell anything.

A path that is UP or HELD, owes no answer and works in truth would only go on being answered (its hold-down ends by
the clock); one that is DOWN and carries nothing would only go on being silent. Such a path sleeps: its probes aren't
sent. What happens on all others is the daemon's own code, probe by probe. When something changes in truth, the path
wakes, at a random place in its interval, as a probe's phase is random to the fault. A sleeping path still gives proof
for its siblings when they are in doubt.
"""

from collections.abc import Collection
from enum import Enum
from random import Random

from linkpass.model import PathId, PortState
from linkpass_agent.judge.probe import ProbedPath, ProbeRule
from linkpass_agent.judge.probing import Probing
from linkpass_agent.judge.schedule import ProbeSchedule, ScheduleRule


class SleepySchedule(ProbeSchedule):
    """A schedule from which paths can be taken for a while."""

    def __init__(self, rule: ScheduleRule, random: Random) -> None:
        super().__init__(rule, random)
        self.asleep: set[PathId] = set()

    def set_paths(self, paths: Collection[PathId], in_use: Collection[PathId], now: float) -> None:
        super().set_paths(paths, in_use, now)
        self.asleep &= self._all
        for path in self.asleep:
            self._next.pop(path, None)

    def sleep(self, path: PathId) -> None:
        self.asleep.add(path)
        self._next.pop(path, None)

    def wake(self, path: PathId, now: float) -> None:
        self.asleep.discard(path)
        self._put(path, now + self._random.random() * self.interval(path))


class SleepyProbing(Probing):
    """As `Probing`; `review` says what is true of a path."""

    def __init__(self, rule: ProbeRule, schedule: ScheduleRule, random: Random) -> None:
        super().__init__(rule, schedule, random)
        self._sleepy = self._schedule = SleepySchedule(schedule, random)

    def review(self, path: PathId, now: float, truth: "Truth") -> None:
        """Say what is true of a path; it falls asleep or wakes."""
        state = self._paths.get(path)
        if state is None:
            return
        if self._settled_for(state, truth):
            self._sleepy.sleep(path)
        elif path in self._sleepy.asleep:
            self._sleepy.wake(path, now)

    def _settled_for(self, path: ProbedPath, truth: "Truth") -> bool:
        down, owing = path.state is PortState.DOWN, len(path.waiting)
        match truth:
            case Truth.CLEAN:
                return path.state in (PortState.UP, PortState.HELD) and not owing
            case Truth.MUTE:
                return down or not owing
            case Truth.DEAD:
                return down
            case Truth.GONE:
                return down or (path.state is PortState.SUSPECT and owing > 2 * self._rule.lost)
            case Truth.MIXED:
                return False


class Truth(Enum):
    """What would become of a path's probes."""

    CLEAN = "all are answered"
    MUTE = "none can leave"
    DEAD = "none is answered, but the peer's agent runs"
    GONE = "none is answered, for the peer's agent doesn't run"
    MIXED = "some are answered"
