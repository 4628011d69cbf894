"""Virtual time: one queue of things to come, and for each host a clock of its own that drifts."""

import heapq
from collections.abc import Callable

EPOCH = 1_700_000_000.0  # Unix time at the start of every run


class Queue:
    """What is to happen, in the order of time; things of the same time in the order in which they were put in."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0

    def at(self, when: float, do: Callable[..., None], *args: object) -> None:
        """Call `do(*args)` at `when` (seconds since the start), at once if that has passed."""
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, do, args))

    def run(self, end: float, after: Callable[[], None]) -> None:
        """Let time pass until `end`; `after` is called after every step."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, do, args = heapq.heappop(heap)
            self.steps += 1
            do(*args)
            after()
        self.now = end


class HostClock:
    """One host's clocks: the monotonic one starts at `offset` and runs at `rate`; the wall clock may be stepped."""

    __slots__ = ("_queue", "offset", "rate", "step")

    def __init__(self, queue: Queue, offset: float, rate: float) -> None:
        self._queue, self.offset, self.rate, self.step = queue, offset, rate, 0.0

    def now(self) -> float:
        """The host's monotonic seconds."""
        return self.offset + self.rate * self._queue.now

    def wall(self) -> float:
        """The host's idea of Unix time."""
        return EPOCH + self._queue.now + self.step

    def true(self, local: float) -> float:
        """The moment of the run at which this host's monotonic clock shows `local`."""
        return (local - self.offset) / self.rate
