"""The protocol core: datagrams and timers in, things to do out. No I/O, no clock, no randomness of its own.

Feed it with `on_datagram`, `on_timer` and `publish`; carry out each `Send`, look at the rest, and call `on_timer`
when `next_timer` says. `now` is monotonic seconds and never runs backwards. See docs/sharing.md for the protocol.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random

from linkpass.errors import WireError
from linkpass.model import HostRecord
from linkpass.wire import HOST, Stamp, encode, fit, stamp_of
from linkpass_topology.gossip import messages as m
from linkpass_topology.gossip import seal, sync
from linkpass_topology.gossip.assembly import Assembly, rebuild
from linkpass_topology.gossip.handshake import Handshakes
from linkpass_topology.gossip.keyring import Keyring
from linkpass_topology.gossip.limits import Backoff, Timers, TokenBucket
from linkpass_topology.gossip.messages import MAX_DATAGRAM, NO_STAMP, Message
from linkpass_topology.gossip.options import Options
from linkpass_topology.gossip.outputs import (
    Acked,
    Address,
    Drop,
    Dropped,
    Learned,
    Output,
    Outrun,
    PeerSilent,
    PeerUp,
    Send,
)
from linkpass_topology.gossip.peers import MAX_RETRY, Own, Peer, PeerInfo, Target
from linkpass_topology.gossip.relay import Relay
from linkpass_topology.gossip.roster import Roster
from linkpass_topology.view import Outcome, View

PULL_WAIT = 0.2  # s for records that were asked for


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
        self._own = Own(host)
        self._timers: Timers[tuple[str, str | Address]] = Timers()
        self._assembly = Assembly()
        self._stale = TokenBucket(self.options.stale, self.options.stale)
        self._outruns = Backoff(1.0, 60.0)
        self._out: list[Output] = []
        self.relay = Relay(int.from_bytes(entropy(8)) | 1, self._tell_host, self._rtt)

    # What the owner calls

    def start(self, now: float, here: Address | None = None) -> list[Output]:
        """Ask every seed but `here`, our own address; call once."""
        if here is not None:
            self._roster.targets.pop(here, None)
        for addr in list(self._roster.targets):
            self._hello(addr, now)
        self._timers.set(("sync", ""), now + self._jitter(self.options.anti_entropy))
        return self._flush()

    def publish(self, record: HostRecord, now: float) -> list[Output]:
        """Our own new record, sent to every peer at once.

        ValueError unless it is ours and newer than the last; WireError if it breaks a bound of the wire format.
        """
        record = fit(record)
        encoded = encode(record)
        if self.view.publish(record, stamp_of(record, encoded)) is not None:
            self._own.set(record, encoded)
            for peer in self._roster.peers.values():
                peer.tries = 0
                self._push(peer, now)
        return self._flush()

    def post(self, host: str, lane: m.Lane, payloads: Iterable[bytes], now: float) -> tuple[bool, list[Output]]:
        """Send letters to a peer's owner (see relay.py). False if there is no room for them to wait."""
        taken = self.relay.post(host, lane, payloads, now)
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
            elif kind == "relay":
                self._out += self.relay.tick(now)
                self._arm_relay()
            elif (peer := self._roster.peers.get(key)) is not None:
                if kind == "push":
                    self._push(peer, now)
                elif kind == "pull":
                    peer.pull.late()
                    self._pull(peer, now)
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
        return self._flush()

    def heard(self, host: str) -> float | None:
        """When the last genuine message of the peer came in."""
        peer = self._roster.peers.get(host)
        return peer.heard if peer else None

    def peers(self) -> list[PeerInfo]:
        """All peers, and the seeds that never answered."""
        return self._roster.infos()

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
        self._roster.move(peer, addr)
        peer.prefer(session)
        if not self._timers.armed(("live", peer.host)):
            self._timers.set(("live", peer.host), now + self._jitter(self.options.keepalive))
        if peer.up:
            return False
        peer.up = True
        self._out.append(PeerUp(peer.host, peer.addr))
        self.relay.kick(peer.host, now)
        return True

    def _greet(self, peer: Peer, now: float) -> None:
        """Tell a peer all that matters: it may have been restarted, with an empty view."""
        peer.acked, peer.tries = None, 0
        self._push(peer, now)
        self._tell(peer, [self._summary()])

    def _forget(self, peer: Peer) -> None:
        self._close(peer)
        self._roster.forget(peer)
        self.relay.forget(peer.host)
        for kind in ("live", "push", "pull"):
            self._timers.cancel((kind, peer.host))

    def _close(self, peer: Peer) -> None:
        for session in peer.sessions:
            self._links.close(session)
        peer.sessions.clear()
        self._assembly.forget(peer.host)

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
                if token == peer.token and peer.pinged:
                    peer.measured(now - peer.pinged)
                    peer.pinged = 0.0
            case m.Part():
                self._on_part(peer, message, answers, now)
            case m.Ack(host, held, need):
                if host == self.host:
                    self._on_ack(peer, held, need, now)
            case m.Summary(hosts, total):
                if (hosts, total) != (len(self.view), self.view.summary):
                    answers += sync.pages(self.view, self._rng)
            case m.Digests():
                found = sync.compare(self.view, message)
                if found.own is not None:
                    self._outrun(peer, found.own, now)
                answers += sync.offers(found.offered)
                peer.pull.want(found.wanted)
                self._pull(peer, now)
            case m.Want(hosts):
                answers += sync.whole(self.view, hosts)
            case m.Letters():
                self._out += self.relay.take(peer.host, message, answers, now)
            case m.Received():
                self._out += self.relay.acknowledged(peer.host, message, now)
                self._arm_relay()

    def _on_part(self, peer: Peer, part: m.Part, answers: list[Message], now: float) -> None:
        held = self.view.stamp(part.host) or NO_STAMP
        if part.host == self.host:
            self._outrun(peer, part.stamp, now)
            return
        owner = part.host == peer.host
        if held >= part.stamp:
            if held[:2] == part.stamp[:2] and held != part.stamp:
                self.view.conflicts += 1
                self._drop(Drop.CONFLICT, peer.addr)
            peer.pull.arrived(part.host)
            if owner:
                answers.append(m.Ack(part.host, held))
            return
        data = self._assembly.feed(peer.host, part)
        if data is None:
            return
        peer.pull.arrived(part.host)
        record = rebuild(self.view, part, data)
        if record is None:
            answers.append(m.Ack(part.host, held, need=True))
            return
        merged = self.view.merge(record, part.stamp)
        if merged.outcome is Outcome.FULL:
            self._drop(Drop.FULL, peer.addr)
        elif merged.outcome is Outcome.CONFLICT_WON:
            self._drop(Drop.CONFLICT, peer.addr)
        for change in merged.changes:
            self._out.append(Learned(change.host, change.previous, change.record, change.ports, peer.host))
        if owner:
            answers.append(m.Ack(part.host, self.view.stamp(part.host) or NO_STAMP))
        self._pull(peer, now)

    def _on_ack(self, peer: Peer, held: Stamp, need: bool, now: float) -> None:
        own = self._own.stamp
        if own is None or held > own:
            self._outrun(peer, held, now)
        elif held == own:
            if peer.acked != own:
                peer.acked = own
                if peer.tries == 1:
                    peer.measured(now - peer.pushed)
                self._timers.cancel(("push", peer.host))
                self._out.append(Acked(peer.host, own.incarnation, own.version))
        elif need and peer.pushed_delta:
            peer.acked, peer.tries = None, 0
            self._push(peer, now)
        elif self._own.known(held) and (peer.acked is None or peer.acked < held):
            peer.acked = held

    def _outrun(self, peer: Peer, theirs: Stamp, now: float) -> None:
        """A stamp of our own record, seen elsewhere. Two hosts of one name would never stop: told rarely."""
        if theirs > (self._own.stamp or NO_STAMP) and self._outruns.allow(now):
            self._out.append(Outrun(theirs.incarnation, theirs.version, peer.host))

    # Timers

    def _push(self, peer: Peer, now: float) -> None:
        if self._own.stamp is None or peer.acked == self._own.stamp or not peer.sessions:
            self._timers.cancel(("push", peer.host))
            return
        found = self._own.parts_for(peer.acked)
        peer.pushed, peer.pushed_delta = now, found[0].delta
        self._tell(peer, found)
        self._timers.set(("push", peer.host), now + (peer.retry_after() if peer.up else MAX_RETRY))
        peer.tries += 1

    def _pull(self, peer: Peer, now: float) -> None:
        want = peer.pull.next(self.view)
        if want is not None:
            self._tell(peer, [want])
            self._timers.set(("pull", peer.host), now + max(PULL_WAIT, 4.0 * (peer.rtt or 0.0)))

    def _sync(self, now: float) -> None:
        self._timers.set(("sync", ""), now + self._jitter(self.options.anti_entropy))
        up = [p for p in self._roster.peers.values() if p.up and p.sessions]
        if up:
            self._tell(self._rng.choice(up), [self._summary()])

    def _alive(self, peer: Peer, now: float) -> None:
        o = self.options
        quiet = now - peer.heard
        if peer.up and quiet >= o.silent_after:
            peer.up = False
            self._out.append(PeerSilent(peer.host, peer.addr, peer.heard))
            for addr in self._roster.roads(peer):
                self._hello(addr, now)
        if quiet >= o.forget_after:
            self._forget(peer)
            return
        if quiet >= o.close_after:
            self._close(peer)
        if quiet < o.keepalive:
            wait = o.keepalive - quiet + self._rng.uniform(0.0, o.keepalive / 5)
        else:
            peer.token = self._rng.getrandbits(32)
            peer.pinged = now
            self._tell(peer, [m.Ping(peer.token)])
            wait = self._jitter(o.keepalive / 4 if peer.up else o.keepalive)
        self._timers.set(("live", peer.host), now + wait)

    # Small things

    def _tell_host(self, host: str, messages: list[Message]) -> bool:
        peer = self._roster.peers.get(host)
        if peer is None or not peer.sessions:
            return False
        self._tell(peer, messages)
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

    def _tell(self, peer: Peer, messages: Iterable[Message]) -> None:
        if peer.sessions:
            session = peer.sessions[-1]
            for payload in m.pack(messages):
                self._send(peer.addr, session.seal(payload))

    def _send(self, addr: Address, data: bytes) -> None:
        self._out.append(Send(addr, data))

    def _drop(self, reason: Drop, addr: Address) -> None:
        self.dropped[reason] += 1
        self._out.append(Dropped(reason, addr))

    def _jitter(self, seconds: float) -> float:
        return seconds * self._rng.uniform(0.8, 1.2)

    def _flush(self) -> list[Output]:
        out, self._out = self._out, []
        return out
