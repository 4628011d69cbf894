"""The protocol core: datagrams and timers in, things to do out. No I/O, no clock, no randomness of its own.

Feed it with `on_datagram`, `on_timer` and `publish`; carry out each `Send`, look at the rest, and call `on_timer`
when `next_timer` says. `now` is monotonic seconds and never runs backwards. See docs/sharing.md for the protocol.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random

from linkpass.errors import WireError
from linkpass.model import HostRecord
from linkpass.wire import HOST
from linkpass_topology.gossip import messages as m
from linkpass_topology.gossip import seal, sync
from linkpass_topology.gossip.fleet import Fleet
from linkpass_topology.gossip.handshake import Handshakes
from linkpass_topology.gossip.keyring import Keyring
from linkpass_topology.gossip.limits import Timers, TokenBucket
from linkpass_topology.gossip.membership import Member
from linkpass_topology.gossip.messages import MAX_DATAGRAM, Message
from linkpass_topology.gossip.options import Options
from linkpass_topology.gossip.outputs import (
    Address,
    Drop,
    Dropped,
    Learned,
    MemberTurned,
    Output,
    PeerSilent,
    PeerUp,
    Send,
)
from linkpass_topology.gossip.peers import Peer, PeerInfo, Target
from linkpass_topology.gossip.records import Records
from linkpass_topology.gossip.relay import Relay
from linkpass_topology.gossip.roster import Roster
from linkpass_topology.gossip.rounds import Rounds
from linkpass_topology.view import Change, View

QUESTIONS = 4  # in `keepalive` seconds, to all peers together, where there is membership
REACH = 3  # times that a member is asked for a session
UNSPECIFIED = ("0.0.0.0", "::")


class Gossip:
    """One host's part in sharing records."""

    def __init__(
        self,
        host: str,
        keyring: Keyring,
        seeds: Iterable[Address],
        *,
        rng: Random,
        entropy: Callable[[int], bytes],
        options: Options | None = None,
    ) -> None:
        if not HOST.fullmatch(host):
            raise ValueError(f"{host!r} is not a host name of 1 to 64 letters, digits, '.', '_' and '-'")
        self.host = host
        self.options = options or Options()
        self.view = View(host, max_hosts=self.options.max_hosts)
        self.dropped: Counter[Drop] = Counter()
        self._rng = rng
        self._links = Handshakes(host, keyring, entropy)
        self._roster = Roster(seeds, self.options.max_peers, self.options.strangers)
        self._rounds = Rounds(self.options.anti_entropy, rng)
        self._timers: Timers[tuple[str, str | Address]] = Timers()
        self._stale = TokenBucket(self.options.stale, self.options.stale)
        self._out: list[Output] = []
        self.relay = Relay(int.from_bytes(entropy(8)) | 1, self._tell_host, self._rtt)
        self._here: Address | None = None
        self._started = False
        self._told: set[str] = set()  # whom the owner thinks to be connected
        self._fleet_at: float | None = None
        self._records = Records(host, self.view, self._timers, _Desk(self))
        swim = self.options.swim
        self.fleet = Fleet(host, self.view, swim, rng, _Links(self), self._on_fleet) if swim else None

    # What the owner calls

    def start(self, now: float, here: Address | None = None) -> list[Output]:
        """Ask every seed but `here`, our own address; call once."""
        if here is not None:
            self._roster.targets.pop(here, None)
        self._started = True
        if self.fleet is not None:
            self.fleet.roads.port = here[1] if here else next((port for _, port in self._roster.targets), 0)
            self._here = here if here is not None and here[0] not in UNSPECIFIED else None
            self.fleet.start(now)
            self._announce(now)
        for addr in list(self._roster.targets):
            self._hello(addr, now)
        self._rounds.rest(now)
        self._timers.set(("sync", ""), self._rounds.at)
        return self._flush()

    def publish(self, record: HostRecord, now: float) -> list[Output]:
        """Our own new record, sent to every peer at once.

        ValueError unless it is ours and newer than the last; WireError if it breaks a bound of the wire format.
        """
        change = self._records.publish(record)
        if change is not None:
            hosts: Iterable[str] = self._roster.peers if self.fleet is None else self.fleet.targets(change.ports)
            for host in list(hosts):
                peer = self._roster.peers.get(host)
                if peer is not None:
                    peer.tries = 0
                    self._records.push(peer, now)
            if self.fleet is not None:
                self.fleet.learned(change.previous, change.record, "", now)
                self._announce(now)
        return self._flush()

    def set_interested(self, hosts: Mapping[str, Collection[str]], now: float) -> list[Output]:
        """Who has routes or queue pairs with us, and over which of our ports (none named: over any). A change goes
        straight to those that use the port; in a large fleet sessions are kept with these hosts."""
        if self.fleet is not None:
            self.fleet.set_interested(hosts, now)
        return self._flush()

    def leave(self, now: float) -> list[Output]:
        """Tell the fleet that we go on purpose; the last thing to do."""
        if self.fleet is not None:
            self.fleet.leave(now)
        return self._flush()

    def members(self) -> list[Member]:
        """The fleet as we know it, ourselves included, by name; empty without membership."""
        table = self.fleet.table if self.fleet else None
        return [table.members[name] for name in table.names] if table else []

    def post(self, host: str, lane: m.Lane, payloads: Iterable[bytes], now: float) -> tuple[bool, list[Output]]:
        """Send letters to a peer's owner (see relay.py). False if there is no room for them to wait."""
        taken = self.relay.post(host, lane, payloads, now)
        if self.fleet is not None:
            self.fleet.connect(host, now)
        self._arm_relay()
        return taken, self._flush()

    def on_datagram(self, data: bytes, addr: Address, now: float) -> list[Output]:
        """A datagram came in. Anything that isn't genuine changes nothing but a counter."""
        try:
            self._receive(data, addr, now)
        except seal.Refused as e:
            self._drop(e.reason, addr)
        return self._flush()

    def on_timer(self, now: float) -> list[Output]:
        """Do what has become due."""
        for kind, key in self._timers.due(now):
            if isinstance(key, tuple):
                self._hello(key, now)
            elif kind == "sync":
                self._sync(now)
            elif kind == "fleet":
                self._fleet_at = None
                if self.fleet is not None:
                    self.fleet.tick(now)
            elif kind == "relay":
                self._out += self.relay.tick(now)
                self._arm_relay()
            elif (peer := self._roster.peers.get(key)) is not None:
                if kind == "push":
                    self._records.push(peer, now)
                elif kind == "pull":
                    self._records.pull_again(peer, now)
                else:
                    self._alive(peer, now)
        return self._flush()

    def next_timer(self) -> float | None:
        """When `on_timer` wants to be called next."""
        return self._timers.next()

    def set_keyring(self, keyring: Keyring, now: float) -> list[Output]:
        """Use other keys from now on. Sessions whose key is gone are closed and made anew."""
        self._links.set_keyring(keyring)
        for peer in self._roster.peers.values():
            for session in [s for s in peer.sessions if s.key not in keyring.keys]:
                peer.sessions.remove(session)
                self._links.close(session)
            if not peer.sessions:
                self._hello(peer.addr, now)
            elif peer.up and peer.sessions[-1].key != keyring.sending:
                self._send(peer.addr, self._links.hello(peer.addr, now))  # so that none is left of a key that goes
        self._announce(now)
        return self._flush()

    def heard(self, host: str) -> float | None:
        """When the last genuine message of the peer came in."""
        peer = self._roster.peers.get(host)
        if peer is None and self.fleet is not None and (member := self.fleet.table.members.get(host)) is not None:
            return member.heard
        return peer.heard if peer else None

    def peers(self) -> list[PeerInfo]:
        """All peers and members, and the seeds that never answered."""
        found = self._roster.infos()
        if self.fleet is None:
            return found
        known = {p.host for p in found} | {self.host}
        nowhere: Address = ("", 0)
        for name in self.fleet.table.names:
            row, heard = self.fleet.table.members[name].row, self.fleet.table.members[name].heard
            if name not in known:
                state = "left" if row.status.name == "LEFT" else "connected" if row.status.here else "silent"
                found.append(PeerInfo(name, row.addr or nowhere, state, heard, None))
        return found

    # Handshakes

    def _receive(self, data: bytes, addr: Address, now: float) -> None:
        if len(data) > MAX_DATAGRAM:
            raise seal.Refused(Drop.OVERSIZE)
        kind = data[:2]
        if kind == seal.DATA and len(data) >= seal.HELLO_SIZE:
            self._on_data(data, addr, now)
        elif kind == seal.HELLO and len(data) == seal.HELLO_SIZE:
            key = seal.key_of(data, self._links.keyring)
            if not self._roster.bucket(addr).allow(now):
                raise seal.Refused(Drop.RATE)
            self._send(addr, self._links.on_hello(data, key, now))
        elif kind == seal.ACK:
            session, asked, rtt = self._links.on_ack(data, now)
            self._greet(self._establish(session, asked, now, rtt), now)
        else:
            raise seal.Refused(Drop.GARBAGE)

    def _on_data(self, data: bytes, addr: Address, now: float) -> None:
        try:
            got = self._links.on_data(data, now)
        except seal.Refused as e:
            # Someone may still use a session of our previous life: a question, no larger than what came in, tells it.
            if e.reason is Drop.STALE_SESSION and not self._roster.served(addr) and self._stale.allow(now):
                question = self._links.lone_hello(addr, now)
                if question is not None:
                    self._send(addr, question)
            raise
        if got.confirmed:
            peer = self._establish(got.session, addr, now, got.rtt)
        else:
            peer = self._roster.peers[got.session.remote.host]
        back = self._hear(peer, got.session, addr if got.newest else peer.addr, now)
        answers: list[Message] = []
        try:
            for message in m.unpack(got.payload):
                self._on_message(peer, message, answers, now)
        except WireError:
            self._drop(Drop.MALFORMED, addr)
        self._tell(peer, answers)
        if got.confirmed or back:
            self._greet(peer, now)

    def _establish(self, session: seal.Session, addr: Address, now: float, rtt: float | None) -> Peer:
        host = session.remote.host
        peer = self._roster.peers.get(host)
        if peer is None:
            if (spare := self._roster.spare()) is not None:
                self._forget(spare)
            if self.fleet is not None:
                self.fleet.make_room(host, self._roster.peers)
            if self._roster.full:
                self._links.close(session)
                raise seal.Refused(Drop.FULL)
            peer = self._roster.peers[host] = Peer(host, addr, now)
        if (target := self._roster.targets.get(addr)) is not None:
            target.host = host
        if (displaced := peer.add(session)) is not None:
            self._links.close(displaced)
        if rtt is not None:
            peer.measured(rtt)
        self._hear(peer, session, addr, now)
        return peer

    def _hear(self, peer: Peer, session: seal.Session, addr: Address, now: float) -> bool:
        """Something genuine came from the peer; whether it is back from silence by that."""
        peer.heard = now
        self._roster.heard(peer, addr)
        peer.prefer(session)
        if not self._timers.armed(("live", peer.host)):
            wait = self._keepalive if self._small else self._patience
            self._timers.set(("live", peer.host), now + self._jitter(wait))
        if self.fleet is not None:
            self.fleet.heard(peer.host, now)
        if peer.up:
            return False
        peer.up = True
        self._say_up(peer.host, peer.addr)
        self.relay.kick(peer.host, now)
        return True

    def _say_up(self, host: str, addr: Address) -> None:
        if host not in self._told:
            self._told.add(host)
            self._out.append(PeerUp(host, addr))

    def _say_silent(self, host: str, addr: Address, heard: float) -> None:
        if host in self._told:
            self._told.discard(host)
            self._out.append(PeerSilent(host, addr, heard))

    def _greet(self, peer: Peer, now: float) -> None:
        """Tell a peer all that matters: it may have been restarted, with an empty view."""
        peer.acked, peer.tries = None, 0
        if self.fleet is None or self.fleet.near(peer.host):
            self._records.push(peer, now)
        words: list[Message] = [self._summary()] if self._small else []
        if self.fleet is not None:
            words = [*self.fleet.greeting(peer.host), *words, *([self.fleet.roll()] if self._small else [])]
        self._tell(peer, words)

    def _forget(self, peer: Peer) -> None:
        self._told.discard(peer.host)
        self._drop_peer(peer)

    def _drop_peer(self, peer: Peer) -> None:
        self._close(peer)
        self._roster.forget(peer)
        self.relay.forget(peer.host)
        for kind in ("live", "push", "pull"):
            self._timers.cancel((kind, peer.host))

    def _close(self, peer: Peer) -> None:
        for session in peer.sessions:
            self._links.close(session)
        peer.sessions.clear()
        self._records.forget(peer.host)

    def _hello(self, addr: Address, now: float) -> None:
        target = self._roster.targets.get(addr)
        if not self._roster.wanted(addr):
            self._links.drop_question(addr)
            if target is not None:
                target.tries = 0
                if not target.seed:
                    del self._roster.targets[addr]
            return
        if target is None:
            target = self._roster.targets[addr] = Target(seed=False)
        self._send(addr, self._links.hello(addr, now))
        self._timers.set(("hello", addr), now + self._jitter(target.wait(self.options)))

    # Messages

    def _on_message(self, peer: Peer, message: Message, answers: list[Message], now: float) -> None:
        match message:
            case m.Ping(token):
                answers.append(m.Pong(token))
            case m.Pong(token):
                self._rounds.pong(peer.host, token)
                if token == peer.token and peer.pinged:
                    peer.measured(now - peer.pinged)
                    peer.pinged = 0.0
            case m.Part():
                self._records.on_part(peer, message, answers, now)
            case m.Ack(host, held, need):
                if host == self.host:
                    self._records.on_ack(peer, held, need, now)
                elif need and self.fleet is not None:
                    answers += sync.whole(self.view, (host,))
            case m.Summary(hosts, total):
                if (hosts, total) != (len(self.view), self.view.summary):
                    found_pages = sync.view_answer(self.view, hosts, self._rng)
                    answers += found_pages if self.fleet is not None else sync.pages(self.view, self._rng)
            case m.Digests():
                self._rounds.differs(peer.host)
                self._records.on_digests(peer, message, answers, now)
            case m.Want(hosts):
                answers += sync.whole(self.view, hosts)
            case m.Letters():
                self._out += self.relay.take(peer.host, message, answers, now)
            case m.Received():
                self._out += self.relay.acknowledged(peer.host, message, now)
                self._arm_relay()
            case _:
                if self.fleet is not None:
                    if isinstance(message, m.Ranges) or (isinstance(message, m.Rows) and message.complete):
                        self._rounds.differs(peer.host)
                    self.fleet.message(peer.host, message, answers, now)

    # Timers

    def _sync_soon(self, now: float) -> None:
        """Infection misses somebody now and then: once it has passed, compare without waiting for the next round."""
        if not self._small and self._rounds.news(now):
            self._timers.set(("sync", ""), self._rounds.at)

    def _sync(self, now: float) -> None:
        if self._rounds.due(now):
            up = [p for p in self._roster.peers.values() if p.up and p.sessions]
            if up:
                peer = self._rng.choice(up)
                words: list[Message] = [self._rounds.begin(peer.host, now), self._summary()]
                self._tell(peer, [*words, self.fleet.roll()] if self.fleet else words)
            else:
                self._rounds.rest(now)
        self._timers.set(("sync", ""), self._rounds.at)

    def _alive(self, peer: Peer, now: float) -> None:
        o, keepalive = self.options, self._keepalive
        quiet = now - peer.heard
        if self.fleet is not None and not self._small:  # probes look after members here
            status = self.fleet.status(peer.host)
            if quiet >= o.close_after and (status is None or not status.here):
                self._forget(peer)
            else:
                if self.fleet.near(peer.host):  # so that the other side doesn't find the session unused
                    self._tell(peer, [m.Ping(self._rng.getrandbits(32))])
                self._timers.set(("live", peer.host), now + self._jitter(self._patience))
            return
        if peer.up and quiet >= o.silent_after - o.keepalive + keepalive:
            peer.up = False
            self._say_silent(peer.host, peer.addr, peer.heard)
            for addr in self._roster.roads(peer):
                self._hello(addr, now)
        if quiet >= o.forget_after:
            self._forget(peer)
            return
        if quiet >= o.close_after:
            self._close(peer)
        if quiet < keepalive:
            wait = keepalive - quiet + self._rng.uniform(0.0, o.keepalive / 5)
        else:
            peer.token = self._rng.getrandbits(32)
            peer.pinged = now
            self._tell(peer, [m.Ping(peer.token)], self._detours(peer, int(4.0 * (quiet - keepalive) / o.keepalive)))
            wait = self._jitter(o.keepalive / 4 if peer.up else o.keepalive)
        self._timers.set(("live", peer.host), now + wait)

    # The fleet

    @property
    def _small(self) -> bool:
        """Whether we keep sessions with all whom we know, and look after them ourselves."""
        return self.fleet is None or self.fleet.small

    @property
    def _keepalive(self) -> float:
        """Seconds of quiet after which a peer is asked; many peers are asked less often where there are probes."""
        share = 1.0 if self.fleet is None else len(self._roster.peers) / QUESTIONS
        return self.options.keepalive * max(1.0, share)

    @property
    def _patience(self) -> float:
        """Seconds after which a session of a large fleet is looked after."""
        return max(self.options.close_after / 2, self._keepalive)

    def _announce(self, now: float) -> None:
        if self.fleet is not None and self._started and self._records.own is not None:
            self.fleet.table.announce(self._records.own.incarnation, self._here, self._links.keyring.ring, now)
            self.fleet.act(now)

    def _on_fleet(self, output: Output) -> None:
        self._out.append(output)
        if not isinstance(output, MemberTurned):
            return
        host, peer = output.host, self._roster.peers.get(output.host)
        if output.status == "left":
            self._told.discard(host)
            if peer is not None:
                self._drop_peer(peer)
        elif output.status == "dead" and not (peer and peer.up and self._small):
            heard = self.heard(host)
            self._say_silent(host, peer.addr if peer else ("", 0), 0.0 if heard is None else heard)
        elif output.status == "alive" and not self._small and self.fleet is not None:
            row = self.fleet.table.members[host].row
            self._say_up(host, peer.addr if peer else row.addr or ("", 0))

    def _detours(self, peer: Peer, tries: int) -> list[Address] | None:
        """Where to send what wasn't answered `tries` times: to where the peer was, and by another road each time."""
        if self.fleet is None or tries < 1:
            return None
        others = [a for a in self.fleet.roads.to(peer.host, wide=True) if a != peer.addr]
        return [peer.addr, others[(tries - 1) % len(others)]] if others else None

    # Small things

    def _tell_host(
        self, host: str, messages: list[Message], addrs: list[Address] | None = None, *, filled: bool = False
    ) -> bool:
        peer = self._roster.peers.get(host)
        if peer is None or not peer.sessions:
            return False
        self._tell(peer, messages, [*dict.fromkeys([*(addrs or ()), peer.addr])], filled=filled)
        return True

    def _rtt(self, host: str) -> float | None:
        peer = self._roster.peers.get(host)
        return peer.rtt if peer else None

    def _arm_relay(self) -> None:
        at = self.relay.next_at()
        if at is None:
            self._timers.cancel(("relay", ""))
        else:
            self._timers.set(("relay", ""), at)

    def _summary(self) -> m.Summary:
        return m.Summary(len(self.view), self.view.summary)

    def _tell(
        self, peer: Peer, messages: Iterable[Message], addrs: list[Address] | None = None, *, filled: bool = False
    ) -> None:
        if not peer.sessions:
            return
        session = peer.sessions[-1]
        payloads = m.pack(messages)
        if payloads and self.fleet is not None and not filled:
            news = self.fleet.fill(peer.host, m.MAX_PAYLOAD - len(payloads[-1]))
            payloads[-1] += b"".join(m.pack(news))
        for payload in payloads:
            for addr in addrs or (peer.addr,):
                self._send(addr, session.seal(payload))

    def _send(self, addr: Address, data: bytes) -> None:
        self._out.append(Send(addr, data, self.fleet.roads.road_of(addr) if self.fleet else ""))

    def _drop(self, reason: Drop, addr: Address) -> None:
        self.dropped[reason] += 1
        self._out.append(Dropped(reason, addr))

    def _jitter(self, seconds: float) -> float:
        return seconds * self._rng.uniform(0.8, 1.2)

    def _flush(self) -> list[Output]:
        at = self.fleet.next_at() if self.fleet else None
        if at != self._fleet_at:
            self._fleet_at = at
            if at is None:
                self._timers.cancel(("fleet", ""))
            else:
                self._timers.set(("fleet", ""), at)
        out, self._out = self._out, []
        return out


