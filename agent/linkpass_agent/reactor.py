"""The loop's middle: takes observations, records and probe verdicts in, and drives judge, share, decide and act.

Everything happens in the call that brings the news, so that nothing waits for a timer. The doers (publish, the
actuator) and the clock are passed in; the same class runs in the daemon and against fakes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from linkpass.clock import Clock
from linkpass.errors import NotFoundError, RefusedError
from linkpass.model import (
    EventKind,
    Hop,
    HostRecord,
    Observation,
    PathId,
    PathVerdict,
    Plan,
    PortRecord,
    PortState,
    Signal,
    Verdict,
)

from .act.routes import Outcome
from .decide import limits, planner
from .decide.limits import Limits, Out
from .decide.planner import PeerPaths
from .events import EventLog
from .judge import path as path_judge
from .judge.holddown import HoldDownRule, Past
from .judge.port import Port
from .judge.probing import Probing
from .judge.stale import VETOES
from .telling import evidence, hops_of, places, port_changes, roce_v2, show

Telling = tuple[EventKind, str, str, str]  # kind, subject, text, cause


class Actuator(Protocol):
    """What the reactor needs of an actuator; `act.routes.RouteActuator` is one."""

    @property
    def current(self) -> Mapping[str, tuple[Hop, ...]]: ...
    @property
    def unsure(self) -> Collection[str]: ...
    def apply(self, plan: Plan) -> list[Outcome]: ...
    def lost_device(self, device: str) -> None: ...


class Watcher(Protocol):
    """Who else must act on verdicts at once; `jobs.desk.Desk` is one."""

    def ports_moved(self) -> None:
        """A port of ours has another state."""
        ...

    def moved(self, hosts: Iterable[str]) -> None:
        """The ways to these hosts were judged anew."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are: host name, this start's incarnation, our rail-independent addresses, port -> rail."""

    host: str
    incarnation: int
    addresses: tuple[str, ...]
    rails: Mapping[str, str]


