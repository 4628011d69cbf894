"""Which RDMA device and port stand behind a network device: sysfs knows.

Three places tell, the cheap ones first: a software device names its `parent`; a PCI device lists its net devices; and
every entry of a port's GID table names one. The table has up to 1,024 entries, a file each, so it is read last.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True, order=True)
class RdmaPort:
    """A port of an RDMA device. `number` counts from 1, as in ibv_query_port(3)."""

    device: str
    number: int


def behind(netdev: str, root: Path = SYSFS) -> RdmaPort | None:
    """The RDMA port of a net device, None if it has none. A device that can't be read hides no other."""
    ports = [RdmaPort(device, number) for device in _entries(root) for number in _numbers(root / device / "ports")]
    for places in (_cheap, _gids):
        for port in ports:
            if netdev in places(root / port.device, port.number):
                return port
    return None


def _cheap(device: Path, number: int) -> set[str]:
    """Net devices that sysfs lists outright. On a PCI device with several ports, dev_port tells them apart."""
    found = set()
    with suppress(OSError):  # only rxe and siw have this
        found.add((device / "parent").read_text().strip())
    for netdev in _entries(device / "device" / "net"):
        with suppress(OSError, ValueError):
            if int((device / "device" / "net" / netdev / "dev_port").read_text()) == number - 1:
                found.add(netdev)
    return found


def _gids(device: Path, number: int) -> Iterator[str]:
    folder = device / "ports" / str(number) / "gid_attrs" / "ndevs"
    for entry in _entries(folder):
        with suppress(OSError):  # EINVAL: this GID is empty
            yield (folder / entry).read_text().strip()


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _numbers(folder: Path) -> list[int]:
    return sorted(int(name) for name in _entries(folder) if name.isdigit())
