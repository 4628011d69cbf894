"""Link and address events from rtnetlink, and the full picture on request.

Events alone are too late and too few: the kernel reports a link's carrier at most once a second where a device's
ifindex equals its iflink (linkwatch, net/core/link_watch.c), and a socket that overflows loses them. `carrier.py`
reads beside this, and `Sweep` asks for everything once a second.
Numbers: include/uapi/linux/{rtnetlink,if_link,if_addr,if}.h.
"""

import asyncio
import logging
import os
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from ipaddress import ip_address

from linkpass.clock import Clock
from linkpass.model import Observation, Signal, Value
from linkpass_agent.rtnetlink import SIZE, dump, open_socket, split

from .attributes import attribute, attributes
from .names import Names

NEWLINK, DELLINK, GETLINK, NEWADDR, DELADDR, GETADDR = 16, 17, 18, 20, 21, 22  # RTM_*
GROUP_LINK, GROUP_IPV4_IFADDR, GROUP_IPV6_IFADDR = 0x1, 0x10, 0x100
IFF_UP, IFF_LOWER_UP = 0x1, 0x10000
IFLA_IFNAME, IFLA_MTU, IFLA_OPERSTATE, IFLA_EXT_MASK, SKIP_STATS = 3, 4, 16, 29, 8
IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS = 1, 2, 8
IFA_F_TENTATIVE, IFA_F_DADFAILED = 0x40, 0x08
AF_UNSPEC = 0
OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")  # IF_OPER_*, RFC 2863
IFINFO = struct.Struct("=BBHiII")  # family, padding, type, index, flags, change
IFADDR = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
PATIENCE = 2.0  # s; the kernel answers a dump within the call, this only bounds a bug
PAUSE = 0.25  # s between two subscriptions; the carrier files and the sweep go on meanwhile

Emit = Callable[[list[Observation]], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Link:
    """One network device as the kernel shows it."""

    index: int
    name: str
    flags: int
    mtu: int | None
    operstate: str


@dataclass(frozen=True, slots=True)
class Held:
    """One address of a device. `usable`: global, and not being looked for duplicates of."""

    index: int
    address: str
    usable: bool


def parse_link(body: bytes) -> Link | None:
    """Read a RTM_NEWLINK or RTM_DELLINK body; None for what isn't a plain link (a bridge repeats one as its port)."""
    if len(body) < IFINFO.size:
        return None
    family, _, _, index, flags, _ = IFINFO.unpack_from(body)
    if family != AF_UNSPEC:
        return None
    found = dict(attributes(body[IFINFO.size :]))
    mtu, state = found.get(IFLA_MTU, b""), found.get(IFLA_OPERSTATE, b"")
    name = found.get(IFLA_IFNAME, b"").rstrip(b"\0").decode("utf-8", "surrogateescape")
    operstate = OPERSTATES[state[0]] if state and state[0] < len(OPERSTATES) else OPERSTATES[0]
    return Link(index, name, flags, struct.unpack("=I", mtu)[0] if len(mtu) == 4 else None, operstate)


def parse_address(body: bytes) -> Held | None:
    """Read a RTM_NEWADDR body."""
    if len(body) < IFADDR.size:
        return None
    _, _, flags, scope, index = IFADDR.unpack_from(body)
    found = dict(attributes(body[IFADDR.size :]))
    packed = found.get(IFA_LOCAL) or found.get(IFA_ADDRESS) or b""
    if len(packed) not in (4, 16):
        return None
    if len(wide := found.get(IFA_FLAGS, b"")) == 4:
        flags = struct.unpack("=I", wide)[0]
    return Held(index, str(ip_address(packed)), scope == 0 and not flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED))


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
        loop = asyncio.get_running_loop()
        with open_socket(GROUP_LINK | GROUP_IPV4_IFADDR | GROUP_IPV6_IFADDR) as sock:
            sock.setblocking(False)
            while True:
                for kind, _, body in split(await loop.sock_recv(sock, SIZE)):
                    self._take(kind, body)

    def _take(self, kind: int, body: bytes) -> None:
        if kind in (NEWADDR, DELADDR):
            self._look_anew()
            return
        link = parse_link(body) if kind in (NEWLINK, DELLINK) else None
        port = self._names.event(link.index, link.name) if link else None
        if link is None or port is None:
            return
        now = self._clock.now()
        if kind == DELLINK:
            self._emit([Observation(now, "netlink", port, Signal.PRESENT, False)])
        else:
            self._emit(link_observations(link, port, now, "netlink"))


def link_observations(link: Link, name: str, now: float, source: str) -> list[Observation]:
    """What the kernel says of one link."""
    up = bool(link.flags & IFF_UP)
    facts: list[tuple[Signal, Value | None]] = [
        (Signal.PRESENT, True),
        (Signal.ADMIN, up),
        # IFF_LOWER_UP says nothing while the device is administratively down.
        (Signal.CARRIER, bool(link.flags & IFF_LOWER_UP) if up else None),
        (Signal.OPERSTATE, link.operstate),
        (Signal.MTU, link.mtu),
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

    def look(self) -> list[Observation]:
        """All that can be seen now. What can't be read becomes an observation without a value."""
        try:
            with open_socket() as sock:
                sock.settimeout(PATIENCE)
                addresses = [
                    a for body in dump(sock, GETADDR, IFADDR.pack(0, 0, 0, 0, 0), 1) if (a := parse_address(body))
                ]
                # Last, so that nothing newer is told between this look and its being told.
                ask = IFINFO.pack(AF_UNSPEC, 0, 0, 0, 0, 0) + attribute(IFLA_EXT_MASK, struct.pack("=I", SKIP_STATS))
                links = [link for body in dump(sock, GETLINK, ask, 2) if (link := parse_link(body))]
                now = self._clock.now()
        except OSError as e:
            now = self._clock.now()
            return [Observation(now, "sweep", p, Signal.CARRIER, None, str(e)) for p in self._ports]
        found = {link.index: link for link in links}
        self._names.refresh({link.name: link.index for link in links})
        usable: dict[int, set[str]] = {}
        for a in addresses:
            if a.usable:
                usable.setdefault(a.index, set()).add(a.address)
        seen: list[Observation] = []
        for port in self._ports:
            link = found.get(self._names.index(port) or 0)
            if link is not None:
                self._missed[port] = 0
                seen += link_observations(link, port, now, "sweep")
                seen.append(
                    Observation(now, "sweep", port, Signal.ADDRESSES, tuple(sorted(usable.get(link.index, ()))))
                )
                continue
            self._missed[port] += 1
            if self._missed[port] >= self._absent_sweeps:
                detail = f"missing in {self._missed[port]} sweeps"
                seen.append(Observation(now, "sweep", port, Signal.PRESENT, False, detail))
        return seen
