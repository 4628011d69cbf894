"""Probe datagrams: an echo request and its answer, both authenticated with a fleet key, of equal size.

    "LPP1"  kind(1)  key(4)  session(8)  sequence(8)  rail(8)  tag(16)

`key` tells which key made the tag: a BLAKE2s hash of it. The tag is keyed BLAKE2s (RFC 7693) over all before it.
`rail` is a hash of the rail's name; with it, a cable in the wrong rail's switch shows as a path that carries nothing.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2s
from hmac import compare_digest

MAGIC = b"LPP1"
REQUEST, ANSWER = 1, 2
BODY = struct.Struct("!4sB4sQQ8s")
TAG = 16
SIZE = BODY.size + TAG


@dataclass(frozen=True, slots=True)
class Probe:
    """One datagram. `session` is random for each start of the asking agent."""

    kind: int
    session: int
    seq: int
    rail: bytes


class ProbeCodec:
    """Packs with the first key, accepts all."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {_key_name(k): blake2s(k, person=b"lp-probe").digest() for k in keys}
        self._first = _key_name(keys[0])

    def pack(self, probe: Probe) -> bytes:
        """The datagram for `probe`."""
        body = BODY.pack(MAGIC, probe.kind, self._first, probe.session, probe.seq, probe.rail)
        return body + self._tag(self._first, body)

    def unpack(self, data: bytes) -> Probe | None:
        """The probe in `data`, or None if it isn't one of ours, whole and untouched."""
        if len(data) != SIZE:
            return None
        body, tag = data[: BODY.size], data[BODY.size :]
        magic, kind, key, session, seq, rail = BODY.unpack(body)
        if magic != MAGIC or key not in self._keys or not compare_digest(tag, self._tag(key, body)):
            return None
        return Probe(kind, session, seq, rail)

    def _tag(self, key: bytes, body: bytes) -> bytes:
        return blake2s(body, key=self._keys[key], digest_size=TAG).digest()


def rail_mark(rail: str) -> bytes:
    """A rail's name as probes carry it."""
    return blake2s(rail.encode(), digest_size=8, person=b"lp-rail").digest()


def _key_name(key: bytes) -> bytes:
    return blake2s(key, digest_size=4, person=b"lp-key").digest()
