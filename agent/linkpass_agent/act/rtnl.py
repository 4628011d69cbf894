"""Next-hop objects and routes that use them, as raw rtnetlink messages.

pyroute2 0.9 knows neither RTM_NEWNEXTHOP nor RTA_NH_ID, and a fail-over shouldn't wait for a general library: a group
replace takes about 50 us this way. Layouts and numbers: include/uapi/linux/{netlink,rtnetlink,nexthop}.h.
"""

import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from linkpass.errors import KernelError

NLMSG_ERROR, NLMSG_DONE = 2, 3
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEXTHOP, RTM_DELNEXTHOP, RTM_GETNEXTHOP = 104, 105, 106
F_REQUEST, F_ACK, F_DUMP, F_REPLACE, F_EXCLUSIVE, F_CREATE = 0x1, 0x4, 0x300, 0x100, 0x200, 0x400
NHA_ID, NHA_GROUP, NHA_OIF, NHA_GATEWAY = 1, 2, 5, 6
RTA_DST, RTA_PRIORITY, RTA_PREFSRC, RTA_TABLE, RTA_NH_ID = 1, 6, 7, 15, 30
RT_SCOPE_UNIVERSE, RTN_UNICAST = 0, 1

HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
NHMSG = struct.Struct("=BBBBI")  # family, scope, protocol, reserved, flags
RTMSG = struct.Struct("=BBBBBBBBI")  # family, dst_len, src_len, tos, table, protocol, scope, type, flags
GROUP_ENTRY = struct.Struct("=IBBH")  # id, weight - 1, reserved, reserved
ATTRIBUTE = struct.Struct("=HH")
BATCH = 64  # requests in one call: the answers of some 200 fill a socket's default buffer, and the rest is lost
TIMEOUT = 2.0  # s; the kernel answers within the call, this only bounds a bug


@dataclass(frozen=True, slots=True)
class NextHop:
    """One next-hop object as the kernel shows it; a group has members instead of an interface."""

    id: int
    protocol: int
    interface: int = 0
    gateway: str = ""
    members: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelRoute:
    """One route that points to a next-hop object."""

    destination: str
    protocol: int
    table: int
    metric: int
    nexthop: int


@dataclass(frozen=True, slots=True)
class Message:
    """A request ready to be sent, and what to call it in an error."""

    kind: int
    flags: int
    payload: bytes
    name: str


def _family(address: str) -> int:
    return socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6


