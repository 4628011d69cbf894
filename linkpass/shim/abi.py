"""`abi.h` as Python sees it: frames and the page, read from the one definition by cffi, checked and made into values.

    message = read(datagram)            # WireError names what is wrong
    datagram = pack(Welcome(60_000, 1_000), seq=1)

cffi parses the header itself, so that no number, offset or order is written down a second time. The constants of
the header are attributes of `C`. Texts that aren't ASCII come out with '?' in place of what isn't.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, TypeVar, cast

from cffi import FFI

from linkpass.errors import WireError


def _definitions() -> str:
    text = (resources.files("linkpass.shim") / "abi.h").read_text()
    found = re.search(r"/\* LP_ABI_BEGIN \*/(.*)/\* LP_ABI_END \*/", text, re.DOTALL)
    if found is None:
        raise ImportError("abi.h: the part between LP_ABI_BEGIN and LP_ABI_END is missing")
    return found[1]


ffi = FFI()
ffi.cdef(_definitions())
C: Any = ffi.dlopen(None)  # constants only; nothing of this library is called

MASK24 = 0xFFFFFF
_MAGIC, _VERSION, _MAX = int(C.LP_FRAME_MAGIC), int(C.LP_ABI_VERSION), int(C.LP_FRAME_MAX)
DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,63}")
# enum lp_state of migrate.h: what CONN_STATE tells. For people, but for ACTIVE, FENCED, FAILED and DEAD.
STATES = (
    "nowhere", "active", "hold", "prep", "fencing", "fenced", "opening", "offered", "replaying", "failed", "dead",
)  # fmt: skip
ACTIVE, FENCED, FAILED, DEAD = (STATES.index(s) for s in ("active", "fenced", "failed", "dead"))


class Identity(NamedTuple):
    """Who a connection is, as one of its ends sees it."""

    local_gid: bytes
    remote_gid: bytes
    local_qpn: int
    remote_qpn: int
    local_psn: int
    remote_psn: int

    @property
    def mirror(self) -> "Identity":
        """The same connection, seen from the other end."""
        return Identity(
            self.remote_gid, self.local_gid, self.remote_qpn, self.local_qpn, self.remote_psn, self.local_psn
        )

    @property
    def leads(self) -> bool | None:
        """Whether this end is the leader (lp_role_of in migrate.c); None for a queue pair connected to itself."""
        here, there = (self.local_gid, self.local_qpn), (self.remote_gid, self.remote_qpn)
        return None if here == there else here < there


@dataclass(frozen=True, slots=True)
class Hello:
    capabilities: int
    shim_version: str
    job: str


@dataclass(frozen=True, slots=True)
class Welcome:
    give_up_ms: int
    attempt_ms: int
    capabilities: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str


@dataclass(frozen=True, slots=True)
class ConnUp:
    conn: int
    who: Identity
    device: str
    port: int
    mtu: int
    flags: int
    max_send_wr: int
    max_recv_wr: int


@dataclass(frozen=True, slots=True)
class ConnDown:
    conn: int
    reason: int
    detail: int


@dataclass(frozen=True, slots=True)
class ConnState:
    conn: int
    state: int
    epoch: int
    migrations: int
    spare: int
    gap_ns: int
    fence_ns: int
    settle_ns: int
    replay_ns: int
    trigger_ns: int
    replayed_bytes: int
    replayed: int
    executed: int


@dataclass(frozen=True, slots=True)
class Spare:
    gid: bytes
    mail_addr: int
    keys_addr: int
    mail_rkey: int
    keys_rkey: int
    qpn: int
    psn: int
    mtu: int
    id: int
    flags: int
    round: int
    mail_qpn: int = 0


@dataclass(frozen=True, slots=True)
class SpareHere:
    conn: int
    who: Identity
    spare: Spare


@dataclass(frozen=True, slots=True)
class SparePeer:
    conn: int
    who: Identity
    spare: Spare


@dataclass(frozen=True, slots=True)
class SpareWant:
    conn: int
    device: str
    port: int
    id: int
    round: int


@dataclass(frozen=True, slots=True)
class SpareDrop:
    conn: int
    device: str
    port: int
    id: int
    round: int


@dataclass(frozen=True, slots=True)
class Order:
    conn: int
    why: int
    spare: int
    device: str
    port: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    kind: int
    epoch: int
    hard: int
    spare: int


@dataclass(frozen=True, slots=True)
class Relay:
    conn: int
    who: Identity
    tell: Tell


Message = (
    Hello | Welcome | Refused | ConnUp | ConnDown | ConnState | SpareHere | SparePeer | SpareWant | SpareDrop | Order
    | Relay
)  # fmt: skip

_KINDS: dict[type[Any], tuple[int, str]] = {
    Hello: (C.LP_HELLO, "struct lp_hello"),
    ConnUp: (C.LP_CONN_UP, "struct lp_conn_up"),
    ConnDown: (C.LP_CONN_DOWN, "struct lp_conn_down"),
    ConnState: (C.LP_CONN_STATE, "struct lp_conn_state"),
    SpareHere: (C.LP_SPARE_HERE, "struct lp_spare_here"),
    Welcome: (C.LP_WELCOME, "struct lp_welcome"),
    Refused: (C.LP_REFUSED, "struct lp_refused"),
    SpareWant: (C.LP_SPARE_WANT, "struct lp_spare_want"),
    SparePeer: (C.LP_SPARE_PEER, "struct lp_spare_here"),
    SpareDrop: (C.LP_SPARE_DROP, "struct lp_spare_want"),
    Order: (C.LP_ORDER, "struct lp_order"),
    Relay: (C.LP_RELAY, "struct lp_relay"),
}
_BY_KIND = {kind: made for made, (kind, _) in _KINDS.items()}
_PARTS: dict[type[Any], str] = {
    Identity: "struct lp_identity",
    Spare: "struct lp_spare",
    Tell: "struct lp_tell",
}
_BY_STRUCT = {name: made for made, name in _PARTS.items()}

# What the header's comments allow, by field; both ends included.
_BOUNDS: dict[str, tuple[int, int]] = {
    "local_qpn": (0, MASK24), "remote_qpn": (0, MASK24), "local_psn": (0, MASK24), "remote_psn": (0, MASK24),
    "qpn": (0, MASK24), "mail_qpn": (0, MASK24), "psn": (0, MASK24), "port": (1, 255), "mtu": (1, 5),
    "id": (0, C.LP_SPARES - 1), "spare": (0, C.LP_SPARES), "give_up_ms": (1, 3_600_000), "attempt_ms": (1, 60_000),
    "hard": (0, 1), "why": (C.LP_WHY_DOWN, C.LP_WHY_FAIL_BACK),
    "reason": (C.LP_DOWN_DESTROYED, C.LP_DOWN_UNPROTECTED),
    "kind": (C.LP_TELL_NEED, C.LP_TELL_ABORT), "state": (ACTIVE, DEAD),
}  # fmt: skip
_TEXTS = {"shim_version", "job", "device", "reason"}
_EMPTY_ALLOWED = (Order,)  # whose device says nothing when a connection is named

T = TypeVar("T")


@cache
def _pointer(struct: str) -> tuple[Any, int]:
    return ffi.typeof(f"{struct} *"), int(ffi.sizeof(struct))


@cache
def _fields(struct: str) -> tuple[tuple[str, Any], ...]:
    return tuple((n, f.type) for n, f in ffi.typeof(struct).fields if n != "head" and not n.startswith("reserved"))


def size_of(struct: str) -> int:
    """Bytes of one of the header's structs, such as "lp_page"."""
    return int(ffi.sizeof(f"struct {struct}"))


