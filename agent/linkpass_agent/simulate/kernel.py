"""A kernel for the route actuator: next-hop objects, groups and routes, with the real one's rules.

Reads the very bytes that `act.rtnl` makes, by its own decoder, so that a wrong layout shows here too. Rules (checked
against the real kernel by tests/system/test_routes_kernel.py): net/ipv4/nexthop.c and net/ipv4/fib_*.c.
"""

import errno
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from linkpass.errors import KernelError
from linkpass_agent.act.rtnl import KernelRoute, Message, NextHop

NEWROUTE, DELROUTE, NEWNEXTHOP, DELNEXTHOP = 24, 25, 104, 105
REPLACE, EXCLUSIVE, CREATE = 0x100, 0x200, 0x400


@dataclass(slots=True)
class Device:
    """A network device."""

    index: int
    carrier: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """A route in the table, with what `KernelRoute` doesn't show."""

    route: KernelRoute
    source: str


@dataclass(slots=True)
class FakeKernel:
    """`refuse`: asked for each message, an errno to answer with (0: none); to make any request fail."""

    devices: dict[str, Device] = field(default_factory=dict)
    objects: dict[int, NextHop] = field(default_factory=dict)
    table: dict[tuple[str, int, int], Entry] = field(default_factory=dict)
    addresses: set[str] = field(default_factory=set)  # our own; empty: any source address is fine
    refuse: Callable[[Message], int] = lambda _message: 0
    sent: list[str] = field(default_factory=list)

    # -- the door ------------------------------------------------------------------------------------------------

    def send(self, messages: Sequence[Message]) -> list[KernelError | None]:
        results: list[KernelError | None] = []
        for message in messages:
            self.sent.append(message.name)
            error = self.refuse(message) or self._do(message)
            results.append(KernelError(message.name, error) if error else None)
        return results

    def nexthops(self) -> list[NextHop]:
        return [self.objects[i] for i in sorted(self.objects)]

    def routes(self) -> list[KernelRoute]:
        return [e.route for e in self.table.values()]

    # -- what the tests do to it ---------------------------------------------------------------------------------

    def add_device(self, name: str, index: int) -> None:
        self.devices[name] = Device(index)

    def index(self, name: str) -> int | None:
        return self.devices[name].index if name in self.devices else None

    def name(self, index: int) -> str | None:
        return next((n for n, d in self.devices.items() if d.index == index), None)

    def carrier(self, name: str, carrier: bool, *, noticed: bool = True) -> None:
        """The cable goes or comes back. Not `noticed`: routing hears of it later, by `notice`."""
        self.devices[name].carrier = carrier
        if noticed:
            self.notice(name)

    def notice(self, name: str) -> None:
        """Routing takes in the device's state: without carrier its next hops go."""
        if not self.devices[name].carrier:
            self._flush(self.devices[name].index)

    def delete_device(self, name: str) -> None:
        self._flush(self.devices.pop(name).index)

    def hops_of(self, destination: str, metric: int = 50) -> set[tuple[str, str]]:
        """(device, gateway) of the next hops that traffic to `destination` takes now."""
        entry = next((e for (d, _, m), e in self.table.items() if d == destination and m == metric), None)
        if entry is None or entry.route.nexthop == 0:
            return set()
        target = self.objects[entry.route.nexthop]
        found = [self.objects[m] for m in target.members] if target.members else [target]
        return {(self.name(n.interface) or "?", n.gateway) for n in found}

    def add_foreign_route(self, destination: str, metric: int, protocol: int = 4, table: int = 254) -> None:
        """An ordinary route of somebody else's, without a next-hop object."""
        self.table[destination, table, metric] = Entry(KernelRoute(destination, protocol, table, metric, 0), "")

    # -- the rules -----------------------------------------------------------------------------------------------

    def _flush(self, index: int) -> None:
        for id_ in [i for i, n in self.objects.items() if n.interface == index and not n.members]:
            self._remove(id_)

    def _remove(self, id_: int) -> None:
        del self.objects[id_]
        for key in [k for k, e in self.table.items() if e.route.nexthop == id_]:
            del self.table[key]
        for group in [n for n in self.objects.values() if id_ in n.members]:
            left = tuple(m for m in group.members if m != id_)
            if left:
                self.objects[group.id] = NextHop(group.id, group.protocol, members=left)
            else:
                self._remove(group.id)

    def _do(self, message: Message) -> int:
        if message.kind == NEWNEXTHOP:
            return self._new_nexthop(message)
        if message.kind == DELNEXTHOP:
            id_ = _u32(_attributes(message.payload[8:])[1])
            if id_ not in self.objects:
                return errno.ENOENT
            self._remove(id_)
            return 0
        return self._route(message)

    def _new_nexthop(self, message: Message) -> int:
        family, _scope, protocol, _, _flags = struct.unpack("=BBBBI", message.payload[:8])
        attrs = _attributes(message.payload[8:])
        id_ = _u32(attrs[1])
        if 2 in attrs:  # NHA_GROUP
            assert family == socket.AF_UNSPEC
            new = NextHop(id_, protocol, members=tuple(e[0] for e in struct.iter_unpack("=IBBH", attrs[2])))
            simple = [m for m in new.members if m in self.objects and not self.objects[m].members]
            if not new.members or len(set(simple)) != len(new.members):
                return errno.EINVAL
        else:
            gateway = ip_address(attrs[6])
            assert family == (socket.AF_INET if gateway.version == 4 else socket.AF_INET6)
            device = next((d for d in self.devices.values() if d.index == _u32(attrs[5])), None)
            if device is None:
                return errno.EINVAL
            if not device.carrier:
                return errno.ENETDOWN
            new = NextHop(id_, protocol, device.index, str(gateway))
        old = self.objects.get(id_)
        if old is not None and not message.flags & REPLACE:
            return errno.EEXIST
        if old is not None and bool(old.members) != bool(new.members):
            return errno.EINVAL  # a group can't take a plain object's place, nor the other way round
        self.objects[id_] = new
        return 0

    def _route(self, message: Message) -> int:
        family, length, _, _, table8, protocol, scope, kind, _ = struct.unpack("=BBBBBBBBI", message.payload[:12])
        attrs = _attributes(message.payload[12:])
        packed = attrs[1]
        assert length == 8 * len(packed)
        assert family == (socket.AF_INET if len(packed) == 4 else socket.AF_INET6)
        table = _u32(attrs[15]) if 15 in attrs else table8
        key = (str(ip_address(packed)), table, _u32(attrs[6]))
        there = self.table.get(key)
        if message.kind == DELROUTE:
            if there is None or (protocol and there.route.protocol != protocol):
                return errno.ESRCH
            del self.table[key]
            return 0
        assert message.kind == NEWROUTE and (scope, kind) == (0, 1)
        nexthop, source = _u32(attrs[30]), str(ip_address(attrs[7]))
        if nexthop not in self.objects or (self.addresses and source not in self.addresses):
            return errno.EINVAL
        if there is not None and message.flags & EXCLUSIVE:
            return errno.EEXIST
        if there is not None and not message.flags & REPLACE:
            return errno.EEXIST
        if there is None and not message.flags & CREATE:
            return errno.ENOENT
        self.table[key] = Entry(KernelRoute(key[0], protocol, table, key[2], nexthop), source)
        return 0


def _u32(value: bytes) -> int:
    return int(struct.unpack("=I", value)[0])


def _attributes(data: bytes) -> dict[int, bytes]:
    found, at = {}, 0
    while at < len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        assert 4 <= length <= len(data) - at, "attribute past the end of its message"
        found[kind] = data[at + 4 : at + length]
        at += (length + 3) // 4 * 4
    return found
