"""What agents say to each other about jobs' connections: the letters' contents. Big-endian, one kind byte first.

The identity is always as the sender sees it. Letters of unknown kinds are skipped, so that a fleet can be upgraded
host by host.
"""

import struct
from dataclasses import dataclass

from linkpass.errors import WireError
from linkpass.shim import abi
from linkpass.shim.abi import Identity, Spare, Tell

_HAVE = struct.Struct("!IHB")
_ROUND = struct.Struct("!BI")
WHO, SPARE, TELL = abi.size_of("lp_identity"), abi.size_of("lp_spare"), abi.size_of("lp_tell")
MAX_TEXT = 160


@dataclass(frozen=True, slots=True)
class Have:
    """A process of ours (`session`: our number for it) has this connection, out of its port on `rail`."""

    who: Identity
    session: int
    abi: int
    rail: str
    answer: bool  # tell me the same if you have its other end


@dataclass(frozen=True, slots=True)
class Unknown:
    """I have no such connection, or none any more. `who` is as the *receiver* sees it."""

    who: Identity


@dataclass(frozen=True, slots=True)
class Want:
    """Leader to follower: have a half of a spare made, out of your port on `rail`."""

    who: Identity
    id: int
    round: int
    rail: str


@dataclass(frozen=True, slots=True)
class Cant:
    """Follower to leader: there will be no such half."""

    who: Identity
    id: int
    round: int
    why: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Leader to follower: that spare is of no use any more."""

    who: Identity
    id: int
    round: int


@dataclass(frozen=True, slots=True)
class Half:
    """Our half of a spare."""

    who: Identity
    spare: Spare


@dataclass(frozen=True, slots=True)
class Told:
    """What one shim has to tell the other."""

    who: Identity
    tell: Tell


@dataclass(frozen=True, slots=True)
class Pin:
    """Follower to leader: an operator wants it on this rail from now on."""

    who: Identity
    rail: str


Letter = Have | Unknown | Want | Cant | Drop | Half | Told | Pin


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "replace")[:MAX_TEXT]
    return bytes((len(data),)) + data


def pack(letter: Letter) -> bytes:
    """The letter's bytes."""
    who = abi.dump(letter.who)
    match letter:
        case Have(_, session, version, rail, answer):
            return b"\x01" + who + _HAVE.pack(session, version, answer) + _text(rail)
        case Unknown():
            return b"\x02" + who
        case Want(_, number, turn, rail):
            return b"\x03" + who + _ROUND.pack(number, turn) + _text(rail)
        case Cant(_, number, turn, why):
            return b"\x04" + who + _ROUND.pack(number, turn) + _text(why)
        case Drop(_, number, turn):
            return b"\x05" + who + _ROUND.pack(number, turn)
        case Half(_, spare):
            return b"\x06" + who + abi.dump(spare)
        case Told(_, tell):
            return b"\x07" + who + abi.dump(tell)
        case Pin(_, rail):
            return b"\x08" + who + _text(rail)


def read(data: bytes) -> Letter | None:
    """The letter; None for a kind that a newer agent may know. WireError if it is malformed."""
    if not data:
        raise WireError("letter: empty")
    kind, at = data[0], 1
    if not 1 <= kind <= 8:
        return None

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        if at > len(data):
            raise WireError("letter: cut short")
        return data[at - size : at]

    def text() -> str:
        try:
            return take(take(1)[0]).decode()
        except UnicodeDecodeError as e:
            raise WireError("letter: text is not UTF-8") from e

    def numbered() -> tuple[int, int]:
        number, turn = _ROUND.unpack(take(_ROUND.size))
        if number >= abi.C.LP_SPARES:
            raise WireError(f"letter: spare {number}")
        return number, turn

    who = abi.load(Identity, take(WHO))
    found: Letter
    if kind == 1:
        session, version, answer = _HAVE.unpack(take(_HAVE.size))
        found = Have(who, session, version, text(), bool(answer))
    elif kind == 2:
        found = Unknown(who)
    elif kind == 3:
        found = Want(who, *numbered(), text())
    elif kind == 4:
        found = Cant(who, *numbered(), text())
    elif kind == 5:
        found = Drop(who, *numbered())
    elif kind == 6:
        found = Half(who, abi.load(Spare, take(SPARE)))
    elif kind == 7:
        found = Told(who, abi.load(Tell, take(TELL)))
    else:
        found = Pin(who, text())
    if at != len(data):
        raise WireError("letter: too long")
    return found
