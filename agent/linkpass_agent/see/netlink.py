"""Link and address events from rtnetlink, and the full picture on request.

Events alone are too late and too few: the kernel reports a link's carrier at most once a second where a device's
ifindex equals its iflink (linkwatch, net/core/link_watch.c), and a socket that overflows loses them. `carrier.py`
reads beside this, and `Sweep` asks for everything once a second. pyroute2 does the netlink work.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Any

from linkpass.clock import Clock
from linkpass.model import Observation, Signal, Value

from . import pyroute
from .names import Names

AsyncIPRoute = pyroute.part().AsyncIPRoute
IFF_UP = 0x1  # include/uapi/linux/if.h
IFF_LOWER_UP = 0x10000
RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR = 0x1, 0x10, 0x100  # include/uapi/linux/rtnetlink.h
IFA_F_TENTATIVE, IFA_F_DADFAILED = 0x40, 0x08  # include/uapi/linux/if_addr.h
PAUSE = 0.25  # s between two subscriptions; the carrier files and the sweep go on meanwhile

Emit = Callable[[list[Observation]], None]
log = logging.getLogger(__name__)


class LinkEvents:
    """Subscribes to link and address events and emits what they say of our ports."""

    def __init__(self, names: Names, emit: Emit, look_anew: Callable[[], None], clock: Clock) -> None:
        self._names = names
        self._emit = emit
        self._look_anew = look_anew
        self._clock = clock

    async def run(self) -> None:
        """Read events until cancelled. A subscription that overflows is made anew, and a full look is asked for."""
        while True:
            try:
                await self._read()
            except OSError as e:  # ENOBUFS: thousands of events came faster than we read them
                log.warning("link events were lost (%s); looking at everything anew", os.strerror(e.errno or 0))
                self._look_anew()
                await asyncio.sleep(PAUSE)

    async def _read(self) -> None:
        async with AsyncIPRoute() as ipr:
            await ipr.bind(groups=RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR)
            while True:
                async for message in ipr.get():
                    self._take(message)

    def _take(self, message: Any) -> None:
        event = message.get("event")
        if event in ("RTM_NEWADDR", "RTM_DELADDR"):
            self._look_anew()
            return
        if event not in ("RTM_NEWLINK", "RTM_DELLINK"):
            return
        if message.get("family") not in (0, None):
            return  # family 7 (AF_BRIDGE) repeats a link as a bridge port
        port = self._names.event(message["index"], message.get("IFLA_IFNAME") or "")
        if port is None:
            return
        now = self._clock.now()
        if event == "RTM_DELLINK":
            self._emit([Observation(now, "netlink", port, Signal.PRESENT, False)])
        else:
            self._emit(link_observations(message, port, now, "netlink"))


def link_observations(message: Any, name: str, now: float, source: str) -> list[Observation]:
    """What one RTM_NEWLINK says."""
    flags = message["flags"]
    up = bool(flags & IFF_UP)
    facts: list[tuple[Signal, Value | None]] = [
        (Signal.PRESENT, True),
        (Signal.ADMIN, up),
        # IFF_LOWER_UP says nothing while the device is administratively down.
        (Signal.CARRIER, bool(flags & IFF_LOWER_UP) if up else None),
        (Signal.OPERSTATE, str(message.get("IFLA_OPERSTATE") or "unknown").lower()),
        (Signal.MTU, message.get("IFLA_MTU")),
    ]
    return [Observation(now, source, name, signal, value) for signal, value in facts]


class Sweep:
    """The slow, full look: every port's link facts and addresses, and which ports are missing."""

    def __init__(self, ports: Collection[str], absent_sweeps: int, clock: Clock, names: Names) -> None:
        self._ports = tuple(ports)
        self._names = names
        self._absent_sweeps = absent_sweeps
        self._clock = clock
        self._missed = dict.fromkeys(self._ports, 0)

    async def look(self) -> list[Observation]:
        """All that can be seen now. What can't be read becomes an observation without a value."""
        try:
            async with AsyncIPRoute() as ipr:
                addresses = [m async for m in await ipr.get_addr()]
                # Last, so that nothing newer is told between this look and its being told.
                links = [m async for m in await ipr.get_links()]
                now = self._clock.now()
        except OSError as e:
            now = self._clock.now()
            return [Observation(now, "sweep", p, Signal.CARRIER, None, str(e)) for p in self._ports]
        found = {m["index"]: m for m in links}
        self._names.refresh({str(m.get("IFLA_IFNAME")): m["index"] for m in links})
        seen: list[Observation] = []
        for port in self._ports:
            link = found.get(self._names.index(port) or 0)
            if link is not None:
                self._missed[port] = 0
                seen += link_observations(link, port, now, "sweep")
                usable = _usable(addresses, link["index"])
                seen.append(Observation(now, "sweep", port, Signal.ADDRESSES, tuple(sorted({a for a, _ in usable}))))
                networks = tuple(f"{a}/{length}" for a, length in usable)
                seen.append(Observation(now, "sweep", port, Signal.NETWORKS, networks))
                continue
            self._missed[port] += 1
            if self._missed[port] >= self._absent_sweeps:
                detail = f"missing in {self._missed[port]} sweeps"
                seen.append(Observation(now, "sweep", port, Signal.PRESENT, False, detail))
        return seen


def _usable(addresses: list[Any], index: int) -> list[tuple[str, int]]:
    """The global addresses of one interface that can be used now and their prefix lengths, sorted."""
    found = set()
    for message in addresses:
        if message["index"] != index or message["scope"] != 0:
            continue
        flags = message.get("IFA_FLAGS") or message["flags"]
        if not flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED):
            address = message.get("IFA_LOCAL") or message.get("IFA_ADDRESS")
            found.add((str(ip_address(address)), int(message["prefixlen"])))
    return sorted(found)
