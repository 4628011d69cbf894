"""What sealed datagrams say: a row of messages, each `type (1 byte), length (2), body`, then zero bytes as padding.

Numbers are big-endian. A text is one length byte and that many ASCII characters. A stamp is incarnation (8),
version (8), digest (8). Anything that doesn't fit these forms exactly is a `WireError`; messages of other types are
skipped, so that a fleet can be upgraded host by host.

    1 PING     token (4)                          is answered by
    2 PONG     token (4)
    3 PART     host, stamp, delta (1), index (1), count (1), bytes of the encoded record or delta
    4 ACK      host, stamp, need (1)              "this is what I hold of host"; need: send it whole
    5 SUMMARY  hosts (4), sum (8)                 opens an anti-entropy round
    6 DIGESTS  complete (1), first, end, (host, stamp)...   complete: all that I hold in [first, end)
    7 WANT     host...
    8 LETTERS  run (8), to (8), lane (4, 4), born (4), base (4), first (4), (length (2), bytes)...
    9 RECEIVED run (8), mine (8), lane (4, 4), born (4), next (4)      see relay.py
    10 ROWS    complete (1), first, end, row...   of the membership table (see rows.py); complete: as with DIGESTS
    11 ROLL    members (4), sum (8)               opens a round about the table, as SUMMARY does about records
    12 RANGES  kind (1), end, (first, count (4), sum (8))...   a large view (0) or table (1), piece by piece
    13 PROBE   token (4), target                  "ask target for a sign of life"
    14 PROBED  token (4), target, alive (1)       what came of it
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from linkpass.errors import WireError
from linkpass.wire import HOST, MAX_NUMBER, MAX_RECORD, Stamp
from linkpass_topology.gossip import rows as r
from linkpass_topology.gossip.row import Row

MAX_DATAGRAM = 1400  # bytes of UDP payload: below 1,500 less IPv6 and UDP headers, with room for a tunnel
OVERHEAD = 34  # of a sealed datagram: header 18, tag 16 (see seal.py)
MAX_PAYLOAD = MAX_DATAGRAM - OVERHEAD
_FRAME = struct.Struct("!BH")
_STAMP = struct.Struct("!QQ8s")
_TOKEN = struct.Struct("!I")
_SUMMARY = struct.Struct("!IQ")
_PART = struct.Struct("!BBB")
_LETTERS = struct.Struct("!QQIIIII")
_RECEIVED = struct.Struct("!QQIIII")
_LETTER = struct.Struct("!H")
CHUNK = MAX_PAYLOAD - _FRAME.size - 1 - 64 - _STAMP.size - _PART.size  # bytes of a record in one part: 1,271
MAX_PARTS = -(-MAX_RECORD // CHUNK)  # 39
MAX_LETTER = 1024  # bytes
LETTERS_ROOM = MAX_PAYLOAD - _FRAME.size - _LETTERS.size  # bytes of letters and their lengths in one message
KNOWN_HOSTS = 16_384  # names whose check is remembered: as many as a view holds
NO_STAMP = Stamp(0, 0, bytes(8))  # "I hold nothing"


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a Pong with the same token."""

    token: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a Ping."""

    token: int


@dataclass(frozen=True, slots=True)
class Part:
    """Piece `index` of `count` of an encoded record, or of a delta that results in the record of `stamp`."""

    host: str
    stamp: Stamp
    delta: bool
    index: int
    count: int
    chunk: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    """What the sender holds of `host`; NO_STAMP for nothing."""

    host: str
    stamp: Stamp
    need: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """The sender's whole view in 12 bytes."""

    hosts: int
    sum: int


@dataclass(frozen=True, slots=True)
class Digests:
    """What the sender holds; all of it in [first, end) when complete ('' as end: no end)."""

    complete: bool
    first: str
    end: str
    entries: tuple[tuple[str, Stamp], ...]


@dataclass(frozen=True, slots=True)
class Want:
    """Asks for whole records."""

    hosts: tuple[str, ...]


Lane = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Letters:
    """Payloads of one lane, numbered from `first`, of our start `run` for the peer's `to` (0: unknown). `base`: the
    peer is known to have all before it."""

    run: int
    to: int
    lane: Lane
    born: int
    base: int
    first: int
    payloads: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Received:
    """What the start `mine` expects next of that lane of start `run`."""

    run: int
    mine: int
    lane: Lane
    born: int
    next: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the membership table; all of [first, end) when complete."""

    complete: bool
    first: str
    end: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Roll:
    """The sender's whole table in 12 bytes."""

    members: int
    sum: int


