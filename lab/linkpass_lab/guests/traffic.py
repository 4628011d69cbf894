"""Watch from outside what arrives at a guest's rails: neither the guest nor its job notices."""

import itertools
import json
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from linkpass_lab.guests.lab import GuestLab
from linkpass_lab.lab import LabError

EVERY = 0.1  # s between looks
NOISE = 2  # packets in that time that may be the network's own (ARP, neighbour discovery)

Seen = Sequence[tuple[float, int]]  # (monotonic, packets so far)


class Counting(Protocol):
    """Packets that arrive, counted over time (monotonic, s)."""

    seen: list[tuple[float, int]]

    def total(self) -> int: ...
    def since(self, at: float) -> int: ...
    def close(self) -> None: ...


class Arrivals:
    """Counts the packets that the switch sends to a guest's rail ports, ten times a second, from start to close."""

    def __init__(self, lab: GuestLab, guest: str) -> None:
        self._lab = lab
        self._ports = [n.name for n in lab.plan.guest(guest).nics if n.rail is not None]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"arrivals at {guest}", daemon=True)
        self._first = self._look() or 0
        self.seen: list[tuple[float, int]] = [(time.monotonic(), 0)]

    def _look(self) -> int | None:
        with suppress(LabError, ValueError, KeyError):
            said = json.loads(self._lab.in_lab(["ip", "-s", "-j", "link", "show"]))
            # What a tap transmits is what its guest receives.
            return sum(int(x["stats64"]["tx"]["packets"]) for x in said if x.get("ifname") in self._ports)
        return None

    def _watch(self) -> None:
        while not self._stop.wait(EVERY):
            count = self._look()
            if count is not None:
                self.seen.append((time.monotonic(), count - self._first))

    def total(self) -> int:
        """Packets since it was opened."""
        return self.seen[-1][1]

    def since(self, at: float) -> int:
        """Packets since that time (monotonic)."""
        return self.total() - next((n for t, n in reversed(self.seen) if t <= at), 0)

    def start(self) -> "Arrivals":
        """Begin to look."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join()


def longest_gap(seen: Seen, start: float, end: float) -> float:
    """The longest time (s) between `start` and `end` in which no more than noise arrived; 0.0 if it flowed on.

    A gap runs from the last look before which traffic came to the first after which it came again.
    """
    quiet_since: float | None = None
    longest = 0.0
    for (before, had), (at, has) in itertools.pairwise(seen):
        if at < start or before > end:
            continue
        if has - had > NOISE:
            quiet_since = None
            continue
        quiet_since = before if quiet_since is None else quiet_since
        longest = max(longest, min(at, end) - max(quiet_since, start))
    return round(longest, 2)
