"""The peers of a host and the addresses that it tries to reach: who is where, and who may come in."""

from collections.abc import Iterable

from linkpass_topology.gossip.limits import TokenBucket
from linkpass_topology.gossip.outputs import Address
from linkpass_topology.gossip.peers import Peer, PeerInfo, Target


class Roster:
    """Peers by name, addresses by target. Holds at most `max_peers` peers."""

    def __init__(self, seeds: Iterable[Address], max_peers: int, strangers: float) -> None:
        self.peers: dict[str, Peer] = {}  # the longest unheard first
        self.targets: dict[Address, Target] = {addr: Target(seed=True) for addr in seeds}
        self.max_peers = max_peers
        self._at: dict[Address, str] = {}  # where each peer is
        self._strangers = TokenBucket(strangers, strangers)

    def bucket(self, addr: Address) -> TokenBucket:
        """The brake on handshakes from an address."""
        if addr in self.targets:
            return self.targets[addr].bucket
        peer = self.peers.get(self._at.get(addr, ""))
        return peer.bucket if peer else self._strangers

    def served(self, addr: Address) -> bool:
        """Whether whoever belongs to the address is connected."""
        target = self.targets.get(addr)
        hosts = (self._at.get(addr, ""), target.host if target else "")
        return any(p is not None and p.up and bool(p.sessions) for p in map(self.peers.get, hosts))

    def wanted(self, addr: Address) -> bool:
        """Whether we should go on asking the address."""
        target = self.targets.get(addr)
        asked = target is not None and (target.seed or target.tries < target.reach)
        return not self.served(addr) and (addr in self._at or asked)

    def roads(self, peer: Peer) -> list[Address]:
        """Where to look for a peer that went silent: where it was, and the seeds that led to it."""
        seeds = [addr for addr, t in self.targets.items() if t.seed and t.host == peer.host and addr != peer.addr]
        return [peer.addr, *seeds]

    def spare(self) -> Peer | None:
        """The peer to forget when there is no room: the one that has been silent longest; None if there is room."""
        silent = [p for p in self.peers.values() if not p.up] if self.full else []
        return min(silent, key=lambda p: p.heard, default=None)

    @property
    def full(self) -> bool:
        """Whether no further peer has room."""
        return len(self.peers) >= self.max_peers

    def heard(self, peer: Peer, addr: Address) -> None:
        """The peer speaks, and from this address now."""
        del self.peers[peer.host]
        self.peers[peer.host] = peer
        if peer.addr == addr and self._at.get(addr) == peer.host:
            return
        if self._at.get(peer.addr) == peer.host:
            del self._at[peer.addr]
        peer.addr = addr
        self._at[addr] = peer.host

    def forget(self, peer: Peer) -> None:
        """Take the peer off the list."""
        del self.peers[peer.host]
        if self._at.get(peer.addr) == peer.host:
            del self._at[peer.addr]

    def infos(self) -> list[PeerInfo]:
        """All peers, and the seeds that never answered."""
        known = [
            PeerInfo(p.host, p.addr, "connected" if p.up else "silent", p.heard, p.rtt)
            for p in sorted(self.peers.values(), key=lambda p: p.host)
        ]
        unknown = [addr for addr, t in self.targets.items() if t.seed and not t.host]
        return known + [PeerInfo("", addr, "never-seen", None, None) for addr in unknown]
