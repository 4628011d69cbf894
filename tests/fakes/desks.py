"""Two or more hosts' desks, with shims that do as they are told, on one network in memory and one clock.

Host a has 10.10.0.1 on rail0, 10.11.0.1 on rail1, ...; its RDMA devices are rxe0, rxe1, ... Nothing arrives before
`settle`.
"""

from collections import deque
from dataclasses import dataclass, field, replace

from linkpass.model import (
    Event,
    EventKind,
    HostRecord,
    PathId,
    PathVerdict,
    PortRecord,
    PortState,
    Verdict,
)
from linkpass.shim import abi
from linkpass_agent.events import EventLog
from linkpass_agent.jobs.decide import Rule
from linkpass_agent.jobs.desk import Desk
from linkpass_agent.jobs.outlook import Outlook, gid_of
from linkpass_agent.jobs.registry import ORIGINAL, Connection
from linkpass_agent.judge.path import RANK
from linkpass_agent.see.rdma_devices import RdmaPort
from tests.fakes.clock import FakeClock

UP = PortState.UP


@dataclass
class FakePort:
    """As the reactor holds one."""

    verdict: Verdict


def address(host: str, rail: int) -> str:
    return f"10.{10 + rail}.0.{ord(host) - 96}"


def gid(host: str, rail: int) -> bytes:
    found = gid_of(address(host, rail))
    assert found is not None
    return found


@dataclass
class FakeShim:
    """One process's shim. `got` are the frames that it was sent; it makes every spare that it is asked for."""

    world: "World"
    host: str
    number: int
    pid: int
    uid: int
    got: list[abi.Message] = field(default_factory=list)
    refused: str | None = None
    makes: bool = True
    proves: bool = True
    spares: dict[tuple[int, int], abi.Spare] = field(default_factory=dict)  # conn, id
    peers: dict[tuple[int, int], abi.Spare] = field(default_factory=dict)
    states: dict[int, abi.ConnState] = field(default_factory=dict)
    ids: dict[int, abi.Identity] = field(default_factory=dict)

    def send(self, message: abi.Message) -> None:
        message = abi.read(abi.pack(message))  # only what survives the wire
        self.got.append(message)
        if isinstance(message, abi.SpareWant) and self.makes:
            self.world.later.append((self, message))
        elif isinstance(message, abi.SparePeer):
            self.peers[message.conn, message.spare.id] = message.spare
            if self.proves:
                self.world.proofs.append((self, message))
        elif isinstance(message, abi.SpareDrop):
            self.spares.pop((message.conn, message.id), None)

    def refuse(self, reason: str) -> None:
        self.refused = reason

    def make(self, want: abi.SpareWant) -> None:
        known = self.spares.get((want.conn, want.id))
        if known is None or known.round != want.round:
            self.world.qpns += 1
            rail = int(want.device.removeprefix("rxe"))
            known = abi.Spare(gid(self.host, rail), 1, 2, 3, 4, self.world.qpns, 7, 3, want.id, 0, want.round)
            self.spares[want.conn, want.id] = known
        self.say(abi.SpareHere(want.conn, self.ids[want.conn], known))

    def prove(self, peer: abi.SparePeer) -> None:
        """Data went both ways over the pair."""
        own = self.spares.get((peer.conn, peer.spare.id))
        if own is not None and own.round == peer.spare.round:
            self.spares[peer.conn, own.id] = own = replace(own, flags=own.flags | abi.C.LP_SPARE_PROVEN)
            self.say(abi.SpareHere(peer.conn, self.ids[peer.conn], own))

    def say(self, message: abi.Message) -> None:
        self.world.desks[self.host].frame(self, abi.read(abi.pack(message)))

    def up(self, conn: int, who: abi.Identity, rail: int = 0, device: str | None = None, flags: int = 0) -> None:
        self.ids[conn] = who
        self.say(abi.ConnUp(conn, who, device or f"rxe{rail}", 1, 3, flags, 128, 128))

    def state(self, conn: int, **change: int) -> None:
        """A CONN_STATE that differs from the last in these fields."""
        old = self.states.get(conn) or abi.ConnState(conn, abi.ACTIVE, 0, 0, ORIGINAL, 0, 0, 0, 0, 0, 0, 0, 0)
        fields = {name: getattr(old, name) for name in abi.ConnState.__slots__}
        self.states[conn] = abi.ConnState(**{**fields, **change})
        self.say(self.states[conn])

    def orders(self) -> list[abi.Order]:
        return [m for m in self.got if isinstance(m, abi.Order)]

    def wants(self) -> list[abi.SpareWant]:
        return [m for m in self.got if isinstance(m, abi.SpareWant)]


