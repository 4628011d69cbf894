"""What the protocol core keeps of each peer and of each address that it tries to reach."""

from collections import OrderedDict
from dataclasses import dataclass, field

from linkpass.model import HostRecord
from linkpass.wire import Stamp, encode_delta, stamp_of
from linkpass_topology.gossip.limits import TokenBucket
from linkpass_topology.gossip.messages import Part, parts
from linkpass_topology.gossip.options import Options
from linkpass_topology.gossip.outputs import Address
from linkpass_topology.gossip.seal import Session
from linkpass_topology.gossip.sync import Pull

MIN_RETRY = 0.005  # s; below it a busy receiver would be told twice
MAX_RETRY = 1.0  # s
FIRST_RTT = 0.025  # s, assumed until one was measured
MAX_SESSIONS = 4  # of one peer: simultaneous questions make two, a lost answer a third
HISTORY = 8  # own records that a delta may build upon
HELLO_RATE, HELLO_BURST = 5.0, 10.0  # handshakes a second from an address that we know


def hello_bucket() -> TokenBucket:
    """Known addresses have a brake of their own, so that a flood from elsewhere doesn't shut them out."""
    return TokenBucket(HELLO_RATE, HELLO_BURST)


@dataclass(slots=True)
class Peer:
    """A host that we have, or had, a session with."""

    host: str
    addr: Address
    heard: float
    sessions: list[Session] = field(default_factory=list)  # the last one is used to send
    up: bool = False
    rtt: float | None = None  # s, smoothed
    acked: Stamp | None = None  # of our own record, what the peer surely holds
    tries: int = 0  # of pushing our present record
    pushed: float = 0.0
    pushed_delta: bool = False
    token: int = 0
    pinged: float = 0.0
    pull: Pull = field(default_factory=Pull)
    bucket: TokenBucket = field(default_factory=hello_bucket)

    def measured(self, sample: float) -> None:
        """Take a round trip into account (RFC 6298's smoothing)."""
        self.rtt = sample if self.rtt is None else 0.875 * self.rtt + 0.125 * sample

    def retry_after(self) -> float:
        """Seconds until the push that just went out is repeated."""
        first = max(2.0 * (FIRST_RTT if self.rtt is None else self.rtt), MIN_RETRY)
        return min(first * 2.0 ** min(self.tries, 16), MAX_RETRY)

    def add(self, session: Session) -> Session | None:
        """Use the session from now on; returns the one that it displaced, if any."""
        self.sessions.append(session)
        return self.sessions.pop(0) if len(self.sessions) > MAX_SESSIONS else None

    def prefer(self, session: Session) -> None:
        """Send where we were last spoken to: that end surely lives."""
        if self.sessions[-1] is not session:
            self.sessions.remove(session)
            self.sessions.append(session)


@dataclass(slots=True)
class Target:
    """An address that we try to reach. `host`: who answered there last."""

    seed: bool
    host: str = ""
    tries: int = 0
    reach: int = 0  # times to ask, where it isn't a seed
    bucket: TokenBucket = field(default_factory=hello_bucket)

    def wait(self, options: Options) -> float:
        """Seconds until the question that just went out is repeated."""
        self.tries += 1
        if self.tries > options.hello_patience:
            return options.hello_idle
        return min(options.hello_first * 2.0 ** (self.tries - 1), options.hello_max)


class Own:
    """Our own record, ready to be sent: whole, or as what changed since one that the peer holds."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.stamp: Stamp | None = None
        self._record: HostRecord | None = None
        self._full: list[Part] = []
        self._deltas: dict[Stamp, list[Part]] = {}
        self._history: OrderedDict[Stamp, HostRecord] = OrderedDict()

    def set(self, record: HostRecord, data: bytes) -> None:
        """A new record and its encoding; older ones become bases of deltas."""
        if self.stamp is not None and self._record is not None:
            self._history[self.stamp] = self._record
            if len(self._history) > HISTORY:
                self._history.popitem(last=False)
        self._record = record
        self.stamp = stamp_of(record, data)
        self._full = parts(self.host, self.stamp, data, delta=False)
        self._deltas.clear()

    def known(self, mark: Stamp) -> bool:
        """Whether a delta can build upon that record of ours."""
        return mark in self._history

    def parts_for(self, held: Stamp | None) -> list[Part]:
        """What makes a peer that holds `held` hold the present record; whole if that fits one datagram anyway."""
        base = self._history.get(held) if held is not None else None
        if len(self._full) == 1 or base is None or held is None or self._record is None or self.stamp is None:
            return self._full
        found = self._deltas.get(held)
        if found is None:
            found = parts(self.host, self.stamp, encode_delta(base, held.digest, self._record), delta=True)
            self._deltas[held] = found
        return found if len(found) < len(self._full) else self._full


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A peer, as shown to people. `state`: connected, silent or never-seen (then `host` is '')."""

    host: str
    addr: Address
    state: str
    heard: float | None
    rtt: float | None
