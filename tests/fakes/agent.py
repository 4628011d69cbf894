"""A host's reactor and route actuator over a fake kernel, driven by hand: host `a`, with a port on each rail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from linkpass.model import Event, EventKind, HostRecord, Observation, PathId, PortRecord, PortState, Signal, Value
from linkpass_agent.act.ledger import Ledger
from linkpass_agent.act.routes import RouteActuator, RouteRule
from linkpass_agent.events import EventLog
from linkpass_agent.judge.holddown import HoldDownRule
from linkpass_agent.judge.probe import ProbedPath, ProbeRule
from linkpass_agent.reactor import Identity, Reactor
from tests.fakes.clock import FakeClock
from tests.fakes.kernel import FakeKernel

RULE = HoldDownRule(1.0, 300.0, 10.0)
ROUTES = RouteRule(metric=50, protocol=76, table=254, base=1000)
OURS = "10.255.0.1"


@dataclass(slots=True)
class FakeProbing:
    """Probe verdicts as the test sets them; a path that isn't set is UP."""

    states: dict[PathId, PortState] = field(default_factory=dict)

    def get(self, path: PathId) -> ProbedPath:
        return ProbedPath(ProbeRule(RULE), state=self.states.get(path, PortState.UP), cause="as probes say")


class FakeAgent:
    """`see`, `peer`, `probe` bring news; `events`, `published`, `targets` hold what the reactor made of them."""

    def __init__(
        self,
        folder: Path,
        rails: int = 2,
        *,
        shadow: bool = False,
        drains: Mapping[str, str] | None = None,
        kernel: FakeKernel | None = None,
    ) -> None:
        self.clock, self.kernel = FakeClock(), kernel or FakeKernel()
        self.rails = [f"rail{n}" for n in range(rails)]
        self.ports = [f"a-{rail}" for rail in self.rails]
        for n, port in enumerate(self.ports):
            if port not in self.kernel.devices:
                self.kernel.add_device(port, 10 + n)
        self.routes = RouteActuator(self.kernel, Ledger(folder / "ledger.json"), ROUTES, self.kernel.index)
        self.adopted = self.routes.adopt(self.kernel.name)
        self.probing = FakeProbing()
        self.events: list[Event] = []
        self.published: list[HostRecord] = []
        self.targets: list[Mapping[PathId, str]] = []
        self.reactor = Reactor(
            Identity("a", 5, (OURS,), dict(zip(self.ports, self.rails, strict=True))),
            RULE,
            self.probing,  # type: ignore[arg-type]
            self.published.append,
            self.targets.append,
            None if shadow else self.routes,
            EventLog(self.clock, self.events.append),
            self.clock,
            drains or {},
        )

    # -- news ----------------------------------------------------------------------------------------------------

    def see(self, port: str, **facts: Value | None) -> None:
        """One batch of observations of `port`."""
        self.reactor.observe([Observation(self.clock.now(), "test", port, Signal(n), v) for n, v in facts.items()])

    def start(self, *peers: str) -> "FakeAgent":
        """All ports are seen up; these peers come with all ports up; everything is settled and forgotten."""
        for n, port in enumerate(self.ports):
            self.see(port, present=True, admin=True, carrier=True, mtu=9000, addresses=(f"10.{10 + n}.0.1",))
        for peer in peers:
            self.reactor.learned(record(peer, [PortState.UP] * len(self.rails)))
        self.forget()
        return self

    def forget(self) -> None:
        """Clear what was heard so far."""
        for heard in (self.events, self.published, self.targets, self.kernel.sent):
            heard.clear()

    def carrier(self, port: str, carrier: bool, *, noticed: bool = True, seen: bool = True) -> None:
        """The link changes; by default routing notices and we see it."""
        self.kernel.carrier(port, carrier, noticed=noticed)
        if seen:
            self.see(port, carrier=carrier)

    def probe(self, peer: str, rail: int, state: PortState) -> None:
        """Probes reached another verdict."""
        path = PathId(peer, self.rails[rail], self.ports[rail])
        self.probing.states[path] = state
        self.reactor.probed([path])

    def sweep(self) -> None:
        """What the daemon does once a second."""
        self.reactor.drifted(self.routes.verify(self.kernel.name))
        self.reactor.tick(retry=True)

    def wait(self, seconds: float) -> None:
        """Let time pass, waking the reactor when it asks for it."""
        end = self.clock.now() + seconds
        while (at := self.reactor.wakes_at()) is not None and at <= end:
            self.clock.time = max(at, self.clock.now())
            self.reactor.tick(retry=False)
        self.clock.time = end
        self.reactor.tick(retry=False)

    # -- what came of it -----------------------------------------------------------------------------------------

    def devices(self, peer: str) -> set[str]:
        """The devices that traffic to a peer leaves by now."""
        return {device for device, _ in self.kernel.hops_of(service(peer))}

    def told(self, kind: EventKind) -> list[Event]:
        return [e for e in self.events if e.kind == kind]

    def kinds(self) -> list[EventKind]:
        return [e.kind for e in self.events]


def number(peer: str) -> int:
    """b is 2, c is 3, ..."""
    return ord(peer) - ord("a") + 1


def service(peer: str) -> str:
    """A peer's rail-independent address."""
    return f"10.255.0.{number(peer)}"


def record(
    peer: str,
    states: Sequence[PortState | None],
    version: int = 1,
    *,
    incarnation: int = 1,
    addresses: tuple[str, ...] | None = None,
    cause: str = "told",
) -> HostRecord:
    """A peer's record; None instead of a state: no port on that rail."""
    ports = tuple(
        PortRecord(f"{peer}-rail{n}", f"rail{n}", state, cause, (f"10.{10 + n}.0.{number(peer)}",), 9000)
        for n, state in enumerate(states)
        if state is not None
    )
    return HostRecord(peer, incarnation, version, (service(peer),) if addresses is None else addresses, ports)


def without_rail_addresses(old: HostRecord) -> HostRecord:
    """The same record before its owner knows its rails' addresses."""
    return replace(old, ports=tuple(replace(p, addresses=()) for p in old.ports))
