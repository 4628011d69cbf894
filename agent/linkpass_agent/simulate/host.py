"""One simulated host: the daemon's parts, joined as `wiring.py` joins them, on virtual wires and a virtual kernel.

What stands in for the daemon's edges: carrier seen within 10 ms and all facts every second (as `see` does),
datagrams through `Fleet`, the kernel of `kernel.py`. A frozen agent gets nothing until it thaws; then it reads what
waits on its sockets before its timers run, as an event loop does.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from linkpass.errors import LinkPassError
from linkpass.model import Event, HostRecord, Observation, PathId, Plan, PortState, Signal
from linkpass_agent.act.ledger import Ledger, Made
from linkpass_agent.act.routes import Outcome, RouteActuator, RouteRule
from linkpass_agent.events import EventLog
from linkpass_agent.judge.holddown import HoldDownRule
from linkpass_agent.judge.probe import ProbeRule
from linkpass_agent.judge.schedule import ScheduleRule
from linkpass_agent.reactor import Identity, Reactor
from linkpass_topology.gossip.core import Gossip
from linkpass_topology.gossip.keyring import Keyring
from linkpass_topology.gossip.outputs import Address, Learned, Output, Outrun, Send

from .clock import HostClock
from .kernel import FakeKernel
from .probing import SleepyProbing, Truth

if TYPE_CHECKING:
    from .fleet import Fleet

ROUTES = RouteRule(metric=50, protocol=76, table=254, base=1000)
GONE = (PortState.ABSENT, PortState.DOWN)
GOSSIP_PORT = 7471
SWEEP = 1.0  # s
STIRRED = 3.1  # s that sweeps go on after the last change; the last one finds a steady state
SLACK = 1e-9  # s: a timer of a drifting clock must not fire a rounding error too soon


class PaperLedger(Ledger):
    """A ledger in memory: as durable as a file, while the host has power."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"))
        self._held = Made()

    def load(self) -> tuple[Made, str]:
        return Made(dict(self._held.nexthops), dict(self._held.groups)), ""

    def save(self, made: Made) -> None:
        self._held = Made(dict(made.nexthops), dict(made.groups))

    def remove(self) -> None:
        self._held = Made()


class WatchedActuator(RouteActuator):
    """Tells of every plan carried out, with the kernel's hops before and after."""

    def __init__(self, host: "SimHost") -> None:
        super().__init__(host.kernel, host.ledger, ROUTES, host.kernel.index)
        self._host = host

    def apply(self, plan: Plan) -> list[Outcome]:
        kernel = self._host.kernel
        before = {s.route.destination: kernel.hops_of(s.route.destination) for s in plan.steps}
        outcomes = super().apply(plan)
        self._host.stir()
        for destination, hops in before.items():
            self._host.fleet.watch.acted(self._host, destination, hops, kernel.hops_of(destination))
        return outcomes

    def forget(self, destination: str, *, keep_stranded: bool) -> bool:
        before = self._host.kernel.hops_of(destination)
        gone = super().forget(destination, keep_stranded=keep_stranded)
        self._host.fleet.watch.acted(self._host, destination, before, self._host.kernel.hops_of(destination))
        return gone


@dataclass(frozen=True, slots=True)
class Rules:
    """The daemon's settings that matter here, with its defaults."""

    hold: HoldDownRule = field(default_factory=HoldDownRule)
    probe: ProbeRule = field(default_factory=lambda: ProbeRule(HoldDownRule()))
    schedule: ScheduleRule = field(default_factory=ScheduleRule)


