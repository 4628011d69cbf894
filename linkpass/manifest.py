"""The manifest: what a host should have, port by port, and how what it has differs.

    [[port]]
    name = "eth1"
    pci = "0000:17:00.0"
    rail = "rail0"
    link_layer = "ethernet"
    rate = 400000
    width = 4
    mtu = 4200
    subnet = "10.10.0.0/24"
    firmware = "28.39.1002"

`linkpassctl manifest capture` writes one from a healthy host. Only `name` and `rail` must be given: what isn't given
isn't compared. A port with a PCI address is the one that sits there, whatever it is called. Rates and speeds are in
Mbit/s, the MTU in bytes, as everywhere here.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, model_validator

from linkpass import settings
from linkpass.model import UNITS
from linkpass.setting_types import LIST, Device, Name, PciAddress, Table, some, wrong
from linkpass.subnet import inside

COMPARED = ("pci", "rail", "link_layer", "rate", "width", "speed", "mtu", "firmware")


def _subnet(value: object) -> str:
    if isinstance(value, str):
        try:
            return str(ipaddress.ip_network(value))
        except ValueError:
            pass
    raise wrong(f"{value!r} is no subnet; it looks like 10.10.0.0/24 or fd00:10::/64, without host bits")


Subnet = Annotated[str, PlainValidator(_subnet)]
Size = Annotated[int, Field(ge=1, le=2**31 - 1)]


class ExpectedPort(Table):
    """One port that this host should have."""

    name: Device
    rail: Name
    pci: PciAddress | None = None
    link_layer: Literal["ethernet", "infiniband"] | None = None
    rate: Size | None = Field(default=None, description="of the RDMA port: lanes x signalling rate, Mbit/s")
    width: Size | None = Field(default=None, description="lanes")
    speed: Size | None = Field(default=None, description="of the net device, Mbit/s")
    mtu: Size | None = Field(default=None, description="of the net device, bytes")
    subnet: Subnet | None = Field(default=None, description="the rail's: one address of the port lies in it")
    firmware: str | None = Field(default=None, min_length=1, max_length=64)


class Manifest(Table):
    """The whole file."""

    host: Name | None = Field(default=None, description="whom it was captured on; for people")
    ports: Annotated[tuple[ExpectedPort, ...], LIST, AfterValidator(some)] = Field(alias="port")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for i, port in enumerate(self.ports):
            for other in self.ports[:i]:
                for key in ("name", "rail", "pci"):
                    value = getattr(port, key)
                    if value is not None and value == getattr(other, key):
                        raise wrong(f"{value!r} is there twice", f"port.{i}.{key}")
        return self

    def of(self, name: str, pci: str) -> ExpectedPort | None:
        """What is expected of the port at this PCI address ("": none), else of this name."""
        at = next((p for p in self.ports if p.pci and p.pci == pci), None)
        return at or next((p for p in self.ports if p.name == name and not (p.pci and pci)), None)


def load(path: Path) -> Manifest:
    """ConfigError names file, line and key."""
    return settings.parse_as(Manifest, settings.read(path), path)


@dataclass(frozen=True, slots=True)
class PresentPort:
    """What a host has. None: can't be observed, or it has none. `addresses` as "10.10.0.1/24"."""

    name: str
    rail: str
    state: str
    cause: str = ""
    pci: str | None = None
    link_layer: str | None = None
    rate: int | None = None
    width: int | None = None
    speed: int | None = None
    mtu: int | None = None
    addresses: tuple[str, ...] = ()
    firmware: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """`kind`: differs, missing (not there), unseen (can't be observed), unexpected (there, not in the manifest)."""

    port: str
    key: str
    kind: Literal["differs", "missing", "unseen", "unexpected"]
    expected: str
    found: str

    @property
    def text(self) -> str:
        """For people."""
        match self.kind:
            case "missing":
                return f"{self.port}: missing: {self.expected}"
            case "unexpected":
                return f"{self.port}: not in the manifest: never called a fault"
            case "unseen":
                return f"{self.port}: {self.key} can't be observed, expected {self.expected}"
            case _:
                return f"{self.port}: {self.key} is {self.found}, expected {self.expected}"


def differences(manifest: Manifest, present: Iterable[PresentPort]) -> list[Difference]:
    """In the manifest's order; what is there beyond it comes last. What a port without a link can't tell (its rate)
    is `unseen`, which is no proof of a difference."""
    found: list[Difference] = []
    matched: set[str] = set()
    present = tuple(present)
    owner = {p.name: manifest.of(p.name, p.pci or "") for p in present}
    for want in manifest.ports:
        has = next((p for p in present if owner[p.name] is want), None)
        if has is None or has.state == "absent":
            matched |= {has.name} if has else set()
            at = f" at {want.pci}" if want.pci else ""
            found.append(Difference(want.name, "port", "missing", f"a port of {want.rail}{at}", ""))
            continue
        matched.add(has.name)
        found += _of_port(want, has)
    found += [Difference(p.name, "port", "unexpected", "", p.state) for p in present if p.name not in matched]
    return found


def _of_port(want: ExpectedPort, has: PresentPort) -> list[Difference]:
    found = []
    for key in COMPARED:
        expected, value = getattr(want, key), getattr(has, key)
        if expected is None or expected == value:
            continue
        unit = UNITS.get(key, "")
        kind: Literal["differs", "unseen"] = "unseen" if value is None else "differs"
        found.append(Difference(has.name, key, kind, f"{expected}{unit}", "" if value is None else f"{value}{unit}"))
    if want.subnet is not None and not any(inside(want.subnet, a) for a in has.addresses):
        kind = "differs" if has.addresses else "unseen"
        found.append(Difference(has.name, "subnet", kind, want.subnet, ", ".join(has.addresses)))
    return found


def capture(host: str, present: Iterable[PresentPort]) -> str:
    """The manifest of what is there, as TOML."""
    lines = ["# What this host should have; made by `linkpassctl manifest capture`. `linkpassctl check` compares."]
    lines += [f"host = {_toml(host)}"]
    for p in present:
        subnets = sorted({str(ipaddress.ip_interface(a).network) for a in p.addresses}, key=lambda s: ":" in s)
        values: dict[str, Any] = {"name": p.name, **{key: getattr(p, key) for key in COMPARED}}
        values["subnet"] = subnets[0] if subnets else None
        lines += ["", "[[port]]", *(f"{k} = {_toml(v)}" for k, v in values.items() if v is not None)]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
