"""Time, as something that is handed in.

Everything that measures or waits uses monotonic seconds, which no one can set back. Wall time is for people only.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from; the simulator and the tests have their own."""

    def now(self) -> float:
        """Monotonic seconds since an arbitrary start, the same for every process of one host."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch, for showing to people; may jump."""
        ...


class SystemClock:
    """The host's own clocks: CLOCK_MONOTONIC and CLOCK_REALTIME."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
