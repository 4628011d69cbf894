"""Exchanging records with peers: our own is pushed until acknowledged, those of others are taken in or asked for.

Sans I/O, as all of the protocol; its owner (`Desk`) has the sessions and says what becomes of what is learned.
"""

from collections.abc import Iterable
from typing import Protocol

from linkpass.model import HostRecord
from linkpass.wire import Stamp, encode, fit, stamp_of
from linkpass_topology.gossip import messages as m
from linkpass_topology.gossip import sync
from linkpass_topology.gossip.assembly import Assembly, rebuild
from linkpass_topology.gossip.limits import Backoff, Timers
from linkpass_topology.gossip.messages import NO_STAMP, Message
from linkpass_topology.gossip.outputs import Acked, Address, Drop, Output, Outrun
from linkpass_topology.gossip.peers import MAX_RETRY, Own, Peer
from linkpass_topology.view import Change, Outcome, View

PULL_WAIT = 0.2  # s for records that were asked for


class Desk(Protocol):
    """What exchanging records needs of the protocol core."""

    def tell(self, peer: Peer, messages: Iterable[Message], addrs: list[Address] | None = None) -> None:
        """Say it in the session with the peer, if there is one; `addrs`: there, instead of where the peer is."""
        ...

    def detours(self, peer: Peer, tries: int) -> list[Address] | None:
        """Where to send what wasn't answered `tries` times; None: where the peer is."""
        ...

    def near(self, host: str) -> bool:
        """Whether our record is pushed to the host."""
        ...

    def say(self, output: Output) -> None:
        """Something that the owner should know."""
        ...

    def drop(self, reason: Drop, addr: Address) -> None:
        """Input was refused."""
        ...

    def learned(self, change: Change, source: str, now: float) -> None:
        """The view changed by what `source` sent."""
        ...


class Records:
    """One host's records under way. `timers`: deadlines ("push", host) and ("pull", host) are set here."""

    def __init__(self, host: str, view: View, timers: Timers[tuple[str, str | Address]], desk: Desk) -> None:
        self.host, self.view = host, view
        self._own = Own(host)
        self._timers, self._desk = timers, desk
        self._assembly = Assembly()
        self._outruns = Backoff(1.0, 60.0)

    @property
    def own(self) -> Stamp | None:
        """The stamp of our present record."""
        return self._own.stamp

    @property
    def unfinished(self) -> int:
        """Bytes kept of records that aren't here in full."""
        return self._assembly.bytes

    def publish(self, record: HostRecord) -> Change | None:
        """Our new record; errors as of `Gossip.publish`. Pushing it is another step."""
        record = fit(record)
        encoded = encode(record)
        change = self.view.publish(record, stamp_of(record, encoded))
        if change is not None:
            self._own.set(record, encoded)
        return change

    def push(self, peer: Peer, now: float) -> None:
        """Send our record to a peer that lacks it, and again until it acknowledges."""
        if self.own is None or peer.acked == self.own or not peer.sessions or not self._desk.near(peer.host):
            self._timers.cancel(("push", peer.host))
            return
        found = self._own.parts_for(peer.acked)
        peer.pushed, peer.pushed_delta = now, found[0].delta
        self._desk.tell(peer, found, self._desk.detours(peer, peer.tries))
        self._timers.set(("push", peer.host), now + (peer.retry_after() if peer.up else MAX_RETRY))
        peer.tries += 1

    def pull(self, peer: Peer, now: float) -> None:
        """Ask for more of what the peer has and we lack."""
        want = peer.pull.next(self.view)
        if want is not None:
            self._desk.tell(peer, [want])
            self._timers.set(("pull", peer.host), now + max(PULL_WAIT, 4.0 * (peer.rtt or 0.0)))

    def pull_again(self, peer: Peer, now: float) -> None:
        """What we asked the peer for is late."""
        peer.pull.late()
        self.pull(peer, now)

    def forget(self, host: str) -> None:
        """The peer's sessions are closed: what it left unfinished goes."""
        self._assembly.forget(host)

    def on_part(self, peer: Peer, part: m.Part, answers: list[Message], now: float) -> None:
        """A record, or a piece of it."""
        held = self.view.stamp(part.host) or NO_STAMP
        if part.host == self.host:
            self._outrun(peer, part.stamp, now)
            return
        owner = part.host == peer.host
        if held >= part.stamp:
            if held[:2] == part.stamp[:2] and held != part.stamp:
                self.view.conflicts += 1
                self._desk.drop(Drop.CONFLICT, peer.addr)
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
            self._desk.drop(Drop.FULL, peer.addr)
        elif merged.outcome is Outcome.CONFLICT_WON:
            self._desk.drop(Drop.CONFLICT, peer.addr)
        for change in merged.changes:
            self._desk.learned(change, peer.host, now)
        if owner:
            answers.append(m.Ack(part.host, self.view.stamp(part.host) or NO_STAMP))
        self.pull(peer, now)

    def on_ack(self, peer: Peer, held: Stamp, need: bool, now: float) -> None:
        """What the peer holds of us."""
        own = self.own
        if own is None or held > own:
            self._outrun(peer, held, now)
        elif held == own:
            if peer.acked != own:
                peer.acked = own
                if peer.tries == 1:
                    peer.measured(now - peer.pushed)
                self._timers.cancel(("push", peer.host))
                self._desk.say(Acked(peer.host, own.incarnation, own.version))
        elif need and peer.pushed_delta:
            peer.acked, peer.tries = None, 0
            self.push(peer, now)
        elif self._own.known(held) and (peer.acked is None or peer.acked < held):
            peer.acked = held

    def on_digests(self, peer: Peer, digests: m.Digests, answers: list[Message], now: float) -> None:
        """What the peer holds of others."""
        found = sync.compare(self.view, digests)
        if found.own is not None:
            self._outrun(peer, found.own, now)
        answers += sync.offers(found.offered)
        peer.pull.want(found.wanted)
        self.pull(peer, now)

    def _outrun(self, peer: Peer, theirs: Stamp, now: float) -> None:
        """A stamp of our own record, seen elsewhere. Two hosts of one name would never stop: told rarely."""
        if theirs > (self.own or NO_STAMP) and self._outruns.allow(now):
            self._desk.say(Outrun(theirs.incarnation, theirs.version, peer.host))
