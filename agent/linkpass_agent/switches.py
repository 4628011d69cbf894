"""Tells of switch incidents: feeds the decider with every host's changes, and its findings to the events."""

from collections.abc import Iterable

from linkpass.clock import Clock
from linkpass.model import EventKind
from linkpass_topology.fabric import Fabric
from linkpass_topology.incidents import Incident, Incidents
from linkpass_topology.view import PortChange

from .events import EventLog


class SwitchWatch:
    """`fabric` tells which port belongs to which leaf; without it the rail stands for its switch."""

    def __init__(self, fabric: Fabric | None, events: EventLog, clock: Clock) -> None:
        leaves = {h.name: h.leaves for h in fabric.hosts} if fabric else {}
        sizes: dict[str, int] = {}
        for of_host in leaves.values():
            for leaf in of_host.values():
                sizes[leaf] = sizes.get(leaf, 0) + 1
        self._incidents = Incidents(
            lambda host, rail: leaves.get(host, {}).get(rail), lambda leaf: sizes.get(leaf, 0)
        )
        self._events, self._clock = events, clock

    def changed(self, host: str, ports: Iterable[PortChange]) -> None:
        """Ports of a host, ours as well, changed."""
        for incident in self._incidents.note(self._clock.now(), host, ports):
            self._tell(incident, incident.text)

    def tick(self) -> None:
        """Call a few times a second."""
        grown, over = self._incidents.settle(self._clock.now())
        for incident in grown:
            self._tell(incident, incident.text)
        for incident in over:
            self._tell(incident, f"{incident.where}: all {len(incident.ports)} ports are back")

    def lines(self) -> list[str]:
        """What goes on, a line each."""
        now = self._clock.now()
        return [f"{i.text}, {now - i.began:.0f} s ago: {i.sign}" for i in self._incidents.open]

    def _tell(self, incident: Incident, text: str) -> None:
        data: dict[str, str | int | float | bool | None] = {
            "rail": incident.rail,
            "ports": len(incident.ports),
            "down": len(incident.down),
        }
        cause = f"{incident.cause} (first sign: {incident.sign})"
        self._events.add(EventKind.INCIDENT, incident.switch or incident.rail, text, cause, data)
