"""The gates between a returned link and traffic: each looks at one thing, and the first that is shut says why. Pure.

Gates hold back a port that was out; they never take one out. What can't be observed shuts no gate: losing sight of
something isn't a fault of the port. A gate that stays shut is an operator's to judge: an undrain accepts what the
port has (`PortRules.forget_best`), a manifest says what is expected.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from linkpass.model import UNITS, Signal, Value
from linkpass.subnet import inside

LOOKED_AT = {"rate": Signal.RDMA_RATE, "width": Signal.RDMA_WIDTH, "speed": Signal.SPEED, "mtu": Signal.MTU}


@dataclass(frozen=True, slots=True)
class Look:
    """What the gates look at. `wanted` by name (rate, speed in Mbit/s, width in lanes, mtu in bytes): what is
    expected, or the best that was seen. `subnet`: the rail's, "" if unknown. `peers`: MTU of peers' working ports of
    the rail, by host. `loud`: counters that grew lately."""

    facts: Mapping[Signal, Value | None]
    wanted: Mapping[str, int] = field(default_factory=dict)
    subnet: str = ""
    peers: Mapping[str, int] = field(default_factory=dict)
    loud: str = ""


def shut(look: Look) -> str:
    """Why the port isn't let back yet, "" if all gates are open."""
    return next((text for gate in GATES if (text := gate(look))), "")


def _physical(look: Look) -> str:
    phys = look.facts.get(Signal.RDMA_PHYS)
    return f"physical state {phys}, expected linkup" if isinstance(phys, str) and phys != "linkup" else ""


def _as_wanted(look: Look) -> str:
    for name, signal in LOOKED_AT.items():
        value, wanted = look.facts.get(signal), look.wanted.get(name)
        if isinstance(value, int) and wanted is not None and value < wanted:
            return f"{name} is {value}{UNITS[name]}, expected {wanted}{UNITS[name]}"
    return ""


def _peers_mtu(look: Look) -> str:
    """The end with the smaller MTU is the one that drops what the other sends. One odd peer holds nobody: what most
    have counts, and of as many the smaller."""
    mtu = look.facts.get(Signal.MTU)
    if not isinstance(mtu, int) or not look.peers:
        return ""
    usual = max(sorted(set(look.peers.values())), key=list(look.peers.values()).count)
    host = min(host for host, theirs in look.peers.items() if theirs == usual)
    return f"mtu is {mtu} bytes, {host}'s is {usual} bytes" if mtu < usual else ""


def _gid(look: Look) -> str:
    """RoCEv2 needs a GID made of an address of the port (IBTA annex A17); rxe and mlx5 lose it with the address."""
    gids, addresses = look.facts.get(Signal.GIDS), look.facts.get(Signal.ADDRESSES)
    if not isinstance(gids, tuple) or look.facts.get(Signal.LINK_LAYER) == "infiniband":
        return ""
    entries = (entry.split() for entry in gids)
    made_of = {_address(gid) for _, kind, gid in entries if kind == "RoCEv2"}
    usable = made_of & set(addresses) if isinstance(addresses, tuple) else made_of
    if not usable:
        return "no RoCEv2 GID belongs to an address of the port"
    if look.subnet and not any(inside(look.subnet, address) for address in usable):
        return f"no RoCEv2 GID lies in the rail's subnet {look.subnet}"
    return ""


def _quiet(look: Look) -> str:
    return f"counters aren't quiet: {look.loud}" if look.loud else ""


def _address(gid: str) -> str:
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


GATES = (_physical, _as_wanted, _peers_mtu, _gid, _quiet)
