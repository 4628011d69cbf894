"""The agent's config file: what may stand in it, what it defaults to, and errors that name file, line and key.

    settings = load(Path("/etc/linkpass/linkpass.toml"))
    settings.probe.period

All times are seconds. Values are frozen; unknown keys are errors. `agent/linkpass.toml` shows every key in place.
"""

import difflib
import ipaddress
import re
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from linkpass import config_errors, rules
from linkpass.errors import ConfigError
from linkpass.setting_types import (
    LIST,
    UNIQUE,
    AbsolutePath,
    Address,
    Device,
    Endpoint,
    Name,
    PciAddress,
    PeerPattern,
    RdmaDevice,
    Seconds,
    Table,
    UdpEndpoint,
    UdpPort,
    parse_endpoint,
    some,
    wrong,
)

__all__ = ["Endpoint", "Settings", "load", "parse", "parse_as", "parse_endpoint", "read"]

RUN = "/run/linkpass"
STATE = "/var/lib/linkpass"
# sun_path in linux/un.h holds 108 bytes, the last of them a NUL.
MAX_SOCKET_PATH = 107


class PathsSettings(Table):
    """Where the agent keeps what."""

    run: AbsolutePath = Field(default=Path(RUN), description="ledger and socket; gone after a boot")
    state: AbsolutePath = Field(default=Path(STATE), description="what is remembered over restarts and boots")
    socket: AbsolutePath = Field(
        default=Path(RUN) / "agent.sock", description="control socket; default: <run>/agent.sock"
    )
    jobs_socket: AbsolutePath = Field(
        default=Path(RUN) / "jobs.sock", description="where jobs' shims attach; default: <run>/jobs.sock"
    )

    @model_validator(mode="before")
    @classmethod
    def _sockets_in_run(cls, data: Any) -> Any:
        run = data.get("run") if isinstance(data, dict) else None
        if isinstance(run, str | Path) and Path(run).is_absolute():
            return {"socket": f"{run}/agent.sock", "jobs_socket": f"{run}/jobs.sock", **data}
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key, path in (("socket", self.socket), ("jobs_socket", self.jobs_socket)):
            if len(str(path).encode()) > MAX_SOCKET_PATH:
                raise wrong(f"a Unix socket's path holds at most {MAX_SOCKET_PATH} bytes; give a shorter one", key)
        if self.socket == self.jobs_socket:
            raise wrong("can't be the control socket as well; give each a path of its own", "jobs_socket")
        return self


class ControlSettings(Table):
    """Who may change things over the socket, besides root."""

    group: str | None = Field(
        default=None, min_length=1, max_length=32, description="members of this Unix group may drain"
    )


class PortSettings(Table):
    """One fabric port of this host."""

    name: Device = Field(description="network device")
    rail: Name = Field(description="the rail that it is plugged into")
    rdma: RdmaDevice = Field(default="auto", description='RDMA device behind it; "auto" finds it, "none" ignores it')
    pci: PciAddress | None = Field(
        default=None, description="PCI address of the NIC: the port is the device there, whatever it is called"
    )


class ShareSettings(Table):
    """How agents tell each other of their ports."""

    listen: UdpEndpoint = Field(description="our address and UDP port on the management network")
    seeds: Annotated[tuple[UdpEndpoint, ...], LIST, UNIQUE] = ()
    keyring: AbsolutePath = Field(description="file of lines KEYID HEX(32 bytes); the first one is used to send")
    anti_entropy: Seconds = 5.0


