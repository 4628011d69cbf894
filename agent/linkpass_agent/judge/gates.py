"""The gates between a returned link and traffic: each looks at one thing, and the first that is shut says why. Pure.

Gates hold back a port that was out; they never take one out. What can't be observed shuts no gate: losing sight of
something isn't a fault of the port. A gate that stays shut is an operator's to judge: an undrain accepts what the
port has (`PortRules.forget_best`), a manifest says what is expected.
"""

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from linkpass.model import UNITS, Signal, Value
from linkpass.subnet import inside

LOOKED_AT = {"rate": Signal.RDMA_RATE, "width": Signal.RDMA_WIDTH, "speed": Signal.SPEED, "mtu": Signal.MTU}

PROBE = "queue pair probe"
NO_GID = "no RoCEv2 GID belongs to an address of the port"


class GateState(StrEnum):
    """Of one gate."""

    OPEN = "open"
    SHUT = "shut"
    UNSEEN = "can't observe"  # shuts nothing


@dataclass(frozen=True, slots=True)
class Gate:
    """What one gate says now: `text` is why it is shut, or a word on another state."""

    name: str
    state: GateState
    text: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """What the gates look at. `wanted` by name (rate, speed in Mbit/s, width in lanes, mtu in bytes): what is
    expected, or the best that was seen. `subnet`: the rail's, "" if unknown. `peers`: MTU of peers' working ports of
    the rail, by host, None if nobody asks. `loud`: counters that grew lately, None if none can be seen. `pair`: what
    the queue pair probe shuts, and a word on it (`judge.pairs`)."""

    facts: Mapping[Signal, Value | None]
    wanted: Mapping[str, int] = field(default_factory=dict)
    subnet: str = ""
    peers: Mapping[str, int] = field(default_factory=dict)
    loud: str | None = ""
    pair: tuple[str | None, str] = (None, "")


def asked(look: Look) -> tuple[Gate, ...]:
    """Every gate, in the order in which they are told."""
    found = [_gate(name, gate(look)) for name, gate in GATES.items()]
    why, word = look.pair
    return (*found, _gate(PROBE, f"{PROBE}: {why}" if why else why, word))


def shut(gates: tuple[Gate, ...]) -> str:
    """Why the port isn't let back yet, "" if no gate is shut."""
    return next((gate.text for gate in gates if gate.state is GateState.SHUT), "")


@lru_cache(maxsize=64)
def usable(gids: Value | None, addresses: Value | None) -> tuple[tuple[int, str], ...]:
    """Index and text of the RoCEv2 GIDs made of an address of the port, IPv4 first (IBTA annex A17: rxe and mlx5 lose
    a GID with its address). Where the addresses can't be observed, of any."""
    entries = [entry.split() for entry in gids] if isinstance(gids, tuple) else []
    made_of = [(int(n), gid, _address(gid)) for n, kind, gid in entries if kind == "RoCEv2"]
    found = [e for e in made_of if not isinstance(addresses, tuple) or e[2] in addresses]
    return tuple((n, gid) for n, gid, address in sorted(found, key=lambda e: ":" in e[2]))


def _gate(name: str, why: str | None, word: str = "") -> Gate:
    """`why` it is shut, "" if it is open, None if it can't be observed."""
    if why is None:
        return Gate(name, GateState.UNSEEN, word)
    return Gate(name, GateState.SHUT, why) if why else Gate(name, GateState.OPEN, word)


def _physical(look: Look) -> str | None:
    phys = look.facts.get(Signal.RDMA_PHYS)
    if not isinstance(phys, str):
        return None
    return "" if phys == "linkup" else f"physical state {phys}, expected linkup"


def _as_wanted(name: str, signal: Signal) -> Callable[[Look], str | None]:
    def gate(look: Look) -> str | None:
        value, wanted = look.facts.get(signal), look.wanted.get(name)
        if not isinstance(value, int) or wanted is None:
            return None
        return f"{name} is {value}{UNITS[name]}, expected {wanted}{UNITS[name]}" if value < wanted else ""

    return gate


def _peers_mtu(look: Look) -> str | None:
    """The end with the smaller MTU is the one that drops what the other sends. One odd peer holds nobody: what most
    have counts, and of as many the smaller."""
    mtu = look.facts.get(Signal.MTU)
    if not isinstance(mtu, int) or not look.peers:
        return None
    usual = max(sorted(set(look.peers.values())), key=list(look.peers.values()).count)
    host = min(host for host, theirs in look.peers.items() if theirs == usual)
    return f"mtu is {mtu} bytes, {host}'s is {usual} bytes" if mtu < usual else ""


def _gid(look: Look) -> str | None:
    gids = look.facts.get(Signal.GIDS)
    if not isinstance(gids, tuple) or look.facts.get(Signal.LINK_LAYER) == "infiniband":
        return None
    found = usable(gids, look.facts.get(Signal.ADDRESSES))
    if not found:
        return NO_GID
    if look.subnet and not any(inside(look.subnet, _address(gid)) for _, gid in found):
        return f"no RoCEv2 GID lies in the rail's subnet {look.subnet}"
    return ""


def _quiet(look: Look) -> str | None:
    return f"counters aren't quiet: {look.loud}" if look.loud else look.loud


def _address(gid: str) -> str:
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


GATES: Mapping[str, Callable[[Look], str | None]] = {
    "physical state": _physical,
    **{name: _as_wanted(name, signal) for name, signal in LOOKED_AT.items()},
    "peers' mtu": _peers_mtu,
    "GID": _gid,
    "counters": _quiet,
}