class Verdicts:
    """What a reactor would hold, set by hand."""

    def __init__(self, world: "World", host: str) -> None:
        self._world, self._host = world, host
        self.rails = {f"{host}-rail{n}": f"rail{n}" for n in range(world.rails)}
        self.peers: dict[str, HostRecord] = {}

    @property
    def ports(self) -> dict[str, FakePort]:
        w = self._world
        return {
            p: FakePort(Verdict(w.states[self._host, n], w.since[self._host, n], f"{w.states[self._host, n]} it is"))
            for n, p in enumerate(self.rails)
        }

    @property
    def paths(self) -> dict[str, dict[PathId, PathVerdict]]:
        w, found = self._world, {}
        for peer in w.hosts:
            if peer == self._host or peer not in self.peers:
                continue
            of_peer = found[peer] = {}
            for n, port in enumerate(self.rails):
                local, remote = w.states[self._host, n], w.states[peer, n]
                probe = w.probes.get((self._host, peer, n), UP)
                worst = max((local, remote, probe), key=RANK.__getitem__)
                since = max(w.since[self._host, n], w.since[peer, n])
                path = PathId(peer, f"rail{n}", port)
                of_peer[path] = PathVerdict(path, Verdict(worst, since, f"{worst} it is"), local, remote, probe)
        return found


