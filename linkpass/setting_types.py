"""The kinds of values in a config file: addresses, names, paths, seconds; each tells its problem in our own words."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator
from pydantic_core import PydanticCustomError


class Endpoint(NamedTuple):
    """An IP address and a UDP port; a plain (host, port) pair to the socket module."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def wrong(problem: str, key: str = "") -> PydanticCustomError:
    """A problem in our own words; `key` names the field when a check of a whole table found it."""
    return PydanticCustomError("linkpass", "{problem}", {"problem": problem, "key": key})


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise wrong("should be text in quotes")
    return value


def parse_endpoint(value: object) -> Endpoint:
    """`10.99.0.1:7471` or `[fd00::1]:7471`."""
    if isinstance(value, Endpoint):
        return value
    text = _text(value)
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or not 0 < int(port) < 65536:
        raise wrong(f"{text!r} should be ADDRESS:PORT with a port from 1 to 65535, like 10.99.0.1:7471")
    bracketed = host.startswith("[") and host.endswith("]")
    return Endpoint(_ip(host[1:-1] if bracketed else host, bracketed=bracketed), int(port))


def _ip(text: str, *, bracketed: bool | None = None) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise wrong(f"{text!r} is not an IP address (no names, no prefix length)") from None
    if address.version == 6 and bracketed is False:
        raise wrong(f"an IPv6 address needs brackets before the port: [{address}]:PORT")
    if bracketed and address.version == 4:
        raise wrong(f"an IPv4 address takes no brackets: {address}:PORT")
    return str(address)


def _service_address(value: object) -> str:
    text = _ip(_text(value))
    address = ipaddress.ip_address(text)
    if address.is_loopback or address.is_multicast or address.is_unspecified or address.is_link_local:
        raise wrong(f"{text} can't be reached by peers; give a global unicast address of this host")
    return text


def _absolute(value: object) -> Path:
    path = value if isinstance(value, Path) else Path(_text(value))
    if not path.is_absolute():
        raise wrong(f"{str(path)!r} should be an absolute path")
    if "\0" in str(path):
        raise wrong("a path can't hold a NUL character")
    return path


def _device(value: object) -> str:
    """A network device's name as the kernel allows it (dev_valid_name in net/core/dev.c)."""
    name = _text(value)
    if not 0 < len(name.encode()) < 16 or name in (".", "..") or re.search(r"[\s/:\0]", name):
        raise wrong(f"{name!r} is no network device's name (1 to 15 characters, no blank, '/' or ':')")
    return name


def rdma_device(value: object) -> str:
    """An RDMA device's name (IB_DEVICE_NAME_MAX is 64 with the NUL, rdma/ib_verbs.h), "auto" or "none"."""
    name = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", name, re.ASCII):
        raise wrong(f'{name!r} is no RDMA device\'s name; give one of `rdma link`, "auto" or "none"')
    return name


def _pci(value: object) -> str:
    """A PCI address as sysfs spells it (pci_setup_device, drivers/pci/probe.c: %04x:%02x:%02x.%d)."""
    text = _text(value).lower()
    if re.fullmatch(r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", text):
        text = f"0000:{text}"
    if not re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", text):
        raise wrong(
            f"{text!r} is no PCI address; it looks like 0000:17:00.0 (`readlink /sys/class/net/DEVICE/device`)"
        )
    return text


def _name(value: object) -> str:
    """A host's or rail's name; 64 characters is HOST_NAME_MAX of Linux."""
    name = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?", name):
        raise wrong(
            f"{name!r} should be 1 to 64 letters, digits, '.', '-' or '_', with a letter or digit at each end"
        )
    return name


def _peer_pattern(value: object) -> str:
    return "*" if value == "*" else _name(value)


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise wrong(f"{str(value)!r} is in the list twice", str(i))
    return values


def some(ports: tuple[Any, ...]) -> tuple[Any, ...]:
    if not ports:
        raise wrong("needs at least one [[port]]")
    return ports


Seconds = Annotated[float, Field(gt=0, le=86400 * 30, allow_inf_nan=False)]
UdpPort = Annotated[int, Field(ge=1, le=65535)]
AbsolutePath = Annotated[Path, BeforeValidator(_absolute)]
Device = Annotated[str, PlainValidator(_device)]
Name = Annotated[str, PlainValidator(_name)]
PciAddress = Annotated[str, PlainValidator(_pci)]
RdmaDevice = Annotated[str, PlainValidator(rdma_device)]
PeerPattern = Annotated[str, PlainValidator(_peer_pattern)]
Address = Annotated[str, PlainValidator(_service_address)]
UdpEndpoint = Annotated[Endpoint, PlainValidator(parse_endpoint), PlainSerializer(str)]
LIST = Field(strict=False)  # TOML has lists, we keep tuples
UNIQUE = AfterValidator(_unique)


class Table(BaseModel):
    """One table of the file. Strict: "0.05" in quotes is no number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)
