"""A host's observing half over a tree of sysfs: sources, rules, reactor and story, second by second."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from linkpass.api import ExplainView
from linkpass.model import Event, EventKind, Observation, PortState, Signal, Value
from linkpass.rules import Rule, shipped
from linkpass_agent.events import EventLog
from linkpass_agent.explain import explain
from linkpass_agent.judge.holddown import HoldDownRule
from linkpass_agent.judge.probe import ProbeRule
from linkpass_agent.judge.probing import Probing
from linkpass_agent.judge.schedule import ScheduleRule
from linkpass_agent.observing import Observing
from linkpass_agent.reactor import Identity, Reactor
from linkpass_agent.see import rdma_devices
from linkpass_agent.see.names import Names
from linkpass_agent.see.rdma_devices import RdmaPort
from linkpass_agent.story import Story
from tests.fakes.clock import FakeClock
from tests.fakes.tree import Tree

HOLD = HoldDownRule(1.0, 300.0, 10.0)


class Host:
    """`look` is one sweep: link facts as netlink tells them, then the slow sources. `run` is one a second."""

    def __init__(
        self,
        tree: Tree,
        ports: tuple[str, ...],
        rules: tuple[Rule, ...] | None = None,
        *,
        name: str = "a",
        exclude: tuple[str, ...] = (),
        pci: Mapping[str, str] | None = None,
        choice: Mapping[str, str] | None = None,
    ) -> None:
        self.tree, self.ports, self.clock = tree, ports, FakeClock()
        self.admin = dict.fromkeys(ports, True)
        self.choice = choice or {}
        self.told: list[Event] = []
        self.story = Story()
        self.events = EventLog(self.clock, self.story.tell, self.told.append)
        rails = {p: f"rail{n}" for n, p in enumerate(ports)}
        self.reactor = Reactor(
            Identity(name, 1, (), rails), HOLD,
            Probing(ProbeRule(HOLD), ScheduleRule(0.05, 1.0, 2000), Random(1)),
            lambda record: None, lambda targets: None, None, self.events, self.clock, {},
        )  # fmt: skip
        self.names = Names(ports, pci, tree.net, tree.links, lambda device: tree.links().get(device))
        self.looks_asked = 0
        self.observing = Observing(
            self.names, ports, shipped() if rules is None else rules, lambda p: self.reactor.ports[p].facts,
            self.behind, self._asked, self.events, self.clock, exclude,
            infiniband=tree.infiniband, net=tree.net, door=tree,
        )  # fmt: skip

    def _asked(self) -> None:
        self.looks_asked += 1

    def behind(self) -> Mapping[str, RdmaPort]:
        found = {}
        for port in self.ports:
            chosen = self.choice.get(port)
            rdma = (
                RdmaPort(chosen, 1) if chosen else rdma_devices.behind(self.names.device(port), self.tree.infiniband)
            )
            if rdma:
                found[port] = rdma
        return found

    def look(self) -> None:
        self.names.refresh()
        for port in self.ports:
            self.reactor.observe(self._netlink(port))
        self.reactor.observe(self.observing.look())

    def run(self, seconds: int, each: Callable[[int], None] | None = None) -> None:
        """Seconds of sweeps; `each` may change the tree before the one of its number."""
        for n in range(seconds):
            self.clock.advance(1.0)
            if each:
                each(n)
            self.look()
            self.reactor.tick(retry=False)

    def state(self, port: str) -> PortState:
        return self.reactor.ports[port].verdict.state

    def findings(self, port: str) -> list[str]:
        return [f.rule for f in self.observing.watched[port].rules.findings]

    def texts(self, kind: EventKind, subject: str | None = None) -> list[str]:
        return [e.text for e in self.told if e.kind is kind and subject in (None, e.subject)]

    def explain(self, port: str) -> ExplainView:
        return explain(port, self.reactor, self.story, self.observing, self.clock.now(), 1000)

    def close(self) -> None:
        self.observing.close()

    def _netlink(self, port: str) -> list[Observation]:
        now = self.clock.now()
        if self.names.index(port) is None:
            return [Observation(now, "sweep", port, Signal.PRESENT, False, "missing in 3 sweeps")]
        folder = Path(self.tree.net / self.names.device(port))
        up = self.admin[port]
        facts: dict[Signal, Value | None] = {
            Signal.PRESENT: True,
            Signal.ADMIN: up,
            Signal.CARRIER: (folder / "carrier").read_text().strip() == "1" if up else None,
            Signal.OPERSTATE: (folder / "operstate").read_text().strip(),
            Signal.MTU: int((folder / "mtu").read_text()),
        }
        return [Observation(now, "netlink", port, s, v) for s, v in facts.items()]
