"""By which addresses a host's agent can be reached: the management network, and every rail that may carry.

An agent listens on its management address and, on the same UDP port, on the addresses of its fabric ports. The first
is in its row of the membership table, the others are in its record.
"""

from collections.abc import Callable

from linkpass.model import HostRecord, PortRecord, PortState
from linkpass_topology.gossip.outputs import Address
from linkpass_topology.gossip.row import Row

MOST = 4  # roads tried at a time; a host with eight rails need not be asked nine times
_BAD = {PortState.UP: 0, PortState.SUSPECT: 0, PortState.HELD: 1, PortState.UNKNOWN: 1, PortState.DRAINED: 1}
_WORST = 4  # down or absent


class Roads:
    """Addresses by host. `record` and `row` give what is known of a host; `port` is the agents' usual one."""

    def __init__(
        self, host: str, record: Callable[[str], HostRecord | None], row: Callable[[str], Row | None]
    ) -> None:
        self.port = 0
        self._host, self._record, self._row = host, record, row
        self._rail_of: dict[str, str] = {}

    def learn(self, previous: HostRecord | None, record: HostRecord) -> None:
        """A host's record changed."""
        for port in previous.ports if previous else ():
            for address in port.addresses:
                self._rail_of.pop(address, None)
        for port in record.ports:
            for address in port.addresses:
                self._rail_of[address] = port.rail

    def road_of(self, addr: Address) -> str:
        """The rail that the address is on; '' for the management network."""
        return self._rail_of.get(addr[0], "")

    def to(self, host: str, *, wide: bool) -> list[Address]:
        """Where to look for the host: on the management network; `wide`: and on the rails, the likeliest first."""
        row = self._row(host)
        main = [row.addr] if row is not None and row.addr is not None else []
        if main and not wide:
            return main
        return (main + self.rails(host, row))[: MOST if wide else 1]

    def rails(self, host: str, row: Row | None = None) -> list[Address]:
        """The host's addresses on the rails, the likeliest to work first."""
        record, ours = self._record(host), self._record(self._host)
        row = row or self._row(host)
        port = row.addr[1] if row is not None and row.addr is not None else self.port
        if record is None or not port:
            return []
        mine = {p.rail: p for p in ours.ports} if ours else {}
        ranked = [(_badness(p, mine.get(p.rail)), p) for p in record.ports if p.addresses]
        ranked.sort(key=lambda found: found[0])
        return [(p.addresses[0], port) for _, p in ranked]


def _badness(theirs: PortRecord, mine: PortRecord | None) -> int:
    here = _WORST + 1 if mine is None else _BAD.get(mine.state, _WORST)
    return here + _BAD.get(theirs.state, _WORST)
