"""Rows of the membership table as bytes:

host, life (8), count (4), status (1), address, port (2), by, keys (1), (name, fingerprint (4))...
"""

import re
import struct
from functools import lru_cache
from socket import AF_INET, AF_INET6, inet_pton
from typing import Protocol

from linkpass.errors import WireError
from linkpass.wire import MAX_NUMBER
from linkpass_topology.gossip.keyring import KEY_ID, MAX_KEYS
from linkpass_topology.gossip.outputs import Address
from linkpass_topology.gossip.row import MAX_COUNT, Ring, Row, Status

_AGE = struct.Struct("!QIB")
_PORT = struct.Struct("!H")
MARK = 4  # bytes of a key's fingerprint
IP = re.compile(r"[0-9A-Fa-f.:]{2,45}")
STATUSES = tuple(Status)
KNOWN = 16_384  # addresses and key names whose check is remembered: those of a full table


class Body(Protocol):
    """What reading needs of a message's body."""

    def take(self, size: int) -> bytes: ...
    def text(self) -> str: ...
    def host(self) -> str: ...
    def border(self) -> str: ...


def _text(text: str) -> bytes:
    return bytes((len(text),)) + text.encode("ascii")


def pack_row(row: Row) -> bytes:
    """The row's bytes."""
    addr, port = row.addr or ("", 0)
    keys = b"".join(_text(name) + mark for name, mark in row.ring)
    head = _text(row.host) + _AGE.pack(row.life, row.count, row.status)
    return head + _text(addr) + _PORT.pack(port) + _text(row.by) + bytes((len(row.ring),)) + keys


def read_row(b: Body) -> Row:
    """The next row of a body; WireError if it breaks a bound."""
    host = b.host()
    life, count, status = _AGE.unpack(b.take(_AGE.size))
    if life > MAX_NUMBER or count > MAX_COUNT or status >= len(STATUSES):
        raise WireError("row: a number is too large")
    addr = _address(b.text(), _PORT.unpack(b.take(_PORT.size))[0])
    by = b.border()
    return Row(host, life, count, STATUSES[status], addr, _ring(b), by)


@lru_cache(KNOWN)
def _address(ip: str, port: int) -> Address | None:
    if not ip and not port:
        return None
    try:
        if not IP.fullmatch(ip) or not port:
            raise OSError
        inet_pton(AF_INET6 if ":" in ip else AF_INET, ip)
    except OSError as e:
        raise WireError("row: bad address") from e
    return (ip, port)


def _ring(b: Body) -> Ring:
    count = b.take(1)[0]
    if count > MAX_KEYS:
        raise WireError("row: too many keys")
    found = []
    for _ in range(count):
        found.append((_key_name(b.text()), b.take(MARK)))
    return tuple(found)


@lru_cache(MAX_KEYS)
def _key_name(name: str) -> str:
    if not KEY_ID.fullmatch(name):
        raise WireError("row: bad key name")
    return name
