"""Echo requests (ICMP, ICMPv6) out of our ports to peers' rail addresses: whether a host's kernel answers there.

Only asked about hosts whose agent is dead (`judge/stale.py`), once a second. RFC 792, RFC 4443.
"""

import asyncio
import secrets
import socket
import struct
from collections.abc import Callable, Collection, Mapping
from ipaddress import ip_address

from linkpass.model import PathId
from linkpass_agent.judge.stale import Echoes

ECHO, REPLY, ECHO6, REPLY6 = 8, 0, 128, 129
HEAD = struct.Struct("!BBHHH")  # type, code, checksum, identifier, sequence
TOKEN = 8  # random bytes that an answer must bring back
READ_AT_ONCE = 64


def checksum(data: bytes) -> int:
    """RFC 1071."""
    padded = data + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def request(version: int, identifier: int, number: int, token: bytes) -> bytes:
    """An echo request; the kernel fills in an ICMPv6 checksum."""
    kind = ECHO if version == 4 else ECHO6
    bare = HEAD.pack(kind, 0, 0, identifier, number & 0xFFFF) + token
    return bare if version == 6 else bare[:2] + struct.pack("!H", checksum(bare)) + bare[4:]


def reply(version: int, datagram: bytes) -> tuple[int, int, bytes] | None:
    """Identifier, number and token of an echo reply; None for anything else. IPv4 comes with its header."""
    at = 4 * (datagram[0] & 0xF) if version == 4 and datagram else 0
    if len(datagram) < at + HEAD.size + TOKEN:
        return None
    kind, code, _, identifier, number = HEAD.unpack_from(datagram, at)
    if (kind, code) != (REPLY if version == 4 else REPLY6, 0):
        return None
    return identifier, number, datagram[at + HEAD.size :]


class Echo:
    """One socket for each path that is asked; none while nobody is."""

    def __init__(self, device: Callable[[str], str]) -> None:
        self._device = device
        self._echoes = Echoes()
        self._socks: dict[PathId, tuple[str, socket.socket]] = {}
        self._identifier, self._token = secrets.randbits(16), secrets.token_bytes(TOKEN)

    def look(self, wanted: Mapping[PathId, str]) -> frozenset[PathId]:
        """Ask these addresses once more; the paths that the earlier answers prove."""
        number, proven = self._echoes.ask(wanted.keys())
        self._keep(wanted)
        for path, address in wanted.items():
            version = ip_address(address).version
            try:
                sock = self._sock(path, address, version)
                sock.send(request(version, self._identifier, number, self._token))
            except OSError:
                continue  # no route, no carrier: unanswered
        return proven

    def close(self) -> None:
        """Let go of all sockets."""
        self._keep(())

    def _keep(self, paths: Collection[PathId]) -> None:
        for path in self._socks.keys() - set(paths):
            self._drop(path)

    def _drop(self, path: PathId) -> None:
        _, sock = self._socks.pop(path)
        asyncio.get_running_loop().remove_reader(sock)
        sock.close()

    def _sock(self, path: PathId, address: str, version: int) -> socket.socket:
        known = self._socks.get(path)
        if known and known[0] == address:
            return known[1]
        if known:
            self._drop(path)
        family, protocol = (
            (socket.AF_INET, socket.IPPROTO_ICMP) if version == 4 else (socket.AF_INET6, socket.IPPROTO_ICMPV6)
        )
        sock = socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._device(path.port).encode())
            sock.connect((address, 0))  # takes answers of this address only
        except OSError:
            sock.close()
            raise
        asyncio.get_running_loop().add_reader(sock, self._readable, path, sock, version)
        self._socks[path] = (address, sock)
        return sock

    def _readable(self, path: PathId, sock: socket.socket, version: int) -> None:
        for _ in range(READ_AT_ONCE):
            try:
                found = reply(version, sock.recv(256))
            except OSError:
                return
            if found and found[0] == self._identifier and found[2] == self._token:
                self._echoes.answered(path, found[1])
