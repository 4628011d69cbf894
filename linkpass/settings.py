"""The agent's config file: what may stand in it, what it defaults to, and errors that name file, line and key.

    settings = load(Path("/etc/linkpass/linkpass.toml"))
    settings.probe.period

All times are seconds. Values are frozen; unknown keys are errors. `agent/linkpass.toml` shows every key in place.
"""

import ipaddress
import re
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from linkpass import config_errors
from linkpass.errors import ConfigError

RUN = "/run/linkpass"
STATE = "/var/lib/linkpass"
# sun_path in linux/un.h holds 108 bytes, the last of them a NUL.
MAX_SOCKET_PATH = 107


class Endpoint(NamedTuple):
    """An IP address and a UDP port; a plain (host, port) pair to the socket module."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _wrong(problem: str, key: str = "") -> PydanticCustomError:
    """A problem in our own words; `key` names the field when a check of a whole table found it."""
    return PydanticCustomError("linkpass", "{problem}", {"problem": problem, "key": key})


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _wrong("should be text in quotes")
    return value


def parse_endpoint(value: object) -> Endpoint:
    """`10.99.0.1:7471` or `[fd00::1]:7471`."""
    if isinstance(value, Endpoint):
        return value
    text = _text(value)
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or not 0 < int(port) < 65536:
        raise _wrong(f"{text!r} should be ADDRESS:PORT with a port from 1 to 65535, like 10.99.0.1:7471")
    bracketed = host.startswith("[") and host.endswith("]")
    return Endpoint(_ip(host[1:-1] if bracketed else host, bracketed=bracketed), int(port))


def _ip(text: str, *, bracketed: bool | None = None) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise _wrong(f"{text!r} is not an IP address (no names, no prefix length)") from None
    if address.version == 6 and bracketed is False:
        raise _wrong(f"an IPv6 address needs brackets before the port: [{address}]:PORT")
    if bracketed and address.version == 4:
        raise _wrong(f"an IPv4 address takes no brackets: {address}:PORT")
    return str(address)


def _service_address(value: object) -> str:
    text = _ip(_text(value))
    address = ipaddress.ip_address(text)
    if address.is_loopback or address.is_multicast or address.is_unspecified or address.is_link_local:
        raise _wrong(f"{text} can't be reached by peers; give a global unicast address of this host")
    return text


def _absolute(value: object) -> Path:
    path = value if isinstance(value, Path) else Path(_text(value))
    if not path.is_absolute():
        raise _wrong(f"{str(path)!r} should be an absolute path")
    if "\0" in str(path):
        raise _wrong("a path can't hold a NUL character")
    return path


def _device(value: object) -> str:
    """A network device's name as the kernel allows it (dev_valid_name in net/core/dev.c)."""
    name = _text(value)
    if not 0 < len(name.encode()) < 16 or name in (".", "..") or re.search(r"[\s/:\0]", name):
        raise _wrong(f"{name!r} is no network device's name (1 to 15 characters, no blank, '/' or ':')")
    return name


def _rdma_device(value: object) -> str:
    """An RDMA device's name (IB_DEVICE_NAME_MAX is 64 with the NUL, rdma/ib_verbs.h), "auto" or "none"."""
    name = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", name, re.ASCII):
        raise _wrong(f'{name!r} is no RDMA device\'s name; give one of `rdma link`, "auto" or "none"')
    return name


def _name(value: object) -> str:
    """A host's or rail's name; 64 characters is HOST_NAME_MAX of Linux."""
    name = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?", name):
        raise _wrong(
            f"{name!r} should be 1 to 64 letters, digits, '.', '-' or '_', with a letter or digit at each end"
        )
    return name


def _peer_pattern(value: object) -> str:
    return "*" if value == "*" else _name(value)


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise _wrong(f"{str(value)!r} is in the list twice", str(i))
    return values


def _some(ports: tuple[Any, ...]) -> tuple[Any, ...]:
    if not ports:
        raise _wrong("needs at least one [[port]]")
    return ports


