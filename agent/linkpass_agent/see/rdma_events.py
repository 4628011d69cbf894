"""RDMA devices that come, go or get another name or net device: told by the kernel, so that nobody waits for a sweep.

Two witnesses, because neither is on every kernel: uevents of the infiniband class (all kernels: add, remove, move;
a device that leaves for another network namespace is removed here), and RDMA netlink notifications (Linux 6.12 and
newer: net devices attached and detached, names changed). Both only say "look anew"; what is true is read.
Numbers: include/uapi/rdma/rdma_netlink.h, lib/kobject_uevent.c.
"""

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from .attributes import attributes

log = logging.getLogger(__name__)

NETLINK_KOBJECT_UEVENT, KERNEL_GROUP = 15, 1
NETLINK_RDMA, NLDEV, MONITOR = 20, 5, 28
GROUP_NOTIFY = 4
SOL_NETLINK, ADD_MEMBERSHIP = 270, 1
DEV_NAME, NDEV_NAME, EVENT_TYPE = 2, 51, 102
EVENTS = {
    0: "registered", 1: "unregistered", 2: "net device attached", 3: "net device detached", 4: "renamed",
    5: "net device renamed",
}  # fmt: skip
ACTIONS = {"add": "registered", "remove": "unregistered", "move": "renamed"}
SIZE = 1 << 16
_HEAD = struct.Struct("=IHHII")


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """`device` may be empty: some events only give an index."""

    what: str
    device: str
    source: str


def uevent(data: bytes) -> DeviceEvent | None:
    """What one uevent says of an RDMA device; None if it is about something else."""
    fields = dict(part.split("=", 1) for part in data.decode("utf-8", "replace").split("\0") if "=" in part)
    what = ACTIONS.get(fields.get("ACTION", ""))
    path = fields.get("DEVPATH", "")
    if what is None or fields.get("SUBSYSTEM") != "infiniband":
        return None
    return DeviceEvent(what, path.rpartition("/")[2], "uevent")


def notifications(data: bytes) -> list[DeviceEvent]:
    """What a datagram of RDMA netlink says."""
    found, at = [], 0
    while at + _HEAD.size <= len(data):
        length, kind, *_ = _HEAD.unpack_from(data, at)
        if length < _HEAD.size or at + length > len(data):
            break
        if kind == (NLDEV << 10 | MONITOR):
            fields = dict(attributes(data[at + _HEAD.size : at + length]))
            event = fields.get(EVENT_TYPE, b"\xff")[:1]
            name = fields.get(DEV_NAME, b"").rstrip(b"\0").decode("utf-8", "replace")
            if event and event[0] in EVENTS:
                found.append(DeviceEvent(EVENTS[event[0]], name, "rdma netlink"))
        at += (length + 3) & ~3
    return found


class DeviceEvents:
    """Listens to both; `emit` gets what they say, on the loop. A kernel without them is no error."""

    def __init__(self, emit: Callable[[DeviceEvent], None], lost: Callable[[], None]) -> None:
        self._emit, self._lost = emit, lost
        self._socks: list[socket.socket] = []

    def open(self) -> None:
        """Start to listen."""
        loop = asyncio.get_running_loop()
        for number, group in ((NETLINK_KOBJECT_UEVENT, KERNEL_GROUP), (NETLINK_RDMA, GROUP_NOTIFY)):
            try:
                sock = socket.socket(
                    socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, number
                )
            except OSError as e:  # EPROTONOSUPPORT: no RDMA in this kernel
                log.debug("no netlink family %d: %s", number, e.strerror)
                continue
            try:
                sock.bind((0, 0))
                sock.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, group)
            except OSError as e:  # before Linux 6.12
                log.debug("no group %d in netlink family %d: %s", group, number, e.strerror)
                sock.close()
                continue
            self._socks.append(sock)
            loop.add_reader(sock, self._readable, sock, number)

    def close(self) -> None:
        """Stop."""
        for sock in self._socks:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._socks.clear()

    def _readable(self, sock: socket.socket, number: int) -> None:
        try:
            data, (sender, _) = sock.recvfrom(SIZE)
        except BlockingIOError:
            return
        except OSError as e:  # ENOBUFS: events were lost
            log.warning("RDMA device events were lost (%s); looking anew", os.strerror(e.errno or 0))
            self._lost()
            return
        if sender != 0:  # not the kernel
            return
        events = notifications(data) if number == NETLINK_RDMA else [e for e in (uevent(data),) if e]
        for event in events:
            self._emit(event)
