"""The door to other network namespaces: a node of the lab is known by the pid of the shell that holds it."""

import ctypes
import fcntl
import os
import socket
import struct
import threading
from pathlib import Path

from linkpass.errors import KernelError

CLONE_NEWNET = 0x40000000  # linux/sched.h
SIOCGIFFLAGS = 0x8913  # linux/sockios.h
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1  # linux/if.h
_libc = ctypes.CDLL(None, use_errno=True)


def identity(pid: int) -> int:
    """Which network namespace a process is in: the inode number that the kernel gave it."""
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def socket_in(pid: int) -> socket.socket:
    """A socket that lives in the network namespace of `pid`, whoever uses it. KernelError if that can't be had."""
    made: list[socket.socket | OSError] = []

    def enter() -> None:  # in a thread that ends: entering a namespace changes the thread for good
        try:
            there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _libc.setns(there, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
                made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC))
            finally:
                os.close(there)
        except OSError as e:
            made.append(e)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise KernelError(f"enter the network namespace of process {pid}", made[0].errno or 0) from made[0]
    return made[0]


class Links:
    """Sets links of one namespace up and down by ioctl: some 20 us, where an `ip` process takes milliseconds."""

    def __init__(self, pid: int) -> None:
        self._socket = socket_in(pid)

    def flags(self, link: str) -> int:
        """The interface's flags (IFF_*)."""
        return int(self._ioctl(SIOCGIFFLAGS, link, 0, "read the flags of"))

    def set(self, link: str, *, up: bool) -> None:
        """Set a link up or down; returns when the kernel has done it."""
        flags = self.flags(link)
        self._ioctl(SIOCSIFFLAGS, link, flags | IFF_UP if up else flags & ~IFF_UP, f"set {'up' if up else 'down'}")

    def _ioctl(self, request: int, link: str, flags: int, what: str) -> int:
        asked = struct.pack("16sH14x", link.encode(), flags)  # struct ifreq: name, then a union that holds the flags
        try:
            return int(struct.unpack_from("H", fcntl.ioctl(self._socket, request, asked), 16)[0])
        except OSError as e:
            raise KernelError(f"{what} {link}", e.errno or 0) from e

    def close(self) -> None:
        """Let go of the namespace."""
        self._socket.close()
