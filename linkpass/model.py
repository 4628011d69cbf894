"""The values that the parts of LinkPass hand to each other. All are frozen; none does anything.

Times named `at` or `since` are monotonic seconds (see `clock`), valid within one boot of one host.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class PortState(StrEnum):
    """What the agent believes of one of its own ports, or of a path between two ports."""

    UP = "up"  # carries traffic
    SUSPECT = "suspect"  # first doubt: still used, looked at more closely
    DOWN = "down"  # believed at once, never used while something better exists
    HELD = "held"  # back, but not yet trusted (hold-down runs)
    DRAINED = "drained"  # taken out by an operator
    ABSENT = "absent"  # the device is gone
    UNKNOWN = "unknown"  # nothing could be observed yet


class Signal(StrEnum):
    """What an observation is about."""

    PRESENT = "present"  # bool: the device exists
    ADMIN = "admin"  # bool: IFF_UP
    CARRIER = "carrier"  # bool: /sys/class/net/*/carrier, IFF_LOWER_UP
    OPERSTATE = "operstate"  # str: RFC 2863 state as the kernel spells it
    MTU = "mtu"  # int: bytes
    ADDRESSES = "addresses"  # tuple[str, ...]: global addresses without prefix length, sorted
    NETWORKS = "networks"  # tuple[str, ...]: the same with prefix lengths, "10.10.0.1/24"
    LINK_LAYER = "link-layer"  # str: of the RDMA port: ethernet, infiniband
    FIRMWARE = "firmware"  # str: of the RDMA device
    RDMA = "rdma"  # str: state of the RDMA port as ibv_query_port(3) names it: active, down, init, armed, ...
    RDMA_PHYS = "rdma-phys"  # str: its physical state: linkup, polling, disabled, ...
    RDMA_RATE = "rdma-rate"  # int: active speed x width, Mbit/s
    RDMA_MTU = "rdma-mtu"  # int: active path MTU, bytes
    RDMA_WIDTH = "rdma-width"  # int: lanes in use
    SPEED = "speed"  # int: the net device's, Mbit/s
    LINK_DETAIL = "link-detail"  # str: why the link is down, as the driver says (ethtool's extended link state)
    RULES = "rules"  # str: what the rules say of the port: ok, suspect, down
    GATE = "gate"  # str: the re-admission gate that is shut, and why; "" when all are open
    RDMA_FATAL = "rdma-fatal"  # bool: IBV_EVENT_DEVICE_FATAL was seen since the device came
    GIDS = "gids"  # tuple[str, ...]: "INDEX TYPE GID" of every GID table entry in use, by index


UNITS = {"rate": " Mbit/s", "speed": " Mbit/s", "width": " lanes", "mtu": " bytes"}  # of what a port should have
Value = bool | int | str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """One fact that a source saw at one time. `value` None means: looked, and could not observe (never a zero)."""

    at: float
    source: str  # "netlink", "carrier", "sweep", "verbs", ...
    port: str
    signal: Signal
    value: Value | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judged state of one port or path, with what led to it."""

    state: PortState
    since: float
    cause: str
    flaps: int = 0  # times it went down, as far as is remembered
    last_flap: float | None = None
    held_until: float | None = None  # end of the hold-down, while HELD


@dataclass(frozen=True, slots=True)
class PortRecord:
    """What a host tells the fleet of one of its ports."""

    name: str
    rail: str
    state: PortState
    cause: str
    addresses: tuple[str, ...] = ()
    mtu: int = 0
    gids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostRecord:
    """All that a host tells the fleet of itself. Only its owner makes one; newer (incarnation, version) wins.

    `incarnation` grows with every start of the owner's agent, `version` with every change within one.
    `addresses` are the rail-independent addresses that peers should reach over any rail.
    """

    host: str
    incarnation: int
    version: int
    addresses: tuple[str, ...] = ()
    ports: tuple[PortRecord, ...] = ()

    @property
    def age_key(self) -> tuple[int, int]:
        """Newer records compare greater."""
        return (self.incarnation, self.version)

    def port_on(self, rail: str) -> PortRecord | None:
        """The port that this host has on `rail`, if any."""
        return next((p for p in self.ports if p.rail == rail), None)


class PathId(NamedTuple):
    """One way to a peer: out of a local port, over one rail, into the peer's port of that rail.

    A tuple because it is a key nearly everywhere, and a tuple's hash costs a fifth of a dataclass's.
    """

    peer: str
    rail: str
    port: str  # local port name

    def __str__(self) -> str:
        return f"{self.peer}/{self.rail}"


@dataclass(frozen=True, slots=True)
class PathVerdict:
    """A path's state: the worst of the local port, the peer's port and what probes say."""

    path: PathId
    verdict: Verdict
    local: PortState
    remote: PortState
    probe: PortState
    rtt: float | None = None  # seconds, the latest answered probe


@dataclass(frozen=True, slots=True, order=True)
class Hop:
    """A next hop: the device and the neighbour's address on it."""

    device: str
    via: str


@dataclass(frozen=True, slots=True)
class Route:
    """Traffic to `destination` (an address of `peer`) spreads over `hops`."""

    peer: str
    destination: str
    hops: tuple[Hop, ...]
    source: str  # preferred source address of our own


@dataclass(frozen=True, slots=True)
class Step:
    """One change that a plan asks for. `before` empty: the route is new; `after` empty: it is to go."""

    route: Route
    before: tuple[Hop, ...]
    cause: str

    @property
    def after(self) -> tuple[Hop, ...]:
        return self.route.hops


@dataclass(frozen=True, slots=True)
class Plan:
    """What should be done now, and what a guard kept from being done. Printing it does nothing."""

    steps: tuple[Step, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reading that a finding rests on."""

    at: float
    source: str  # the file or counter: "hw_counters/local_ack_timeout_err"
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that holds of one port now, since when, and on what evidence. `act`: alarm, suspect or down."""

    rule: str
    port: str
    since: float
    act: str
    text: str
    evidence: tuple[Evidence, ...] = ()


class EventKind(StrEnum):
    """The stages that a change runs through, in their order, and the operator's own acts."""

    SEEN = "seen"  # an observation changed a port's facts
    HINT = "hint"  # the kernel log said something; no verdict rests on it
    FINDING = "finding"  # a rule holds of a port, or doesn't any more
    ALARM = "alarm"  # a finding that nothing explains away, or the end of it
    VERDICT = "verdict"  # a port or path changed its state
    SHARED = "shared"  # our record went out to the peers
    LEARNED = "learned"  # a peer's record came in
    DECIDED = "decided"  # a plan has steps
    REFUSED = "refused"  # a guard said no
    ACTED = "acted"  # the kernel has the new routes
    FAILED = "failed"  # an act failed and was undone
    OPERATOR = "operator"  # drain, undrain
    AGENT = "agent"  # start, stop, mended leavings
    INCIDENT = "incident"  # many ports of one switch fell together


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the host's story."""

    seq: int
    at: float
    wall: float
    kind: EventKind
    subject: str  # port, path, peer or destination
    text: str
    cause: str = ""
    data: dict[str, str | int | float | bool | None] = field(default_factory=dict)
