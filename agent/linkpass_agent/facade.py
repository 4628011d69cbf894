"""The agent as its socket shows it: turns the reactor's values into the models of `linkpass.api`."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from linkpass import __version__
from linkpass.api import (
    AlarmView,
    DrainAnswer,
    EventView,
    ExplainView,
    JobView,
    KeyAnswer,
    KeyView,
    ManifestView,
    MigrateAnswer,
    PathView,
    PeerView,
    PlanView,
    PortView,
    QpView,
    QuietView,
    StatusView,
    StepView,
)
from linkpass.clock import Clock
from linkpass.errors import NotFoundError
from linkpass.manifest import ExpectedPort
from linkpass.model import Hop, PathVerdict, Plan, PortState, Signal, Step

from .alarming import Alarming
from .expecting import Expecting
from .explain import explain
from .jobs.views import JobsFacade
from .judge.port import Port
from .keys import KeyDesk
from .memory import Drained, Memory, State
from .observing import Observing
from .reactor import Reactor
from .story import Follower, Story

# States that don't count against the host's health: up, or out by an operator's wish.
FINE = (PortState.UP, PortState.DRAINED, PortState.SUSPECT)


@dataclass(frozen=True, slots=True)
class Contact:
    """What the sharing part knows of one peer's agent. `heard` is monotonic seconds, None if never."""

    address: str
    state: str
    heard: float | None


