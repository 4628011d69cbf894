"""The agent's socket, as pydantic models: what each answer and request holds. Server and client share them.

All ages and times left are seconds. `at` is the agent's monotonic clock, `time` is Unix time.
"""

from pydantic import BaseModel, ConfigDict, Field


class Model(BaseModel):
    """Answers are read-only; unknown fields of a newer agent are kept out of the way."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class PortView(Model):
    """One local port."""

    name: str
    rail: str
    state: str
    cause: str
    since: float = Field(description="seconds in this state")
    flaps: int
    last_flap: float | None = Field(description="seconds since it last went down")
    held_for: float | None = Field(description="seconds of hold-down left")
    drained: str | None = Field(description="the operator's reason, while drained")
    carrier: bool | None
    mtu: int | None
    addresses: list[str]
    rdma: str | None = Field(default=None, description="state of the RDMA port behind it, if there is one")
    gids: list[str] = Field(default_factory=list, description="index, type and GID")


class FactView(Model):
    """What one witness said last of one fact."""

    signal: str
    source: str
    value: str | None = Field(description="None: it looked, and could not observe")
    age: float
    detail: str


class AlarmView(Model):
    """A finding that nothing explained away."""

    port: str
    rail: str
    rule: str
    act: str = Field(description="what else the rule does: alarm (nothing), suspect or down")
    text: str
    evidence: str
    raised: float = Field(description="Unix time")
    cleared: float | None = Field(description="Unix time; None while it is active")
    over: str = Field(description="why it is over")


class PresentPortView(Model):
    """What a port is, for comparing with what it should be. None: can't be observed, or it has none."""

    name: str
    rail: str
    state: str
    cause: str
    pci: str | None
    link_layer: str | None
    rate: int | None = Field(description="of the RDMA port, Mbit/s")
    width: int | None = Field(description="lanes")
    speed: int | None = Field(description="of the net device, Mbit/s")
    mtu: int | None = Field(description="of the net device, bytes")
    addresses: tuple[str, ...] = Field(description="with prefix lengths")
    firmware: str | None


class ManifestView(Model):
    """The host as it is, and the path of its manifest."""

    host: str
    manifest: str | None
    ports: list[PresentPortView]


class EvidenceView(Model):
    """One reading that a finding rests on."""

    age: float
    source: str
    text: str


class FindingView(Model):
    """A rule that holds of the port now."""

    rule: str
    act: str = Field(description="alarm, suspect or down")
    since: float = Field(description="seconds")
    text: str
    evidence: list[EvidenceView]


class CounterView(Model):
    """One counter that rules watch."""

    source: str
    role: str
    value: int | None
    note: str = Field(description="why it tells nothing, if it doesn't: saturated, unreadable")
    grew: float | None = Field(description="seconds since it last grew")


class GateView(Model):
    """One thing between a port that came back and traffic."""

    name: str
    state: str = Field(description="open, shut, or can't observe, which shuts nothing")
    text: str


class ExplainView(Model):
    """A port's story: what it is, what is seen of it, what rules say, and what came of it, in order."""

    port: str
    rail: str
    state: str
    cause: str
    since: float
    device: str = Field(description="what the net device is called now")
    pci: str
    rdma: str = Field(description="RDMA device and port number")
    guid: str
    driver: str
    facts: list[FactView]
    gates: list[GateView] = Field(description="of a port that is held, as the latest look saw them")
    findings: list[FindingView]
    counters: list[CounterView]
    module: str = Field(description="diagnostics of the plugged module")
    fec: str
    unseen: dict[str, str] = Field(description="what could not be observed, and why")
    story: list["EventView"]


class PathView(Model):
    """One path to a peer."""

    peer: str
    rail: str
    port: str
    state: str
    cause: str
    since: float
    flaps: int
    held_for: float | None
    local: str
    remote: str
    probe: str
    rtt_ms: float | None
    in_use: bool = Field(description="the kernel forwards over it now")


class PeerView(Model):
    """One peer host, as its own record tells."""

    host: str
    address: str | None = Field(description="management address and port")
    state: str = Field(description="connected, silent, left (stopped on purpose) or never-seen")
    heard: float | None = Field(description="seconds since its last message")
    incarnation: int
    version: int
    addresses: list[str]
    ports: dict[str, str] = Field(description="rail -> state")


class StepView(Model):
    """One change of a plan."""

    destination: str
    peer: str
    before: list[str]
    after: list[str]
    cause: str


class PlanView(Model):
    """What would be done now, and what guards refuse."""

    steps: list[StepView]
    refused: list[str]


class EventView(Model):
    """One event."""

    seq: int
    at: float
    time: float
    kind: str
    subject: str
    text: str
    cause: str
    data: dict[str, str | int | float | bool | None]


