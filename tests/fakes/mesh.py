"""A network and hosts that share records over it, all in memory and on one virtual clock, from one seed."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from linkpass.model import HostRecord, PortRecord, PortState
from linkpass_topology.gossip.core import Gossip
from linkpass_topology.gossip.keyring import Key, Keyring
from linkpass_topology.gossip.options import Options
from linkpass_topology.gossip.outputs import Address, Learned, Output, Outrun, Send

KEYRING = Keyring((Key("one", bytes(range(32))),))


def record(
    host: str, incarnation: int = 1, version: int = 1, ports: int = 2, cause: str = "carrier is up"
) -> HostRecord:
    """A plausible record."""
    return HostRecord(
        host,
        incarnation,
        version,
        ("10.255.0.1",),
        tuple(
            PortRecord(f"p{i}", f"rail{i}", PortState.UP, cause, (f"10.{10 + i}.0.1",), 9000, (f"fe80::{i + 1:x}",))
            for i in range(ports)
        ),
    )


def wide_record(host: str, incarnation: int = 1, version: int = 1) -> HostRecord:
    """16 ports, each with IPv4, IPv6 and 8 GIDs: about 7 kB, six datagrams."""
    ports = tuple(
        PortRecord(
            f"mlx5_{i}",
            f"rail{i}",
            PortState.UP,
            "carrier is up",
            (f"10.{i}.0.1", f"2001:db8:1111:2222:3333:4444:5555:{i:x}"),
            9000,
            tuple(f"2001:0db8:1111:2222:3333:4444:{g:04x}:{i:04x}" for g in range(8)),
        )
        for i in range(16)
    )
    return HostRecord(host, incarnation, version, ("10.255.0.1",), ports)


def with_state(base: HostRecord, port: int, state: PortState) -> HostRecord:
    """The next version of a record, with one port's state changed."""
    ports = tuple(replace(p, state=state) if i == port else p for i, p in enumerate(base.ports))
    return replace(base, version=base.version + 1, ports=ports)


@dataclass
class Weather:
    """What the network does to datagrams: chances from 0 to 1, delays in seconds."""

    loss: float = 0.0
    duplicate: float = 0.0
    least: float = 0.0005
    most: float = 0.0005


class Mesh:
    """Hosts by name, each at its own address. Everything that was sent is kept in `wire`."""

    def __init__(self, seed: int = 0, weather: Weather | None = None, options: Options | None = None) -> None:
        self.rng = Random(seed)
        self.weather = weather or Weather()
        self.options = options
        self.now = 0.0
        self.cores: dict[str, Gossip] = {}
        self.out: dict[str, list[tuple[float, Output]]] = {}
        self.wire: list[tuple[float, Address, Address, bytes]] = []
        self.cut: Callable[[Address, Address], bool] = lambda source, target: False
        self._flying: list[tuple[float, int, Address, Address, bytes]] = []
        self._count = 0
        self._seeds: dict[str, list[str]] = {}

    @staticmethod
    def address(host: str) -> Address:
        return (f"10.99.0.{ord(host[0]) - 96}", 7471)

    def add(self, host: str, seeds: list[str], keyring: Keyring = KEYRING) -> Gossip:
        """Start a host, or start it again with nothing but its seeds."""
        self._seeds[host] = seeds
        rng = Random(self.rng.getrandbits(64))
        core = Gossip(host, keyring, map(self.address, seeds), rng=rng, entropy=rng.randbytes, options=self.options)
        self.cores[host] = core
        self.out.setdefault(host, [])
        self.take(host, core.start(self.now))
        return core

    def restart(self, host: str) -> Gossip:
        return self.add(host, self._seeds[host])

    def publish(self, new: HostRecord) -> None:
        self.take(new.host, self.cores[new.host].publish(new, self.now))

    def deliver(self, host: str, data: bytes, source: Address) -> list[Output]:
        """Hand a datagram to a host right now; what it answers travels on."""
        outputs = self.cores[host].on_datagram(data, source, self.now)
        self.take(host, outputs)
        return outputs

    def take(self, host: str, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Send):
                self._fly(self.address(host), output.addr, output.data)
                continue
            self.out[host].append((self.now, output))
            if isinstance(output, Outrun):
                ours = self.cores[host].view.get(host)
                if ours is not None:
                    self.publish(replace(ours, incarnation=output.incarnation + 1))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass; True as soon as `until` holds."""
        end = self.now + seconds
        while not until():
            timer = min([t for c in self.cores.values() if (t := c.next_timer()) is not None], default=end + 1.0)
            arrival = self._flying[0][0] if self._flying else end + 1.0
            at = min(timer, arrival)
            if at > end:
                self.now = end
                return False
            self.now = max(self.now, at)
            if arrival <= timer:
                _, _, source, target, data = heapq.heappop(self._flying)
                host = next((h for h in self.cores if self.address(h) == target), None)
                if host is not None:
                    self.deliver(host, data, source)
                continue
            for host, core in list(self.cores.items()):
                due = core.next_timer()
                if due is not None and due <= self.now:
                    self.take(host, core.on_timer(self.now))
        return True

    def agree(self) -> bool:
        """Whether all views are equal and hold every host; its owner holds its last one, so all do."""
        views = [{r.host: r for r in core.view} for core in self.cores.values()]
        return all(v == views[0] for v in views) and views[0].keys() >= self.cores.keys()

    def learned(self, host: str) -> list[tuple[float, Learned]]:
        return [(at, o) for at, o in self.out[host] if isinstance(o, Learned)]

    def told(self, host: str, kind: type) -> list[float]:
        """When the host's owner was told something of that kind."""
        return [at for at, o in self.out[host] if isinstance(o, kind)]

    def _fly(self, source: Address, target: Address, data: bytes) -> None:
        self.wire.append((self.now, source, target, data))
        if self.cut(source, target):
            return
        w = self.weather
        for _ in range(1 + (self.rng.random() < w.duplicate)):
            if self.rng.random() >= w.loss:
                self._count += 1
                delay = self.rng.uniform(w.least, w.most)
                heapq.heappush(self._flying, (self.now + delay, self._count, source, target, data))
