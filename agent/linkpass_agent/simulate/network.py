"""The physical fleet: cables, leaves, trunks, the management network. It knows which paths truly work: the oracle.

Nothing here knows of agents. Every fault is put in under a number and taken out under it, so that faults may overlap.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from linkpass_topology.fabric import Fabric, FabricHost

NEVER = float("-inf")


@dataclass(slots=True)
class Weather:
    """What happens to datagrams: chances from 0 to 1, delays in seconds. `late` of them take `later` times longer."""

    loss: float = 0.0
    duplicate: float = 0.0
    least: float = 0.0001
    most: float = 0.0004
    late: float = 0.0
    later: float = 20.0

    def trip(self, rng: Random) -> float:
        """How long one datagram takes."""
        delay = rng.uniform(self.least, self.most)
        return delay * self.later if self.late and rng.random() < self.late else delay


@dataclass(slots=True)
class Wrongs:
    """What is wrong with a thing, by fault number. `loss` is the chance that a packet is lost, each way."""

    down: set[int] = field(default_factory=set)  # no carrier
    dark: set[int] = field(default_factory=set)  # carrier, but nothing passes
    no_tx: set[int] = field(default_factory=set)  # nothing from the host into the fabric
    no_rx: set[int] = field(default_factory=set)  # nothing from the fabric to the host
    losses: dict[int, float] = field(default_factory=dict)

    def clear(self, fault: int) -> None:
        for part in (self.down, self.dark, self.no_tx, self.no_rx):
            part.discard(fault)
        self.losses.pop(fault, None)

    @property
    def any(self) -> bool:
        return bool(self.down or self.dark or self.no_tx or self.no_rx or self.losses)

    @property
    def loss(self) -> float:
        kept = 1.0
        for p in self.losses.values():
            kept *= 1.0 - p
        return 1.0 - kept


@dataclass(slots=True)
class Cable:
    """A host's port on one rail, up to and with its leaf. `bad_at`: when it last wasn't perfect."""

    leaf: str
    rail: str
    own: Wrongs = field(default_factory=Wrongs)
    bad_at: float = NEVER
    carrier: bool = True
    tx: bool = True
    rx: bool = True
    loss: float = 0.0
    perfect: bool = True


class Network:
    """All cables and switches of a fabric, and the management network beside it."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.hosts: dict[str, FabricHost] = {h.name: h for h in fabric.hosts}
        self.cables: dict[tuple[str, str], Cable] = {
            (h.name, rail): Cable(leaf, rail) for h in fabric.hosts for rail, leaf in h.leaves.items()
        }
        self.leaves: dict[str, Wrongs] = {s.name: Wrongs() for s in fabric.leaves}
        self.trunks: dict[str, Wrongs] = {r: Wrongs() for r in fabric.rails}  # between the leaves of a rail
        self.trunk_bad_at: dict[str, float] = dict.fromkeys(fabric.rails, NEVER)
        self.rail_of_leaf = {s.name: s.rail for s in fabric.leaves}
        self.under: dict[str, list[tuple[str, str]]] = {s.name: [] for s in fabric.leaves}
        for key, cable in self.cables.items():
            self.under[cable.leaf].append(key)
        self.weather = Weather()  # of the management network
        self.rails_weather = Weather(least=0.00001, most=0.0002)
        self.islands: dict[int, frozenset[str]] = {}  # hosts cut off from the others' management network
        self.storms: dict[int, float] = {}  # more loss on the management network
        self.mgmt_bad_at = NEVER

    # -- wrongs ------------------------------------------------------------------------------------------------

    def settle(self, now: float, keys: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Work out the cables' states anew; returns those that changed."""
        changed = []
        for key in keys:
            cable = self.cables[key]
            leaf, own = self.leaves[cable.leaf], cable.own
            carrier = not own.down and not leaf.down
            passes = carrier and not own.dark and not leaf.dark
            new = (carrier, passes and not own.no_tx, passes and not own.no_rx, own.loss)
            if not (own.any or leaf.any):
                if not cable.perfect:
                    cable.bad_at, cable.perfect = now, True
            else:
                cable.perfect = False
            if new != (cable.carrier, cable.tx, cable.rx, cable.loss):
                cable.carrier, cable.tx, cable.rx, cable.loss = new
                changed.append(key)
        return changed

    def on_rail(self, rail: str) -> list[tuple[str, str]]:
        """All cables of a rail."""
        return [key for key, cable in self.cables.items() if cable.rail == rail]

    # -- truth -------------------------------------------------------------------------------------------------

    def carries(self, source: str, target: str, rail: str) -> bool:
        """Whether packets get from one host to the other over this rail, lossy or not."""
        a, b = self.cables[source, rail], self.cables[target, rail]
        return a.tx and b.rx and (a.leaf == b.leaf or not self.trunks[rail].any)

    def works(self, one: str, other: str, rail: str) -> bool:
        """Whether the path carries both ways."""
        return self.carries(one, other, rail) and self.carries(other, one, rail)

    def loss(self, one: str, other: str, rail: str) -> float:
        """Chance that a packet on a path that works is lost, one way."""
        a, b = self.cables[one, rail].loss, self.cables[other, rail].loss
        return 1.0 - (1.0 - a) * (1.0 - b) * (1.0 - self.rails_weather.loss)

    def clean_since(self, one: str, other: str, rail: str, now: float) -> float:
        """Since when the path has been without any fault; `now` if it has one."""
        a, b = self.cables[one, rail], self.cables[other, rail]
        if not (a.perfect and b.perfect) or self.rails_weather.loss:
            return now
        since = max(a.bad_at, b.bad_at)
        if a.leaf != b.leaf:
            if self.trunks[rail].any:
                return now
            since = max(since, self.trunk_bad_at[rail])
        return since

    def talk(self, one: str, other: str) -> bool:
        """Whether the management network joins the two."""
        return all((one in island) == (other in island) for island in self.islands.values())

    @property
    def mgmt_loss(self) -> float:
        """Chance that a datagram on the management network is lost."""
        kept = 1.0 - self.weather.loss
        for p in self.storms.values():
            kept *= 1.0 - p
        return 1.0 - kept
