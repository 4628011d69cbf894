"""All parts of the agent and all that joins them, on one page.

see.netlink ─┐                        ┌─> gossip (UDP) ──> peers
see.carrier ─┼─> Reactor ─────────────┼─> act.RouteActuator ──> kernel
             │      │                 │
             │      └─> jobs.Desk <───┴── letters (gossip) ──> peers' desks
             │            └─ jobs.Sessions, jobs.Page ──> shims of running jobs
             │
sweep ───────┤   judge/decide inside  ├─> EventLog ──> Story ──> api ──> linkpassctl
see.prober <─┴── peers' records <─────┴── gossip (UDP)
"""

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random

from linkpass import manifest as manifests
from linkpass import rules
from linkpass.clock import SystemClock
from linkpass.errors import ConfigError, LinkPassError
from linkpass.model import Event, EventKind, Hop, HostRecord, PathId, PortState
from linkpass.settings import Endpoint, Settings
from linkpass_topology import fabric as fabrics
from linkpass_topology.gossip import (
    Gossip,
    GossipUdp,
    Learned,
    MemberTurned,
    Options,
    Output,
    Outrun,
    PeerSilent,
    PeerUp,
    RailEnd,
    Relayed,
    RelayReset,
    SwimRule,
    keyring,
)
from linkpass_topology.view import changed_ports

from . import alarming, observing, pair_talk
from . import log as logs
from . import memory as memories
from .act.ledger import Ledger
from .act.routes import RouteActuator, RouteRule
from .act.rtnl import Rtnl
from .api import serve
from .api_socket import claim
from .decide.limits import Limits
from .events import EventLog
from .expecting import Expecting
from .facade import AgentFacade, Contact
from .gating import Gating
from .jobs import locality
from .jobs.views import JobsFacade
from .jobs.wired import Jobs
from .judge.alarms import Graces
from .judge.holddown import HoldDownRule
from .judge.probe import ProbeRule
from .judge.probing import Probing
from .judge.schedule import ScheduleRule
from .keys import KeyDesk
from .memory import Memory
from .pairing import Pairing
from .reactor import Identity, Reactor
from .recall import PathPast, Recall, Recaller, after_gap
from .see import carrier
from .see.echo import Echo
from .see.names import Names
from .see.netlink import LinkEvents, Sweep
from .see.probe_wire import ProbeCodec
from .see.prober import Prober
from .see.sockets import Talking
from .see.verbs import RdmaWatch
from .story import Story
from .switches import SwitchWatch

log = logging.getLogger(__name__)

ABANDONED = 60.0  # s after the start: routes taken over by then, and claimed by no peer, are undone
# What is told of members beside their agents' connecting and falling silent: (was it dead, what it is now) -> text
MEMBER_NEWS = {
    (False, "dead"): "its agent answers over no road and through nobody; its routes stay as they are",
    (True, "alive"): "its agent is back",
    (False, "left"): "its agent was stopped",
}
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
TICK = 0.25  # s, the longest that a hold-down's end or a retry waits


def keys(settings: Settings) -> list[bytes]:
    """The fleet's keys; ConfigError if the file is bad."""
    return [k.secret for k in keyring.load(settings.share.keyring).keys]


def _names(settings: Settings) -> Names:
    return Names([p.name for p in settings.ports], {p.name: p.pci for p in settings.ports if p.pci})


def _actuator(settings: Settings, kernel: Rtnl, names: Names) -> RouteActuator:
    routes = settings.routes
    rule = RouteRule(routes.metric, routes.protocol, routes.table, routes.nexthop_base)
    return RouteActuator(kernel, Ledger(_folder(settings.paths.run) / "ledger.json"), rule, names.index)


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise LinkPassError(f"{path}: {e.strerror}; make the folder, or name another one under [paths]") from e
    return path


def undo(settings: Settings) -> int:
    """Remove everything that an agent left in the kernel."""
    claimed = claim(settings.paths.socket)  # refuses while an agent lives
    kernel = Rtnl()
    try:
        names = _names(settings)
        actuator = _actuator(settings, kernel, names)
        for line in actuator.adopt(names.at_or_device):
            print(line)
        actuator.undo(keep_stranded=False)
        print("nothing of LinkPass is left in the kernel")
    finally:
        kernel.close()
        claimed.release()
    return 0