def _value(made: type[Any], name: str, kind: Any, raw: Any) -> Any:
    if kind.kind == "struct":
        return _made(_BY_STRUCT[kind.cname], kind.cname, raw)
    if kind.kind == "array":
        data = bytes(ffi.buffer(raw))
        if name not in _TEXTS:
            return data
        text, end, _ = data.partition(b"\0")
        if not end:
            raise WireError(f"{made.__name__}.{name}: no NUL at the end")
        word = text.decode("ascii", "replace").replace("\ufffd", "?")
        if name == "device" and not (DEVICE.fullmatch(word) or (not word and made in _EMPTY_ALLOWED)):
            raise WireError(f"{made.__name__}.device: {word[:40]!r} is no device's name")
        return word
    value = int(raw)
    least, most = _BOUNDS.get(name, (0, 1 << 64))
    if made is Order and name == "port":
        least = 0
    if not least <= value <= most:
        raise WireError(f"{made.__name__}.{name}: {value} is not from {least} to {most}")
    return value


def _made(made: type[T], struct: str, raw: Any) -> T:
    return made(*(_value(made, name, kind, getattr(raw, name)) for name, kind in _fields(struct)))


def _put(made: Any, struct: str, raw: Any) -> None:
    for name, kind in _fields(struct):
        value = getattr(made, name)
        if kind.kind == "struct":
            _put(value, kind.cname, getattr(raw, name))
        elif kind.kind == "array":
            data = value.encode("ascii", "replace") if isinstance(value, str) else value
            room = kind.length - (name in _TEXTS)
            if len(data) > room and name == "device":
                raise WireError(f"device {value!r} is longer than {room} characters")
            ffi.memmove(getattr(raw, name), data[:room], min(len(data), room))
        else:
            setattr(raw, name, value)