class StatusView(Model):
    """The host at a glance."""

    host: str
    version: str
    mode: str
    health: str = Field(description="ok or degraded")
    problems: list[str]
    uptime: float
    incarnation: int
    ports_up: int
    ports: int
    paths_up: int
    paths: int
    peers_connected: int
    peers: int
    dropped: dict[str, int] = Field(description="network input that was refused, by reason")
    alarms: list[str] = Field(default_factory=list, description="active alarms, a line each")
    incidents: list[str] = Field(default_factory=list, description="switches whose ports fell together, a line each")


class DrainRequest(Model):
    """Take a port out of service."""

    model_config = ConfigDict(extra="forbid")
    reason: str = Field(min_length=1, max_length=500)
    dry_run: bool = False


class DrainAnswer(Model):
    """What a drain or undrain did, or would do."""

    port: str
    done: bool
    text: str
    plan: PlanView
    queue_pairs: int = Field(default=0, description="of attached jobs, that use the port at this moment")


class QuietView(Model):
    """Whether anything that the agent knows of still uses a port."""

    port: str
    state: str
    quiet: bool = Field(description="drained, and no route and no queue pair of an attached job uses it")
    queue_pairs: int
    stay: list[str] = Field(description="queue pairs among them that can't move, and why")
    routes: int = Field(description="routes of ours that still leave by it")
    text: str


class MoveView(Model):
    """A move's stages: when each was over, in seconds after `at`."""

    at: float = Field(description="when the shim began to move")
    fenced: float = Field(description="the old queue pair had come to rest and told what it has taken in")
    settled: float = Field(description="it was known what the other end has executed")
    flowed: float = Field(description="the first request was on the new path")
    replayed: float = Field(description="all that had waited was on the new path")


class JobView(Model):
    """One process that runs under `linkpass run`."""

    job: int
    name: str
    pid: int
    uid: int
    since: float = Field(description="seconds since it attached")
    queue_pairs: int
    protected: int
    why_not: dict[str, int] = Field(description="reason -> how many of its queue pairs aren't protected for it")
    rails: dict[str, int] = Field(description="rail -> how many of its queue pairs use it now")
    peers: list[str]
    migrations: int
    last_gap: float | None = Field(description="seconds without traffic, of the latest migration")
    last_move: MoveView | None = Field(
        default=None,
        description="of all its queue pairs that moved then: the first beginning, the last of each stage",
    )
    replayed_bytes: int


class QpView(Model):
    """One queue pair of an attached job."""

    qp: str = Field(description="JOB.NUMBER, as `linkpassctl migrate` takes it")
    job: int
    number: int = Field(description="the job's own queue pair number")
    device: str
    peer: str | None
    address: str = Field(description="of the peer's port, as the job chose it")
    remote_number: int
    port: str | None = Field(description="our port that it uses now")
    rail: str | None
    home: str | None = Field(description="the rail that it belongs on")
    state: str
    protected: bool
    why_not: str
    spares: dict[str, str] = Field(description="rail -> ready, being made, stale, ...")
    leads: bool
    migrations: int
    last_gap: float | None
    last_move: MoveView | None = None
    replayed: int
    replayed_bytes: int
    executed: int = Field(description="requests that were found done already, and not repeated")


class MigrateRequest(Model):
    """Move queue pairs: one (JOB.NUMBER), or all that use a port."""

    model_config = ConfigDict(extra="forbid")
    what: str = Field(min_length=1, max_length=64)
    to: str = Field(min_length=1, max_length=64, description="our port to move to")


class MigrateAnswer(Model):
    """What was ordered. The moves themselves take a few milliseconds; `qps` and events show them."""

    what: str
    to: str
    ordered: int
    refused: dict[str, str] = Field(description="queue pair -> why it stays")
    text: str


class KeyView(Model):
    """One key of the fleet. Its secret is never told."""

    key: str = Field(description="its name")
    mark: str = Field(description="fingerprint of the secret")
    here: bool = Field(description="this host accepts it")
    sends: bool = Field(description="this host sends with it")
    accepted_by: int = Field(description="living members, this host included, that accept it")
    sent_by: int = Field(description="living members that send with it")
    members: int


class KeyInstallRequest(Model):
    """A key to accept."""

    model_config = ConfigDict(extra="forbid")
    secret: str = Field(min_length=64, max_length=64, description="32 bytes as hexadecimal digits", repr=False)


class KeyChangeRequest(Model):
    """A key to send with, or to accept no longer."""

    model_config = ConfigDict(extra="forbid")
    force: bool = Field(default=False, description="even if members are cut off by that")


class KeyAnswer(Model):
    """What was done, on this host alone."""

    key: str
    text: str
    keys: list[KeyView]


class Problem(Model):
    """Any error answer."""

    error: str