class Agent:
    """The running parts. Made by `run`; `close` is idempotent."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clock = SystemClock()
        self.started = self.clock.now()
        self.story = Story()
        state = _folder(settings.paths.state)
        self.recaller = Recaller(state)
        self.events = EventLog(
            self.clock, self.story.tell, logs.tell, self._worth_remembering,
            later=asyncio.get_running_loop().call_soon,
        )  # fmt: skip
        self.memory = Memory(state)
        self.state, complaint = self.memory.load()
        self._remember(complaint)
        saved, complaint = self.recaller.load()
        self._complain(complaint)
        past = after_gap(saved, self.state.boot_id, self.clock.now(), self.clock.wall())
        self.keys = KeyDesk(
            settings.share.keyring, settings.host, self._use_keys,
            lambda: [m.row for m in self.gossip.core.members()], self.events,
        )  # fmt: skip
        fleet = self.keys.keyring
        rails = {p.name: p.rail for p in settings.ports}
        rule = HoldDownRule(settings.hold_down.first, settings.hold_down.max, settings.hold_down.decay)
        probe = settings.probe

        self.names = names = _names(settings)
        self.kernel = Rtnl()
        self.routes = _actuator(settings, self.kernel, names) if settings.mode == "act" else None
        if self.routes:
            for line in self.routes.adopt(names.at_or_device):
                self.events.add(EventKind.AGENT, settings.host, line)
        self.probing = Probing(
            ProbeRule(rule, probe.timeout, probe.lost, grace=probe.timeout),
            ScheduleRule(probe.period, probe.idle_period, probe.max_rate),
            Random(),
            past.by_path(),
        )
        self.reactor = Reactor(
            Identity(settings.host, self.state.incarnation, settings.routes.addresses, rails),
            rule,
            self.probing,
            self._publish,
            self._set_targets,
            self.routes,
            self.events,
            self.clock,
            {port: d.reason for port, d in self.state.drains.items()},
            past.ports,
            Limits(settings.limits.host_share, settings.limits.rail_share),
        )
        self.prober = Prober(
            self.probing,
            ProbeCodec([k.secret for k in fleet.keys]),
            rails,
            probe.port,
            secrets.randbits(64),
            2 * probe.max_rate,
            self.reactor.probed,
            self.clock,
            names.device,
        )
        self.gossip = GossipUdp(
            Gossip(
                settings.host,
                fleet,
                settings.share.seeds,
                rng=Random(),
                entropy=os.urandom,
                options=Options(anti_entropy=settings.share.anti_entropy, swim=SwimRule()),
            ),
            self.clock,
            self._gossiped,
        )
        self.switches = SwitchWatch(
            fabrics.load(settings.fabric) if settings.fabric else None, self.events, self.clock
        )
        self.talking = Talking(self.clock)
        self.echo = Echo(names.device)
        self.files = carrier.CarrierFiles(rails, device=names.device)
        self.sweep = Sweep(rails, settings.see.absent_sweeps, self.clock, names)
        self.links = LinkEvents(names, self.reactor.observe, self._look_soon, self.clock)
        self.rdma = RdmaWatch(
            rails, self.reactor.observe, self.clock, {p.name: p.rdma for p in settings.ports}, names.device
        )
        manifest = manifests.load(settings.manifest) if settings.manifest else None
        self.expecting = Expecting(manifest, settings.manifest, self.reactor, names.place)
        for want, why in self.expecting.missing():
            log.warning("port %s: %s", want.name, why)
        self.pairing = Pairing(
            self.reactor, lambda: self.rdma.behind, self.probing.heard, self.gossip.post, self._look_soon, self.clock
        )
        gating = Gating(self.reactor, self.expecting.subnet, self.expecting.best, self.pairing.says)
        self.observing = observing.of(
            settings, names, self.reactor, self.rdma, self._look_soon, self.events, self.clock, past.counters,
            self.expecting.best, gating.look,
        )  # fmt: skip
        graces = Graces(settings.alarms.boot_grace, settings.alarms.undrain_grace)
        self.alarming = alarming.Alarming(
            rules.changed(settings.rules), graces, settings.alarms.history, self.reactor, self.observing, self.events,
            self.clock, alarming.booted(self.clock.now()), past.alarms, past.falls, self.expecting.expected,
            past.undrained,
        )  # fmt: skip
        self.jobs = Jobs(
            settings, self.reactor, lambda: self.rdma.behind, self.gossip.post, self._talk_to_others,
            self.events, self.clock, {p: locality.read(names.device(p)) for p in rails},
        ) if settings.jobs.enabled else None  # fmt: skip
        if self.jobs:
            self.reactor.watcher = self.jobs
        self.facade = AgentFacade(
            settings.mode, self.started, self.reactor, self._current, self.story, self.memory, self.state,
            self._contacts, self._dropped, self.clock, JobsFacade(self.jobs.desk if self.jobs else None, self.clock),
            self.switches.lines, self.keys, self.observing, self.alarming, self.expecting,
        )  # fmt: skip
        self._look = asyncio.Event()
        self._targets: dict[PathId, str] = {}
        self._in_use: frozenset[PathId] = frozenset()

    # -- what the parts tell each other ------------------------------------------------------------------------

    def _publish(self, record: HostRecord) -> None:
        before = self.gossip.core.view.get(record.host)
        self.gossip.publish(record)
        if self.jobs:
            self.jobs.learned(record)
        self.switches.changed(record.host, changed_ports(before, record))
        if any(port.state is PortState.HELD for port in record.ports):
            self._look_soon()  # the gates say what a port that came back must wait for
        self._listen()

    def _listen(self) -> None:
        # A probe out of a port without carrier would leave the kernel with an unanswered ARP request, repeated only
        # once a second: when the carrier returns, the first probe would wait for that.
        gone = (PortState.ABSENT, PortState.DOWN)
        for port in self.reactor.record.ports:
            self.prober.listen(port.name, () if port.state in gone else port.addresses)
        ends = [p for p in self.reactor.record.ports if p.addresses and p.state not in gone]
        self.gossip.set_rails({p.rail: RailEnd(p.addresses[0], self.names.device(p.name)) for p in ends})

    def _gossiped(self, output: Output) -> None:
        match output:
            case Learned(record=record, ports=ports):
                if self.jobs:
                    self.jobs.learned(record)
                self.reactor.learned(record)
                self.switches.changed(record.host, ports)
            case Relayed(host=host, payload=payload) if pair_talk.ours(payload):
                self.pairing.letter(host, payload)
            case Relayed(host=host, payload=payload):
                if self.jobs:
                    self.jobs.desk.letter(host, payload)
            case RelayReset(host=host):
                if self.jobs:
                    self.jobs.desk.reset(host)
            case Outrun(incarnation=incarnation):
                self.reactor.outrank(incarnation)
                self.state.incarnation = self.reactor.record.incarnation
                self.memory.save(self.state)
            case PeerUp(host=host):
                self.reactor.agent_lives(host)
                self.events.add(EventKind.AGENT, host, "its agent is connected")
                if self.jobs:
                    self.jobs.desk.reached(host)
            case PeerSilent(host=host):
                self.events.add(EventKind.AGENT, host, "its agent is silent; its routes stay as they are")
            case MemberTurned(host=host, before=before, status=status):
                (self.reactor.agent_died if status == "dead" else self.reactor.agent_lives)(host)
                if (text := MEMBER_NEWS.get((before == "dead", status))) is not None:
                    self.events.add(EventKind.AGENT, host, text)

    def _use_keys(self, new: keyring.Keyring) -> None:
        self.prober.set_codec(ProbeCodec([k.secret for k in new.keys]))
        self.gossip.run(lambda core, now: core.set_keyring(new, now))

    def _set_targets(self, targets: Mapping[PathId, str]) -> None:
        self._targets = dict(targets)
        self._in_use = self._paths_in_use()
        self.prober.set_targets(self._targets, self._in_use)
        using: dict[str, set[str]] = {}
        for path in self._in_use:
            using.setdefault(path.peer, set()).add(path.port)
        self.gossip.run(lambda core, now: core.set_interested(using, now))

    def _paths_in_use(self) -> frozenset[PathId]:
        always = self.settings.probe.peers_in_use
        if "*" in always:
            return frozenset(self._targets)
        talking = self.talking.to()
        peers = set(always) | (self.jobs.desk.registry.peers() if self.jobs else set())
        for host, record in self.reactor.peers.items():
            rails = (a for p in record.ports for a in p.addresses)
            if not talking.isdisjoint((*record.addresses, *rails)):
                peers.add(host)
        waiting = self.pairing.paths()
        return frozenset(p for p in self._targets if p.peer in peers or p in waiting)

    def reload(self) -> None:
        """Read anew what may be: the manifest. A bad one is told and changes nothing."""
        try:
            said = self.expecting.reload()
        except ConfigError as e:
            self._complain(f"the manifest stays as it was: {'; '.join(str(e).splitlines())}")
            return
        self.events.add(EventKind.AGENT, self.settings.host, said)
        self.observing.expect_anew()
        self._look_soon()

    def _talk_to_others(self) -> None:
        """Peers in use are probed at the fast period: jobs' from their first connection on."""
        if self._paths_in_use() != self._in_use:
            self._set_targets(self._targets)

    def _look_soon(self) -> None:
        self._look.set()

    def _current(self) -> Mapping[str, tuple[Hop, ...]]:
        return self.routes.current if self.routes else {}

    def _contacts(self) -> Mapping[str, Contact]:
        known = ((Endpoint(*p.addr), p) for p in self.gossip.core.peers())
        return {p.host or str(at): Contact(str(at) if at.host else "", p.state, p.heard) for at, p in known}

    def _dropped(self) -> Counter[str]:
        found = Counter({str(k): n for k, n in self.gossip.core.dropped.items()}) + self.prober.dropped
        return (
            found
            + self.pairing.dropped
            + self.gossip.core.relay.dropped
            + (self.jobs.dropped if self.jobs else Counter())
        )

    def _remember(self, complaint: str) -> None:
        self._complain(complaint)
        known = {p.name for p in self.settings.ports}
        for port in set(self.state.drains) - known:
            log.warning("%s was drained (%s), but isn't configured any more", port, self.state.drains[port].reason)
        self.state.incarnation = memories.next_incarnation(self.state, self.clock.wall())
        self.state.boot_id = memories.boot_id()
        self.memory.save(self.state)

    def _complain(self, complaint: str) -> None:
        if complaint:
            self.events.add(EventKind.AGENT, self.settings.host, complaint)
            log.warning(complaint)

    def _worth_remembering(self, event: Event) -> None:
        if event.kind in (EventKind.VERDICT, EventKind.ALARM):
            self.recaller.changed()

    def _learned(self) -> Recall:
        """What a restart should know of our ports and paths."""
        now = self.clock.now()
        return Recall(
            self.state.boot_id,
            now,
            self.clock.wall(),
            {name: port.past(now) for name, port in self.reactor.ports.items()},
            tuple(PathPast(*path, past) for path, past in self.probing.past(now).items()),
            self.observing.past(),
            self.alarming.past(),
            self.alarming.windows(),
            self.alarming.undrained(),
        )

    # -- what runs beside each other -------------------------------------------------------------------------

    async def sweeps(self) -> None:
        """The slow look at everything: now and every `see.sweep` seconds, and at once when addresses move."""
        while True:
            self._look.clear()
            self.reactor.observe([*await self.sweep.look(), *self.rdma.refresh()])
            self.pairing.look()
            self.reactor.observe(self.observing.look())
            self.alarming.look()
            self.files.reopen()
            self._listen()  # an address may have become usable for us only now
            if self.routes:
                self.reactor.drifted(self.routes.verify(self.names.at_or_device))
                self._drop_abandoned(self.routes)
            if "*" not in self.settings.probe.peers_in_use:
                await self.talking.refresh()
            self._talk_to_others()
            self.reactor.proven(self.echo.look(self.reactor.vetoed()))
            try:
                async with asyncio.timeout(self.settings.see.sweep):  # wait_for may lose a cancellation
                    await self._look.wait()
            except TimeoutError:
                continue

    def _drop_abandoned(self, routes: RouteActuator) -> None:
        if self.clock.now() < self.started + ABANDONED:
            return
        claimed = {a for r in self.reactor.peers.values() for a in r.addresses}
        for destination in set(routes.current) - claimed:
            if routes.forget(destination, keep_stranded=True):
                self.events.add(EventKind.AGENT, destination, "undid a route that no peer claims any more")

    async def ticks(self) -> None:
        """Hold-downs end, and what failed is tried again."""
        last_retry = self.clock.now()
        while True:
            now = self.clock.now()
            wakes = self.reactor.wakes_at()
            await asyncio.sleep(TICK if wakes is None else min(TICK, max(0.0, wakes - now)))
            retry = self.clock.now() >= last_retry + 1.0
            if retry:
                last_retry = self.clock.now()
            self.reactor.tick(retry=retry)
            self.switches.tick()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop`, or until a part fails."""
        self.reactor.observe([*await self.sweep.look(), *self.rdma.refresh()])
        try:
            await self.gossip.open(self.settings.share.listen)
        except OSError as e:
            raise LinkPassError(f"can't listen at {e.strerror}; see share.listen") from e
        if self.jobs:
            self.jobs.open()
        self.observing.open(kernel_log=self.settings.see.kernel_log)
        self.events.add(
            EventKind.AGENT,
            self.settings.host,
            f"agent started, mode {self.settings.mode}",
            data={"incarnation": self.reactor.record.incarnation},
        )
        see = self.settings.see
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self.links.run()),
                tasks.create_task(
                    carrier.watch(self.files, see.carrier_poll, see.carrier_idle, self.reactor.observe, self.clock)
                ),
                tasks.create_task(self.sweeps()),
                tasks.create_task(self.ticks()),
                tasks.create_task(self.observing.rounds(see.ethtool)),
                tasks.create_task(self.recaller.run(self._learned)),
            ]
            if self.jobs:
                running.append(tasks.create_task(self.jobs.beats()))
            # What was loaded stays for good: the collector needn't look through it again and again.
            gc.collect()
            gc.freeze()
            _ready()
            await stop.wait()
            for task in running:
                task.cancel()

    def close(self) -> None:
        """Stop all parts and leave the host as it was, or as its only usable routes need it."""
        self.recaller.close(self._learned())
        if self.jobs:
            self.jobs.close()
        self.pairing.close()
        self.prober.close()
        self.gossip.run(lambda core, now: core.leave(now))
        self.gossip.close()
        self.files.close()
        self.echo.close()
        self.rdma.close()
        self.observing.close()
        if self.routes and self.settings.routes.on_stop == "undo":
            kept = self.routes.undo(keep_stranded=True)
            if kept:
                log.warning("kept the only route to %s; `linkpassd --undo` removes it", ", ".join(kept))
        self.kernel.close()
        self.events.flush()
        log.info("agent stopped")


async def run(settings: Settings) -> int:
    """The daemon: returns 0 after a tidy shutdown."""
    logs.setup(settings.log, sys.stderr, os.environ)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    claimed = claim(settings.paths.socket)  # before anything else: a second agent must not touch the first one's work
    try:
        agent = Agent(settings)
    except BaseException:
        claimed.release()
        raise
    loop.add_signal_handler(signal.SIGHUP, agent.reload)
    async with serve(agent.facade, settings, claimed=claimed):
        try:
            await agent.run(stop)
        finally:
            # A second SIGTERM must not cut the tidying short; the loop gives handlers back when it ends.
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            _notify("STOPPING=1")
            agent.close()
    return 0


def _ready() -> None:
    _notify("READY=1")


def _notify(state: str) -> None:
    """Tell systemd (sd_notify(3)), if it listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError as e:
            log.warning("can't tell systemd %s: %s", state, e)
