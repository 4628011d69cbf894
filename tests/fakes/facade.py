"""An agent without a host: what the control API asks, answered from plain values."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from linkpass.api import (
    AlarmView,
    CounterView,
    DrainAnswer,
    EventView,
    EvidenceView,
    ExplainView,
    FactView,
    FindingView,
    GateView,
    JobView,
    KeyAnswer,
    KeyView,
    ManifestView,
    MigrateAnswer,
    PathView,
    PeerView,
    PlanView,
    PortView,
    PresentPortView,
    QpView,
    QuietView,
    StatusView,
    StepView,
)
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


def present(name: str = "a-rail0", rail: str = "rail0", **other: object) -> PresentPortView:
    fields: dict[str, object] = {
        "state": "up", "cause": "", "pci": "0000:17:00.0", "link_layer": "ethernet", "rate": 400_000, "width": 4,
        "speed": 400_000, "mtu": 4200, "addresses": ("10.10.0.1/24", "fd00::1/64"), "firmware": "28.39.1002",
    }  # fmt: skip
    return PresentPortView.model_validate({"name": name, "rail": rail, **fields, **other})


STEP = StepView(
    destination="10.255.0.2", peer="b", before=["a-rail0", "a-rail1"], after=["a-rail1"], cause="a-rail0 drained"
)


EXPLAINED = ExplainView(
    port="a-rail0",
    rail="rail0",
    state="suspect",
    cause="rule symbol-errors: counters/symbol_error grew by 300 in 3600 s, more than 120",
    since=42.0,
    device="ens1f0",
    pci="0000:17:00.0",
    rdma="mlx5_0/1",
    guid="0c42:a103:0065:1a2e",
    driver="mlx5",
    facts=[
        FactView(signal="carrier", source="netlink", value="true", age=0.5, detail=""),
        FactView(signal="rdma-rate", source="sysfs", value=None, age=0.5, detail="EINVAL"),
    ],
    gates=[
        GateView(name="GID", state="open", text=""),
        GateView(name="queue pair probe", state="shut", text="queue pair probe: no answer from b by rail1 for 3 s"),
        GateView(name="width", state="can't observe", text=""),
    ],
    findings=[
        FindingView(
            rule="symbol-errors",
            act="suspect",
            since=42.0,
            text="counters/symbol_error grew by 300 in 3600 s, more than 120",
            evidence=[EvidenceView(age=1.0, source="counters/symbol_error", text="412 (grew by 300)")],
        )
    ],
    counters=[
        CounterView(source="counters/symbol_error", role="symbol-errors", value=412, note="", grew=42.0),
        CounterView(source="counters/link_downed", role="link-downed", value=255, note="saturated at 255", grew=None),
        CounterView(source="counters/port_rcv_errors", role="receive-errors", value=0, note="", grew=None),
    ],
    module="48 degrees C, 3.30 V",
    fec="RS, 7 blocks corrected",
    unseen={"rate": "Invalid argument"},
    story=[],
)
KEY = KeyView(key="2026a", mark="0a1b2c3d", here=True, sends=True, accepted_by=3, sent_by=2, members=3)


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
    job_views: list[JobView] = field(default_factory=list)
    qp_views: list[QpView] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)  # queue pairs on any port, one look after the other; then none
    alarm_views: list[AlarmView] = field(default_factory=list)
    manifest_path: str | None = None
    present_ports: list[PresentPortView] = field(default_factory=lambda: [present()])
    key_views: list[KeyView] = field(default_factory=lambda: [KEY])
    stay: dict[str, str] = field(default_factory=dict)  # queue pairs that can't move

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
            alarms=[f"{a.port}: {a.rule}: {a.text}" for a in self.alarms(history=False)],
        )

    def ports(self) -> Sequence[PortView]:
        return self.port_views

    def alarms(self, history: bool) -> Sequence[AlarmView]:
        return [a for a in self.alarm_views if history or a.cleared is None]

    def manifest(self) -> ManifestView:
        return ManifestView(host="a", manifest=self.manifest_path, ports=self.present_ports)

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

    def explain(self, port: str, limit: int) -> ExplainView:
        self._known(port)
        return EXPLAINED.model_copy(update={"port": port, "story": self.story.events(None, limit)})

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

    def quiet(self, port: str) -> QuietView:
        self._known(port)
        count = self.busy.pop(0) if self.busy else 0
        text = f"{port} is still used by {count} queue pairs: not safe to pull" if count else f"{port}: safe to pull"
        stay = [f"{qp}: {why}" for qp, why in self.stay.items()] if count else []
        return QuietView(
            port=port, state="drained", quiet=not count, queue_pairs=count, stay=stay, routes=0, text=text
        )

    def jobs(self) -> Sequence[JobView]:
        return self.job_views

    def qps(self, job: int | None) -> Sequence[QpView]:
        if job is not None and job not in [j.job for j in self.job_views]:
            raise NotFoundError(f"no job {job} here")
        return [q for q in self.qp_views if job in (None, q.job)]

    def migrate(self, what: str, to: str, who: str) -> MigrateAnswer:
        self._known(to)
        self.changes.append(("migrate", what, to, who))
        count = 1 - (what in self.stay)
        return MigrateAnswer(
            what=what, to=to, ordered=count, refused=self.stay, text=f"ordered {count} of 1 queue pairs to {to}"
        )

    def keys(self) -> Sequence[KeyView]:
        return self.key_views

    def install_key(self, key: str, secret: str, who: str) -> KeyAnswer:
        self.changes.append(("install", key, secret, who))
        return KeyAnswer(key=key, text=f"{key} is accepted from now on", keys=self.key_views)

    def change_key(self, key: str, act: str, force: bool, who: str) -> KeyAnswer:
        if key not in [k.key for k in self.key_views]:
            raise NotFoundError(f"no key {key!r}")
        self.changes.append((act, key, force, who))
        return KeyAnswer(key=key, text=f"{key}: {act}", keys=self.key_views)

    def _known(self, port: str) -> None:
        if port not in [p.name for p in self.port_views]:
            raise NotFoundError(f"no port {port!r}; there are {', '.join(p.name for p in self.port_views)}")
