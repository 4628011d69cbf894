"""RDMA ports as observations: asynchronous events, port attributes, GID tables (pyverbs).

pyverbs is imported here and nowhere else, and only when a port has an RDMA device: it is large and configures the
root logger. Its event object doesn't tell which port an event is about, so events are read from the device's own
event file, as libibverbs does; each event is keyed by its own port number, and the port is read anew (the event says
that something moved, the attributes say what is).

Sources: ibv_get_async_event(3), ibv_query_port(3), ibv_query_gid_table(3); numbers from infiniband/verbs.h.
"""

import asyncio
import importlib
import logging
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

from linkpass.clock import Clock
from linkpass.model import Observation, Signal, Value

from .rdma_devices import RdmaPort, behind

log = logging.getLogger(__name__)

# enum ibv_event_type
DEVICE_FATAL, PORT_ACTIVE, PORT_ERR, LID_CHANGE, PKEY_CHANGE, SM_CHANGE = 8, 9, 10, 11, 12, 13
CLIENT_REREGISTER, GID_CHANGE = 17, 18
PORT_EVENTS = {
    PORT_ACTIVE: "PORT_ACTIVE",
    PORT_ERR: "PORT_ERR",
    LID_CHANGE: "LID_CHANGE",
    PKEY_CHANGE: "PKEY_CHANGE",
    SM_CHANGE: "SM_CHANGE",
    CLIENT_REREGISTER: "CLIENT_REREGISTER",
    GID_CHANGE: "GID_CHANGE",
}
STATES = {0: "nop", 1: "down", 2: "init", 3: "armed", 4: "active", 5: "active-defer"}  # enum ibv_port_state
# struct ibv_port_attr.phys_state: IBTA PortPhysicalState
PHYS = {1: "sleep", 2: "polling", 3: "disabled", 4: "training", 5: "linkup", 6: "recovery", 7: "phy-test"}
# ibv_query_port(3): active_speed in units of the table of rdma-core's speed_to_str, here Mbit/s a lane
SPEEDS = {1: 2500, 2: 5000, 4: 10000, 8: 10000, 16: 14000, 32: 25000, 64: 50000, 128: 100000}
WIDTHS = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
MTUS = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
GID_TYPES = {0: "IB", 1: "RoCEv1", 2: "RoCEv2"}  # enum ibv_gid_type

# A GID table is read when an event says that it changed, and beside that only every so many sweeps: it has up to
# 1,024 entries, and kernels before 5.10 give them one file at a time.
GID_SWEEPS = 10
# struct ib_uverbs_async_event_desc (include/uapi/rdma/ib_user_verbs.h): element, event_type, reserved. For events of
# a port the element is its number.
EVENT = struct.Struct("=QII")
EVENT_FILE = "anon_inode:[infinibandevent]"  # drivers/infiniband/core/uverbs_std_types_async_fd.c

Emit = Callable[[list[Observation]], None]


