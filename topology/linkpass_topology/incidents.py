"""Switch incidents: many ports of one switch that fall within two seconds are one incident with one cause.

Which switch a port is plugged into is told by `place` (the fabric's file, or a neighbour that was observed). Where
nobody knows, ports of one rail that fall together stand for "a switch of that rail". The switch itself need not tell
anything. Pure: records' changes and the time go in, incidents come out.

Counted are ports of different hosts that carried traffic and went down or away; a host that goes down with all its
ports is one port for each switch, so never an incident. What an operator drained doesn't count.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from linkpass.model import PortState
from linkpass_topology.view import PortChange

WINDOW = 2.0  # s; the carrier loss of one switch reaches its hosts within milliseconds, the news within a second
MANY = 3  # hosts; two cables may well fail by themselves where many are
MANY_SMALL = 2  # hosts, of a switch known to have at most four ports
SMALL = 4
MAX_OPEN = 256  # incidents
_CARRIED = (PortState.UP, PortState.SUSPECT, PortState.HELD)
_FELL = (PortState.DOWN, PortState.ABSENT)

PortName = tuple[str, str]  # host, port


@dataclass(frozen=True, slots=True)
class Incident:
    """`switch` '' if nobody knows it. `down`: those of `ports` that aren't back yet. Times as given to `note`."""

    switch: str
    rail: str
    began: float
    last: float
    ports: frozenset[PortName]
    down: frozenset[PortName]
    size: int  # ports of the switch, 0 if unknown
    sign: str  # what the first host said of its port

    @property
    def where(self) -> str:
        """The switch, as people name it."""
        return self.switch or f"a switch of {self.rail}"

    @property
    def cause(self) -> str:
        """The one cause of all its ports' trouble."""
        return f"{self.where} failed"

    @property
    def text(self) -> str:
        """One line for people."""
        of = f" of {self.size}" if self.size else ""
        here = f" ({self.rail})" if self.switch else ""
        back = f"; {len(self.ports) - len(self.down)} are back" if len(self.down) < len(self.ports) else ""
        return f"{self.where}{here}: {len(self.ports)}{of} ports fell within {self.last - self.began:.1f} s{back}"


@dataclass(slots=True)
class _Place:
    falls: deque[tuple[float, PortName, str]] = field(default_factory=deque)
    open: Incident | None = None
    told: int = 0  # ports, when the owner heard last


class Incidents:
    """All that go on. `place` names the switch of a host's rail, None if unknown; `size` counts a switch's ports."""

    def __init__(
        self,
        place: Callable[[str, str], str | None] = lambda host, rail: None,
        size: Callable[[str], int] = lambda switch: 0,
    ) -> None:
        self._place, self._size = place, size
        self._places: dict[tuple[str, str], _Place] = {}

    @property
    def open(self) -> list[Incident]:
        """Those that go on, the oldest first."""
        return sorted((p.open for p in self._places.values() if p.open), key=lambda i: (i.began, i.where))

    def note(self, at: float, host: str, changes: Iterable[PortChange]) -> list[Incident]:
        """A host's ports changed. Incidents that have begun by that."""
        begun = []
        for change in changes:
            port = change.after or change.before
            if port is None:
                continue
            key = (self._place(host, port.rail) or "", port.rail)
            gone = change.after is None or change.after.state in _FELL
            carried = change.before is not None and change.before.state in _CARRIED
            if gone and carried:
                sign = change.after.cause if change.after else "port is gone"
                found = self._fell(self._places.setdefault(key, _Place()), key, at, (host, port.name), sign)
                begun += [found] if found else []
            elif not gone and key in self._places:
                self._back(self._places[key], (host, port.name))
        return begun

    def settle(self, now: float) -> tuple[list[Incident], list[Incident]]:
        """Let time pass. Incidents that grew and are quiet since a window, and those that are over."""
        grown, over = [], []
        for key, place in list(self._places.items()):
            while place.falls and now - place.falls[0][0] > WINDOW:
                place.falls.popleft()
            if place.open is not None and not place.open.down:
                over.append(place.open)
                place.open = None
            elif place.open is not None and len(place.open.ports) > place.told and now - place.open.last > WINDOW:
                place.told = len(place.open.ports)
                grown.append(place.open)
            if place.open is None and not place.falls:
                del self._places[key]
        return grown, over

    def _fell(self, place: _Place, key: tuple[str, str], at: float, port: PortName, sign: str) -> Incident | None:
        if place.open is not None:
            incident = place.open
            # What falls later belongs to it, but doesn't stretch the time in which it struck.
            last = max(incident.last, at) if at - incident.last <= WINDOW else incident.last
            place.open = replace(incident, last=last, ports=incident.ports | {port}, down=incident.down | {port})
            return None
        while place.falls and at - place.falls[0][0] > WINDOW:
            place.falls.popleft()
        place.falls.append((at, port, sign))
        switch, rail = key
        size = self._size(switch) if switch else 0
        hosts = {host for _, (host, _), _ in place.falls}
        if len(hosts) < (MANY_SMALL if 0 < size <= SMALL else MANY):
            return None
        if sum(p.open is not None for p in self._places.values()) >= MAX_OPEN:
            return None
        ports = frozenset(p for _, p, _ in place.falls)
        first = place.falls[0]
        place.open = Incident(switch, rail, first[0], at, ports, ports, size, first[2])
        place.told = len(ports)
        place.falls.clear()
        return place.open

    def _back(self, place: _Place, port: PortName) -> None:
        for fall in [f for f in place.falls if f[1] == port]:
            place.falls.remove(fall)
        if place.open is not None and port in place.open.down:
            place.open = replace(place.open, down=place.open.down - {port})
