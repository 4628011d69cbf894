"""A fleet with membership over several roads, in memory and on one virtual clock, from one seed.

Hosts are h000, h001, ...; road '' is the management network (10.99.x.y), rail0 and so on are 10.10.x.y and up. A
fault is a function of source host, target host and road.
"""

import heapq
from collections.abc import Callable
from dataclasses import replace
from random import Random

from linkpass.model import HostRecord, PortRecord, PortState
from linkpass_topology.gossip.core import Gossip
from linkpass_topology.gossip.keyring import Keyring
from linkpass_topology.gossip.options import Options
from linkpass_topology.gossip.outputs import Address, MemberTurned, Output, Outrun, Send
from linkpass_topology.gossip.suspicion import SwimRule
from tests.fakes.mesh import KEYRING, Weather

PORT = 7471
STRIDE = 32  # events between two looks at what a test waits for; looking at all tables is slow


def name(number: int) -> str:
    return f"h{number:03}"


def address(number: int, road: str = "") -> Address:
    first = "10.99" if not road else f"10.{10 + int(road[4:])}"
    return (f"{first}.{number >> 8}.{number & 255}", PORT)


def fleet_record(number: int, rails: int = 2, incarnation: int = 1, version: int = 1) -> HostRecord:
    ports = tuple(
        PortRecord(f"p{i}", f"rail{i}", PortState.UP, "carrier is up", (address(number, f"rail{i}")[0],), 9000)
        for i in range(rails)
    )
    return HostRecord(name(number), incarnation, version, (f"10.255.{number >> 8}.{number & 255}",), ports)


class Fleet:
    """Hosts by number. `lost(source, target, road)` says what doesn't arrive."""

    def __init__(self, seed: int = 0, weather: Weather | None = None, rule: SwimRule | None = None) -> None:
        self.rng = Random(seed)
        self.weather = weather or Weather()
        self.options = Options(swim=rule or SwimRule())
        self.now = 0.0
        self.cores: dict[int, Gossip] = {}
        self.out: dict[int, list[tuple[float, Output]]] = {}
        self.sent: list[tuple[float, int, str, int]] = []  # when, by whom, on which road, bytes
        self.wire: list[tuple[Address, Address, bytes]] | None = None  # a list: datagrams are kept
        self.lost: Callable[[int, int, str], bool] = lambda source, target, road: False
        self.frozen: set[int] = set()
        self._heap: list[tuple[float, int, int, Address | None, bytes]] = []  # address None: a timer
        self._armed: dict[int, float] = {}
        self._count = 0
        self._at: dict[Address, tuple[int, str]] = {}

    def add(
        self, number: int, seeds: list[int], keyring: Keyring = KEYRING, incarnation: int = 1, rails: int = 2
    ) -> Gossip:
        """Start a host, or start it anew."""
        rng = Random(self.rng.getrandbits(64))
        seed_addrs = [address(s) for s in seeds]
        core = Gossip(name(number), keyring, seed_addrs, rng=rng, entropy=rng.randbytes, options=self.options)
        self.cores[number] = core
        self.out.setdefault(number, [])
        for road in ("", *(f"rail{i}" for i in range(rails))):
            self._at[address(number, road)] = (number, road)
        self.take(number, core.publish(fleet_record(number, rails, incarnation), self.now))
        self.take(number, core.start(self.now, address(number)))
        return core

    def remove(self, number: int) -> None:
        """The host is gone without a word."""
        del self.cores[number]
        self._armed.pop(number, None)

    def publish(self, number: int, state: PortState, port: int = 0) -> HostRecord:
        """One port of the host changes its state."""
        core = self.cores[number]
        old = core.view.get(name(number))
        assert old is not None
        ports = tuple(replace(p, state=state) if i == port else p for i, p in enumerate(old.ports))
        new = replace(old, version=old.version + 1, ports=ports)
        self.take(number, core.publish(new, self.now))
        return new

    def take(self, number: int, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Send):
                self._fly(number, output)
                continue
            self.out[number].append((self.now, output))
            ours = self.cores[number].view.get(name(number))
            if isinstance(output, Outrun) and ours is not None:
                self.take(
                    number, self.cores[number].publish(replace(ours, incarnation=output.incarnation + 1), self.now)
                )
        self._arm(number)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False, stride: int = STRIDE) -> bool:
        """Let time pass; True as soon as `until` holds, which is looked at after every `stride` events."""
        end, events = self.now + seconds, 0
        while events % stride or not until():
            events += 1
            if not self._heap or self._heap[0][0] > end:
                self.now = end
                return until()
            at, _, number, source, data = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            core = self.cores.get(number)
            if core is None:
                continue
            if number in self.frozen:
                self._push(self.now + 0.1, number, source, data)  # waits in the socket, or for the CPU
            elif source is not None:
                self.take(number, core.on_datagram(data, source, self.now))
            elif self._armed.get(number) == at or ((due := core.next_timer()) is not None and due <= self.now):
                self._armed.pop(number, None)
                self.take(number, core.on_timer(self.now))
        return True

    def deliver(self, number: int, source: Address, data: bytes) -> None:
        """Hand a host a datagram, now."""
        self.take(number, self.cores[number].on_datagram(data, source, self.now))

    def agree(self) -> bool:
        """Whether all views are equal and hold every host."""
        sums = {(len(c.view), c.view.summary) for c in self.cores.values()}
        return len(sums) == 1 and next(iter(sums))[0] >= len(self.cores)

    def together(self) -> bool:
        """Whether all tables hold exactly the running hosts, alive."""
        names = {name(n) for n in self.cores}
        return all(
            {m.row.host for m in core.members() if m.row.status.here} == names
            and all(m.row.status.name == "ALIVE" for m in core.members() if m.row.status.here)
            for core in self.cores.values()
        )

    def turns(self, number: int, status: str) -> list[tuple[float, str]]:
        """When the host's owner was told that which member turned to `status`."""
        return [(at, o.host) for at, o in self.out[number] if isinstance(o, MemberTurned) and o.status == status]

    def deaths(self) -> list[tuple[int, float, str]]:
        return [(n, at, host) for n in self.out for at, host in self.turns(n, "dead")]

    def _arm(self, number: int) -> None:
        due = self.cores[number].next_timer()
        armed = self._armed.get(number)
        if due is not None and (armed is None or due < armed):
            self._armed[number] = due
            self._push(due, number, None, b"")

    def _fly(self, number: int, send: Send) -> None:
        there = self._at.get(send.addr)
        road = there[1] if there else ""
        source = address(number, road)
        self.sent.append((self.now, number, road, len(send.data)))
        if self.wire is not None:
            self.wire.append((source, send.addr, send.data))
        if there is None or self.lost(number, there[0], road):
            return
        w = self.weather
        for _ in range(1 + (self.rng.random() < w.duplicate)):
            if self.rng.random() >= w.loss:
                self._push(self.now + self.rng.uniform(w.least, w.most), there[0], source, send.data)

    def _push(self, at: float, number: int, source: Address | None, data: bytes) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, number, source, data))