def pack(message: Message, seq: int = 0) -> bytes:
    """The frame. Texts are cut to their room, but for device names: those are a WireError."""
    kind, struct = _KINDS[type(message)]
    pointer, size = _pointer(struct)
    raw = ffi.new(pointer)
    head = raw.head
    head.magic, head.version, head.kind = _MAGIC, _VERSION, kind
    head.length, head.seq = size, seq & 0xFFFFFFFF
    try:
        _put(message, struct, raw)
    except OverflowError as e:
        raise WireError(f"{type(message).__name__}: {e}") from e
    return bytes(ffi.buffer(raw))


def read(data: bytes) -> Message:
    """The message of one datagram; WireError for anything that breaks a bound of the header."""
    pointer, size = _pointer("struct lp_head")
    if not size <= len(data) <= _MAX:
        raise WireError(f"frame of {len(data)} bytes")
    head = ffi.from_buffer(pointer, data[:size])
    if head.magic != _MAGIC:
        raise WireError("frame: not LinkPass's")
    if head.version != _VERSION:
        raise WireError(f"frame: ABI version {head.version}, this agent speaks {_VERSION}")
    made = _BY_KIND.get(head.kind)
    if made is None:
        raise WireError(f"frame: unknown kind {head.kind}")
    struct = _KINDS[made][1]
    pointer, size = _pointer(struct)
    if head.length != len(data) or len(data) != size:
        raise WireError(f"{made.__name__}: {len(data)} bytes instead of {size}")
    message = _made(made, struct, ffi.from_buffer(pointer, data)[0])
    if getattr(message, "conn", 1) == 0 and not isinstance(message, Order):
        raise WireError(f"{made.__name__}.conn: 0 is no connection")
    return cast(Message, message)


def dump(part: Identity | Spare | Tell) -> bytes:
    """A part alone, as agents hand it to each other."""
    struct = _PARTS[type(part)]
    raw = ffi.new(_pointer(struct)[0])
    _put(part, struct, raw)
    return bytes(ffi.buffer(raw))


def load(made: type[T], data: bytes) -> T:
    """What `dump` gave; WireError if it breaks a bound."""
    struct = _PARTS[made]
    pointer, size = _pointer(struct)
    if len(data) != size:
        raise WireError(f"{made.__name__}: {len(data)} bytes instead of {size}")
    return _made(made, struct, ffi.from_buffer(pointer, data)[0])
