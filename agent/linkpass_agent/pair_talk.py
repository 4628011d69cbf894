"""What agents tell each other to try out a port by queue pairs. Big-endian, one kind byte first.

Letters go sealed between the agents, beside those of jobs (`jobs.talk`), whose kinds are others; agents that don't
know them skip them:

    ask    0x51  token(16)  rail  GID(16)  number(4)  key(4)     I'll send from there, tell me where to
    offer  0x52  token(16)  rail  GID(16)  number(4)  key(4)
    can't  0x53  token(16)  rail  why

Datagrams go between the queue pairs. The token, random for each wait of a port and told in letters only, is what
makes one genuine:

    "LPQ1"  kind(1)  token(16)  sequence(8)
"""

import struct
from dataclasses import dataclass
from ipaddress import IPv6Address

from linkpass.errors import WireError

from .judge.pairs import Address
from .see.verbs import gid_text

ASK, OFFER, CANT = 0x51, 0x52, 0x53
KINDS = (ASK, OFFER, CANT)
TOKEN = 16
MAX_TEXT = 128
PING, PONG = 1, 2
_PLACE = struct.Struct("!16sII")
_DATAGRAM = struct.Struct("!4sB16sQ")
_MAGIC = b"LPQ1"


@dataclass(frozen=True, slots=True)
class Letter:
    """`at` of an ask or offer, `why` of a refusal."""

    kind: int
    token: bytes
    rail: str
    at: Address | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Datagram:
    """A ping, or the pong that answers it."""

    kind: int
    token: bytes
    number: int


def ours(payload: bytes) -> bool:
    """Whether a letter is one of these."""
    return payload[:1] != b"" and payload[0] in KINDS


def pack(letter: Letter) -> bytes:
    """The letter's bytes."""
    head = bytes((letter.kind,)) + letter.token + _text(letter.rail)
    if letter.at is None:
        return head + _text(letter.why)
    return head + _PLACE.pack(IPv6Address(letter.at.gid).packed, letter.at.number, letter.at.key)


def read(payload: bytes) -> Letter:
    """The letter in `payload`; WireError for anything else."""
    try:
        kind, token = payload[0], payload[1 : 1 + TOKEN]
        rail, rest = _read_text(payload[1 + TOKEN :])
        if kind == CANT:
            why, rest = _read_text(rest)
            letter = Letter(kind, token, rail, why=why)
        else:
            gid, number, key = _PLACE.unpack_from(rest)
            rest = rest[_PLACE.size :]
            letter = Letter(kind, token, rail, Address(gid_text(gid), number, key))
    except (IndexError, struct.error, UnicodeDecodeError) as e:
        raise WireError(f"queue pair letter: {e}") from e
    if kind not in KINDS or rest or not rail.isprintable() or not letter.why.isprintable():
        raise WireError("queue pair letter: malformed")
    return letter


def pack_datagram(datagram: Datagram) -> bytes:
    """The datagram's bytes."""
    return _DATAGRAM.pack(_MAGIC, datagram.kind, datagram.token, datagram.number)


def read_datagram(data: bytes) -> Datagram | None:
    """The datagram in `data`, None if it isn't one of ours."""
    if len(data) != _DATAGRAM.size:
        return None
    magic, kind, token, number = _DATAGRAM.unpack(data)
    return Datagram(kind, token, number) if magic == _MAGIC and kind in (PING, PONG) else None


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "replace")[:MAX_TEXT]
    return bytes((len(data),)) + data


def _read_text(data: bytes) -> tuple[str, bytes]:
    end = 1 + data[0]
    if end > len(data) or data[0] > MAX_TEXT:
        raise IndexError("cut short")
    return data[1:end].decode(), data[end:]