class SimHost:
    """A host and its agent. Times are the run's own unless a name says `local`."""

    def __init__(self, fleet: "Fleet", name: str, keyring: Keyring, clock: HostClock, in_use: frozenset[str]) -> None:
        self.fleet, self.name, self.keyring, self.clock = fleet, name, keyring, clock
        self.place = fleet.network.hosts[name]
        self.rails = fleet.network.fabric.rails
        self.rail_of = {f"{name}-{rail}": rail for rail in self.rails}
        self.port_on = {rail: port for port, rail in self.rail_of.items()}
        self.address_of = {f"{name}-{rail}": self.place.on_rail(i) for i, rail in enumerate(self.rails)}
        self.in_use = in_use  # peers
        self.powered = self.running = self.frozen = False
        self.life = 0  # grows with every start and end of the agent: what was meant for an earlier one is dropped
        self.incarnation = 0
        self.drains: dict[str, str] = {}
        self.resets: dict[str, set[int]] = {
            port: set() for port in self.rail_of
        }  # faults: MTU and GIDs read otherwise
        self.slow: dict[str, set[int]] = {port: set() for port in self.rail_of}  # faults: less than the full rate
        self.moved: dict[str, int] = dict.fromkeys(
            self.rail_of, 0
        )  # carrier changes, and how many the agent has seen
        self.seen: dict[str, int] = dict.fromkeys(self.rail_of, 0)
        self.boots = 0
        self.stirred_at = self.thawed_at = self.started_at = 0.0

    # -- power and life ----------------------------------------------------------------------------------------

    def power_on(self) -> None:
        """Boot, with empty tables and no memory but the disk's."""
        self.powered = True
        self.boots += 1
        self.kernel, self.ledger = FakeKernel(), PaperLedger()
        for n, (port, rail) in enumerate(self.rail_of.items()):
            self.kernel.add_device(port, 10 * self.boots + n)
            self.kernel.carrier(port, self.fleet.network.cables[self.name, rail].carrier)
        self.start()

    def power_off(self) -> None:
        """Lose power at once."""
        self.powered = False
        self.stop()

    def start(self) -> None:
        """Start the agent."""
        self.running, self.frozen = True, False
        self.life += 1
        self.started_at = self.fleet.queue.now
        self.fleet.watch.forget(self)
        self.incarnation = max(self.incarnation + 1, int(self.clock.wall()))
        self._armed: dict[str, float] = {}
        self._inbox: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._missed: dict[str, Callable[[], None]] = {}
        self._ears: frozenset[str] = frozenset()
        self.paths: dict[tuple[str, str], PathId] = {}
        self._targets: dict[PathId, str] = {}
        self._waiting_for: dict[int, PathId] = {}
        fleet, rules = self.fleet, self.fleet.rules
        seed = Random(f"{fleet.seed} {self.name} {self.life}")
        self.rng = Random(seed.getrandbits(64))
        self.routes = WatchedActuator(self)
        self.routes.adopt(self.kernel.name)
        self.probing = SleepyProbing(rules.probe, rules.schedule, Random(seed.getrandbits(64)))
        self.gossip = self._new_gossip(Random(seed.getrandbits(64)))
        self.reactor = Reactor(
            Identity(self.name, self.incarnation, (self.place.service,), self.rail_of),
            rules.hold, self.probing, self._publish, self._set_targets, self.routes,
            EventLog(self.clock, self._tell), self.clock, self.drains,
        )  # fmt: skip
        self.reactor.observe(self._look())
        self._take(self.gossip.start(self.clock.now(), (self.place.management, GOSSIP_PORT)))
        self._phase = self.rng.random() * SWEEP
        self.stir()
        fleet.agent_changed(self)

    def stop(self) -> None:
        """Kill the agent. Its routes stay, if the host has power."""
        self.running = self.frozen = False
        self.life += 1
        self.fleet.agent_changed(self)

    def freeze(self) -> None:
        """The agent isn't scheduled any more."""
        self.frozen = True
        self.fleet.agent_changed(self)

    def thaw(self) -> None:
        """It runs again: first what came in meanwhile, then the timers that are overdue."""
        self.frozen = False
        self.thawed_at = self.fleet.queue.now
        inbox, self._inbox = self._inbox, []
        missed, self._missed = self._missed, {}
        for do, args in inbox:
            do(*args)
        for do in missed.values():
            do()
        self.fleet.agent_changed(self)

    def _new_gossip(self, rng: Random) -> Gossip:
        seeds = self.fleet.seeds_for(self.name)
        return Gossip(
            self.name, self.keyring, seeds, rng=rng, entropy=rng.randbytes, options=self.fleet.options
        )  # fmt: skip

    def run_soon(self, life: int, do: Callable[..., None], *args: object) -> None:
        """Something reaches the agent; too late if it isn't the same agent any more."""
        if life != self.life or not self.running:
            return
        if self.frozen:
            self._inbox.append((do, args))
            return
        do(*args)

    def use_keyring(self, keyring: Keyring) -> None:
        """The key file was changed."""
        self.keyring = keyring
        if self.running:
            self.run_soon(self.life, self._use_keyring)

    def _use_keyring(self) -> None:
        self._take(self.gossip.set_keyring(self.keyring, self.clock.now()))

    # -- timers ------------------------------------------------------------------------------------------------

    def _arm(self, kind: str, local: float | None, do: Callable[[], None]) -> None:
        if local is None:
            return
        at = self.clock.true(local) + SLACK
        if at < self._armed.get(kind, float("inf")):
            self._armed[kind] = at
            self.fleet.queue.at(at, self._fire, self.life, kind, at, do)

    def _fire(self, life: int, kind: str, at: float, do: Callable[[], None]) -> None:
        if life != self.life or self._armed.get(kind) != at:
            return
        del self._armed[kind]
        if self.frozen:
            self._missed[kind] = do
        else:
            do()

    def _arm_all(self) -> None:
        self._arm("gossip", self.gossip.next_timer(), self._gossip_timer)
        self._arm("probe", self.probing.next_at(), self._probe_timer)
        self._arm("tick", self.reactor.wakes_at(), self._tick)

    # -- see ---------------------------------------------------------------------------------------------------

    def carrier_moved(self, rail: str) -> None:
        """The cable's carrier changed: the kernel knows, its routing hears of it, and the agent sees it soon."""
        if not self.powered:
            return
        port = self.port_on[rail]
        self.moved[port] += 1
        if self.running:
            self.stir()
        self.kernel.carrier(port, self.fleet.network.cables[self.name, rail].carrier, noticed=False)
        rng, queue = self.fleet.rng, self.fleet.queue
        # linkwatch holds events of such devices back, up to a second (net/core/link_watch.c).
        queue.at(queue.now + (rng.uniform(0.0, 1.0) if rng.random() < 0.2 else 0.001), self._notice, self.boots, port)
        queue.at(queue.now + rng.uniform(0.0002, 0.0102), self.run_soon, self.life, self._see_carrier, port)

    def _notice(self, boots: int, port: str) -> None:
        if self.powered and boots == self.boots:
            self.kernel.notice(port)
            self.fleet.touched(self)
            if self.running:
                self.stir()

    def _see_carrier(self, port: str) -> None:
        count, self.seen[port] = self.moved[port] - self.seen[port], self.moved[port]
        if not count:
            return
        now, reading = self.clock.now(), self.kernel.devices[port].carrier
        told = [reading] if count % 2 else [not reading, reading]
        self.reactor.observe([Observation(now, "carrier", port, Signal.CARRIER, r) for r in told])
        self._after_reactor()

    def _look(self) -> list[Observation]:
        """All facts."""
        now = self.clock.now()
        found = []
        for port, rail in self.rail_of.items():
            reset = bool(self.resets[port])
            gids = (f"0 RoCEv1 fe80::{self.place.number:x}", f"1 RoCEv2 fe80::{self.place.number:x}")
            self.seen[port] = self.moved[port]
            carrier = self.fleet.network.cables[self.name, rail].carrier
            facts = {
                Signal.PRESENT: True,
                Signal.ADMIN: True,
                Signal.CARRIER: carrier,
                Signal.MTU: 1500 if reset else 9000,
                Signal.ADDRESSES: (self.address_of[port],),
                Signal.RDMA_RATE: 200_000 if self.slow[port] else 400_000,
                Signal.GIDS: tuple(f"{i} {g[2:]}" for i, g in enumerate(reversed(gids))) if reset else gids,
            }
            found += [Observation(now, "sweep", port, signal, value) for signal, value in facts.items()]
        return found

    def stir(self) -> None:
        """Something changed that a sweep may see. Sweeps go on for some rounds; others would find nothing new."""
        self.stirred_at = self.fleet.queue.now
        now = self.clock.now()
        self._arm("sweep", now + SWEEP - (now - self._phase) % SWEEP, self._sweep)

    def _sweep(self) -> None:
        self.reactor.observe(self._look())
        self.reactor.drifted(self.routes.verify(self.kernel.name))
        self.reactor.tick(retry=True)
        self._after_reactor()
        missed = self.fleet.watch.swept(self)
        if missed or self.fleet.queue.now < self.stirred_at + STIRRED:
            self._arm("sweep", self.clock.now() + SWEEP, self._sweep)

    def _tick(self) -> None:
        self.reactor.tick(retry=False)
        self._after_reactor()

    def _after_reactor(self, peers: Iterable[str] | None = None) -> None:
        self.fleet.touched(self, peers)
        self._arm_all()

    # -- operators ---------------------------------------------------------------------------------------------

    def drain(self, port: str, reason: str) -> None:
        """Drain, or hear that it may not be."""
        try:
            self.reactor.drain(port, reason, dry_run=False)
            self.drains[port] = reason
        except LinkPassError:
            return
        self._after_reactor()

    def undrain(self, port: str) -> None:
        """Undrain, if it was drained."""
        if self.drains.pop(port, None) is not None:
            self.reactor.undrain(port)
            self._after_reactor()

    # -- share -------------------------------------------------------------------------------------------------

    def _publish(self, record: HostRecord) -> None:
        self._take(self.gossip.publish(record, self.clock.now()))
        ears = frozenset(p.rail for p in record.ports if p.state not in GONE and p.addresses)
        changed, self._ears = self._ears ^ ears, ears
        for rail in self.rails:
            if rail in changed:
                self.fleet.path_changed(self.name, rail)

    def on_gossip(self, data: bytes, source: Address) -> None:
        """A datagram came to the gossip socket."""
        self._take(self.gossip.on_datagram(data, source, self.clock.now()))
        self._after_gossip()

    def _gossip_timer(self) -> None:
        self._take(self.gossip.on_timer(self.clock.now()))
        self._after_gossip()

    def _after_gossip(self) -> None:
        self._arm("gossip", self.gossip.next_timer(), self._gossip_timer)

    def _take(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Send(addr=addr, data=data):
                    self.fleet.send(self, addr, data)
                case Learned(record=record):
                    self.fleet.watch.learned(self, record)
                    self.reactor.learned(record)
                    self._after_reactor((record.host,))
                case Outrun(incarnation=incarnation):
                    self.reactor.outrank(incarnation)
                    self.incarnation = self.reactor.record.incarnation
                    self._after_reactor()
                case _:
                    self.fleet.watch.told(self, output)

    # -- probes ------------------------------------------------------------------------------------------------

    def _set_targets(self, targets: Mapping[PathId, str]) -> None:
        self._targets = dict(targets)
        self.paths = {(p.peer, p.rail): p for p in targets}
        in_use = [p for p in targets if p.peer in self.in_use]
        self.probing.set_paths(self._targets, in_use, self.clock.now())
        using: dict[str, set[str]] = {}
        for path in in_use:
            using.setdefault(path.peer, set()).add(path.port)
        self._take(self.gossip.set_interested(using, self.clock.now()))
        for path in self.paths.values():
            self.review(path)

    def review(self, path: PathId) -> None:
        """Let a path's probing sleep or wake, by what is true of it."""
        if self.running:
            self.probing.review(path, self.clock.now(), self._truth(path))
            self._arm("probe", self.probing.next_at(), self._probe_timer)

    def _truth(self, path: PathId) -> Truth:
        network, peer = self.fleet.network, self.fleet.hosts[path.peer]
        if path.rail not in self._ears or not network.cables[self.name, path.rail].carrier:
            return Truth.MUTE
        if not peer.running or peer.frozen:
            return Truth.GONE
        if not network.works(self.name, path.peer, path.rail) or path.rail not in peer._ears:
            return Truth.DEAD
        return Truth.MIXED if network.loss(self.name, path.peer, path.rail) else Truth.CLEAN

    def _probe_timer(self) -> None:
        now = self.clock.now()
        changed = self.probing.tick(now)
        sent = self.probing.due(now)
        for path, seq in sent:
            if path.rail not in self._ears or not self.kernel.devices[path.port].carrier:
                continue
            self.probing.sent(path, seq, now)
            self._waiting_for[seq] = path
            self.fleet.probe(self, path, seq)
        while len(self._waiting_for) > 65536:
            del self._waiting_for[next(iter(self._waiting_for))]
        if changed:
            self.fleet.watch.probed(self, changed)
            self.reactor.probed(changed)
            self._after_reactor([p.peer for p in changed])
        for path in dict.fromkeys([*changed, *(p for p, _ in sent)]):
            self.probing.review(path, now, self._truth(path))
        self._arm("probe", self.probing.next_at(), self._probe_timer)

    def on_probe(self, asker: "SimHost", life: int, path: PathId, seq: int) -> None:
        """A request came in."""
        if path.rail in self._ears:
            self.fleet.answer(self, asker, life, path, seq)

    def on_answer(self, path: PathId, seq: int) -> None:
        """An answer came in."""
        if path.rail not in self._ears or self._waiting_for.pop(seq, None) is None:
            return
        now = self.clock.now()
        if self.probing.answered(path, seq, now):
            self.fleet.watch.probed(self, [path])
            self.reactor.probed([path])
            self._after_reactor((path.peer,))
        self.review(path)

    # -- tell --------------------------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        self.fleet.watch.event(self, event)
