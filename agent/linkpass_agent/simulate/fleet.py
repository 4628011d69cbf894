"""All hosts, the network between them and the faults that strike, on one queue; everything follows from one seed."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from linkpass.model import PathId
from linkpass_topology.fabric import Fabric
from linkpass_topology.gossip.keyring import Key, Keyring
from linkpass_topology.gossip.options import Options
from linkpass_topology.gossip.outputs import Address

from .clock import HostClock, Queue
from .faults import Fault, Kind
from .host import GOSSIP_PORT, Rules, SimHost
from .network import Network, Weather

if TYPE_CHECKING:
    from .watch import Watch

DRIFT = 2e-4  # clocks run up to this share fast or slow; quartz without NTP keeps within 1e-4


def key(number: int) -> Key:
    """The fleet's key of that number."""
    return Key(f"key{number}", bytes([number % 256]) * 32)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run starts from, besides its faults."""

    seed: int
    fabric: Fabric
    weather: Weather = field(default_factory=Weather)
    rules: Rules = field(default_factory=Rules)
    options: Options = field(default_factory=Options)
    neighbours: int = 2  # peers in use on each side, as of a ring of jobs
    seeds: int = 3  # hosts that everybody asks at start


class Fleet:
    """A running fleet. `watch` looks on and judges."""

    def __init__(self, setup: Setup, watch: "Watch") -> None:
        self.setup, self.watch = setup, watch
        self.seed, self.rules, self.options = setup.seed, setup.rules, setup.options
        self.rng = Random(f"world {setup.seed}")
        self.queue = Queue()
        self.network = Network(setup.fabric)
        self.network.weather = setup.weather
        self.keys = Keyring((key(1),))
        self.keys_settled = 0.0  # when the last rotation has ended everywhere
        self._touched: dict[SimHost, dict[str, None] | None] = {}  # None: with all its peers
        self.sent = self.sent_bytes = 0
        self.hosts: dict[str, SimHost] = {}
        names = [h.name for h in setup.fabric.hosts]
        self._at: dict[str, str] = {h.management: h.name for h in setup.fabric.hosts}
        self._rail_at = {
            h.on_rail(i): (h.name, rail) for h in setup.fabric.hosts for i, rail in enumerate(setup.fabric.rails)
        }
        for n, name in enumerate(names):
            near = {names[(n + d) % len(names)] for d in range(-setup.neighbours, setup.neighbours + 1)} - {name}
            rng = Random(f"clock {setup.seed} {name}")
            clock = HostClock(self.queue, rng.uniform(10.0, 1e6), 1.0 + rng.uniform(-DRIFT, DRIFT))
            self.hosts[name] = SimHost(self, name, self.keys, clock, frozenset(near))
        for name in names:
            self.queue.at(self.rng.uniform(0.0, 0.1), self.hosts[name].power_on)
        watch.fleet = self

    def seeds_for(self, name: str) -> list[Address]:
        """Whom a host asks at start."""
        names = list(self.hosts)[: self.setup.seeds]
        return [(self.network.hosts[n].management, GOSSIP_PORT) for n in names if n != name]

    def run(self, until: float) -> None:
        """Let time pass."""
        self.queue.run(until, self._after)

    def _after(self) -> None:
        if self._touched:
            touched, self._touched = self._touched, {}
            for host, peers in touched.items():
                self.watch.check(host, peers)

    def touched(self, host: SimHost, peers: Iterable[str] | None = None) -> None:
        """Something moved in the host's agent or kernel: about these peers, or about all."""
        known = self._touched.setdefault(host, {})
        if peers is None:
            self._touched[host] = None
        elif known is not None:
            known.update(dict.fromkeys(peers))

    # -- what changes in truth ---------------------------------------------------------------------------------

    def agent_changed(self, host: SimHost) -> None:
        """An agent began or ceased to answer: paths to it are looked at anew."""
        for other in self.hosts.values():
            if other.running and other is not host:
                for rail in host.rails:
                    if (path := other.paths.get((host.name, rail))) is not None:
                        other.review(path)

    def path_changed(self, name: str, rail: str) -> None:
        """Something of the paths through this host's port on this rail changed."""
        for other in self.hosts.values():
            if other.running and (path := other.paths.get((name, rail))) is not None:
                other.review(path)
        me = self.hosts[name]
        if me.running:
            for path in me.paths.values():
                if path.rail == rail:
                    me.review(path)

    def settle(self, keys: Iterable[tuple[str, str]]) -> None:
        """Wrongs of these cables, or of what they hang on, changed."""
        keys = list(keys)
        before = {k: self.network.cables[k].carrier for k in keys}
        self.network.settle(self.queue.now, keys)
        for name, rail in keys:
            if self.network.cables[name, rail].carrier != before[name, rail]:
                self.hosts[name].carrier_moved(rail)
            self.path_changed(name, rail)

    # -- packets -----------------------------------------------------------------------------------------------

    def send(self, source: SimHost, to: Address, data: bytes) -> None:
        """A datagram of the gossip."""
        self.sent += 1
        self.sent_bytes += len(data)
        network, rng = self.network, self.rng
        name, rail = self._at.get(to[0]), ""
        if name is None:
            name, rail = self._rail_at[to[0]]
            weather, loss = network.rails_weather, network.loss(source.name, name, rail)
            lost = not network.carries(source.name, name, rail)
        else:
            weather, loss = network.weather, network.mgmt_loss
            lost = not network.talk(source.name, name)
        self.watch.sent(source, name, len(data))
        if lost:
            return
        target = self.hosts[name]
        here = source.place.management if not rail else source.address_of[source.port_on[rail]]
        for _ in range(1 + (rng.random() < weather.duplicate)):
            if rng.random() >= loss:
                self.queue.at(self.queue.now + weather.trip(rng), self._arrive, target, data, (here, GOSSIP_PORT))

    def _arrive(self, target: SimHost, data: bytes, source: Address) -> None:
        if target.running:
            target.run_soon(target.life, target.on_gossip, data, source)

    def probe(self, source: SimHost, path: PathId, seq: int) -> None:
        """A probe's request leaves."""
        target = self.hosts[path.peer]
        if self._passes(source.name, path.peer, path.rail):
            at = self.queue.now + self.network.rails_weather.trip(self.rng)
            self.queue.at(at, self._ask, target, source, source.life, path, seq)

    def _ask(self, target: SimHost, source: SimHost, life: int, path: PathId, seq: int) -> None:
        if target.running:
            target.run_soon(target.life, target.on_probe, source, life, path, seq)

    def answer(self, source: SimHost, asker: SimHost, life: int, path: PathId, seq: int) -> None:
        """A probe's answer leaves."""
        if self._passes(source.name, asker.name, path.rail):
            at = self.queue.now + self.network.rails_weather.trip(self.rng)
            self.queue.at(at, asker.run_soon, life, asker.on_answer, path, seq)

    def _passes(self, source: str, target: str, rail: str) -> bool:
        network = self.network
        if not network.carries(source, target, rail):
            return False
        loss = network.loss(source, target, rail)
        return not loss or self.rng.random() >= loss

    # -- faults ------------------------------------------------------------------------------------------------

    def plan(self, faults: Iterable[Fault], heal_at: float) -> None:
        """Let the faults strike when their time comes. Those that end do so by `heal_at`."""
        for number, fault in enumerate(faults, 1):
            self.queue.at(fault.at, self._strike, number, fault)
            if fault.lasts is not None:
                self.queue.at(min(heal_at, fault.at + fault.lasts), self._heal, number, fault)

    def _strike(self, number: int, fault: Fault) -> None:
        from . import striking

        self.watch.fault(fault, begins=True)
        striking.strike(self, number, fault)

    def _heal(self, number: int, fault: Fault) -> None:
        from . import striking

        if fault.kind is not Kind.STEP:
            self.watch.fault(fault, begins=False)
            striking.heal(self, number, fault)
