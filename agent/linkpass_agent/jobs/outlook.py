"""What jobs need to know of the fabric: whose a GID is, which rails lead to a host and how each one is.

A view on the reactor's verdicts and on the shared records; it decides nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Protocol

from linkpass.model import HostRecord, PathId, PathVerdict, PortState, Verdict
from linkpass_agent.judge.path import RANK
from linkpass_agent.see.rdma_devices import RdmaPort

GONE_GIDS = 256  # of one host, that its record no longer names: a port that is down may lose its GIDs


@dataclass(frozen=True, slots=True)
class Way:
    """One way between two ports: `state` is the worst of both ports and of what probes say.

    `tried`: probes over it are answered; a SUSPECT way that is tried is in doubt for its ports' counters alone.
    """

    port: str
    state: PortState
    cause: str
    since: float
    tried: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """A host's port."""

    host: str
    rail: str
    port: str


class Judged(Protocol):
    """A port as the reactor holds it."""

    @property
    def verdict(self) -> Verdict: ...


class Verdicts(Protocol):
    """What is read of `reactor.Reactor`."""

    @property
    def rails(self) -> Mapping[str, str]: ...
    @property
    def ports(self) -> Mapping[str, Judged]: ...
    @property
    def peers(self) -> Mapping[str, HostRecord]: ...
    @property
    def paths(self) -> Mapping[str, Mapping[PathId, PathVerdict]]: ...


class Gids:
    """Who owns which GID. A GID stays known after its owner's record lost it, until somebody else names it."""

    def __init__(self) -> None:
        self._places: dict[bytes, Place] = {}
        self._of_host: dict[str, OrderedDict[bytes, None]] = {}

    def learn(self, record: HostRecord) -> None:
        """Take in a host's newer record."""
        mine = self._of_host.setdefault(record.host, OrderedDict())
        named: dict[bytes, Place] = {}
        for port in record.ports:
            for text in (*port.gids, *port.addresses):
                gid = gid_of(text)
                if gid is not None:
                    named[gid] = Place(record.host, port.rail, port.name)
        for gid, place in named.items():
            before = self._places.get(gid)
            if before is not None and before.host != record.host:
                self._of_host[before.host].pop(gid, None)
            self._places[gid] = place
            mine[gid] = None
            mine.move_to_end(gid)
        while len(mine) > len(named) + GONE_GIDS:
            gone, _ = mine.popitem(last=False)
            del self._places[gone]

    def find(self, gid: bytes) -> Place | None:
        """The port with that GID."""
        return self._places.get(gid)


def gid_of(text: str) -> bytes | None:
    """The 16 bytes of a GID, or of the GID that RoCEv2 makes of an IP address (v4: mapped, RFC 4291 2.5.5.2)."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return bytes(10) + b"\xff\xff" + address.packed if isinstance(address, IPv4Address) else address.packed


def show_gid(gid: bytes) -> str:
    """A GID for people: the IPv4 address, if it is made of one."""
    address = IPv6Address(gid)
    return str(address.ipv4_mapped or address)


class Outlook:
    """See the module's text. `rdma` tells which RDMA port stands behind each of our ports now."""

    def __init__(self, host: str, verdicts: Verdicts, rdma: Callable[[], Mapping[str, RdmaPort]]) -> None:
        self.host, self._verdicts, self._rdma = host, verdicts, rdma
        self.gids = Gids()
        self._last: dict[str, RdmaPort] = {}  # also of devices that are gone: their jobs still name them

    @property
    def nics(self) -> Mapping[str, RdmaPort]:
        """Our ports' RDMA ports, by net device; those that vanished as they were last."""
        self._last.update(self._rdma())
        return self._last

    def port_of(self, device: str, number: int, gid: bytes) -> str | None:
        """Our port behind which that RDMA port stands, or that owns the GID."""
        for port, nic in self.nics.items():
            if nic == RdmaPort(device, number):
                return port
        place = self.gids.find(gid)
        return place.port if place is not None and place.host == self.host else None

    def rail(self, port: str) -> str:
        """The rail of one of our ports."""
        return self._verdicts.rails[port]

    def port_on(self, rail: str) -> str | None:
        """Our port on a rail."""
        return next((p for p, r in self._verdicts.rails.items() if r == rail), None)

    def ours(self) -> dict[str, PortState]:
        """The states of our own ports."""
        return {name: p.verdict.state for name, p in self._verdicts.ports.items()}

    def ways(self, host: str) -> dict[str, Way]:
        """The rails that lead to a host."""
        found = {}
        for path, judged in self._verdicts.paths.get(host, {}).items():
            v = judged.verdict
            found[path.rail] = Way(path.port, v.state, v.cause, v.since, judged.probe is PortState.UP)
        return found

    def across(self, port: str, host: str, rail: str) -> Way:
        """The way from one of our ports to a host's port on another rail: only the two ports are known."""
        local = self._verdicts.ports[port].verdict
        record = self._verdicts.peers.get(host)
        remote = record.port_on(rail) if record else None
        if remote is not None and RANK[remote.state] > RANK[local.state]:
            return Way(port, remote.state, f"{host}'s port on {rail}: {remote.cause}", 0.0)
        return Way(port, local.state, f"{port}: {local.cause}", local.since)
