"""Puts records that came in several parts together again. Bounded, for each peer and in all."""

from collections import OrderedDict
from dataclasses import dataclass, field

from linkpass.errors import WireError
from linkpass.model import HostRecord
from linkpass.wire import Stamp, apply_delta, decode, delta_base, encode_checked, stamp_of
from linkpass_topology.gossip.messages import Part
from linkpass_topology.view import View

MAX_PARTIAL = 24  # unfinished records of one peer: the 16 that we may have asked for, its own, and room
MAX_BYTES = 8 << 20  # of unfinished records in all


@dataclass(slots=True)
class _Partial:
    stamp: Stamp
    delta: bool
    count: int
    chunks: dict[int, bytes] = field(default_factory=dict)


class Assembly:
    """Unfinished records, by the peer that sends them and the host that they are of."""

    def __init__(self) -> None:
        self._partials: OrderedDict[tuple[str, str], _Partial] = OrderedDict()
        self._of_peer: dict[str, int] = {}
        self.bytes = 0

    def feed(self, peer: str, part: Part) -> bytes | None:
        """The whole encoding, when this part completes it. A newer record displaces an unfinished older one."""
        if part.count == 1:
            return part.chunk
        key = (peer, part.host)
        partial = self._partials.get(key)
        if partial is not None and (partial.stamp, partial.delta, partial.count) != (
            part.stamp,
            part.delta,
            part.count,
        ):
            if partial.stamp > part.stamp:
                return None
            self._drop(key)
            partial = None
        if partial is None:
            if self._of_peer.get(peer, 0) >= MAX_PARTIAL:
                self._drop(next(k for k in self._partials if k[0] == peer))
            partial = self._partials[key] = _Partial(part.stamp, part.delta, part.count)
            self._of_peer[peer] = self._of_peer.get(peer, 0) + 1
        if part.index not in partial.chunks:
            partial.chunks[part.index] = part.chunk
            self.bytes += len(part.chunk)
        if len(partial.chunks) == partial.count:
            self._drop(key)
            return b"".join(partial.chunks[i] for i in range(partial.count))
        while self.bytes > MAX_BYTES:
            self._drop(next(iter(self._partials)))
        return None

    def forget(self, peer: str) -> None:
        """Drop all that a peer left unfinished."""
        for key in [k for k in self._partials if k[0] == peer]:
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        partial = self._partials.pop(key)
        self.bytes -= sum(map(len, partial.chunks.values()))
        self._of_peer[key[0]] -= 1
        if not self._of_peer[key[0]]:
            del self._of_peer[key[0]]


def rebuild(view: View, part: Part, data: bytes) -> HostRecord | None:
    """The record that a complete encoding gives; None for a delta that doesn't lead there from what we hold."""
    if part.delta:
        host, base_stamp = delta_base(data)
        base = view.get(host)
        if host != part.host or base is None or view.stamp(host) != base_stamp:
            return None
        record = apply_delta(base, data)
        return record if stamp_of(record, encode_checked(record)) == part.stamp else None
    record = decode(data)
    if record.host != part.host or stamp_of(record, data) != part.stamp:
        raise WireError("record: isn't what its parts announced")
    return record