class _Desk:
    """The core, as the exchange of records sees it."""

    def __init__(self, core: Gossip) -> None:
        self._core = core

    def tell(self, peer: Peer, messages: Iterable[Message], addrs: list[Address] | None = None) -> None:
        self._core._tell(peer, messages, addrs)

    def detours(self, peer: Peer, tries: int) -> list[Address] | None:
        return self._core._detours(peer, tries)

    def near(self, host: str) -> bool:
        return self._core.fleet is None or self._core.fleet.near(host)

    def say(self, output: Output) -> None:
        self._core._out.append(output)

    def drop(self, reason: Drop, addr: Address) -> None:
        self._core._drop(reason, addr)

    def learned(self, change: Change, source: str, now: float) -> None:
        core = self._core
        core._out.append(Learned(change.host, change.previous, change.record, change.ports, source))
        if core.fleet is not None:
            core.fleet.learned(change.previous, change.record, source, now)
            core._sync_soon(now)


class _Links:
    """The core, as the fleet sees it."""

    def __init__(self, core: Gossip) -> None:
        self._core = core

    def tell(
        self, host: str, messages: Iterable[Message], addrs: list[Address] | None = None, *, filled: bool = False
    ) -> bool:
        return self._core._tell_host(host, list(messages), addrs, filled=filled)

    def talking(self) -> Collection[str]:
        return [p.host for p in self._core._roster.peers.values() if p.up and p.sessions]

    def talks(self, host: str) -> bool:
        peer = self._core._roster.peers.get(host)
        return peer is not None and peer.up and bool(peer.sessions)

    def drop(self, host: str) -> None:
        self._core._drop_peer(self._core._roster.peers[host])

    def connect(self, host: str, addrs: list[Address], now: float) -> None:
        core = self._core
        peer = core._roster.peers.get(host)
        if peer is not None and now - peer.heard >= core.options.silent_after:
            peer.up = False  # the session may be one that the other side doesn't know any more
        for addr in addrs if addrs or peer is None else [peer.addr]:
            target = core._roster.targets.setdefault(addr, Target(seed=False))
            target.host, target.reach = host, REACH
            if not core._timers.armed(("hello", addr)):
                core._hello(addr, now)