class RdmaWatch:
    """Watches the RDMA ports behind our net devices.

    `refresh` looks for devices that came or went and reads every port; call it with each sweep. What events tell is
    handed to `emit` as they come.
    """

    def __init__(
        self,
        ports: Iterable[str],
        emit: Emit,
        clock: Clock,
        choice: Mapping[str, str] | None = None,
        netdev: Callable[[str], str] = str,
    ) -> None:
        self._netdev = netdev  # a port's name -> what its net device is called now
        self._ports = tuple(ports)
        self._emit = emit
        self._clock = clock
        self._choice = choice or {}
        self._devices: dict[str, _Device] = {}
        self._behind: dict[str, RdmaPort] = {}
        self._sweeps = 0
        self._anew = False
        self._loop = asyncio.get_running_loop()

    def refresh(self) -> list[Observation]:
        """All that can be seen now of the RDMA ports. Ports without an RDMA device give nothing."""
        seen: list[Observation] = []
        full = self._sweeps % GID_SWEEPS == 0 or self._anew
        self._anew = False
        self._sweeps += 1
        for port in self._ports:
            rdma = self._find(port, full)
            if rdma is None:
                if self._behind.pop(port, None):
                    seen.append(
                        Observation(self._clock.now(), "verbs", port, Signal.RDMA, None, "the device is gone")
                    )
                continue
            self._behind[port] = rdma
            seen += self._read(port, rdma, gids=full)
        for name in set(self._devices) - {r.device for r in self._behind.values()}:
            self._devices.pop(name).close()
        return seen

    def look_anew(self) -> None:
        """A device came, went or has another name: the next `refresh` looks for all of them."""
        self._anew = True

    @property
    def behind(self) -> Mapping[str, RdmaPort]:
        """The RDMA port behind each of our ports that has one now."""
        return self._behind

    def close(self) -> None:
        """Stop listening."""
        for device in self._devices.values():
            device.close()
        self._devices.clear()

    def _find(self, port: str, full: bool) -> RdmaPort | None:
        chosen = self._choice.get(port, "auto")
        if chosen != "auto":
            return None if chosen == "none" else RdmaPort(chosen, 1)
        known = self._behind.get(port)
        return known if known and known.device in self._devices and not full else behind(self._netdev(port))

    def _read(self, port: str, rdma: RdmaPort, *, gids: bool) -> list[Observation]:
        now = self._clock.now()
        try:
            device = self._devices.get(rdma.device)
            if device is None:
                device = self._devices[rdma.device] = _Device(rdma.device, self._event, self._loop)
                facts: dict[Signal, Value | None] = {Signal.RDMA_FATAL: False}
                gids = True
            else:
                facts = {}
            facts |= device.read(rdma.number, gids)
        except Exception as e:  # pyverbs raises errors of its own
            self._drop(rdma.device)
            return [Observation(now, "verbs", port, Signal.RDMA, None, f"{rdma.device}: {e}")]
        return [Observation(now, "verbs", port, signal, value) for signal, value in facts.items()]

    def _drop(self, name: str) -> None:
        device = self._devices.pop(name, None)
        if device:
            device.close()

    def _event(self, device: "_Device", kind: int, number: int) -> None:
        at = self._clock.now()
        seen: list[Observation] = []
        for port, rdma in self._behind.items():
            if rdma.device != device.name:
                continue
            if kind == DEVICE_FATAL:
                seen.append(Observation(at, "verbs", port, Signal.RDMA_FATAL, True, "DEVICE_FATAL"))
            elif kind in PORT_EVENTS and rdma.number == number:
                # The event itself is the fact for up and down: by the time that we read, it may be history.
                if kind in (PORT_ERR, PORT_ACTIVE):
                    state = "down" if kind == PORT_ERR else "active"
                    seen.append(Observation(at, "verbs", port, Signal.RDMA, state, PORT_EVENTS[kind]))
                seen += self._read(port, rdma, gids=True)
        if kind == DEVICE_FATAL:
            self._drop(device.name)  # what is open of it is dead; the next sweep opens it anew
        if seen:
            self._emit(seen)


class _Device:
    """An open RDMA device and its event file."""

    def __init__(
        self, name: str, event: Callable[["_Device", int, int], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.name = name
        self._event, self._loop = event, loop
        before = _event_files()
        self._context = pyverbs("device").Context(name=name)
        self._files = sorted(_event_files() - before)
        for fd in self._files:
            os.set_blocking(fd, False)
            loop.add_reader(fd, self._readable, fd)

    def read(self, number: int, gids: bool) -> dict[Signal, Value | None]:
        """The port's attributes now, and its GIDs if asked for."""
        attr = self._context.query_port(number)
        lanes, speed = WIDTHS.get(attr.active_width), SPEEDS.get(attr.active_speed)
        facts: dict[Signal, Value | None] = {
            Signal.RDMA: STATES.get(attr.state, "unknown"),
            Signal.RDMA_PHYS: PHYS.get(attr.phys_state, "unknown"),
            Signal.RDMA_RATE: lanes * speed if lanes and speed else None,
            Signal.RDMA_MTU: MTUS.get(attr.active_mtu),
        }
        if gids:
            table = self._context.query_gid_table(attr.gid_tbl_len)
            facts[Signal.GIDS] = tuple(
                f"{e.gid_index} {GID_TYPES.get(e.gid_type, e.gid_type)} {gid_text(e.gid_str())}"
                for e in sorted(table, key=_gid_index)
                if e.port_num == number
            )
        return facts

    def close(self) -> None:
        """Let go of the device."""
        for fd in self._files:
            self._loop.remove_reader(fd)
        self._files = []
        self._context.close()

    def _readable(self, fd: int) -> None:
        try:
            data = os.read(fd, EVENT.size)
        except BlockingIOError:
            return
        except OSError as e:
            log.warning("%s: no more events: %s", self.name, e.strerror)
            data = b""
        if len(data) < EVENT.size:  # the device is gone; the next sweep will see
            self._loop.remove_reader(fd)
            self._files.remove(fd)
            return
        element, kind, _ = EVENT.unpack(data)
        self._event(self, kind, element)


def _event_files() -> set[int]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError, ValueError):
            if str(entry.readlink()) == EVENT_FILE:
                found.add(int(entry.name))
    return found


def gid_text(gid: str | bytes) -> str:
    """A GID, spelled out or as its 16 bytes, as ibv_devinfo writes it: shortened, an IPv4 address with dots."""
    address = IPv6Address(gid)
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)


def _gid_index(entry: Any) -> int:
    return int(entry.gid_index)


def pyverbs(module: str) -> Any:
    """One of pyverbs' modules, without what importing it does to the root logger."""
    handlers, level = logging.root.handlers[:], logging.root.level
    found = importlib.import_module(f"pyverbs.{module}")
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    return found
