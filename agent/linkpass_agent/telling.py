"""How the reactor words what it tells of: values, next hops, and which witness said what."""

from collections.abc import Iterable

from linkpass.model import Hop, HostRecord, Observation, PortState, Signal, Value

# What a port's state follows from, in the order of judge/port.py
DECISIVE = (
    Signal.PRESENT, Signal.ADMIN, Signal.CARRIER, Signal.OPERSTATE, Signal.RDMA_FATAL, Signal.RDMA, Signal.RULES,
)  # fmt: skip


def evidence(said: Iterable[Observation], now: float) -> str:
    """What each witness said last of what decides about a port."""
    decisive = [o for o in said if o.signal in DECISIVE]
    decisive.sort(key=lambda o: (DECISIVE.index(o.signal), -o.at))
    return "; ".join(f"{o.signal} {show(o.value)} ({o.source}, {max(0.0, now - o.at):.2f} s ago)" for o in decisive)


def roce_v2(gids: tuple[str, ...]) -> tuple[str, ...]:
    """The RoCEv2 GIDs of a `Signal.GIDS` value, in the order of their indexes."""
    return tuple(gid for _, kind, gid in (entry.split() for entry in gids) if kind == "RoCEv2")


def places(record: HostRecord) -> list[tuple[str, tuple[str, ...]]]:
    """What a host's paths hang on: rails and the addresses there."""
    return [(p.rail, p.addresses[:1]) for p in record.ports]


def show(value: Value | None) -> str:
    if value is None:
        return "unobservable"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def hops_of(hops: Iterable[Hop]) -> str:
    return " + ".join(f"{h.device} via {h.via}" for h in hops) or "nothing"


def port_changes(before: HostRecord | None, after: HostRecord) -> list[str]:
    old = {p.name: p.state for p in before.ports} if before else {}
    return [
        f"{p.name} {old.get(p.name, PortState.UNKNOWN)} -> {p.state} ({p.cause})"
        for p in after.ports
        if p.state != old.get(p.name, PortState.UNKNOWN)
    ]
