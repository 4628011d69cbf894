"""A fast read of /sys/class/net/*/carrier beside netlink, whose events the kernel may hold back for a second.

One read costs a few microseconds. Only changes are emitted. The file reads EINVAL while the device is
administratively down, and can't be opened while the device is missing: both are "can't observe".
"""

import asyncio
import os
from collections.abc import Callable, Collection
from pathlib import Path

from linkpass.clock import Clock
from linkpass.model import Observation, Signal

SYSFS = Path("/sys/class/net")


class CarrierFiles:
    """Open files of the ports' carrier state. A port that is missing is looked for again by `reopen`."""

    def __init__(self, ports: Collection[str], root: Path = SYSFS) -> None:
        self._root = root
        self._ports = tuple(ports)
        self._fds: dict[str, int] = {}
        self._last: dict[str, bool | None] = dict.fromkeys(self._ports)
        self.reopen()

    def reopen(self) -> None:
        """Open what isn't open: a device that came, or came back under the same name."""
        for port in self._ports:
            if port not in self._fds:
                try:
                    self._fds[port] = os.open(self._root / port / "carrier", os.O_RDONLY | os.O_CLOEXEC)
                except OSError:
                    continue

    def changes(self) -> list[tuple[str, bool | None]]:
        """Ports whose reading differs from the last one, with the new reading (None: can't observe)."""
        changed = []
        for port, fd in list(self._fds.items()):
            reading: bool | None
            try:
                reading = os.pread(fd, 2, 0)[:1] == b"1"
            except OSError as e:
                reading = None
                if e.errno == 19:  # ENODEV: the device behind the open file is gone
                    os.close(self._fds.pop(port))
            if reading != self._last[port]:
                self._last[port] = reading
                changed.append((port, reading))
        return changed

    def close(self) -> None:
        """Close all files."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


async def watch(files: CarrierFiles, period: float, emit: Callable[[list[Observation]], None], clock: Clock) -> None:
    """Read every `period` seconds until cancelled."""
    while True:
        changed = files.changes()
        if changed:
            now = clock.now()
            emit([Observation(now, "carrier", port, Signal.CARRIER, value) for port, value in changed])
        await asyncio.sleep(period)
