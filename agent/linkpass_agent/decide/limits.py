"""How much of a host and of a rail may be out by our own choice. Pure.

Own choice is HELD: a port whose link works, and that a hold-down or a rule keeps back. Dead ports and operators'
drains don't count. A rule that is wrong for a whole fleet would otherwise take a rail from all hosts at once; with a
limit all but so many hosts keep using it.

Every host decides for itself, by the records that it sees, and needs nobody's agreement: those that are out are put
in an order that is the same everywhere, and whoever stands behind the limit stays in use. Leaving the others' count
doesn't move those before it, so the order settles at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from linkpass.model import HostRecord, PortState, Verdict

# s: a hold-down that is younger takes nothing away that was there just before. The ports of a switch that comes back
# are all held for a second or two, and that is no mass exclusion.
YOUNG = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Shares: `host` of a host's ports, rounded down; `rail` of a rail's hosts, rounded down, but one at least."""

    host: float = 0.5
    rail: float = 0.25


@dataclass(frozen=True, slots=True)
class Out:
    """One of our ports that is HELD: on which rail, and whether a rule holds it."""

    rail: str
    verdict: Verdict

    def counts(self, now: float) -> bool:
        """A rule's choice counts at once, a hold-down's when it lasts."""
        return self.verdict.held_until is None or now - self.verdict.since >= YOUNG


def keep_in_use(
    host: str, held: Mapping[str, Out], ports: int, peers: Mapping[str, HostRecord], limits: Limits, now: float
) -> dict[str, str]:
    """Our ports that stay in use although they should be held, and the limit that says so. `held` by port name,
    `ports` is how many the host has, `peers` the records of all other hosts."""
    kept: dict[str, str] = {}
    counted = {name: out for name, out in held.items() if out.counts(now)}
    for name, out in counted.items():
        on_rail = [p for r in peers.values() if (p := r.port_on(out.rail)) is not None]
        others = [r.host for r in peers.values() if _held(r, out.rail)]
        most = max(1, int(limits.rail * (len(on_rail) + 1)))
        before = sum(_place(out.rail, other) < _place(out.rail, host) for other in others)
        if before >= most:
            kept[name] = f"no more than {most} of {len(on_rail) + 1} hosts may hold their port on {out.rail}"
    most = int(limits.host * ports)
    rest = sorted((name for name in counted if name not in kept), key=lambda n: (counted[n].verdict.since, n))
    for name in rest[most:]:
        kept[name] = f"no more than {most} of this host's {ports} ports may be held"
    return kept


def _held(record: HostRecord, rail: str) -> bool:
    port = record.port_on(rail)
    return port is not None and port.state is PortState.HELD


def _place(rail: str, host: str) -> bytes:
    """The order: another one for each rail, so that it isn't always the same hosts that give way."""
    return blake2b(f"{rail}\0{host}".encode(), digest_size=8).digest()