class World:
    """See the module's text."""

    def __init__(self, hosts: str = "ab", rails: int = 2, *, act: bool = True, rule: Rule | None = None) -> None:
        self.hosts, self.rails, self.act = hosts, rails, act
        self.rule = rule or Rule()
        self.clock = FakeClock()
        self.states = {(h, n): UP for h in hosts for n in range(rails)}
        self.since = dict.fromkeys(self.states, 0.0)
        self.probes: dict[tuple[str, str, int], PortState] = {}
        self.desks: dict[str, Desk] = {}
        self.verdicts: dict[str, Verdicts] = {}
        self.events: dict[str, list[Event]] = {h: [] for h in hosts}
        self.pages: dict[str, dict[str, PortState]] = {h: {} for h in hosts}
        self.in_use: dict[str, int] = dict.fromkeys(hosts, 0)
        self.letters: deque[tuple[str, str, bytes]] = deque()
        self.posts: list[tuple[str, str, tuple[int, int], int]] = []  # from, to, lane, letters in it
        self.later: deque[tuple[FakeShim, abi.SpareWant]] = deque()
        self.proofs: deque[tuple[FakeShim, abi.SparePeer]] = deque()
        self.full = False
        self.qpns = 5000
        self.shims = 0
        self.distance = lambda here, there: 2
        self.makers: dict[int, int] = {}  # queue pair number -> process, as the kernel knows it
        for host in hosts:
            self.start(host)

    # -- hosts ------------------------------------------------------------------------------------------------

    def start(self, host: str) -> Desk:
        """Start an agent, or start it anew without any memory."""
        verdicts = self.verdicts[host] = Verdicts(self, host)
        nics = {f"{host}-rail{n}": RdmaPort(f"rxe{n}", 1) for n in range(self.rails)}

        def post(to: str, lane: tuple[int, int], row: list[bytes]) -> bool:
            if self.full:
                return False
            self.posts.append((host, to, lane, len(row)))
            self.letters.extend((host, to, letter) for letter in row)
            return True

        def show(states: dict[RdmaPort, PortState], now: float) -> None:
            self.pages[host] = {nic.device: state for nic, state in states.items()}

        def peers_changed() -> None:
            self.in_use[host] += 1

        desk = self.desks[host] = Desk(
            Outlook(host, verdicts, lambda: nics), post, show, peers_changed, self.rule, (60_000, 1_000), 50.0,
            EventLog(self.clock, self.events[host].append), self.clock, act=self.act,
            distance=lambda here, there: self.distance(here, there),
            owner=lambda device, port, qpn: self.makers.get(qpn),
        )  # fmt: skip
        for known in self.hosts:
            record = self.record(known)
            desk.learned(record)
            if known != host:
                verdicts.peers[known] = record
        desk.ports_moved()
        return desk

    def restart(self, host: str) -> Desk:
        """The agent dies and comes back; its peers notice; its shims attach themselves again."""
        desk = self.start(host)
        for other in self.hosts:
            if other != host:
                self.desks[other].reset(host)
        return desk

    def record(self, host: str) -> HostRecord:
        ports = tuple(
            PortRecord(f"{host}-rail{n}", f"rail{n}", self.states[host, n], "as told", (address(host, n),), 1500)
            for n in range(self.rails)
        )
        return HostRecord(host, 1, 1, (), ports)

    def port(self, host: str, rail: int, state: PortState) -> None:
        """A port changes; both ends' agents know at once."""
        self.states[host, rail], self.since[host, rail] = state, self.clock.now()
        for other in self.hosts:
            if other != host:
                self.verdicts[other].peers[host] = self.record(host)
        self.desks[host].ports_moved()
        for here in self.hosts:
            self.desks[here].moved([h for h in self.hosts if h != here])

    def probe(self, here: str, peer: str, rail: int, state: PortState) -> None:
        """Probes from `here` reach another verdict."""
        self.probes[here, peer, rail] = state
        self.desks[here].moved([peer])

    def settle(self) -> None:
        """Deliver everything under way, and what comes of it."""
        while self.letters or self.later or self.proofs:
            while self.later:
                shim, want = self.later.popleft()
                shim.make(want)
            while self.proofs:
                shim, peer = self.proofs.popleft()
                shim.prove(peer)
            if self.letters:
                source, target, letter = self.letters.popleft()
                self.desks[target].letter(source, letter)

    def wait(self, seconds: float) -> None:
        """Let time pass, with ticks."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.clock.time = min(end, self.clock.time + 0.1)
            for desk in self.desks.values():
                desk.ports_moved()
                desk.tick()
            self.settle()

    # -- jobs -------------------------------------------------------------------------------------------------

    def shim(self, host: str, job: str = "train", uid: int = 1000) -> FakeShim:
        """A process attaches."""
        self.shims += 1
        shim = FakeShim(self, host, self.shims, 4000 + self.shims, uid)
        self.desks[host].arrived(shim, abi.Hello(0, "1", job))
        return shim

    def identity(self, qpn: int, rail: int = 0, far: int | None = None, peer: str = "b") -> abi.Identity:
        """A connection from host a's rail to a peer's, as a sees it; a has the smaller GID and leads."""
        return abi.Identity(gid("a", rail), gid(peer, rail if far is None else far), qpn, qpn + 1000, 11, 22)

    def job(self, count: int = 1, rail: int = 0, first: int = 1, name: str = "train") -> tuple[FakeShim, FakeShim]:
        """A process on a and one on b with `count` connections, numbered from 1; all settled."""
        one, other = self.shim("a", name), self.shim("b", name)
        for n in range(count):
            who = self.identity(100 * first + n, rail)
            one.up(n + 1, who, rail)
            other.up(n + 1, who.mirror, rail)
        self.settle()
        return one, other

    def connection(self, shim: FakeShim, conn: int = 1) -> Connection:
        return self.desks[shim.host].registry.processes[shim.number].connections[conn]

    def move(self, one: FakeShim, other: FakeShim, conn: int = 1, spare: int | None = None, **counted: int) -> int:
        """Both shims have migrated the connection to its order's spare, or the given one."""
        if spare is None:
            spare = next(o.spare for o in reversed(one.orders() or other.orders()) if o.conn == conn)
        for shim in (one, other):
            before = shim.states.get(conn)
            epoch, moves = (before.epoch, before.migrations) if before else (0, 0)
            counts = {"gap_ns": 2_000_000, **counted}
            shim.state(conn, state=abi.ACTIVE, spare=spare, epoch=epoch + 1, migrations=moves + 1, **counts)
        self.settle()
        return spare

    def told(self, host: str, kind: EventKind) -> list[str]:
        return [e.text for e in self.events[host] if e.kind is kind]
