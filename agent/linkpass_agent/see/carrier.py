"""A fast read of the ports' carrier in sysfs, beside netlink, whose events the kernel may hold back for a second.

The kernel holds an event back when another came less than a second before (net/core/link_watch.c), so reads are
frequent only after a change; a first one netlink tells at once. What is read is `carrier_changes`, a counter that
costs some microseconds and no lock, and that tells even of a link that went and came between two reads. `carrier`
itself is read only when the counter has moved: the kernel takes its global RTNL lock for it (since 6.8, to let
routing know first), and whoever adds and removes devices elsewhere on the host would hold our loop up for tens of
milliseconds at a time. The file reads EINVAL while the device is administratively down, and can't be read when the
device is gone: both are "can't observe".
"""

import asyncio
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from linkpass.clock import Clock
from linkpass.model import Observation, Signal

SYSFS = Path("/sys/class/net")
# s; readings are told again so often even when unchanged: netlink and the sweep may have told an older one since.
AGAIN = 0.1
FAST_FOR = 2.0  # s after a change: the kernel's second, and as long again for events of links that we don't see
TRIES = 4  # for a reading with the same count before and after it; a link that flaps faster is read anew next time


@dataclass(slots=True)
class Files:
    """The open files of one port, and what was last read."""

    changes: int
    carrier: int
    count: bytes = b""
    reading: bool | None = None

    def close(self) -> None:
        os.close(self.changes)
        os.close(self.carrier)


class CarrierFiles:
    """Open files of the ports' carrier state. A port that is missing is looked for again by `reopen`.

    `device` gives the name that a port's device has now."""

    def __init__(self, ports: Collection[str], root: Path = SYSFS, device: Callable[[str], str] = str) -> None:
        self._root, self._device = root, device
        self._ports = tuple(ports)
        self._files: dict[str, Files] = {}
        self._told_at = float("-inf")
        self.moved_at = float("-inf")  # when a carrier changed last
        self.reopen()

    def reopen(self) -> None:
        """Open what isn't open: a device that came, or another one that took a port's name."""
        for port in self._ports:
            folder, files = f"{self._root}/{self._device(port)}", self._files.get(port)
            try:
                if files and _inode(f"{folder}/carrier") != os.fstat(files.carrier).st_ino:
                    self._files.pop(port).close()
                if port not in self._files:
                    self._files[port] = _open(folder)
            except OSError:
                continue

    def changes(self, now: float) -> list[tuple[str, bool | None]]:
        """What there is to tell, oldest first: changes since the last call, and now and then all readings."""
        again = now >= self._told_at + AGAIN
        told: list[tuple[str, bool | None]] = []
        for port, files in list(self._files.items()):
            try:
                moved = _read(files)
            except OSError:  # ENODEV: the device behind the open files is gone
                self._files.pop(port).close()
                told.append((port, None))
                continue
            told += [(port, reading) for reading in moved]
            if moved:
                self.moved_at = now
            if again and not moved:
                if files.reading is None:  # some drivers come up without moving the counter
                    files.reading = _carrier(files.carrier)
                told.append((port, files.reading))
        if again:
            self._told_at = now
        return told

    def close(self) -> None:
        """Close all files."""
        for files in self._files.values():
            files.close()
        self._files.clear()


def _inode(file: str) -> int:
    return os.stat(file).st_ino  # noqa: PTH116 - a Path costs more than the call, once a second for each port


def _open(folder: str) -> Files:
    changes = os.open(f"{folder}/carrier_changes", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return Files(changes, os.open(f"{folder}/carrier", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        os.close(changes)
        raise


def _read(files: Files) -> list[bool | None]:
    """The new readings, none if nothing moved. A link that blinked gives two."""
    count = os.pread(files.changes, 16, 0)
    if count == files.count:
        return []
    for _ in range(TRIES):
        reading, counted = _carrier(files.carrier), count
        count = os.pread(files.changes, 16, 0)
        if count == counted:
            break
    first, before = not files.count, files.reading
    files.count, files.reading = count, reading
    if reading != before or first:
        return [reading]
    return [] if reading is None else [not reading, reading]


def _carrier(fd: int) -> bool | None:
    try:
        return os.pread(fd, 2, 0)[:1] == b"1"
    except OSError:
        return None


async def watch(
    files: CarrierFiles, fast: float, slow: float, emit: Callable[[list[Observation]], None], clock: Clock
) -> None:
    """Read until cancelled: every `fast` seconds for `FAST_FOR` after a change, every `slow` seconds otherwise."""
    # By a timer that sets itself again: a task that sleeps costs twice as much, and nothing here runs as often.
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        try:
            now = clock.now()
            told = files.changes(now)
            timer = loop.call_later(fast if now < files.moved_at + FAST_FOR else slow, look)
            if told:
                emit([Observation(now, "carrier", port, Signal.CARRIER, reading) for port, reading in told])
        except Exception as e:
            failed.set_exception(e)

    timer = loop.call_later(0, look)
    try:
        await failed
    finally:
        timer.cancel()
