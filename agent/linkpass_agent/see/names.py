"""Which device is the port: followed by what it is, not by what it is called.

The name in the configuration is the port's label. When the device is first seen, its identity is noted: its interface
index, and for a PCI device its address and which of the device's ports it is. From then on the label follows the
identity: a renamed device is the same port, a device made anew at the same PCI address too (the driver was loaded
again), and another NIC that took the name is not. A device without a PCI address (bonds, virtual ones) that is made
anew counts as the same by its name.
"""

import re
import socket
from collections.abc import Callable, Iterable, Mapping
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


def links() -> dict[str, int]:
    """Every network device of our namespace, and its interface index."""
    return {name: index for index, name in socket.if_nameindex()}


def interface_index(device: str) -> int | None:
    """The kernel's index of a device, None if there is no such device."""
    try:
        return socket.if_nametoindex(device)
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Moved:
    """A port has another device name, none (now ""), or one again."""

    label: str
    before: str
    now: str
    text: str


class Names:
    """Labels of ports <-> names and indexes of devices. `places` pins labels to PCI addresses from the start."""

    def __init__(
        self,
        labels: Iterable[str],
        places: Mapping[str, str] | None = None,
        net: Path = NET,
        links: Callable[[], Mapping[str, int]] = links,
        lookup: Callable[[str], int | None] = interface_index,
    ) -> None:
        self._net, self._links, self._lookup = net, links, lookup
        self._device = {label: label for label in labels}
        self._pinned: dict[str, Place] = {
            label: Place(pci.lower(), 0) for label, pci in (places or {}).items() if pci
        }
        self._index: dict[str, int] = {}
        self._kind: dict[str, str] = {}
        self._gone = set(self._device)
        self._moves: list[Moved] = []
        self.refresh()

    def device(self, label: str) -> str:
        """The device's name now (the last one, while it is gone)."""
        return self._device.get(label, label)

    def label(self, device: str) -> str | None:
        """The port that a device is now."""
        return next((n for n, d in self._device.items() if d == device and n not in self._gone), None)

    def index(self, label: str) -> int | None:
        """The interface index of a port's device; None while it is gone. Of what is no port, the device so called."""
        if label not in self._device:
            return self._lookup(label)
        if label not in self._gone and self._lookup(self._device[label]) != self._index[label]:
            self.refresh()
        return None if label in self._gone else self._index[label]

    def at(self, index: int) -> str | None:
        """The port with this interface index."""
        return next((n for n, i in self._index.items() if i == index and n not in self._gone), None)

    def at_or_device(self, index: int) -> str | None:
        """The port with this interface index, or the device that is no port."""
        label = self.at(index)
        if label is not None:
            return label
        try:
            device = socket.if_indextoname(index)
        except OSError:
            return None
        return None if device in self._device else device

    def place(self, label: str) -> str:
        """The PCI address, and the port's number where it isn't the first; "" without one."""
        place = self._pinned.get(label)
        return str(place) if place else ""

    def event(self, index: int, device: str) -> str | None:
        """A link event named a device: the port that it is. A new name or a device made anew is followed at once."""
        label = self.at(index)
        concerns = device in self._device or device in self._device.values()
        if (label is None and concerns) or (label is not None and self._device[label] != device):
            self.refresh()
            label = self.at(index)
        return label

    def moves(self) -> list[Moved]:
        """What moved since the last call."""
        moves, self._moves = self._moves, []
        return moves

    def refresh(self, found: Mapping[str, int] | None = None) -> None:
        """Look where the ports' devices are now. `found`: all devices and their indexes, if they are known."""
        found = self._links() if found is None else found
        taken: set[str] = set()
        for label, before in self._device.items():
            now = self._find(label, found)
            if now is None or now in taken:
                if label in self._index and label not in self._gone:
                    self._moves.append(Moved(label, before, "", self._missing(label, found)))
                self._gone.add(label)
                continue
            taken.add(now)
            self._gone.discard(label)
            known = self._index.get(label) == found[now] and before == now
            self._device[label], self._index[label] = now, found[now]
            if not known:
                self._pin(label, now)
                if now != before:
                    place = f" (PCI {self.place(label)})" if self.place(label) else ""
                    self._moves.append(Moved(label, before, now, f"{before} is called {now} now{place}"))

    # -- inside -----------------------------------------------------------------------------------------------

    def _find(self, label: str, found: Mapping[str, int]) -> str | None:
        index, place, device = self._index.get(label), self._pinned.get(label), self._device[label]
        if index is not None:
            if found.get(device) == index:
                return device
            if (renamed := next((d for d, i in found.items() if i == index), None)) is not None:
                return renamed
        if place is not None:
            return self._there(label, place, found)
        return next((d for d in (device, label) if d in found), None)

    def _there(self, label: str, place: Place, found: Mapping[str, int]) -> str | None:
        """The device at a place; of several (representors sit at their parent's) the one of the same kind."""
        there = [d for d in found if where(self._net / d) == place]
        kind = self._kind.get(label)
        if kind is not None:
            # A mode change of the NIC may give or take the name of an uplink, never make a representor of it.
            same = [d for d in there if self._kind_of(d) == kind]
            there = same or [d for d in there if not (kind and self._kind_of(d))]
        if len(there) > 1 and self._device[label] in there:
            return self._device[label]
        return there[0] if len(there) == 1 else None

    def _pin(self, label: str, device: str) -> None:
        self._kind[label] = self._kind_of(device)
        if label not in self._pinned and (place := where(self._net / device)) is not None:
            self._pinned[label] = place

    def _kind_of(self, device: str) -> str:
        return text(self._net / device / "phys_port_name") or ""

    def _missing(self, label: str, found: Mapping[str, int]) -> str:
        place = self._pinned.get(label)
        other = where(self._net / label) if label in found else None
        if place is not None and other is not None and other != place:
            return f"{label} is another NIC now, at {other}; the port's own, at {place}, is gone"
        return "the device is gone"


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