class AgentFacade:
    """See `api.Facade` for what each call promises."""

    def __init__(
        self,
        mode: str,
        started: float,
        reactor: Reactor,
        current: Callable[[], Mapping[str, tuple[Hop, ...]]],
        story: Story,
        memory: Memory,
        state: State,
        contacts: Callable[[], Mapping[str, Contact]],
        dropped: Callable[[], Counter[str]],
        clock: Clock,
        jobs: JobsFacade | None = None,
        incidents: Callable[[], list[str]] = list,
        keys: KeyDesk | None = None,
        observing: Observing | None = None,
        alarming: Alarming | None = None,
        expecting: Expecting | None = None,
    ) -> None:
        self._observing, self._alarming = observing, alarming
        self._expecting = expecting or Expecting(None, None, reactor, lambda port: "")
        self._jobs = jobs or JobsFacade(None, clock)
        self._incidents, self._keys = incidents, keys
        self._mode, self._started, self._reactor, self._current = mode, started, reactor, current
        self._story, self._memory, self._state = story, memory, state
        self._contacts, self._dropped, self._clock = contacts, dropped, clock

    def status(self) -> StatusView:
        ports, paths, peers = self.ports(), self.paths(), self.peers()
        ours = [p for p in ports if p.name not in self._reactor.ports or self._expecting.expected(p.name)]
        problems = [f"port {p.name} is {p.state}: {p.cause}" for p in ours if p.state not in FINE]
        local = {p.name for p in ports if p.state not in FINE or p.state == PortState.DRAINED}
        problems += [
            f"path {p.peer}/{p.rail} is {p.state}: {p.cause}" for p in paths if self._worth_telling(p, local)
        ]
        problems += [f"peer {p.host} is {p.state}" for p in peers if p.state not in ("connected", "left")]
        return StatusView(
            host=self._reactor.record.host,
            version=__version__,
            mode=self._mode,
            health="degraded" if problems else "ok",
            problems=problems,
            uptime=self._clock.now() - self._started,
            incarnation=self._reactor.record.incarnation,
            ports_up=sum(p.state == PortState.UP for p in ports),
            ports=len(ports),
            paths_up=sum(p.state == PortState.UP for p in paths),
            paths=len(paths),
            peers_connected=sum(p.state == "connected" for p in peers),
            peers=len(peers),
            dropped=dict(self._dropped()),
            alarms=[f"{a.port}: {a.rule}: {a.text}" for a in self.alarms(history=False)],
            incidents=self._incidents(),
        )

    def ports(self) -> list[PortView]:
        configured = [self._port(name, port) for name, port in self._reactor.ports.items()]
        return [*configured, *(self._missing(want, why) for want, why in self._expecting.missing())]

    def alarms(self, history: bool) -> list[AlarmView]:
        if self._alarming is None:
            return []
        return self._alarming.history() if history else self._alarming.active()

    def manifest(self) -> ManifestView:
        return self._expecting.view()

    def paths(self) -> list[PathView]:
        current = self._current()
        return [
            self._path(verdict, current)
            for host in sorted(self._reactor.paths)
            for verdict in self._reactor.paths[host].values()
        ]

    def peers(self) -> list[PeerView]:
        now, contacts, records = self._clock.now(), self._contacts(), self._reactor.peers
        found = []
        for host in sorted({*contacts, *records}):
            contact, record = contacts.get(host), records.get(host)
            heard = contact.heard if contact else None
            age = None if heard is None else now - heard
            found.append(
                PeerView(
                    host=host,
                    address=(contact.address or None) if contact else None,
                    state=contact.state if contact else "never-seen",
                    heard=age,
                    incarnation=record.incarnation if record else 0,
                    version=record.version if record else 0,
                    addresses=list(record.addresses) if record else [],
                    ports={p.rail: p.state.value for p in record.ports} if record else {},
                )
            )
        return found

    def plan(self) -> PlanView:
        return _plan_view(self._reactor.plan())

    def events(self, since: int | None, limit: int) -> Sequence[EventView]:
        return self._story.events(since, limit)

    def explain(self, port: str, limit: int) -> ExplainView:
        return explain(port, self._reactor, self._story, self._observing, self._clock.now(), limit)

    def subscribe(self) -> Follower:
        return self._story.subscribe()

    def jobs(self) -> list[JobView]:
        return self._jobs.jobs()

    def qps(self, job: int | None) -> list[QpView]:
        return self._jobs.qps(job)

    def migrate(self, what: str, to: str, who: str) -> MigrateAnswer:
        return self._jobs.migrate(what, to, self._reactor.ports.__contains__, who)

    def quiet(self, port: str) -> QuietView:
        known = self._reactor.ports.get(port)
        if known is None:
            raise NotFoundError(f"no port {port!r} here; there are {', '.join(sorted(self._reactor.ports))}")
        using = self._jobs.on_port(port)
        stay = self._jobs.stay(using)
        routes = sum(any(h.device == port for h in hops) for hops in self._current().values())
        state = known.verdict.state
        quiet = not using and not routes and known.drained is not None
        if quiet:
            text = f"{port} is drained and quiet: safe to pull"
        elif known.drained is None:
            text = f"{port} isn't drained: not safe to pull"
        else:
            rest = [f"{len(using)} queue pairs"] * bool(using) + [f"{routes} routes"] * bool(routes)
            text = f"{port} is still used by {' and '.join(rest)}: not safe to pull"
        return QuietView(
            port=port, state=state.value, quiet=quiet, queue_pairs=len(using), stay=stay, routes=routes, text=text
        )

    def drain(self, port: str, reason: str, dry_run: bool, who: str) -> DrainAnswer:
        # On disk before it is done and acknowledged: a drain that was promised survives whatever comes.
        plan = self._reactor.drain(port, reason, dry_run=True)
        using = len(self._jobs.on_port(port))
        if dry_run:
            text = f"{port} would be drained" + (f"; {using} queue pairs would move" if using else "")
            return DrainAnswer(port=port, done=False, text=text, plan=_plan_view(plan), queue_pairs=using)
        self._state.drains[port] = Drained(reason, who, self._clock.wall())
        self._memory.save(self._state)
        self._reactor.drain(port, reason, dry_run=False)
        text = f"{port} is drained" + (f"; {using} queue pairs are moving" if using else "")
        return DrainAnswer(port=port, done=True, text=text, plan=_plan_view(plan), queue_pairs=using)

    def undrain(self, port: str, who: str) -> DrainAnswer:
        plan = self._reactor.undrain(port, dry_run=True)
        self._state.drains.pop(port, None)
        self._memory.save(self._state)
        self._reactor.undrain(port)
        if self._observing:
            self._observing.accept(port)
        text = f"{port} is undrained; it carries traffic again after its hold-down"
        return DrainAnswer(port=port, done=True, text=text, plan=_plan_view(plan))

    def keys(self) -> list[KeyView]:
        return self._desk().views()

    def install_key(self, key: str, secret: str, who: str) -> KeyAnswer:
        return self._desk().install(key, secret, who)

    def change_key(self, key: str, act: str, force: bool, who: str) -> KeyAnswer:
        desk = self._desk()
        return desk.use(key, who, force=force) if act == "use" else desk.remove(key, who, force=force)

    # -- inside -----------------------------------------------------------------------------------------------

    def _desk(self) -> KeyDesk:
        if self._keys is None:
            raise NotFoundError("this agent has no keys")
        return self._keys

    def _worth_telling(self, path: PathView, local: set[str]) -> bool:
        """A path's trouble that our own port's, told already, doesn't explain."""
        return path.state not in (*FINE, PortState.UNKNOWN) and path.port not in local

    def _port(self, name: str, port: Port) -> PortView:
        now, verdict, facts = self._clock.now(), port.verdict, port.facts
        carrier, mtu, addresses = (facts.get(s) for s in (Signal.CARRIER, Signal.MTU, Signal.ADDRESSES))
        rdma, gids = facts.get(Signal.RDMA), facts.get(Signal.GIDS)
        return PortView(
            name=name,
            rail=self._reactor.rails[name],
            state=verdict.state.value,
            cause=verdict.cause,
            since=now - verdict.since,
            flaps=verdict.flaps,
            last_flap=None if verdict.last_flap is None else now - verdict.last_flap,
            held_for=None if verdict.held_until is None else max(0.0, verdict.held_until - now),
            drained=port.drained,
            carrier=carrier if isinstance(carrier, bool) else None,
            mtu=mtu if isinstance(mtu, int) else None,
            addresses=list(addresses) if isinstance(addresses, tuple) else [],
            rdma=rdma if isinstance(rdma, str) else None,
            gids=list(gids) if isinstance(gids, tuple) else [],
        )

    def _missing(self, want: ExpectedPort, why: str) -> PortView:
        """A port that should be here and isn't looked at."""
        since = self._clock.now() - self._started
        return PortView(
            name=want.name, rail=want.rail, state=PortState.ABSENT.value, cause=why, since=since, flaps=0,
            last_flap=None, held_for=None, drained=None, carrier=None, mtu=None, addresses=[],
        )  # fmt: skip

    def _path(self, path: PathVerdict, current: Mapping[str, tuple[Hop, ...]]) -> PathView:
        now, verdict = self._clock.now(), path.verdict
        record = self._reactor.peers[path.path.peer]
        hops = [h for a in record.addresses for h in current.get(a, ())]
        return PathView(
            peer=path.path.peer,
            rail=path.path.rail,
            port=path.path.port,
            state=verdict.state.value,
            cause=verdict.cause,
            since=now - verdict.since,
            flaps=verdict.flaps,
            held_for=None if verdict.held_until is None else max(0.0, verdict.held_until - now),
            local=path.local.value,
            remote=path.remote.value,
            probe=path.probe.value,
            rtt_ms=None if path.rtt is None else 1000 * path.rtt,
            in_use=any(h.device == path.path.port for h in hops),
        )


def _plan_view(plan: Plan) -> PlanView:
    return PlanView(steps=[_step_view(s) for s in plan.steps], refused=list(plan.refused))


def _step_view(step: Step) -> StepView:
    return StepView(
        destination=step.route.destination,
        peer=step.route.peer,
        before=[f"{h.device} via {h.via}" for h in step.before],
        after=[f"{h.device} via {h.via}" for h in step.after],
        cause=step.cause,
    )
