"""From verdicts to a plan: which next hops each peer's addresses should have.

Paths fall into tiers; a route spreads over all paths of the best tier that isn't empty:

    0  UP, SUSPECT, UNKNOWN   in use; doubt and blindness alone never move traffic
    1  HELD                   back, not yet trusted: better than nothing
    2  DRAINED                out by an operator's wish: better than nothing
    3  DOWN, ABSENT           nothing is believed to work: the route stays as it is, unless the ports that it leaves
                              by are dead and another isn't: then what the peer or the probes said may be out of date

Tier 3 is the guard that never takes the last usable path away, however wrong the verdicts may be.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

from linkpass.model import Hop, HostRecord, PathVerdict, Plan, PortState, Route, Step

S = PortState
TIER: dict[PortState, int] = {
    S.UP: 0, S.SUSPECT: 0, S.UNKNOWN: 0, S.HELD: 1, S.DRAINED: 2, S.DOWN: 3, S.ABSENT: 3,
}  # fmt: skip
HOPELESS = 3
DEAD = (S.DOWN, S.ABSENT)


@dataclass(frozen=True, slots=True)
class PeerPaths:
    """All that is known of the ways to one peer."""

    record: HostRecord
    paths: tuple[PathVerdict, ...]


def plan_peer(
    peer: PeerPaths,
    sources: Iterable[str],
    owners: Mapping[str, str],
    current: Mapping[str, tuple[Hop, ...]],
    unsure: Collection[str] = (),
) -> Plan:
    """The plan for one peer.

    `sources` are our own rail-independent addresses; `owners` the hosts that addresses belong to, where several claim
    one; `current` the hops of every destination that we have a route for now. Those of the destinations `unsure` may
    be gone, and are set again. A peer without usable addresses of a family gets no route of that family.
    """
    steps: list[Step] = []
    refused: list[str] = []
    sources = tuple(sources)
    dead = {v.path.port for v in peer.paths if v.local in DEAD}
    for destination in peer.record.addresses if peer.paths else ():
        if destination in sources:
            refused.append(f"{peer.record.host} claims {destination}, which is our own address: no route to it")
            continue
        owner = owners.get(destination, peer.record.host)
        if owner != peer.record.host:
            refused.append(f"{peer.record.host} claims {destination}, which is {owner}'s: the route there stays")
            continue
        source = _same_family(destination, sources)
        if source is None:
            continue
        best, chosen = _best(peer, destination)
        now = current.get(destination, ())
        if best == HOPELESS and (any(h.device not in dead for h in now) or not chosen):
            refused.append(f"no usable path to {peer.record.host}: the route to {destination} stays as it is")
            continue
        hops = tuple(sorted(hop for hop, _ in chosen))
        if destination in unsure and hops == tuple(sorted(now)):
            now = ()
        if hops and hops != tuple(sorted(now)):
            route = Route(peer.record.host, destination, hops, source)
            steps.append(Step(route, now, _why(peer, chosen)))
    return Plan(tuple(steps), tuple(refused))


def refuse_drain(port: str, peers: Iterable[PeerPaths], others_up: bool) -> str | None:
    """Why `port` may not be drained, or None. `others_up`: the host has another port that is UP."""
    stranded = sorted(
        p.record.host
        for p in peers
        if _uses(p, port) and not any(v.path.port != port and TIER[v.verdict.state] == 0 for v in p.paths)
    )
    if stranded:
        shown = ", ".join(stranded[:5]) + (f" and {len(stranded) - 5} more" if len(stranded) > 5 else "")
        return f"{port} carries the last usable path to {shown}"
    if not others_up:
        return f"{port} is the last usable port of this host"
    return None


def _uses(peer: PeerPaths, port: str) -> bool:
    return any(v.path.port == port and TIER[v.verdict.state] < HOPELESS for v in peer.paths)


def _best(peer: PeerPaths, destination: str) -> tuple[int, list[tuple[Hop, PathVerdict]]]:
    tiers: dict[int, list[tuple[Hop, PathVerdict]]] = {}
    for verdict in peer.paths:
        remote = peer.record.port_on(verdict.path.rail)
        via = _gateway(destination, remote.addresses) if remote else None
        # The kernel takes no next hop out of a device that has no carrier.
        if via is not None and verdict.local not in DEAD:
            hop = Hop(verdict.path.port, via)
            tiers.setdefault(TIER[verdict.verdict.state], []).append((hop, verdict))
    if not tiers:
        return HOPELESS, []
    best = min(tiers)
    return best, tiers[best]


@lru_cache(maxsize=65536)
def _version(address: str) -> int:
    return ip_address(address).version


def _same_family(address: str, candidates: Iterable[str]) -> str | None:
    version = _version(address)
    return next((c for c in candidates if _version(c) == version), None)


def _gateway(destination: str, addresses: tuple[str, ...]) -> str | None:
    """The neighbour's address to use: the destination's own family, else IPv6 (RFC 5549 allows it for IPv4)."""
    return _same_family(destination, addresses) or next((a for a in addresses if _version(a) == 6), None)


def _why(peer: PeerPaths, chosen: list[tuple[Hop, PathVerdict]]) -> str:
    used = {verdict.path for _, verdict in chosen}
    left_out = [v for v in peer.paths if v.path not in used]
    if left_out:
        return "; ".join(f"{v.path.rail} is {v.verdict.state} ({v.verdict.cause})" for v in left_out)
    return "all paths are usable"
