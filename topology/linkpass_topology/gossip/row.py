"""The membership table's rows, and what the table wants to be done, as values."""

from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b

from linkpass_topology.gossip.outputs import Address

MAX_COUNT = (1 << 32) - 2  # of a row

Ring = tuple[tuple[str, bytes], ...]  # names and 4-byte fingerprints of the keys that a host accepts; first: sends


class Status(IntEnum):
    """In the order in which rows of one age replace each other."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3

    @property
    def here(self) -> bool:
        """Counts as a member."""
        return self <= Status.SUSPECT


@dataclass(frozen=True, slots=True)
class Row:
    """What is told of one member. `addr`: where its agent listens, None if it doesn't know itself."""

    host: str
    life: int
    count: int
    status: Status
    addr: Address | None = None
    ring: Ring = ()
    by: str = ""  # who suspects it

    @property
    def age(self) -> tuple[int, int, int]:
        """Greater replaces smaller."""
        return (self.life, self.count, self.status)

    @property
    def digest(self) -> int:
        """64 bits for comparing tables. The dead count nothing: they are forgotten one by one; suspicion passes."""
        if not self.status.here:
            return 0
        text = f"{self.host} {self.life} {self.count} {self.addr} {self.ring}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the member for a sign of life; `wide`: over every road that may lead there."""

    host: str
    wide: bool


@dataclass(frozen=True, slots=True)
class AskVia:
    """Ask `helper` to ask `target`."""

    helper: str
    target: str
    token: int


@dataclass(frozen=True, slots=True)
class Report:
    """Tell `asker` what came of its request."""

    asker: str
    target: str
    token: int
    alive: bool


@dataclass(frozen=True, slots=True)
class Spread:
    """This row is news."""

    row: Row


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell the member itself what is said of it, so that it can deny."""

    row: Row


@dataclass(frozen=True, slots=True)
class Turned:
    """For the owner: a member came or changed its status. `before` None: it wasn't known."""

    row: Row
    before: Status | None


@dataclass(frozen=True, slots=True)
class Reaped:
    """A member was forgotten."""

    host: str


Act = Ask | AskVia | Report | Spread | Warn | Turned | Reaped