class ProbeSettings(Table):
    """How paths are tried out."""

    port: UdpPort = 7472
    period: Seconds = Field(default=0.05, description="to peers in use")
    idle_period: Seconds = Field(default=1.0, description="to the rest")
    timeout: Seconds = Field(default=0.015, description="a later reply counts as lost")
    lost: int = Field(default=3, ge=1, le=1000, description="lost probes in a row until DOWN")
    max_rate: int = Field(default=2000, ge=1, le=1_000_000, description="probes per second, all paths together")
    peers_in_use: Annotated[tuple[PeerPattern, ...], LIST, UNIQUE] = Field(
        default=(), description='hosts, or ["*"] for all'
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.timeout >= self.period * self.lost:
            found = (
                f"should be less than period x lost ({self.period:g} s x {self.lost} = {self.period * self.lost:g} s)"
            )
            raise wrong(f"{found}, got {self.timeout:g} s", "timeout")
        if self.idle_period < self.period:
            raise wrong(
                f"should not be less than period ({self.period:g} s), got {self.idle_period:g} s", "idle_period"
            )
        return self


class HoldDownSettings(Table):
    """How long a port that came back is not yet trusted."""

    first: Seconds = Field(default=1.0, description="doubles with each flap")
    max: Seconds = 300.0
    decay: float = Field(
        default=10.0,
        gt=0,
        allow_inf_nan=False,
        description="the penalty halves after decay x last hold-down of good behaviour",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max < self.first:
            raise wrong(f"should not be less than first ({self.first:g} s), got {self.max:g} s", "max")
        return self


class SeeSettings(Table):
    """How often to look."""

    carrier_poll: Seconds = Field(default=0.01, description="read of sysfs carrier in the 2 s after a change")
    carrier_idle: Seconds = Field(default=0.05, description="the same at other times, when netlink is prompt")
    sweep: Seconds = 1.0
    absent_sweeps: int = Field(
        default=3, ge=1, le=1000, description="sweeps without the device until it counts as ABSENT"
    )
    counters: bool = Field(default=True, description="read the ports' counters with each sweep")
    exclude: Annotated[tuple[Device, ...], LIST, UNIQUE] = Field(
        default=(), description="ports whose counters aren't read: their driver floods the kernel log, say"
    )
    ethtool: Seconds = Field(default=10.0, description="how often to ask the drivers for their own statistics")
    kernel_log: bool = Field(default=True, description="read /dev/kmsg for hints")


class RuleSettings(Table):
    """A change of one shipped rule, for all ports or those of some drivers. See `linkpass.rules`."""

    name: str = Field(description="which rule; docs/observing.md lists them")
    drivers: Annotated[tuple[str, ...], LIST, UNIQUE] = Field(default=(), description="only for these drivers")
    limit: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="more than this is a cause")
    window: Seconds | None = Field(default=None, description="within so many seconds")
    clear: Seconds | None = Field(default=None, description="seconds without cause until the finding goes")
    act: rules.Act | None = Field(default=None, description="alarm, suspect or down")
    enabled: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name not in rules.names():
            near = difflib.get_close_matches(self.name, rules.names(), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(rules.names())}"
            raise wrong(f"no rule {self.name!r}; {hint}", "name")
        unknown = [d for d in self.drivers if d not in rules.DRIVERS]
        if unknown:
            at = self.drivers.index(unknown[0])
            raise wrong(f"no driver {unknown[0]!r}; there are {', '.join(rules.DRIVERS)}", f"drivers.{at}")
        return self


class AlarmsSettings(Table):
    """When trouble is no alarm. Rerouting never waits for these."""

    boot_grace: float = Field(default=1800.0, ge=0, allow_inf_nan=False, description="none so long after the boot")
    undrain_grace: float = Field(default=120.0, ge=0, allow_inf_nan=False, description="nor after an undrain")
    history: int = Field(default=500, ge=0, le=10_000, description="how many that are over are kept")


class LimitsSettings(Table):
    """How much may be out by LinkPass's own choice: ports whose link works, held back by a hold-down or a rule."""

    host_share: float = Field(default=0.5, ge=0, le=1, description="of a host's ports, rounded down")
    rail_share: float = Field(default=0.25, ge=0, le=1, description="of a rail's hosts, but one at least")


class RoutesSettings(Table):
    """What the agent installs in the kernel. Ranges: u32 and u8 fields of rtnetlink."""

    addresses: Annotated[tuple[Address, ...], LIST, UNIQUE] = Field(
        default=(), description="our rail-independent addresses"
    )
    metric: int = Field(default=50, ge=1, le=2**32 - 1)
    # 0 to 4 are RTPROT_UNSPEC, REDIRECT, KERNEL, BOOT and STATIC: routes of others.
    protocol: int = Field(default=76, ge=5, le=255, description="marks what is ours")
    table: int = Field(default=254, ge=1, le=2**32 - 1)
    nexthop_base: int = Field(
        default=0x4C50_0000, ge=1, le=0xFFFF_0000, description="first nexthop object id that we may use"
    )
    on_stop: Literal["undo", "keep"] = "undo"


class JobsSettings(Table):
    """RDMA jobs under `linkpass run`."""

    enabled: bool = Field(default=True, description="let jobs attach")
    give_up: float = Field(
        default=60.0, ge=0.001, le=3600, description="a migration that takes longer ends with the job's own error"
    )
    attempt: float = Field(default=1.0, ge=0.001, le=60, description="patience with a peer that doesn't answer")
    spares: int = Field(default=2, ge=1, le=7, description="spare queue pairs for each connection, on other rails")
    fail_back: bool = Field(default=True, description="move back when the port that the job chose is UP again")
    fail_back_wait: Seconds = Field(default=2.0, description="from its being UP until the first one moves back")
    fail_back_rate: float = Field(default=50.0, gt=0, le=1e6, description="connections a second that move back")
    sessions: int = Field(default=256, ge=1, le=65536, description="attached processes of one user")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.attempt > self.give_up:
            raise wrong(f"should not be more than give_up ({self.give_up:g} s), got {self.attempt:g} s", "attempt")
        return self


class LogSettings(Table):
    """What goes to stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "journal", "text", "json"] = "auto"


class Settings(Table):
    """The whole file. In code: `Settings.model_validate({"port": [...], "share": {...}})`, as TOML spells it."""

    host: Name = Field(default_factory=socket.gethostname, description="default: the hostname")
    fabric: AbsolutePath | None = Field(
        default=None, description="the fabric's file; what it says of this host needn't be repeated here"
    )
    manifest: AbsolutePath | None = Field(
        default=None, description="what this host should have; see `linkpassctl manifest capture`"
    )
    mode: Literal["shadow", "act"] = Field(default="shadow", description="shadow: decide and report, don't act")
    paths: PathsSettings = PathsSettings()
    control: ControlSettings = ControlSettings()
    ports: Annotated[tuple[PortSettings, ...], LIST, AfterValidator(some)] = Field(alias="port")
    share: ShareSettings
    probe: ProbeSettings = ProbeSettings()
    hold_down: HoldDownSettings = HoldDownSettings()
    see: SeeSettings = SeeSettings()
    rules: Annotated[tuple[RuleSettings, ...], LIST] = Field(default=(), alias="rule")
    alarms: AlarmsSettings = AlarmsSettings()
    limits: LimitsSettings = LimitsSettings()
    routes: RoutesSettings = RoutesSettings()
    jobs: JobsSettings = JobsSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for i, port in enumerate(self.ports):
            for other in self.ports[:i]:
                if port.name == other.name:
                    raise wrong(f"port {port.name!r} is there twice", f"port.{i}.name")
                if port.pci and port.pci == other.pci:
                    raise wrong(f"{port.pci} is port {other.name!r} already", f"port.{i}.pci")
                if port.rail == other.rail:
                    raise wrong(f"rail {port.rail!r} already has port {other.name!r}; one a rail", f"port.{i}.rail")
        for i, name in enumerate(self.see.exclude):
            if name not in (p.name for p in self.ports):
                raise wrong(
                    f"{name!r} is none of the ports; they are {', '.join(p.name for p in self.ports)}",
                    f"see.exclude.{i}",
                )
        if self.share.listen.port == self.probe.port and ipaddress.ip_address(self.share.listen.host).is_unspecified:
            raise wrong(f"UDP port {self.probe.port} is taken by share.listen on all addresses", "probe.port")
        return self


T = TypeVar("T", bound=Table)
Fill = Callable[[dict[str, Any], Path], dict[str, Any]]


def load(path: Path, fill: Fill | None = None) -> Settings:
    """Read and check a config file. ConfigError names file, line and key of the first error; all others follow it
    in `problem`, a line each. `fill` may add to what the file says before it is checked."""
    return parse(read(path), path, fill)


def read(path: Path) -> str:
    """The file's text; ConfigError when it can't be read or isn't UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise ConfigError(path, 0, "", f"can't be read: {e.strerror}") from e
    try:
        return raw.decode()
    except UnicodeDecodeError as e:
        raise ConfigError(path, raw.count(b"\n", 0, e.start) + 1, "", "not UTF-8 text") from e


def parse(text: str, path: Path, fill: Fill | None = None) -> Settings:
    """Check the text of a config file; `path` is for the messages."""
    return parse_as(Settings, text, path, fill)


def parse_as(model: type[T], text: str, path: Path, fill: Fill | None = None) -> T:
    """The same for any file whose whole is a `Table`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        found = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", str(e), re.DOTALL)
        problem, line, column = found.groups() if found else (str(e), None, None)
        where = f"column {column}" if column else "end of file"
        raise ConfigError(path, int(line or len(text.splitlines()) or 1), "", f"{problem} ({where})") from e
    except RecursionError as e:
        raise ConfigError(path, 0, "", "nested too deeply") from e
    except ValueError as e:  # an integer of thousands of digits
        raise ConfigError(path, 0, "", f"not a value: {e}") from e
    try:
        return model.model_validate(fill(data, path) if fill else data)
    except ValidationError as e:
        raise config_errors.first_of(e, model, text, path) from e
