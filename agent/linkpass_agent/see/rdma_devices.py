"""Which RDMA device and port stand behind a network device: sysfs knows, by the net device of each GID."""

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
    try:
        devices = sorted(root.iterdir())
    except OSError:
        return None
    for device in devices:
        for number in _ports(device):
            if netdev in _netdevs(device, number):
                return RdmaPort(device.name, number)
    return None


def _ports(device: Path) -> list[int]:
    try:
        return sorted(int(p.name) for p in (device / "ports").iterdir() if p.name.isdigit())
    except OSError:
        return []


def _netdevs(device: Path, number: int) -> set[str]:
    found = set()
    try:
        entries = list((device / "ports" / str(number) / "gid_attrs" / "ndevs").iterdir())
    except OSError:
        entries = []
    for entry in entries:
        try:
            found.add(entry.read_text().strip())
        except OSError:  # EINVAL: this GID is empty
            continue
    with suppress(OSError):  # only rxe and siw have this: the net device that they were made on
        found.add((device / "parent").read_text().strip())
    return found
