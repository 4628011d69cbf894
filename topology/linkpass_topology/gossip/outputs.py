"""What the protocol core answers with: things to send, and things that its owner should know."""

from dataclasses import dataclass
from enum import StrEnum

from linkpass.model import HostRecord
from linkpass_topology.view import PortChange

Address = tuple[str, int]  # IP address, UDP port


class Drop(StrEnum):
    """Why input was dropped, or part of it."""

    GARBAGE = "garbage"  # not of our form
    OVERSIZE = "oversize"  # longer than 1,400 bytes
    UNKNOWN_KEY = "unknown-key"  # names a fleet key that isn't in the keyring
    BAD_TAG = "bad-tag"  # forged, damaged, or sealed with another key of that name
    REPLAY = "replay"  # seen before, or too old to know
    STALE_SESSION = "stale-session"  # of a session that we don't have (any more)
    RATE = "rate"  # too many handshakes
    OWN_NAME = "own-name"  # a handshake from a host of our own name: a second one, or our own echo
    FULL = "full"  # no room for another peer or host
    MALFORMED = "malformed"  # genuine, but breaks the message format
    CONFLICT = "conflict"  # a record as old as ours with other contents


@dataclass(frozen=True, slots=True)
class Send:
    """A datagram for an address. `road`: the rail that the address is on, '' for the management network."""

    addr: Address
    data: bytes
    road: str = ""


@dataclass(frozen=True, slots=True)
class Learned:
    """A host's record is new. `via`: the peer that it came from."""

    host: str
    previous: HostRecord | None
    record: HostRecord
    ports: tuple[PortChange, ...]
    via: str


@dataclass(frozen=True, slots=True)
class Outrun:
    """The fleet holds a record of ourselves above our own: publish one with an incarnation above `incarnation`.

    Happens after our saved incarnation was lost; again and again only if a second host bears our name.
    """

    incarnation: int
    version: int
    via: str


@dataclass(frozen=True, slots=True)
class PeerUp:
    """A session with the peer stands, or it speaks again."""

    host: str
    addr: Address


@dataclass(frozen=True, slots=True)
class PeerSilent:
    """Nothing genuine came from the peer for a while. Says nothing of its links."""

    host: str
    addr: Address
    heard: float


@dataclass(frozen=True, slots=True)
class Acked:
    """The peer holds our record of this age."""

    host: str
    incarnation: int
    version: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Input was refused. `addr` is what the datagram claims, not a proof."""

    reason: Drop
    addr: Address


@dataclass(frozen=True, slots=True)
class Relayed:
    """A letter of the peer's, in the order of its lane. `lane`: as the peer named it."""

    host: str
    lane: tuple[int, int]
    payload: bytes


@dataclass(frozen=True, slots=True)
class RelayReset:
    """The peer's agent was started anew: letters that it had, and those under way to it, are lost."""

    host: str


@dataclass(frozen=True, slots=True)
class RelayLost:
    """`count` letters of ours weren't acknowledged for so long that they were given up."""

    host: str
    lane: tuple[int, int]
    count: int


@dataclass(frozen=True, slots=True)
class MemberTurned:
    """A member came or changed its status: alive, suspect, dead, left or forgotten. `before` None: it wasn't known.

    For people and for finding hosts only: no link's state depends on it. `by`: who suspects it.
    """

    host: str
    before: str | None
    status: str
    by: str


Output = (
    Send | Learned | Outrun | PeerUp | PeerSilent | Acked | Dropped | Relayed | RelayReset | RelayLost | MemberTurned
)
