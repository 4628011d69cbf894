"""Small brakes: a token bucket, and a set of deadlines. Both are told the time."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class TokenBucket:
    """Allows `rate` events a second, and `burst` at once after a quiet time."""

    __slots__ = ("_at", "_level", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._at: float | None = None

    def allow(self, now: float) -> bool:
        """Take a token, if there is one."""
        if self._at is not None:
            self._level = min(self.burst, self._level + max(0.0, now - self._at) * self.rate)
        self._at = now
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True


class Backoff:
    """Allows one event, the next after `first` seconds, then after twice that, up to `most`; forgets after calm."""

    __slots__ = ("_after", "_pause", "first", "most")

    def __init__(self, first: float, most: float) -> None:
        self.first = first
        self.most = most
        self._pause = 0.0
        self._after: float | None = None

    def allow(self, now: float) -> bool:
        """Whether it may happen now."""
        if self._after is not None and now < self._after:
            return False
        calm = self._after is None or now > self._after + 2.0 * self.most
        self._pause = self.first if calm else min(2.0 * self._pause, self.most)
        self._after = now + self._pause
        return True


class Timers(Generic[K]):
    """One deadline a key, the earliest first."""

    def __init__(self) -> None:
        self._armed: dict[K, int] = {}  # the number of the key's live entry
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0  # numbers entries; also breaks ties, so that keys are never compared

    def set(self, key: K, at: float) -> None:
        """Arm, or move, the key's deadline."""
        self._count += 1
        self._armed[key] = self._count
        heapq.heappush(self._heap, (at, self._count, key))
        if len(self._heap) > 64 + 4 * len(self._armed):  # moved deadlines leave dead entries behind
            self._heap = [entry for entry in self._heap if self._live(entry)]
            heapq.heapify(self._heap)

    def cancel(self, key: K) -> None:
        """Disarm the key, if armed."""
        self._armed.pop(key, None)

    def armed(self, key: K) -> bool:
        """Whether the key has a deadline."""
        return key in self._armed

    def next(self) -> float | None:
        """The earliest deadline."""
        while self._heap and not self._live(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[K]:
        """The keys whose deadlines have come, disarmed, in their order."""
        found = []
        while (at := self.next()) is not None and at <= now:
            key = heapq.heappop(self._heap)[2]
            del self._armed[key]
            found.append(key)
        return found

    def _live(self, entry: tuple[float, int, K]) -> bool:
        return self._armed.get(entry[2]) == entry[1]