@dataclass(frozen=True, slots=True)
class Ranges:
    """Sums of the sender's view (kind 0) or table (1): from each `first` to the next one, the last to `end`."""

    kind: int
    end: str
    pieces: tuple[tuple[str, int, int], ...]  # first, hosts, sum


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks for a Probed."""

    token: int
    target: str


@dataclass(frozen=True, slots=True)
class Probed:
    """Answers a Probe."""

    token: int
    target: str
    alive: bool


Message = (
    Ping | Pong | Part | Ack | Summary | Digests | Want | Letters | Received | Rows | Roll | Ranges | Probe | Probed
)


def text_size(text: str) -> int:
    """Bytes that a text takes."""
    return 1 + len(text)


def entry_size(host: str) -> int:
    """Bytes that an entry of Digests takes."""
    return text_size(host) + _STAMP.size


def _text(text: str) -> bytes:
    return bytes((len(text),)) + text.encode("ascii")


def _body(message: Message) -> tuple[int, bytes]:
    match message:
        case Ping(token):
            return 1, _TOKEN.pack(token)
        case Pong(token):
            return 2, _TOKEN.pack(token)
        case Part(host, stamp, delta, index, count, chunk):
            return 3, _text(host) + _STAMP.pack(*stamp) + _PART.pack(delta, index, count) + chunk
        case Ack(host, stamp, need):
            return 4, _text(host) + _STAMP.pack(*stamp) + bytes((need,))
        case Summary(hosts, total):
            return 5, _SUMMARY.pack(hosts, total)
        case Digests(complete, first, end, entries):
            rows = b"".join(_text(host) + _STAMP.pack(*stamp) for host, stamp in entries)
            return 6, bytes((complete,)) + _text(first) + _text(end) + rows
        case Want(hosts):
            return 7, b"".join(map(_text, hosts))
        case Letters(run, to, lane, born, base, first, payloads):
            rows = b"".join(_LETTER.pack(len(p)) + p for p in payloads)
            return 8, _LETTERS.pack(run, to, *lane, born, base, first) + rows
        case Received(run, mine, lane, born, following):
            return 9, _RECEIVED.pack(run, mine, *lane, born, following)
        case Rows(complete, first, end, rows_):
            return 10, bytes((complete,)) + _text(first) + _text(end) + b"".join(map(r.pack_row, rows_))
        case Roll(members, total):
            return 11, _SUMMARY.pack(members, total)
        case Ranges(kind, end, pieces):
            return 12, bytes((kind,)) + _text(end) + b"".join(_text(f) + _SUMMARY.pack(n, t) for f, n, t in pieces)
        case Probe(token, target):
            return 13, _TOKEN.pack(token) + _text(target)
        case Probed(token, target, alive):
            return 14, _TOKEN.pack(token) + _text(target) + bytes((alive,))


def size(message: Message) -> int:
    """Bytes that the message takes in a payload."""
    return _FRAME.size + len(_body(message)[1])


def pack(messages: Iterable[Message]) -> list[bytes]:
    """Payloads of at most MAX_PAYLOAD bytes that hold the messages in their order."""
    payloads = [bytearray()]
    for message in messages:
        kind, body = _body(message)
        size = _FRAME.size + len(body)
        if size > MAX_PAYLOAD:
            raise WireError(f"message of {size} bytes, more than {MAX_PAYLOAD}")
        if len(payloads[-1]) + size > MAX_PAYLOAD:
            payloads.append(bytearray())
        payloads[-1] += _FRAME.pack(kind, len(body)) + body
    return [bytes(p) for p in payloads if p]


def parts(host: str, stamp: Stamp, data: bytes, *, delta: bool) -> list[Part]:
    """`data` cut to fit datagrams."""
    count = max(1, -(-len(data) // CHUNK))
    return [Part(host, stamp, delta, i, count, data[i * CHUNK : (i + 1) * CHUNK]) for i in range(count)]


def letters(run: int, to: int, lane: Lane, born: int, base: int, first: int, payloads: list[bytes]) -> list[Letters]:
    """The payloads in as few messages as hold them."""
    made: list[Letters] = []
    row: list[bytes] = []
    room = LETTERS_ROOM
    for payload in payloads:
        size = _LETTER.size + len(payload)
        if size > room:
            made.append(Letters(run, to, lane, born, base, first, tuple(row)))
            first, row, room = first + len(row), [], LETTERS_ROOM
        row.append(payload)
        room -= size
    return [*made, Letters(run, to, lane, born, base, first, tuple(row))]


@lru_cache(KNOWN_HOSTS)
def _host(raw: bytes) -> str:
    """The name, checked. Remembered: the same few thousand names come in all the time, and share one string."""
    name = raw.decode("ascii", "replace")
    if not HOST.fullmatch(name):
        raise WireError("message: bad host name")
    return name


class _Body:
    """Reads a message's body from the front; running short is a WireError."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        at, end = self.at, self.at + size
        if end > len(self.data):
            raise WireError("message: cut short")
        self.at = end
        return self.data[at:end]

    def _short(self) -> bytes:
        return self.take(self.take(1)[0])

    def text(self) -> str:
        try:
            return self._short().decode("ascii")
        except UnicodeDecodeError as e:
            raise WireError("message: text is not ASCII") from e

    def host(self) -> str:
        return _host(self._short())

    def border(self) -> str:
        """An end of a range of hosts: a host name, or empty."""
        raw = self._short()
        return _host(raw) if raw else ""

    def stamp(self) -> Stamp:
        incarnation, version, digest = _STAMP.unpack(self.take(_STAMP.size))
        if incarnation > MAX_NUMBER or version > MAX_NUMBER:
            raise WireError("message: incarnation or version is too large")
        return Stamp(incarnation, version, digest)

    def flag(self) -> bool:
        value = self.take(1)[0]
        if value > 1:
            raise WireError("message: flag is neither 0 nor 1")
        return bool(value)

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.at)

    @property
    def more(self) -> bool:
        return self.at < len(self.data)


