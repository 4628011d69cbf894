"""How near two of our ports are to each other: sysfs knows the PCIe path and the NUMA node of each."""

import re
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys/class/net")
PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
SWITCH, NODE, FAR = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Locality:
    """`bridges`: the PCIe bridges above the device, the root port first. `node`: -1 when unknown."""

    bridges: tuple[str, ...]
    node: int


UNKNOWN = Locality((), -1)


def read(netdev: str, root: Path = SYSFS) -> Locality:
    """Where a net device sits; UNKNOWN for one without a PCIe device, or that is gone."""
    try:
        device = (root / netdev / "device").resolve(strict=True)
        path = tuple(part for part in device.parts if PCI.fullmatch(part))
    except OSError:
        return UNKNOWN
    try:
        node = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        node = -1
    return Locality(path[:-1], node)


def distance(here: Locality, there: Locality) -> int:
    """SWITCH: the same switch below one root port; NODE: the same NUMA node, or none known; FAR: another node.

    Two bridges in common are a root port and a switch's upstream port; a root port alone isn't a switch.
    """
    shared = 0
    for one, other in zip(here.bridges, there.bridges, strict=False):
        if one != other:
            break
        shared += 1
    if shared >= 2:
        return SWITCH
    return NODE if here.node == there.node or -1 in (here.node, there.node) else FAR