Seconds = Annotated[float, Field(gt=0, le=86400 * 30, allow_inf_nan=False)]
UdpPort = Annotated[int, Field(ge=1, le=65535)]
AbsolutePath = Annotated[Path, BeforeValidator(_absolute)]
Device = Annotated[str, PlainValidator(_device)]
Name = Annotated[str, PlainValidator(_name)]
PeerPattern = Annotated[str, PlainValidator(_peer_pattern)]
Address = Annotated[str, PlainValidator(_service_address)]
UdpEndpoint = Annotated[Endpoint, PlainValidator(parse_endpoint), PlainSerializer(str)]
_LIST = Field(strict=False)  # TOML has lists, we keep tuples
_UNIQUE = AfterValidator(_unique)


class Table(BaseModel):
    """One table of the file. Strict: "0.05" in quotes is no number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


class PathsSettings(Table):
    """Where the agent keeps what."""

    run: AbsolutePath = Field(default=Path(RUN), description="ledger and socket; gone after a boot")
    state: AbsolutePath = Field(default=Path(STATE), description="drains and incarnation; survives boots")
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
                raise _wrong(f"a Unix socket's path holds at most {MAX_SOCKET_PATH} bytes; give a shorter one", key)
        if self.socket == self.jobs_socket:
            raise _wrong("can't be the control socket as well; give each a path of its own", "jobs_socket")
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
    rdma: Annotated[str, PlainValidator(_rdma_device)] = Field(
        default="auto", description='RDMA device behind it; "auto" finds it, "none" ignores it'
    )


class ShareSettings(Table):
    """How agents tell each other of their ports."""

    listen: UdpEndpoint = Field(description="our address and UDP port on the management network")
    seeds: Annotated[tuple[UdpEndpoint, ...], _LIST, _UNIQUE] = ()
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
    peers_in_use: Annotated[tuple[PeerPattern, ...], _LIST, _UNIQUE] = Field(
        default=(), description='hosts, or ["*"] for all'
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.timeout >= self.period * self.lost:
            found = (
                f"should be less than period x lost ({self.period:g} s x {self.lost} = {self.period * self.lost:g} s)"
            )
            raise _wrong(f"{found}, got {self.timeout:g} s", "timeout")
        if self.idle_period < self.period:
            raise _wrong(
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
            raise _wrong(f"should not be less than first ({self.first:g} s), got {self.max:g} s", "max")
        return self


class SeeSettings(Table):
    """How often to look."""

    carrier_poll: Seconds = Field(default=0.01, description="fast read of sysfs carrier")
    sweep: Seconds = 1.0
    absent_sweeps: int = Field(
        default=3, ge=1, le=1000, description="sweeps without the device until it counts as ABSENT"
    )


class RoutesSettings(Table):
    """What the agent installs in the kernel. Ranges: u32 and u8 fields of rtnetlink."""

    addresses: Annotated[tuple[Address, ...], _LIST, _UNIQUE] = Field(
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
            raise _wrong(f"should not be more than give_up ({self.give_up:g} s), got {self.attempt:g} s", "attempt")
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
    mode: Literal["shadow", "act"] = Field(default="shadow", description="shadow: decide and report, don't act")
    paths: PathsSettings = PathsSettings()
    control: ControlSettings = ControlSettings()
    ports: Annotated[tuple[PortSettings, ...], _LIST, AfterValidator(_some)] = Field(alias="port")
    share: ShareSettings
    probe: ProbeSettings = ProbeSettings()
    hold_down: HoldDownSettings = HoldDownSettings()
    see: SeeSettings = SeeSettings()
    routes: RoutesSettings = RoutesSettings()
    jobs: JobsSettings = JobsSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for i, port in enumerate(self.ports):
            for other in self.ports[:i]:
                if port.name == other.name:
                    raise _wrong(f"port {port.name!r} is there twice", f"port.{i}.name")
                if port.rail == other.rail:
                    raise _wrong(f"rail {port.rail!r} already has port {other.name!r}; one a rail", f"port.{i}.rail")
        if self.share.listen.port == self.probe.port and ipaddress.ip_address(self.share.listen.host).is_unspecified:
            raise _wrong(f"UDP port {self.probe.port} is taken by share.listen on all addresses", "probe.port")
        return self


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
        return Settings.model_validate(fill(data, path) if fill else data)
    except ValidationError as e:
        raise config_errors.first_of(e, Settings, text, path) from e
