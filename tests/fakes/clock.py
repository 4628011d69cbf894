"""Time that only moves when a test says so."""

from dataclasses import dataclass


@dataclass(slots=True)
class FakeClock:
    """Both clocks, set by hand."""

    time: float = 100.0
    wall_time: float = 1_700_000_000.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.wall_time + self.time

    def advance(self, seconds: float) -> float:
        """Let time pass; returns the new time."""
        self.time += seconds
        return self.time
