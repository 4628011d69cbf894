"""RoCE packets that arrive at a guest, counted inside it: where agents probe, the switch's counters tell nothing."""

import time
from pathlib import Path

from linkpass_lab.guests.channel import GuestProcess
from linkpass_lab.guests.frames import Kind
from linkpass_lab.guests.lab import GuestLab

EVERY = 0.05  # s between looks


class RoceArrivals:
    """As `traffic.Arrivals`. `shift` is the guest's monotonic clock less ours, in s."""

    def __init__(self, lab: GuestLab, guest: str, shift: float) -> None:
        self._shift, self._rest = shift, b""
        self._first: int | None = None
        self.seen: list[tuple[float, int]] = [(time.monotonic(), 0)]
        argv = ["/usr/bin/python3", "-I", "-S", str(Path(__file__).with_name("roce_watch.py")), str(EVERY)]
        self._process = GuestProcess(lab.folder, guest, argv, listen=self._hear)

    def _hear(self, kind: Kind, data: bytes) -> None:
        if kind is not Kind.STDOUT:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            at, count = line.split()
            packets = int(count)
            self._first = packets if self._first is None else self._first
            self.seen.append((float(at) - self._shift, packets - self._first))

    def total(self) -> int:
        """Packets since it was opened."""
        return self.seen[-1][1]

    def since(self, at: float) -> int:
        """Packets since that time (monotonic)."""
        return self.total() - next((n for t, n in reversed(self.seen) if t <= at), 0)

    def close(self) -> None:
        """Stop."""
        self._process.close()
