"""Whose a queue pair is: the kernel tracks every RDMA resource and the process that made it (rdma-resource(8)).

Asked over NETLINK_RDMA, which pyroute2 doesn't speak; the numbers are those of rdma/rdma_netlink.h. Not every kernel
tells (before Linux 5.0 or without RDMA), and a process in a pid namespace beside ours has no number here.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .attributes import attribute, attributes

NETLINK_RDMA = 20
NLDEV, GET, RES_QP_GET = 5, 1, 10  # client, commands: a message's type is client << 10 | command
DEV_INDEX, DEV_NAME, PORT_INDEX, RES_QP, RES_QP_ENTRY, RES_LQPN, RES_PID = 1, 2, 3, 19, 20, 21, 28
REQUEST, DUMP = 0x01, 0x300  # linux/netlink.h: NLM_F_REQUEST, NLM_F_DUMP
ERROR, DONE = 2, 3
PATIENCE = 1.0  # s; the kernel answers within the call
_HEAD = struct.Struct("=IHHII")
PROC = Path("/proc")


class QueuePairOwners:
    """Asks the kernel. Without RDMA in the kernel every answer is None."""

    def __init__(self) -> None:
        self._sock: socket.socket | None = None
        with suppress(OSError):
            self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_RDMA)
            self._sock.settimeout(PATIENCE)
        self._seq = 0
        self._devices: dict[str, int] = {}

    def owner(self, device: str, port: int, qpn: int) -> int | None:
        """The process (not the thread) that made the queue pair, which has been given that port (state INIT and
        later); None if the kernel doesn't tell."""
        if self._sock is None:
            return None
        for again in (False, True):
            if again or device not in self._devices:
                self._devices = self._list()
            index = self._devices.get(device)
            if index is None:
                return None
            question = b"".join(
                attribute(kind, struct.pack("=I", value))
                for kind, value in ((DEV_INDEX, index), (PORT_INDEX, port), (RES_LQPN, qpn))
            )
            try:
                answers = list(self._ask(RES_QP_GET, REQUEST, question))
            except OSError as e:
                if e.errno in (errno.ENODEV, errno.EINVAL) and not again:
                    continue  # the device was made anew under another index
                return None
            pids = [pid for found in answers if (pid := _pid_of(found, qpn)) is not None]
            return process_of(pids[0]) if pids else None
        return None

    def close(self) -> None:
        """Release the socket."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _list(self) -> dict[str, int]:
        found = {}
        with suppress(OSError):
            for data in self._ask(GET, REQUEST | DUMP, b""):
                fields = dict(attributes(data))
                if DEV_NAME in fields and DEV_INDEX in fields:
                    name = fields[DEV_NAME].rstrip(b"\0").decode("ascii", "replace")
                    found[name] = _u32(fields[DEV_INDEX])
        return found

    def _ask(self, command: int, flags: int, payload: bytes) -> Iterator[bytes]:
        """The answers' attributes; OSError as the kernel says."""
        assert self._sock is not None
        self._seq += 1
        kind = NLDEV << 10 | command
        self._sock.send(_HEAD.pack(_HEAD.size + len(payload), kind, flags, self._seq, 0) + payload)
        while True:
            data, at = self._sock.recv(1 << 16), 0
            while at + _HEAD.size <= len(data):
                length, kind_got, _, seq, _ = _HEAD.unpack_from(data, at)
                body = data[at + _HEAD.size : at + length]
                at += max(_HEAD.size, (length + 3) & ~3)
                if seq != self._seq:
                    continue  # of a question that was given up
                if kind_got == ERROR:
                    number = (1 << 32) - _u32(body)  # a negative errno; 0 acknowledges
                    if number < 1 << 32:
                        raise OSError(number, os.strerror(number))
                    return
                if kind_got == DONE:
                    return
                yield body
                if not flags & DUMP:
                    return


def _u32(data: bytes) -> int:
    """A number in the machine's own order; 0 for what is too short to be one."""
    return int(struct.unpack_from("=I", data)[0]) if len(data) >= 4 else 0


def _pid_of(data: bytes, qpn: int) -> int | None:
    """The pid in an answer about one queue pair: told beside the number, or nested in an entry of a table."""
    told = list(attributes(data))
    fields = dict(told)
    if RES_LQPN in fields and _u32(fields[RES_LQPN]) == qpn and RES_PID in fields:
        return _u32(fields[RES_PID])
    nested = (_pid_of(inner, qpn) for kind, inner in told if kind in (RES_QP, RES_QP_ENTRY))
    return next((pid for pid in nested if pid is not None), None)


def process_of(thread: int, proc: Path = PROC) -> int | None:
    """The process that a thread belongs to; None when it is gone."""
    try:
        for line in (proc / str(thread) / "status").read_text().splitlines():
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return None
