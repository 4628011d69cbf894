"""What is known of each attached process and of each of its connections."""

import math
from dataclasses import dataclass, field
from typing import Protocol

from linkpass.shim import abi
from linkpass.shim.abi import ConnUp, Identity

from .stages import Move

ORIGINAL = int(abi.C.LP_SPARES)  # as CONN_STATE and ORDER say "no spare": the job's own queue pair


class Line(Protocol):
    """The session with one shim, as much of it as is needed here."""

    @property
    def number(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def uid(self) -> int: ...
    def send(self, message: abi.Message) -> None: ...
    def refuse(self, reason: str) -> None: ...


@dataclass(slots=True)
class Pair:
    """A spare queue pair, or what there is of it yet."""

    id: int
    round: int
    rail: str
    made: float
    here: abi.Spare | None = None
    there: abi.Spare | None = None
    whole: bool = False  # both halves are known
    proven: bool = False  # both shims say that it has carried data both ways
    spent: bool = False  # it was used once: a fenced queue pair can't be used again
    stale: bool = False  # its way was down since it was made: who knows what its probes did to it
    refused: str = ""

    @property
    def live(self) -> bool:
        """Made or being made, and good for a move."""
        return not (self.spent or self.stale or self.refused)

    @property
    def ready(self) -> bool:
        """A move may count on it: until both shims have tried it out, an error would still be the job's."""
        return self.live and self.proven


@dataclass(slots=True)
class Connection:
    """One end of a job's RC connection."""

    process: "Process"
    up: ConnUp
    since: float
    home: str | None  # our port that the job chose
    home_rail: str | None
    peer: str | None = None
    peer_rail: str | None = None
    peer_session: int = 0
    paired: bool = False  # the peer's agent has its other end
    hindrance: str = ""  # why we can't protect it
    missing: str = ""  # why the peer can't
    target: str | None = None  # the rail that it belongs on: the home's, or an operator's choice
    pairs: dict[int, Pair] = field(default_factory=dict)
    use: int = ORIGINAL
    use_round: int = 0
    use_rail: str | None = None  # where its traffic goes while `use` is a spare; None: not known
    settled_rail: str | None = None  # where it flowed last
    state: int = abi.ACTIVE
    state_at: float = 0.0
    epoch: int = 0
    migrations: int = 0
    gap: float | None = None  # s, of the last migration
    move: Move | None = None  # its stages
    replayed_bytes: int = 0
    replayed: int = 0
    executed: int = 0
    ordered: tuple[int, int, int] | None = None  # use, epoch and why of the last order
    ordered_at: float = 0.0
    fled: int = 0  # times that it left its target's rail by itself, one soon after the other
    fled_at: float = -math.inf
    remade: int = 0  # times that all pairs were made anew because it was stuck
    remade_at: float = 0.0

    @property
    def who(self) -> Identity:
        return self.up.who

    @property
    def passive(self) -> bool:
        """Its queue pair stays in RTR and only receives: it doesn't know its own first PSN, and says 0."""
        return bool(self.up.flags & abi.C.LP_CONN_PASSIVE)

    def same(self, who: Identity) -> bool:
        """Whether `who`, seen from this end, is this connection; what a passive end doesn't know is passed over."""
        if who == self.who:
            return True
        mine = self.who
        if (mine.local_gid, mine.remote_gid, mine.local_qpn, mine.remote_qpn) != who[:4]:
            return False
        if self.passive:
            return mine.remote_psn == who.remote_psn
        return mine.local_psn == who.local_psn and who.remote_psn == 0

    @property
    def leads(self) -> bool:
        return self.who.leads is True

    @property
    def rail(self) -> str | None:
        """Where its traffic goes now."""
        return self.home_rail if self.use == ORIGINAL else self.use_rail

    def uses(self, pair: Pair) -> bool:
        """Whether its traffic goes over that pair."""
        return (self.use, self.use_round) == (pair.id, pair.round)

    @property
    def ended(self) -> bool:
        return self.state in (abi.FAILED, abi.DEAD)

    @property
    def stuck(self) -> bool:
        """Off its old path, and not on a new one."""
        return not self.ended and self.state == abi.FENCED

    @property
    def name(self) -> str:
        """How people call it: the job's number and the connection's."""
        return f"{self.process.number}.{self.up.conn}"


@dataclass(slots=True)
class Process:
    """One attached process."""

    line: Line
    name: str
    rails: frozenset[str] | None  # the only rails that spares may use; None: all
    since: float
    connections: dict[int, Connection] = field(default_factory=dict)
    untold: int = 0  # connections beyond the limit
    let_go: int = 0  # that its shim left to themselves

    @property
    def number(self) -> int:
        return self.line.number

    def __str__(self) -> str:
        return f"{self.name}/{self.line.pid}"


class Registry:
    """All processes and connections, by number and by identity."""

    def __init__(self) -> None:
        self.processes: dict[int, Process] = {}
        self.by_identity: dict[Identity, Connection] = {}
        self.by_end: dict[tuple[bytes, int], Connection] = {}
        self.by_peer: dict[str, dict[Identity, Connection]] = {}

    def add(self, connection: Connection) -> bool:
        """False if another connection has that queue pair already."""
        end = (connection.who.local_gid, connection.who.local_qpn)
        connection.process.connections[connection.up.conn] = connection
        if end in self.by_end:
            return False
        self.by_end[end] = connection
        self.by_identity[connection.who] = connection
        return True

    def find(self, who: Identity) -> Connection | None:
        """The connection that is `who`, seen from our end."""
        found = self.by_identity.get(who) or self.by_end.get((who.local_gid, who.local_qpn))
        return found if found is not None and found.same(who) else None

    def meet(self, connection: Connection, host: str | None) -> None:
        """Its other end is on that host."""
        if connection.peer is not None:
            known = self.by_peer.get(connection.peer, {})
            known.pop(connection.who, None)
            if not known:
                self.by_peer.pop(connection.peer, None)
        connection.peer = host
        if host is not None:
            self.by_peer.setdefault(host, {})[connection.who] = connection

    def remove(self, connection: Connection) -> None:
        """It is gone."""
        if self.by_identity.get(connection.who) is connection:
            self.meet(connection, None)
        connection.process.connections.pop(connection.up.conn, None)
        end = (connection.who.local_gid, connection.who.local_qpn)
        if self.by_end.get(end) is connection:
            del self.by_end[end]
            del self.by_identity[connection.who]

    def all(self) -> list[Connection]:
        """Every connection."""
        return [c for p in self.processes.values() for c in p.connections.values()]

    def of_uid(self, uid: int) -> int:
        """How many connections a user's processes have."""
        return sum(len(p.connections) for p in self.processes.values() if p.line.uid == uid)

    def peers(self) -> set[str]:
        """Hosts that jobs talk to."""
        return set(self.by_peer)
