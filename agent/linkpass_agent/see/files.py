"""One door to small files of sysfs: opened once, read again and again, every failure for one file alone.

A file that can't be read costs no other its reading. It is tried again after 1, 2, 4, ... up to `PATIENCE` looks:
drivers whose counters fail may write a line to the kernel log each time that they are asked.
"""

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

SIZE = 128  # bytes; a counter, a state or a rate is shorter
PATIENCE = 64  # looks
# The file is gone with its device, or another device has its name: open it anew.
GONE = frozenset({errno.ENODEV, errno.ENOENT, errno.ESTALE, errno.EBADF, errno.ENXIO})


class Door(Protocol):
    """How files are opened and read. The tests' door gives the errors that a folder of plain files can't."""

    def open(self, path: str) -> int: ...
    def read(self, fd: int, size: int) -> bytes: ...
    def close(self, fd: int) -> None: ...


class SystemDoor:
    """The kernel's own."""

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, fd: int, size: int) -> bytes:
        return os.pread(fd, size, 0)

    def close(self, fd: int) -> None:
        os.close(fd)


SYSTEM = SystemDoor()


@dataclass(slots=True)
class SmallFile:
    """One file. `read` gives its text, or None and the reason in `why`."""

    path: str
    door: Door = SYSTEM
    fd: int = -1
    why: str = ""
    failures: int = 0
    rest: int = 0  # looks to leave out

    def read(self) -> bytes | None:
        """The content without the newline; None when it can't be read or rests after failures."""
        if self.rest:
            self.rest -= 1
            return None
        try:
            if self.fd < 0:
                self.fd = self.door.open(self.path)
            data = self.door.read(self.fd, SIZE)
        except OSError as e:
            self._failed(e)
            return None
        if self.failures:
            self.failures, self.why = 0, ""
        return data.rstrip()

    def _failed(self, e: OSError) -> None:
        if self.fd >= 0 and e.errno in GONE:
            self.close()
        self.refused(e.strerror or str(e))

    def refused(self, why: str) -> None:
        """What was read is of no use; leave the file alone for a while."""
        self.why = why
        self.failures += 1
        self.rest = min(PATIENCE, 1 << min(self.failures, 10)) - 1 if self.failures > 1 else 0

    def close(self) -> None:
        """Let go of the file; the next `read` opens it anew."""
        if self.fd >= 0:
            self.door.close(self.fd)
            self.fd = -1


def text(path: Path) -> str | None:
    """A file that is read now and then; None if it can't be."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