def _attr(kind: int, value: bytes) -> bytes:
    return ATTRIBUTE.pack(4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _u32(kind: int, value: int) -> bytes:
    return _attr(kind, struct.pack("=I", value))


def set_nexthop(id_: int, interface: int, gateway: str, protocol: int) -> Message:
    """Make or replace a next-hop object: `gateway` out of the interface with this index."""
    head = NHMSG.pack(_family(gateway), RT_SCOPE_UNIVERSE, protocol, 0, 0)
    body = _u32(NHA_ID, id_) + _u32(NHA_OIF, interface) + _attr(NHA_GATEWAY, ip_address(gateway).packed)
    name = f"next hop {id_} via {gateway}"
    return Message(RTM_NEWNEXTHOP, F_REQUEST | F_ACK | F_CREATE | F_REPLACE, head + body, name)


def set_group(id_: int, members: Sequence[int], protocol: int) -> Message:
    """Make or replace a group of equal members."""
    entries = b"".join(GROUP_ENTRY.pack(m, 0, 0, 0) for m in members)
    head = NHMSG.pack(socket.AF_UNSPEC, RT_SCOPE_UNIVERSE, protocol, 0, 0)
    body = _u32(NHA_ID, id_) + _attr(NHA_GROUP, entries)
    return Message(RTM_NEWNEXTHOP, F_REQUEST | F_ACK | F_CREATE | F_REPLACE, head + body, f"next-hop group {id_}")


def delete_nexthop(id_: int) -> Message:
    """Remove a next-hop object or group, and with it the routes that use it."""
    head = NHMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    return Message(RTM_DELNEXTHOP, F_REQUEST | F_ACK, head + _u32(NHA_ID, id_), f"delete next hop {id_}")


def _route(kind: int, flags: int, destination: str, table: int, metric: int, rest: bytes, protocol: int) -> Message:
    packed = ip_address(destination).packed
    head = RTMSG.pack(
        _family(destination), 8 * len(packed), 0, 0, table if table < 256 else 0, protocol,
        RT_SCOPE_UNIVERSE, RTN_UNICAST, 0,
    )  # fmt: skip
    body = _attr(RTA_DST, packed) + _u32(RTA_PRIORITY, metric) + _u32(RTA_TABLE, table)
    return Message(kind, F_REQUEST | F_ACK | flags, head + body + rest, f"route to {destination}")


def set_route(
    destination: str, source: str, nexthop: int, table: int, metric: int, protocol: int, *, replace: bool
) -> Message:
    """Make the host route to `destination` by way of a next-hop object.

    With `replace`, any route of the same metric goes for it, whoever made it; without, such a route means EEXIST.
    """
    rest = _attr(RTA_PREFSRC, ip_address(source).packed) + _u32(RTA_NH_ID, nexthop)
    flags = F_CREATE | (F_REPLACE if replace else F_EXCLUSIVE)
    return _route(RTM_NEWROUTE, flags, destination, table, metric, rest, protocol)


def delete_route(destination: str, table: int, metric: int, protocol: int) -> Message:
    """Remove our host route to `destination`."""
    return _route(RTM_DELROUTE, 0, destination, table, metric, b"", protocol)


class Rtnl:
    """A rtnetlink socket for requests. Calls block for the few microseconds that the kernel takes."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._sock.bind((0, 0))
        self._sock.settimeout(TIMEOUT)
        self._seq = 0

    def close(self) -> None:
        """Release the socket."""
        self._sock.close()

    def send(self, messages: Sequence[Message]) -> list[KernelError | None]:
        """The kernel carries the requests out in order. One result for each: None or the error."""
        return [r for at in range(0, len(messages), BATCH) for r in self._send(messages[at : at + BATCH])]

    def _send(self, messages: Sequence[Message]) -> list[KernelError | None]:
        first = self._seq + 1
        out = bytearray()
        for message in messages:
            self._seq += 1
            out += HEADER.pack(16 + len(message.payload), message.kind, message.flags, self._seq, 0) + message.payload
        self._sock.send(out)
        results: dict[int, KernelError | None] = {}
        while len(results) < len(messages):
            for kind, seq, body in _messages(self._sock.recv(1 << 16)):
                if kind == NLMSG_ERROR and first <= seq <= self._seq:
                    errno = -struct.unpack_from("=i", body)[0]
                    results[seq] = KernelError(messages[seq - first].name, errno) if errno else None
        return [results[s] for s in range(first, self._seq + 1)]

    def nexthops(self) -> list[NextHop]:
        """All next-hop objects of this network namespace."""
        return [n for body in self._dump(RTM_GETNEXTHOP, NHMSG.pack(0, 0, 0, 0, 0)) if (n := parse_nexthop(body))]

    def routes(self) -> list[KernelRoute]:
        """All unicast routes, IPv4 and IPv6; `nexthop` is 0 for those that use no object."""
        found = []
        for family in (socket.AF_INET, socket.AF_INET6):
            head = RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)
            found += [r for body in self._dump(RTM_GETROUTE, head) if (r := parse_route(body))]
        return found

    def _dump(self, kind: int, payload: bytes) -> Iterator[bytes]:
        self._seq += 1
        seq = self._seq
        self._sock.send(HEADER.pack(16 + len(payload), kind, F_REQUEST | F_DUMP, seq, 0) + payload)
        while True:
            for answer, answer_seq, body in _messages(self._sock.recv(1 << 18)):
                if answer_seq != seq:
                    continue
                if answer == NLMSG_DONE:
                    return
                if answer == NLMSG_ERROR:
                    raise KernelError(f"dump {kind}", -struct.unpack_from("=i", body)[0])
                yield body


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at + 16 <= len(data):
        length, kind, _, seq, _ = HEADER.unpack_from(data, at)
        if length < 16:
            return
        yield kind, seq, data[at + 16 : at + length]
        at += (length + 3) & ~3


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, at)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def _int(attrs: dict[int, bytes], kind: int) -> int:
    return int(struct.unpack("=I", attrs[kind])[0]) if kind in attrs else 0


def parse_nexthop(body: bytes) -> NextHop | None:
    """Read one RTM_NEWNEXTHOP body."""
    if len(body) < NHMSG.size:
        return None
    _, _, protocol, _, _ = NHMSG.unpack_from(body)
    attrs = _attributes(body[NHMSG.size :])
    group = attrs.get(NHA_GROUP, b"")
    return NextHop(
        id=_int(attrs, NHA_ID),
        protocol=protocol,
        interface=_int(attrs, NHA_OIF),
        gateway=str(ip_address(attrs[NHA_GATEWAY])) if NHA_GATEWAY in attrs else "",
        members=tuple(m for m, _, _, _ in GROUP_ENTRY.iter_unpack(group)),
    )


def parse_route(body: bytes) -> KernelRoute | None:
    """Read one RTM_NEWROUTE body; None for what isn't a unicast route to an address."""
    if len(body) < RTMSG.size:
        return None
    _, length, _, _, table, protocol, _, kind, _ = RTMSG.unpack_from(body)
    attrs = _attributes(body[RTMSG.size :])
    if kind != RTN_UNICAST or RTA_DST not in attrs:
        return None
    destination = str(ip_address(attrs[RTA_DST]))
    if length < 8 * len(attrs[RTA_DST]):
        destination += f"/{length}"
    return KernelRoute(
        destination, protocol, _int(attrs, RTA_TABLE) or table, _int(attrs, RTA_PRIORITY), _int(attrs, RTA_NH_ID)
    )
