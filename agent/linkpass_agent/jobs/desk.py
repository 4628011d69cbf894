"""The agent's side of running jobs: takes frames, letters and verdicts in, and sends frames and letters out.

shims -- frames --> Desk <-- letters --> the peers' desks
                      ^ verdicts, records, time

No socket and no clock of its own. Everything happens in the call that brings the news; letters of one call travel
together. `decide` says what to do, this does it. In shadow mode nothing is done: jobs are registered and watched.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from linkpass.clock import Clock
from linkpass.errors import WireError
from linkpass.model import EventKind, HostRecord, PortState
from linkpass.shim import abi
from linkpass.shim.abi import ConnDown, ConnState, ConnUp, Hello, Identity, Message, Spare
from linkpass_agent.events import EventLog
from linkpass_agent.see.rdma_devices import RdmaPort

from . import decide, stages, talk
from .decide import Rule
from .orders import Orders
from .outlook import Outlook, Way, show_gid
from .registry import Connection, Line, Pair, Process, Registry
from .talk import Letter

Lane = tuple[int, int]
Post = Callable[[str, Lane, list[bytes]], bool]
MAX_CONNECTIONS = 16_384  # of one user; a 64-rank node with 64 queue pairs to each of 4 peers has as many


class Desk:
    """One host's. `post` sends letters to a host's desk, False if there is no room."""

    def __init__(
        self,
        outlook: Outlook,
        post: Post,
        show: Callable[[dict[RdmaPort, PortState], float], object],
        peers_changed: Callable[[], None],
        rule: Rule,
        patience: tuple[int, int],
        fail_back_rate: float,
        events: EventLog,
        clock: Clock,
        *,
        act: bool,
        distance: Callable[[str, str], int] = lambda here, there: 2,
        owner: Callable[[str, int, int], int | None] = lambda device, port, qpn: None,
    ) -> None:
        self.outlook, self.registry, self.rule, self.act = outlook, Registry(), rule, act
        self.dropped: Counter[str] = Counter()  # frames and letters refused, by reason
        self._post, self._show, self._peers_changed = post, show, peers_changed
        self._patience, self._events, self._clock, self._distance = patience, events, clock, distance
        self._owner = owner  # device, port, queue pair number -> the process that made it, if the kernel tells
        self._letters: dict[tuple[str, Lane], list[bytes]] = {}
        self._load: Counter[tuple[str, str]] = Counter()  # home port, rail -> live pairs
        self._dead: dict[str, frozenset[str]] = {}  # host -> rails that were dead when last looked at
        self._known_peers: set[str] = set()
        self._unmet: dict[Identity, Connection] = {}  # whose peer or port isn't known yet
        self._restless: dict[Identity, Connection] = {}  # whom the passing of time may concern
        self.orders = Orders(events, clock, fail_back_rate, act=act)

    # -- shims --------------------------------------------------------------------------------------------------

    def arrived(self, line: Line, hello: Hello) -> abi.Welcome:
        """A shim's first frame. In shadow mode errors must reach the job at once: nobody would help it."""
        name, _, rails = hello.job.partition("@")
        only = frozenset(r for r in rails.split(",") if r) or None
        process = Process(line, name or "job", only, self._clock.now())
        self.registry.processes[line.number] = process
        text = f"attached, shim {hello.shim_version}" + (
            f", spares on {', '.join(sorted(only))} only" if only else ""
        )
        self._events.add(EventKind.AGENT, f"job {process}", text, data={"job": line.number, "uid": line.uid})
        give_up, attempt = self._patience
        return abi.Welcome(give_up if self.act else 1, attempt)

    def left(self, line: Line) -> None:
        """The session ended: the process is gone, or refused."""
        process = self.registry.processes.pop(line.number, None)
        if process is None:
            return
        for connection in list(process.connections.values()):
            self._remove(connection, tell=True)
        self._events.add(EventKind.AGENT, f"job {process}", "gone", data={"job": line.number})
        self._done()

    def frame(self, line: Line, message: Message) -> None:
        """A later frame of it. WireError if no honest shim would have sent it."""
        process = self.registry.processes[line.number]
        match message:
            case ConnUp():
                self._up(process, message)
            case ConnDown():
                self._down(process, message)
            case ConnState():
                self._state(process, message)
            case abi.SpareHere(conn, who, spare):
                self._here(self._own(process, conn, who), spare)
            case abi.Relay(conn, who, tell):
                connection = self._own(process, conn, who)
                if connection is not None:
                    self._write(connection, talk.Told(who, tell))
            case _:
                raise WireError(f"{type(message).__name__} is for shims to get, not to send")
        self._done()

    def why_unprotected(self, c: Connection) -> str:
        """Why it isn't protected now; '' if it is."""
        if not self.act:
            return c.hindrance or "the agent is in shadow mode"
        return decide.protection(c, self.outlook.ways(c.peer) if c.peer else {})

    def _own(self, process: Process, conn: int, who: Identity) -> Connection | None:
        connection = process.connections.get(conn)
        if connection is None:
            self.dropped["job-unknown-connection"] += 1  # beyond the limit, or let go a moment ago
            return None
        if not connection.same(who):
            raise WireError(f"connection {conn} isn't who the frame says")
        return connection

    def _up(self, process: Process, up: ConnUp) -> None:
        if up.conn in process.connections:
            raise WireError(f"connection {up.conn} came up twice")
        if self.registry.of_uid(process.line.uid) >= MAX_CONNECTIONS:
            process.untold += 1
            self.dropped["job-connections"] += 1
            return
        now = self._clock.now()
        home = self.outlook.port_of(up.device, up.port, up.who.local_gid)
        rail = self.outlook.rail(home) if home else None
        connection = Connection(process, up, now, home, rail, target=rail, settled_rail=rail, state_at=now)
        maker = self._owner(up.device, up.port, up.who.local_qpn)
        if maker is not None and maker != process.line.pid:
            process.connections[up.conn] = connection
            connection.hindrance = f"the kernel says that the queue pair is process {maker}'s"
            self.dropped["job-foreign"] += 1
            return
        if not self.registry.add(connection):
            connection.hindrance = "another process has that queue pair: one of them isn't telling the truth"
            self.dropped["job-claimed"] += 1
            return
        self._meet(connection)
        self._note_peers()

    def _meet(self, c: Connection) -> None:
        """Find the peer and tell its agent."""
        place, own = self.outlook.gids.find(c.who.remote_gid), self.outlook.gids.find(c.who.local_gid)
        self.registry.meet(c, place.host if place else None)
        c.peer_rail = place.rail if place else None
        if c.peer is None or c.home is None:
            self._unmet[c.who] = c
        else:
            self._unmet.pop(c.who, None)
        if c.who.leads is None or (place is not None and place.host == self.outlook.host):
            c.hindrance = "both ends are on this host"
        elif c.home is None:
            c.hindrance = (
                f"{c.up.device} port {c.up.port} is no fabric port of this agent; see [[port]] in its config"
            )
        elif own is not None and own.host != self.outlook.host:
            c.hindrance = f"its address {show_gid(c.who.local_gid)} is {own.host}'s"
        elif place is None:
            c.hindrance = (
                f"no host is known at {show_gid(c.who.remote_gid)}: no agent there, or not one of this fleet"
            )
        else:
            c.hindrance = ""
            self._have(c, answer=True)

    def _have(self, c: Connection, *, answer: bool) -> None:
        """Tell the peer's agent of it; our halves first, so that an agent that was restarted takes them over."""
        for pair in c.pairs.values():
            if pair.here is not None and pair.live:
                self._write(c, talk.Half(c.who, pair.here))
        self._write(c, talk.Have(c.who, c.process.number, abi.C.LP_ABI_VERSION, c.home_rail or "", answer))

    def _down(self, process: Process, down: ConnDown) -> None:
        connection = process.connections.get(down.conn)
        if connection is None:
            self.dropped["job-unknown-connection"] += 1
            return
        if down.reason == abi.C.LP_DOWN_FAILED:
            self.orders.failed(connection, down.detail)
        if down.reason == abi.C.LP_DOWN_UNPROTECTED:
            process.let_go += 1
        self._remove(connection, tell=True)

    def _remove(self, c: Connection, *, tell: bool) -> None:
        for pair in c.pairs.values():
            self._weigh(c, pair, -1)
        c.pairs.clear()
        for waiting in (self._unmet, self._restless):
            if waiting.get(c.who) is c:
                del waiting[c.who]
        if tell and c.peer and not c.hindrance:
            self._write(c, talk.Unknown(c.who.mirror))
        self.registry.remove(c)
        self.orders.forget(c)
        self._note_peers()

    def _state(self, process: Process, s: ConnState) -> None:
        c = process.connections.get(s.conn)
        if c is None:
            self.dropped["job-unknown-connection"] += 1
            return
        now, old = self._clock.now(), c.pairs.get(c.use)
        decide.fled(c, s.epoch, now)
        if (s.spare, s.epoch) != (c.use, c.epoch) or s.state == abi.FENCED:
            if old is not None and c.uses(old):
                self._spend(c, old)
            if s.epoch > c.epoch + 1:  # it tried others on its way here: they are fenced as well
                for pair in [p for p in c.pairs.values() if p.id != s.spare]:
                    self._spend(c, pair)
        if (s.spare, s.epoch) != (c.use, c.epoch):
            c.use = s.spare
            used = c.pairs.get(s.spare)
            c.use_round = used.round if used else 0
            c.use_rail = used.rail if used else self._rail_of(c, s.spare)
        if (s.state, s.epoch) != (c.state, c.epoch):
            c.state_at = now
        if s.migrations > c.migrations:
            self.orders.moved(c, s)
        c.state, c.epoch, c.migrations = s.state, s.epoch, s.migrations
        c.gap = s.gap_ns / 1e9 if s.migrations else None
        c.move = stages.of(s, now)
        c.replayed_bytes, c.replayed, c.executed = s.replayed_bytes, s.replayed, s.executed
        if s.state == abi.ACTIVE:
            c.remade, c.settled_rail = 0, c.rail
        self._look(c)

    def _rail_of(self, c: Connection, spare: int) -> str | None:
        """The rail of a spare that was made before this agent's start: ids follow from the rails."""
        ways = self.outlook.ways(c.peer) if c.peer else {}
        ids = decide.rail_ids(c.who.local_qpn if c.leads else c.who.remote_qpn, ways)
        return next((rail for rail, numbers in ids.items() if spare in numbers), None)

    def _here(self, c: Connection | None, spare: Spare) -> None:
        if c is None:
            return
        pair = self._pair_of(c, spare)
        if pair is None:
            return
        self._write(c, talk.Half(c.who, spare))
        if spare.qpn == 0:
            self._age(c, pair)
        else:
            pair.here = spare
            self._whole(c, pair)

    def _pair_of(self, c: Connection, spare: Spare) -> Pair | None:
        """The pair that a half belongs to. One made before this agent's start is taken over."""
        pair = c.pairs.get(spare.id)
        if pair is None and spare.qpn and (place := self.outlook.gids.find(spare.gid)) is not None:
            pair = c.pairs[spare.id] = Pair(spare.id, spare.round, place.rail, self._clock.now())
            self._weigh(c, pair, +1)
            if c.use == spare.id and not c.use_round:
                c.use_round = spare.round
            port = self.outlook.port_on(place.rail)
            nic = self.outlook.nics.get(port) if port else None
            if nic is not None and place.host != self.outlook.host:  # have our own half told again
                c.process.line.send(abi.SpareWant(c.up.conn, nic.device, nic.number, spare.id, spare.round))
        if pair is None or pair.round != spare.round:
            self.dropped["job-late-spare"] += 1
            return None
        return pair

    def _age(self, c: Connection, pair: Pair) -> None:
        """One of its halves is gone, or may be."""
        if pair.live and not c.uses(pair):
            self._weigh(c, pair, -1)
            pair.stale = True
            self._look(c)

    # -- peers' desks ---------------------------------------------------------------------------------------------

    def letter(self, host: str, data: bytes) -> None:
        """A letter from another host's desk. Whatever is in it touches only connections with that host."""
        try:
            letter = talk.read(data)
        except WireError:
            self.dropped["job-letter-malformed"] += 1
            return
        if letter is None or not self.act:
            return
        who = letter.who if isinstance(letter, talk.Unknown) else letter.who.mirror
        c = self.registry.find(who)
        if c is not None and c.peer is None and c.home is not None:
            self.registry.meet(c, host)  # its address isn't in our view yet; a member says that it is its own
            c.hindrance = ""
            self._unmet.pop(c.who, None)
            self._note_peers()
        if c is None or c.peer != host or c.hindrance:
            self.dropped["job-letter-stray"] += 1
            if isinstance(letter, talk.Have):
                self._letters.setdefault((host, (0, letter.session)), []).append(talk.pack(talk.Unknown(letter.who)))
            self._done()
            return
        self._read(c, letter)
        self._done()

    def _read(self, c: Connection, letter: Letter) -> None:
        match letter:
            case talk.Have(_, session, version, rail, answer):
                if version != abi.C.LP_ABI_VERSION:
                    c.missing = f"{c.peer}'s agent speaks ABI {version}, this one {abi.C.LP_ABI_VERSION}"
                    return
                c.paired, c.missing, c.peer_session = True, "", session
                c.peer_rail = rail or c.peer_rail
                if answer:
                    self._have(c, answer=False)
            case talk.Unknown():
                c.paired, c.missing = False, f"{c.peer}'s agent knows no such connection: no shim there"
                for pair in [p for p in c.pairs.values() if not c.uses(p)]:
                    self._drop(c, pair)
            case talk.Want(_, number, turn, rail):
                self._wanted(c, number, turn, rail)
            case talk.Cant(_, number, turn, why):
                wanted = c.pairs.get(number)
                if wanted is not None and wanted.round == turn:
                    self._weigh(c, wanted, -1)
                    wanted.refused = why or "no reason given"
            case talk.Drop(_, number, turn):
                gone = c.pairs.get(number)
                if gone is not None and gone.round == turn and not c.leads:
                    self._drop(c, gone)
            case talk.Half(_, spare):
                half = self._pair_of(c, spare)
                if half is not None and spare.qpn == 0:
                    self._age(c, half)
                elif half is not None and half.there != spare:
                    if half.there is None or half.there.qpn != spare.qpn:
                        c.process.line.send(abi.SparePeer(c.up.conn, self._theirs(c, letter), spare))
                    half.there = spare
                    self._whole(c, half)
            case talk.Told(_, tell):
                c.process.line.send(abi.Relay(c.up.conn, self._theirs(c, letter), tell))
            case talk.Pin(_, rail):
                c.target = rail
        self._look(c)

    @staticmethod
    def _theirs(c: Connection, letter: Letter) -> Identity:
        """The connection as its other end sees it: a passive one doesn't know all, we do; and the other way round."""
        return letter.who if c.passive else c.who.mirror

    def _wanted(self, c: Connection, number: int, turn: int, rail: str) -> None:
        known = c.pairs.get(number)
        if c.leads or (known is not None and turn <= known.round):
            self.dropped["job-letter-stray"] += 1
            return
        port = self.outlook.port_on(rail)
        nic = self.outlook.nics.get(port) if port else None
        if nic is None:
            why = f"{self.outlook.host} has no RDMA port on {rail}"
            self._write(c, talk.Cant(c.who, number, turn, why))
            return
        if number == c.use and not c.stuck:  # the leader left it already; we can't yet
            self._write(c, talk.Cant(c.who, number, turn, "its queue pair of that number is in use"))
            return
        if known is not None:
            self._drop(c, known)
        c.pairs[number] = Pair(number, turn, rail, self._clock.now())
        c.process.line.send(abi.SpareWant(c.up.conn, nic.device, nic.number, number, turn))

    def reset(self, host: str) -> None:
        """The host's agent was started anew and knows nothing: tell it all."""
        for c in self._with(host):
            c.paired = False
            for pair in [p for p in c.pairs.values() if not p.whole]:
                self._drop(c, pair)
            self._have(c, answer=True)
        self._done()

    def reached(self, host: str) -> None:
        """The host's agent can be talked to (again): what wasn't settled is told again."""
        for c in self._with(host):
            if not c.paired:
                self._have(c, answer=True)
        self._done()

    # -- verdicts and time ----------------------------------------------------------------------------------------

    def learned(self, record: HostRecord) -> None:
        """A host's record, ours included: its GIDs may be the missing ones."""
        self.outlook.gids.learn(record)
        if self._unmet:
            for c in list(self._unmet.values()):
                if c.home is None:
                    c.home = self.outlook.port_of(c.up.device, c.up.port, c.who.local_gid)
                    c.home_rail = c.target = self.outlook.rail(c.home) if c.home else None
                self._meet(c)
            self._note_peers()
            self._done()

    def ports_moved(self) -> None:
        """Verdicts on our own ports changed: the page first, it is what jobs look at."""
        states = self.outlook.ours()
        if self.act and not any(s in (PortState.UP, PortState.SUSPECT) for s in states.values()):
            # Shims never go to a HELD port. When there is no better one it must do.
            states = {p: PortState.SUSPECT if s is PortState.HELD else s for p, s in states.items()}
        nics = self.outlook.nics
        shown = {nics[p]: s if self.act else PortState.UNKNOWN for p, s in states.items() if p in nics}
        self._show(shown, self._clock.now())

    def moved(self, hosts: Iterable[str]) -> None:
        """Verdicts on the ways to these hosts changed."""
        later: list[tuple[Connection, dict[str, Way]]] = []
        for host in hosts:
            affected = self._with(host)
            if not affected:
                continue
            ways = self.outlook.ways(host)
            dead = frozenset(r for r, w in ways.items() if w.state in decide.DEAD)
            fresh, self._dead[host] = dead - self._dead.get(host, frozenset()), dead
            for c in affected:
                for pair in c.pairs.values():
                    if pair.rail in fresh and pair.live and not c.uses(pair):
                        self._weigh(c, pair, -1)
                        pair.stale = True
            for c in affected:
                self._send_away(c, ways)
            later += [(c, ways) for c in affected]
        self.orders.told()
        for c, ways in later:  # the orders are out: now there is time for new spares
            self._equip(c, ways)
        self._done()

    def tick(self) -> None:
        """Let time pass; every 0.1 s or so."""
        now = self._clock.now()
        ways: dict[str, dict[str, Way]] = {}
        for c in list(self._restless.values()):
            if c.peer is None or c.hindrance:
                continue
            if c.peer not in ways:
                ways[c.peer] = self.outlook.ways(c.peer)
            for pair in list(c.pairs.values()) if c.leads else ():
                if not pair.proven and now >= pair.made + decide.UNFINISHED:
                    self._age(c, pair)
            if decide.remakes(c, now):
                c.remade, c.remade_at = c.remade + 1, now
                for pair in [p for p in c.pairs.values() if not c.uses(p)]:
                    self._spend(c, pair)
            self._send_away(c, ways[c.peer])
            self._equip(c, ways[c.peer])
        self._done()

    # -- one connection ---------------------------------------------------------------------------------------------

    def here(self, c: Connection, ways: dict[str, Way]) -> Way | None:
        """The way that its traffic takes now."""
        across = None
        if c.home and c.peer and c.peer_rail and c.home_rail != c.peer_rail:
            across = self.outlook.across(c.home, c.peer, c.peer_rail)
        return decide.current(c, ways, across)

    def _look(self, c: Connection) -> None:
        """Do what is to be done for it now. Where more is to come with time, `tick` looks again."""
        ways = self.outlook.ways(c.peer) if c.peer else {}
        self._send_away(c, ways)
        self._equip(c, ways)

    def _send_away(self, c: Connection, ways: dict[str, Way]) -> None:
        if c.peer is None or c.hindrance:
            return
        now, here = self._clock.now(), self.here(c, ways)
        if self.act:
            away = decide.leave(c, here, ways) or decide.go_back(c, here, ways, self.rule, now)
        else:
            away = decide.would_leave(c, here, ways)
        self.orders.consider(c, here, away)
        bad = here is None or here.state in (*decide.DEAD, PortState.DRAINED)
        unfinished = any(p.live and not p.proven for p in c.pairs.values())
        if bad or c.stuck or (c.leads and (unfinished or c.rail != c.target)):
            self._restless[c.who] = c
        else:
            self._restless.pop(c.who, None)

    def _equip(self, c: Connection, ways: dict[str, Way]) -> None:
        if not (self.act and c.leads) or c.hindrance:
            return
        near, now = c.home or "", self._clock.now()
        for rail in decide.lacks(
            c, ways, self.rule, lambda r: self._distance(near, ways[r].port), lambda r: self._load[near, r]
        ):
            number = decide.free_id(c, ways, rail, now)
            if number is None or not self._make(c, number, rail):
                self._restless[c.who] = c

    def order(self, c: Connection, rail: str) -> str:
        """An operator's order; '' or why not."""
        ways = self.outlook.ways(c.peer) if c.peer else {}
        if not self.act:
            return "the agent is in shadow mode"
        away = decide.move_to(c, rail, ways)
        if isinstance(away, str):
            return away
        c.target = rail
        if not c.leads:
            self._write(c, talk.Pin(c.who, rail))
        self.orders.now(c, self.here(c, ways), away)
        self._done()
        return ""

    def _make(self, c: Connection, number: int, rail: str) -> bool:
        """Ask both shims for a pair; False while we have no RDMA device there."""
        port = self.outlook.port_on(rail)
        nic = self.outlook.nics.get(port) if port else None
        if nic is None:
            return False
        known = c.pairs.get(number)
        # Rounds grow also over restarts of this agent: seconds since boot, or one more than the last.
        turn = max(int(self._clock.now()), known.round + 1 if known else 1)
        if known is not None:
            self._drop(c, known)
            self._write(c, talk.Drop(c.who, known.id, known.round))
        pair = c.pairs[number] = Pair(number, turn, rail, self._clock.now())
        self._weigh(c, pair, +1)
        c.process.line.send(abi.SpareWant(c.up.conn, nic.device, nic.number, pair.id, turn))
        self._write(c, talk.Want(c.who, number, turn, rail))
        return True

    def _whole(self, c: Connection, pair: Pair) -> None:
        if pair.here is not None and pair.there is not None:
            pair.whole = True
            pair.proven = bool(pair.here.flags & pair.there.flags & abi.C.LP_SPARE_PROVEN)
            self._look(c)

    def _drop(self, c: Connection, pair: Pair) -> None:
        """Our half goes."""
        self._spend(c, pair)
        del c.pairs[pair.id]
        port = self.outlook.port_on(pair.rail)
        nic = self.outlook.nics.get(port) if port else None
        if nic is not None:
            c.process.line.send(abi.SpareDrop(c.up.conn, nic.device, nic.number, pair.id, pair.round))

    def _spend(self, c: Connection, pair: Pair | None) -> None:
        if pair is not None and not pair.spent:
            if pair.live:
                self._weigh(c, pair, -1)
            pair.spent = True

    def _weigh(self, c: Connection, pair: Pair, by: int) -> None:
        if c.home and c.leads and (by > 0 or pair.live):
            self._load[c.home, pair.rail] += by

    # -- small things -----------------------------------------------------------------------------------------------

    def _with(self, host: str) -> list[Connection]:
        return list(self.registry.by_peer.get(host, {}).values())

    def _write(self, c: Connection, letter: Letter) -> None:
        if c.peer is not None and self.act:
            lane = (c.process.number, c.peer_session)
            self._letters.setdefault((c.peer, lane), []).append(talk.pack(letter))

    def _note_peers(self) -> None:
        peers = self.registry.peers()
        if peers != self._known_peers:
            self._known_peers = peers
            self._peers_changed()

    def _done(self) -> None:
        """The end of every call: orders and letters go out."""
        self.orders.told()
        letters, self._letters = self._letters, {}
        for (host, lane), row in letters.items():
            if not self._post(host, lane, row):
                self.dropped["job-letters-full"] += len(row)
