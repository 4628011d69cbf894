"""An agent without a host: what the control API asks, answered from plain values."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from linkpass.api import DrainAnswer, EventView, PathView, PeerView, PlanView, PortView, StatusView, StepView
from linkpass.errors import NotFoundError, RefusedError
from linkpass_agent.story import Follower, Story


def port(name: str = "a-rail0", rail: str = "rail0", state: str = "up", **other: object) -> PortView:
    fields: dict[str, object] = {
        "cause": "carrier",
        "since": 12.0,
        "flaps": 0,
        "last_flap": None,
        "held_for": None,
        "drained": None,
        "carrier": True,
        "mtu": 9000,
        "addresses": ["10.10.0.1"],
    }
    return PortView.model_validate({"name": name, "rail": rail, "state": state, **fields, **other})


STEP = StepView(
    destination="10.255.0.2", peer="b", before=["a-rail0", "a-rail1"], after=["a-rail1"], cause="a-rail0 drained"
)


@dataclass
class FakeFacade:
    """`changes` records every drain and undrain that got through."""

    health: str = "ok"
    problems: list[str] = field(default_factory=list)
    last_usable: str | None = None  # a port that the guard protects
    changes: list[tuple[object, ...]] = field(default_factory=list)
    story: Story = field(default_factory=Story)
    port_views: list[PortView] = field(default_factory=lambda: [port(), port("a-rail1", "rail1")])
    plan_view: PlanView = field(default_factory=lambda: PlanView(steps=[], refused=[]))

    def status(self) -> StatusView:
        return StatusView(
            host="a",
            version="0.1.0",
            mode="act",
            health=self.health,
            problems=self.problems,
            uptime=192.0,
            incarnation=3,
            ports_up=2,
            ports=2,
            paths_up=1,
            paths=2,
            peers_connected=1,
            peers=1,
            dropped={},
        )

    def ports(self) -> Sequence[PortView]:
        return self.port_views

    def paths(self) -> Sequence[PathView]:
        return [
            PathView(
                peer="b",
                rail="rail0",
                port="a-rail0",
                state="down",
                cause="peer's port is down",
                since=0.25,
                flaps=2,
                held_for=None,
                local="up",
                remote="down",
                probe="up",
                rtt_ms=0.123,
                in_use=False,
            )
        ]

    def peers(self) -> Sequence[PeerView]:
        return [
            PeerView(
                host="b",
                address="10.99.0.2:7471",
                state="connected",
                heard=0.5,
                incarnation=7,
                version=12,
                addresses=["10.255.0.2"],
                ports={"rail0": "down", "rail1": "up"},
            )
        ]

    def plan(self) -> PlanView:
        return self.plan_view

    def events(self, since: int | None, limit: int) -> Sequence[EventView]:
        return self.story.events(since, limit)

    def subscribe(self) -> Follower:
        return self.story.subscribe()

    def drain(self, port: str, reason: str, dry_run: bool, who: str) -> DrainAnswer:
        self._known(port)
        if port == self.last_usable:
            raise RefusedError(f"{port} is the last usable port to b; repair another first")
        if not dry_run:
            self.changes.append(("drain", port, reason, who))
        return DrainAnswer(
            port=port,
            done=not dry_run,
            text=f"{port} would be drained" if dry_run else f"{port} is drained",
            plan=PlanView(steps=[STEP], refused=[]),
        )

    def undrain(self, port: str, who: str) -> DrainAnswer:
        self._known(port)
        self.changes.append(("undrain", port, who))
        return DrainAnswer(port=port, done=True, text=f"{port} is back", plan=PlanView(steps=[], refused=[]))

    def _known(self, port: str) -> None:
        if port not in [p.name for p in self.port_views]:
            raise NotFoundError(f"no port {port!r}; there are {', '.join(p.name for p in self.port_views)}")
