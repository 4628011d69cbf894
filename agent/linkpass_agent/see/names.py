"""Which device is the port: followed by what it is, not by what it is called.

The name in the configuration is the port's label. When the device is first seen, its identity is noted: its interface
index, and for a PCI device its address and which of the device's ports it is. From then on the label follows the
identity: a renamed device is the same port, a device made anew at the same PCI address too (the driver was loaded
again), and another NIC that took the name is not. A device without a PCI address (bonds, virtual ones) that is made
anew counts as the same by its name.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .files import text

NET = Path("/sys/class/net")
PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a net device sits: PCI address ("" for none) and `dev_port`, its number among that device's ports."""

    pci: str
    number: int

    def __str__(self) -> str:
        return f"{self.pci} port {self.number}" if self.number else self.pci


@dataclass(frozen=True, slots=True)
class Moved:
    """What `refresh` found: a port has another device name, none (now ""), or one again."""

    label: str
    before: str
    now: str
    text: str


class Names:
    """Labels of ports <-> names and indexes of devices. `places` pins labels to PCI addresses from the start."""

    def __init__(self, labels: Iterable[str], places: Mapping[str, str] | None = None, net: Path = NET) -> None:
        self._net = net
        self._device = {label: label for label in labels}
        self._pinned: dict[str, Place] = {
            label: Place(pci.lower(), 0) for label, pci in (places or {}).items() if pci
        }
        self._index: dict[str, int] = {}
        self._by_configuration = frozenset(self._pinned)
        self._gone: set[str] = set()
        self.refresh()

    def device(self, label: str) -> str:
        """The device's name now (the last one, while it is gone)."""
        return self._device.get(label, label)

    def label(self, device: str) -> str | None:
        """The port that a device is now."""
        return next((n for n, d in self._device.items() if d == device and n not in self._gone), None)

    def index(self, label: str) -> int | None:
        """The interface index of a port's device; None while it is gone."""
        device = self.device(label)
        if label in self._gone or (found := text(self._net / device / "ifindex")) is None:
            return None
        return int(found)

    def at(self, index: int) -> str | None:
        """The port with this interface index."""
        return next((n for n, i in self._index.items() if i == index and n not in self._gone), None)

    def place(self, label: str) -> str:
        """The PCI address, and the port's number where it isn't the first; "" without one."""
        place = self._pinned.get(label)
        return str(place) if place else ""

    def event(self, index: int, device: str) -> str | None:
        """A link event named a device: the port that it is, following a new name at once."""
        label = self.at(index)
        if label is not None and self._device[label] != device:
            self._device[label] = device
        return label if label is not None else self.label(device)

    def refresh(self) -> list[Moved]:
        """Look where the ports' devices are now; what moved."""
        moved = []
        for label, before in self._device.items():
            if label not in self._gone and self._same(label, before):
                continue
            now = self._find(label)
            if now is None:
                if label in self._index and label not in self._gone:
                    self._gone.add(label)
                    moved.append(Moved(label, before, "", self._missing(label)))
                elif label not in self._index:
                    self._gone.add(label)
                continue
            was_gone = label in self._gone
            self._gone.discard(label)
            self._pin(label, now)
            if now != before or (was_gone and before != label):
                moved.append(Moved(label, before, now, f"{before} is called {now} now{self._by(label)}"))
        return moved

    # -- inside -----------------------------------------------------------------------------------------------

    def _same(self, label: str, device: str) -> bool:
        return label in self._index and text(self._net / device / "ifindex") == str(self._index[label])

    def _find(self, label: str) -> str | None:
        index, place = self._index.get(label), self._pinned.get(label)
        if index is None and place is None:
            return label if (self._net / label / "ifindex").exists() else None
        for device in self._devices():
            if index is not None and text(self._net / device / "ifindex") == str(index):
                return device
        if place is not None:
            return next((d for d in self._devices() if where(self._net / d) == place), None)
        for candidate in (self.device(label), label):
            if (self._net / candidate / "ifindex").exists() and where(self._net / candidate) is None:
                return candidate
        return None

    def _pin(self, label: str, device: str) -> None:
        self._device[label] = device
        found = text(self._net / device / "ifindex")
        if found is not None:
            self._index[label] = int(found)
        if label not in self._pinned and (place := where(self._net / device)) is not None:
            self._pinned[label] = place

    def _missing(self, label: str) -> str:
        place = self._pinned.get(label)
        other = where(self._net / label)
        if place is not None and other is not None and other != place:
            return f"{label} is another NIC now, at {other}; the port's own, at {place}, is gone"
        return "the device is gone"

    def _by(self, label: str) -> str:
        place = self._pinned.get(label)
        return f" (PCI {place})" if place else ""

    def _devices(self) -> list[str]:
        try:
            return sorted(entry.name for entry in self._net.iterdir())
        except OSError:
            return []


def where(netdev: Path) -> Place | None:
    """The PCI place of a net device; None for one that has none."""
    try:
        parts = (netdev / "device").resolve(strict=True).parts
    except OSError:
        return None
    pci = next((part for part in reversed(parts) if PCI.fullmatch(part)), None)
    if pci is None:
        return None
    number = text(netdev / "dev_port")
    return Place(pci, int(number) if number and number.isdigit() else 0)