class Reactor:
    """State of one host's agent. Not thread-safe; all calls come from one loop."""

    def __init__(
        self,
        identity: Identity,
        hold_down: HoldDownRule,
        probing: Probing,
        publish: Callable[[HostRecord], None],
        targets: Callable[[Mapping[PathId, str]], None],
        actuator: Actuator | None,
        events: EventLog,
        clock: Clock,
        drains: Mapping[str, str],
        past: Mapping[str, Past] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self.watcher: Watcher | None = None
        self._me, self._rule, self._probing = identity, hold_down, probing
        self._publish, self._targets, self._actuator = publish, targets, actuator
        self._events, self._clock = events, clock
        self.rails = dict(identity.rails)
        self.ports = {name: Port(hold_down) for name in self.rails}
        # port -> (signal, source) -> the latest that this source said, also what moved nothing
        self.witnesses: dict[str, dict[tuple[Signal, str], Observation]] = {name: {} for name in self.rails}
        for port, remembered in (past or {}).items():
            if port in self.ports:
                self.ports[port] = self.ports[port].recall(remembered, clock.now())
        for port, reason in drains.items():
            if port in self.ports:
                self.ports[port] = self.ports[port].drain(reason, clock.now())
        self.peers: dict[str, HostRecord] = {}
        self.dead: set[str] = set()  # hosts whose agent is dead: they can't take back what they said
        self._proven: frozenset[PathId] = frozenset()  # their paths that work all the same
        self.paths: dict[str, dict[PathId, PathVerdict]] = {}
        self._owners: dict[str, str] = {}  # rail-independent address -> the peer that claimed it first
        self.record = HostRecord(identity.host, identity.incarnation, 0, identity.addresses, ())
        self._shared: dict[str, Port] = {}  # the ports that the record was made of
        self._dirty: set[str] = set()
        self._retry: set[str] = set()
        self._told_refusals: dict[str, list[Telling]] = {}  # what the events hold already, by peer
        self._told_steps: dict[str, list[Telling]] = {}
        self._told_results: dict[str, list[Telling]] = {}
        self._told_targets: dict[PathId, str] = {}

    # -- news from outside ------------------------------------------------------------------------------------

    def observe(self, seen: Iterable[Observation]) -> None:
        """Facts about our own ports."""
        for fact in seen:
            before = self.ports.get(fact.port)
            if before is None:
                continue
            self.witnesses[fact.port][fact.signal, fact.source] = fact
            known = before.facts.get(fact.signal)
            after = before.observe(fact)
            if after is before:
                continue
            self.ports[fact.port] = after
            if fact.signal in before.facts:
                text = f"{fact.signal} {show(known)} -> {show(fact.value)}"
                self._events.add(EventKind.SEEN, fact.port, text, fact.detail, {"source": fact.source}, fact.at)
            if after.reading().good is False and before.reading().good is not False and self._actuator:
                self._actuator.lost_device(fact.port)
            self._port_moved(fact.port, before, after)
        self._settle()

    def learned(self, record: HostRecord) -> None:
        """A peer's newer record."""
        if record.host == self._me.host:
            return
        before = self.peers.get(record.host)
        self.peers[record.host] = record
        self._claim(record)
        changes = port_changes(before, record)
        if changes:
            news = {"incarnation": record.incarnation, "version": record.version}
            self._events.add(EventKind.LEARNED, record.host, "; ".join(changes), data={**news})
        self._dirty.add(record.host)
        self._settle()
        if before is None or places(before) != places(record):
            self._update_targets()

    def probed(self, paths: Iterable[PathId]) -> None:
        """Probe verdicts of these paths changed."""
        self._dirty |= {p.peer for p in paths} & self.peers.keys()
        self._settle()

    def agent_died(self, host: str) -> None:
        """A host's agent is dead as a member: its record is its last word."""
        self.dead.add(host)

    def agent_lives(self, host: str) -> None:
        """It gave a sign of life: its record's word counts."""
        if host in self.dead:
            self.dead.discard(host)
            self._dirty |= {host} & self.peers.keys()
            self._settle()

    def vetoed(self) -> dict[PathId, str]:
        """The paths that a dead agent's last word, or its last answers, keep out, and the peer's address on each."""
        return {
            path: remote.addresses[0]
            for host in sorted(self.dead & self.peers.keys())
            for path in self._paths_to(self.peers[host])
            if (remote := self.peers[host].port_on(path.rail)) is not None
            and (remote.state in VETOES or self._probing.get(path).state in VETOES)
            and remote.addresses
        }

    def proven(self, paths: frozenset[PathId]) -> None:
        """Of `vetoed` these work: the peer's kernel answers on them."""
        if paths != self._proven:
            changed, self._proven = paths ^ self._proven, paths
            self._dirty |= {p.peer for p in changed} & self.peers.keys()
            self._settle()

    def drifted(self, destinations: Sequence[str]) -> None:
        """The kernel's routes to these aren't what we made: somebody, or the kernel itself, changed them."""
        self._dirty |= {self._owners[d] for d in destinations if d in self._owners}
        self._settle()

    def tick(self, *, retry: bool) -> None:
        """Let time pass: hold-downs end, and with `retry` what failed is tried again."""
        now = self._clock.now()
        for name, before in self.ports.items():
            after = before.tick(now)
            if after is not before:
                self.ports[name] = after
                self._port_moved(name, before, after)
        if retry:
            self._dirty |= self._retry
        self._settle()

    def wakes_at(self) -> float | None:
        """When `tick` will matter."""
        return min((t for p in self.ports.values() if (t := p.wakes_at) is not None), default=None)

    def outrank(self, incarnation: int) -> None:
        """Peers hold a record of us that is newer than ours (we lost our memory): start above it."""
        if incarnation >= self._me.incarnation:
            self._me = replace(self._me, incarnation=incarnation + 1)
            self.record = replace(self.record, incarnation=incarnation + 1, version=0)
            self._share()

    # -- operators --------------------------------------------------------------------------------------------

    def drain(self, port: str, reason: str, *, dry_run: bool) -> Plan:
        """Take a port out. NotFoundError, or RefusedError if it is the last way to somebody."""
        before = self._port(port)
        usable = (PortState.UP, PortState.SUSPECT)
        others_up = any(p.verdict.state in usable for n, p in self.ports.items() if n != port)
        refusal = planner.refuse_drain(port, self._peer_paths().values(), others_up)
        if refusal and before.drained is None:
            self._events.add(EventKind.REFUSED, port, f"drain refused: {refusal}", reason)
            raise RefusedError(f"drain of {port} refused: {refusal}")
        after = before.drain(reason, self._clock.now())
        plan = self._plan_with({port: after.verdict})
        if not dry_run:
            self._events.add(EventKind.OPERATOR, port, "drain", reason)
            self.ports[port] = after
            self._port_moved(port, before, after)
            self._settle()
        return plan

    def undrain(self, port: str, *, dry_run: bool = False) -> Plan:
        """Give a port back. NotFoundError; RefusedError if it isn't drained."""
        before = self._port(port)
        if before.drained is None:
            raise RefusedError(f"{port} is not drained")
        after = before.undrain(self._clock.now())
        plan = self._plan_with({port: after.verdict})
        if not dry_run:
            self._events.add(EventKind.OPERATOR, port, "undrain")
            self.ports[port] = after
            self._port_moved(port, before, after)
            self._settle()
        return plan

    def plan(self) -> Plan:
        """What would be done now."""
        return self._plan_with({})

    # -- inside -----------------------------------------------------------------------------------------------

    def _port(self, name: str) -> Port:
        try:
            return self.ports[name]
        except KeyError:
            raise NotFoundError(f"no port {name!r} here; there are {', '.join(sorted(self.ports))}") from None

    def _port_moved(self, name: str, before: Port, after: Port) -> None:
        old, new = before.verdict, after.verdict
        if old.state == new.state:
            return
        self._events.add(
            EventKind.VERDICT,
            name,
            f"{old.state} -> {new.state}",
            new.cause,
            {
                "from": old.state.value,
                "to": new.state.value,
                "flaps": new.flaps,
                "held_until": new.held_until,
                "evidence": evidence(self.witnesses[name].values(), self._clock.now()),
            },
            new.since,
        )
        self._dirty |= set(self.peers)
        if self.watcher:
            self.watcher.ports_moved()

    def _keep_in_use(self) -> None:
        """What the limits say of the ports that are held, now that ports or records changed or time went by."""
        held = {
            name: Out(self.rails[name], Verdict(port.state, port.since, port.cause, held_until=port.held_until))
            for name, port in self.ports.items()
            if port.state is PortState.HELD and port.drained is None
        }
        if not held:
            return
        now = self._clock.now()
        kept = limits.keep_in_use(self._me.host, held, len(self.ports), self.peers, self._limits, now)
        for name in held:
            before = self.ports[name]
            after = before.keep(kept.get(name, ""))
            if after is before:
                continue
            self.ports[name] = after
            if bool(after.kept) != bool(before.kept):
                text = f"{name} stays in use: {after.kept}" if after.kept else f"{name} may be held again"
                self._events.add(EventKind.REFUSED, name, text, before.cause)
                self._port_moved(name, before, after)

    def _settle(self) -> None:
        """Share what changed of us first (others wait for it), then jobs, then routes of the peers concerned."""
        self._keep_in_use()
        self._share()
        dirty, self._dirty = self._dirty, set()
        self._retry -= dirty
        for host in sorted(dirty):
            self._judge_paths(host)
        if self.watcher and dirty:
            self.watcher.moved(sorted(dirty))
        for host in sorted(dirty):
            self._act(host)

    def _share(self) -> None:
        if self.record.version and all(self.ports[name] is port for name, port in self._shared.items()):
            return
        self._shared = dict(self.ports)
        ports = tuple(self._port_record(name) for name in self.ports)
        if ports == self.record.ports and self.record.version:
            return
        changes = port_changes(self.record, replace(self.record, ports=ports))
        self.record = HostRecord(
            self._me.host, self._me.incarnation, self.record.version + 1, self._me.addresses, ports
        )
        now = self._clock.now()
        self._publish(self.record)
        if changes:
            self._events.add(
                EventKind.SHARED, self._me.host, "; ".join(changes), data={"version": self.record.version}, at=now
            )

    def _port_record(self, name: str) -> PortRecord:
        port = self.ports[name]
        verdict = port.verdict
        addresses, mtu, gids = (port.facts.get(s) for s in (Signal.ADDRESSES, Signal.MTU, Signal.GIDS))
        return PortRecord(
            name,
            self._me.rails[name],
            verdict.state,
            verdict.cause,
            addresses if isinstance(addresses, tuple) else (),
            mtu if isinstance(mtu, int) else 0,
            roce_v2(gids) if isinstance(gids, tuple) else (),
        )

    def _update_targets(self) -> None:
        targets = {
            path: remote.addresses[0]
            for host, record in self.peers.items()
            for path in self._paths_to(record)
            if (remote := record.port_on(path.rail)) is not None and remote.addresses
        }
        if targets != self._told_targets:
            self._told_targets = targets
            self._targets(targets)

    def _paths_to(self, record: HostRecord) -> list[PathId]:
        return [PathId(record.host, rail, port) for port, rail in self._me.rails.items() if record.port_on(rail)]

    def _claim(self, record: HostRecord) -> None:
        """Two hosts with the same address are somebody's mistake: traffic stays with whoever had it first."""
        for address in [a for a, host in self._owners.items() if host == record.host and a not in record.addresses]:
            del self._owners[address]
            heirs = [host for host, other in self.peers.items() if address in other.addresses]
            if heirs:
                self._owners[address] = heirs[0]
                self._dirty.add(heirs[0])
        for address in record.addresses:
            self._owners.setdefault(address, record.host)

    def _verdicts(self, record: HostRecord, instead: Mapping[str, Verdict]) -> dict[PathId, PathVerdict]:
        found = {}
        for path in self._paths_to(record):
            remote, probe = record.port_on(path.rail), self._probing.get(path)
            if remote is not None:
                local = instead.get(path.port) or self.ports[path.port].verdict
                state, cause, answers = remote.state, remote.cause, probe.verdict
                if path in self._proven and record.host in self.dead:
                    told = "its agent is dead, but its kernel answers here"
                    if state in VETOES:
                        state, cause = PortState.UNKNOWN, f"{told}; its last word was {state} ({cause})"
                    if answers.state in VETOES:
                        answers = replace(answers, state=PortState.UNKNOWN, cause=told)
                found[path] = path_judge.judge(path, local, state, cause, answers, probe.rtt)
        return found

    def _judge_paths(self, host: str) -> None:
        now = self._clock.now()
        before = self.paths.get(host, {})
        after = self._verdicts(self.peers[host], {})
        for path, new in after.items():
            old = before.get(path)
            if old and old.verdict.state == new.verdict.state:
                after[path] = replace(new, verdict=replace(new.verdict, since=old.verdict.since))
                continue
            after[path] = replace(new, verdict=replace(new.verdict, since=now))
            was = old.verdict.state if old else PortState.UNKNOWN
            if was != new.verdict.state:
                self._events.add(
                    EventKind.VERDICT,
                    str(path),
                    f"{was} -> {new.verdict.state}",
                    new.verdict.cause,
                    {"from": was.value, "to": new.verdict.state.value, "peer": host, "rail": path.rail},
                )
        self.paths[host] = after

    def _peer_paths(self, instead: Mapping[str, Verdict] | None = None) -> dict[str, PeerPaths]:
        return {
            host: PeerPaths(
                record,
                tuple(self._verdicts(record, instead).values())
                if instead
                else tuple(self.paths.get(host, {}).values()),
            )
            for host, record in self.peers.items()
        }

    def _plan_with(self, instead: Mapping[str, Verdict]) -> Plan:
        plans = [self._plan_peer(p) for p in self._peer_paths(instead).values()]
        kept = [f"{name} is not held: {port.kept}" for name, port in self.ports.items() if port.kept]
        return Plan(tuple(s for p in plans for s in p.steps), (*kept, *(r for p in plans for r in p.refused)))

    def _plan_peer(self, peer: PeerPaths) -> Plan:
        if self._actuator is None:
            return planner.plan_peer(peer, self._me.addresses, self._owners, {})
        routes = self._actuator
        return planner.plan_peer(peer, self._me.addresses, self._owners, routes.current, routes.unsure)

    def _act(self, host: str) -> None:
        """Plan for one peer and carry it out; what was already told (a retry, a shadow plan) isn't told again."""
        plan = self._plan_peer(PeerPaths(self.peers[host], tuple(self.paths[host].values())))
        self._tell(host, [(EventKind.REFUSED, host, refusal, "") for refusal in plan.refused])
        shadow = "" if self._actuator else " (shadow: not done)"
        told = [
            (
                EventKind.DECIDED,
                s.route.destination,
                f"{hops_of(s.before)} -> {hops_of(s.after)}{shadow}",
                s.cause,
            )
            for s in plan.steps
        ]
        if not plan.steps:
            self._told_steps.pop(host, None)
            return
        again = self._told_steps.get(host) == told
        self._told_steps[host] = told
        if not again:
            self._add(host, told)
        if self._actuator is None:
            return
        results = []
        for outcome in self._actuator.apply(plan):
            destination, cause = outcome.step.route.destination, outcome.step.cause
            if outcome.error or outcome.hops != outcome.step.after:
                self._retry.add(host)
            if outcome.error:
                text = f"{outcome.error}; the route stays {hops_of(outcome.hops)}"
                results.append((EventKind.FAILED, destination, text, cause))
            else:
                results.append((EventKind.ACTED, destination, hops_of(outcome.hops), cause))
        if not again or results != self._told_results.get(host):
            self._add(host, results)
        self._told_results[host] = results
        if host not in self._retry:
            self._told_steps.pop(host, None)  # done: the same step later is news

    def _tell(self, host: str, refusals: list[Telling]) -> None:
        if refusals != self._told_refusals.get(host, []):
            self._add(host, refusals)
        self._told_refusals[host] = refusals

    def _add(self, host: str, telling: list[Telling]) -> None:
        for kind, subject, text, cause in telling:
            self._events.add(kind, subject, text, cause, {"peer": host})