def _read_part(b: _Body) -> Message:
    host, stamp, delta = b.host(), b.stamp(), b.flag()
    index, count = b.take(2)
    chunk = b.rest()
    if not index < count <= MAX_PARTS:
        raise WireError(f"part: {index} of {count}")
    if not 0 < len(chunk) <= CHUNK or (len(chunk) != CHUNK and index + 1 < count):
        raise WireError("part: wrong length")
    return Part(host, stamp, delta, index, count, chunk)


def _read_digests(b: _Body) -> Message:
    complete, first, end, entries = b.flag(), b.border(), b.border(), []
    while b.more:
        entries.append((b.host(), b.stamp()))
    if (end and any(host >= end for host, _ in entries)) or any(host < first for host, _ in entries):
        raise WireError("digests: host outside the range")
    return Digests(complete, first, end, tuple(entries))


def _read_want(b: _Body) -> Message:
    hosts = []
    while b.more:
        hosts.append(b.host())
    return Want(tuple(hosts))


def _read_letters(b: _Body) -> Message:
    run, to, here, there, born, base, first = _LETTERS.unpack(b.take(_LETTERS.size))
    payloads = []
    while b.more:
        payload = b.take(_LETTER.unpack(b.take(_LETTER.size))[0])
        if not 0 < len(payload) <= MAX_LETTER:
            raise WireError(f"letter of {len(payload)} bytes")
        payloads.append(payload)
    return Letters(run, to, (here, there), born, base, first, tuple(payloads))


def _read_received(b: _Body) -> Message:
    run, mine, here, there, born, following = _RECEIVED.unpack(b.take(_RECEIVED.size))
    return Received(run, mine, (here, there), born, following)


def _read_rows(b: _Body) -> Message:
    complete, first, end, found = b.flag(), b.border(), b.border(), []
    while b.more:
        found.append(r.read_row(b))
    if (end and any(row.host >= end for row in found)) or any(row.host < first for row in found):
        raise WireError("rows: host outside the range")
    return Rows(complete, first, end, tuple(found))


def _read_ranges(b: _Body) -> Message:
    kind, end, pieces = b.flag(), b.border(), []
    while b.more:
        first = b.border()
        pieces.append((first, *_SUMMARY.unpack(b.take(_SUMMARY.size))))
    borders = [first for first, _, _ in pieces] + ([end] if end else [])
    if borders != sorted(set(borders)):
        raise WireError("ranges: not in order")
    return Ranges(int(kind), end, tuple(pieces))


_READERS: dict[int, Callable[[_Body], Message]] = {
    1: lambda b: Ping(*_TOKEN.unpack(b.take(4))),
    2: lambda b: Pong(*_TOKEN.unpack(b.take(4))),
    3: _read_part,
    4: lambda b: Ack(b.host(), b.stamp(), b.flag()),
    5: lambda b: Summary(*_SUMMARY.unpack(b.take(_SUMMARY.size))),
    6: _read_digests,
    7: _read_want,
    8: _read_letters,
    9: _read_received,
    10: _read_rows,
    11: lambda b: Roll(*_SUMMARY.unpack(b.take(_SUMMARY.size))),
    12: _read_ranges,
    13: lambda b: Probe(_TOKEN.unpack(b.take(4))[0], b.host()),
    14: lambda b: Probed(_TOKEN.unpack(b.take(4))[0], b.host(), b.flag()),
}


def unpack(payload: bytes) -> list[Message]:
    """The messages of a payload; WireError, and none of them, if any is malformed."""
    found: list[Message] = []
    at = 0
    while at < len(payload) and payload[at]:
        if at + _FRAME.size > len(payload):
            raise WireError("message: cut short")
        kind, length = _FRAME.unpack_from(payload, at)
        at += _FRAME.size
        if at + length > len(payload):
            raise WireError("message: cut short")
        body = _Body(payload[at : at + length])
        at += length
        reader = _READERS.get(kind)
        if reader is None:
            continue
        found.append(reader(body))
        if body.more:
            raise WireError("message: too long")
    if any(payload[at:]):
        raise WireError("message: padding is not zero")
    return found
