"""What goes wrong: faults as values, drawn from one seed, in the mix that fleets report.

Of the links' faults, 80 % are single flaps (log-normal, 1 to 12 s, a tail to 60 s), 8 % bursts of 3 to 10, 4 % a
whole leaf, 4 % lost rate, 2 % one-way or gray loss, 2 % permanent. Around them come faults of hosts, agents, clocks,
keys and of the management network, which no field report counts; their shares are our choice.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from random import Random
from typing import Any

from linkpass.errors import LinkPassError
from linkpass_topology.fabric import Fabric


class Kind(StrEnum):
    """What a fault is."""

    FLAP = "flap"  # a cable has no carrier
    LEAF = "leaf"  # a leaf fails: no carrier on all its ports
    DARK = "dark"  # a leaf forwards nothing, its ports stay up
    TRUNK = "trunk"  # a rail's leaves are cut off from each other
    ONE_WAY = "one-way"  # nothing from the host into the fabric (amount 0) or the other way (amount 1)
    GRAY = "gray"  # a share `amount` of a cable's packets is lost, each way
    RATE = "rate"  # a port comes up with less than its rate
    MENDED = "mended"  # a port's MTU and GIDs read otherwise, as after a reset
    ISLAND = "island"  # the hosts named are cut off from the others' management network
    STORM = "storm"  # a share `amount` of the management network's datagrams is lost
    CRASH = "crash"  # a host loses power; afterwards it boots
    KILL = "kill"  # an agent is killed and started anew
    FREEZE = "freeze"  # an agent isn't scheduled
    DRAIN = "drain"  # an operator drains a port; afterwards undrains it
    STEP = "step"  # a host's wall clock jumps by `amount` seconds
    KEYS = "keys"  # a new fleet key: added everywhere, then used, then the old one taken away


@dataclass(frozen=True, slots=True)
class Fault:
    """From `at` for `lasts` seconds (None: for good). `where`: a host, a leaf or a rail, or hosts joined by '+'."""

    at: float
    kind: Kind
    where: str = ""
    rail: str = ""
    lasts: float | None = None
    amount: float = 0.0

    def __str__(self) -> str:
        place = f" {self.where}" if self.where else ""
        rail = f" {self.rail}" if self.rail else ""
        amount = f" {self.amount:g}" if self.amount else ""
        lasts = "" if self.lasts is None else f" for {self.lasts:.3f} s"
        return f"{self.at:.3f} s {self.kind}{place}{rail}{amount}{lasts}"


LINK_MIX = ((0.80, "flap"), (0.08, "burst"), (0.04, "leaf"), (0.04, "rate"), (0.02, "gray"), (0.02, "permanent"))
HARD_MIX = (
    (4.0, Kind.FREEZE), (3.0, Kind.KILL), (2.0, Kind.CRASH), (3.0, Kind.ISLAND), (2.0, Kind.STORM), (2.0, Kind.DRAIN),
    (1.0, Kind.STEP), (1.0, Kind.KEYS), (1.0, Kind.DARK), (1.0, Kind.TRUNK), (1.0, Kind.ONE_WAY), (1.0, Kind.GRAY),
)  # fmt: skip


def flap_length(rng: Random) -> float:
    """Seconds: log-normal with 95 % between 1 and 12, cut at 60."""
    low, high = math.log(1.0), math.log(12.0)
    return min(60.0, max(0.05, rng.lognormvariate((low + high) / 2, (high - low) / 4)))


def field_faults(rng: Random, fabric: Fabric, count: int, start: float, end: float) -> list[Fault]:
    """`count` faults of links, spread evenly, in the field's mix."""
    made: list[Fault] = []
    for _ in range(count):
        at, host, rail = rng.uniform(start, end), rng.choice(fabric.hosts).name, rng.choice(fabric.rails)
        what = rng.choices([w for _, w in LINK_MIX], [p for p, _ in LINK_MIX])[0]
        if what == "flap":
            made.append(Fault(at, Kind.FLAP, host, rail, flap_length(rng)))
            if rng.random() < 0.25:
                made.append(Fault(at + (made[-1].lasts or 0.0), Kind.MENDED, host, rail, rng.uniform(0.5, 3.0)))
        elif what == "burst":
            for _ in range(rng.randint(3, 10)):
                made.append(Fault(at, Kind.FLAP, host, rail, rng.uniform(0.5, 3.0)))
                at += (made[-1].lasts or 0.0) + rng.uniform(5.0, 30.0)
        elif what == "leaf":
            made.append(Fault(at, Kind.LEAF, rng.choice(fabric.leaves).name, lasts=flap_length(rng)))
        elif what == "rate":
            made.append(Fault(at, Kind.RATE, host, rail, flap_length(rng), 0.5))
        elif what == "gray" and rng.random() < 0.5:
            made.append(Fault(at, Kind.GRAY, host, rail, flap_length(rng), 1e-4))
        elif what == "gray":
            made.append(Fault(at, Kind.ONE_WAY, host, rail, flap_length(rng), float(rng.random() < 0.5)))
        else:
            made.append(Fault(at, Kind.FLAP, host, rail))
    return [f for f in made if f.at < end]


def hard_faults(rng: Random, fabric: Fabric, count: int, start: float, end: float) -> list[Fault]:
    """`count` faults of everything else."""
    made: list[Fault] = []
    hosts = [h.name for h in fabric.hosts]
    for _ in range(count):
        at, host, rail = rng.uniform(start, end), rng.choice(hosts), rng.choice(fabric.rails)
        kind = rng.choices([k for _, k in HARD_MIX], [p for p, _ in HARD_MIX])[0]
        lasts = rng.lognormvariate(math.log(1.5), 0.8)
        match kind:
            case Kind.ISLAND:
                some = rng.sample(hosts, rng.randint(1, max(1, len(hosts) // 2)))
                made.append(Fault(at, kind, "+".join(sorted(some)), lasts=lasts))
            case Kind.STORM:
                made.append(Fault(at, kind, lasts=lasts, amount=rng.choice([0.05, 0.2, 0.5])))
            case Kind.DARK:
                made.append(Fault(at, kind, rng.choice(fabric.leaves).name, lasts=lasts))
            case Kind.TRUNK:
                made.append(Fault(at, kind, rail, lasts=lasts))
            case Kind.ONE_WAY:
                made.append(Fault(at, kind, host, rail, lasts, float(rng.random() < 0.5)))
            case Kind.GRAY:
                made.append(Fault(at, kind, host, rail, lasts, rng.choice([1e-4, 0.01, 0.3])))
            case Kind.DRAIN:
                made.append(Fault(at, kind, host, rail, lasts))
            case Kind.STEP:
                made.append(Fault(at, kind, host, amount=rng.choice([-86400.0, -5.0, 5.0, 86400.0])))
            case Kind.KEYS:
                made.append(Fault(at, kind, lasts=rng.uniform(0.5, 2.0)))
            case Kind.FREEZE:
                made.append(Fault(at, kind, host, lasts=rng.choice([0.02, 0.1, 0.5, lasts])))
            case _:
                made.append(Fault(at, kind, host, lasts=lasts))
    return made


def heavy(seed: int, fabric: Fabric, start: float, end: float) -> tuple[Fault, ...]:
    """The faults of one seed: about one a second of each sort, and sometimes many of one link."""
    rng = Random(f"faults {seed}")
    count = max(1, round((end - start) * rng.uniform(0.4, 1.6)))
    made = field_faults(rng, fabric, count, start, end) + hard_faults(rng, fabric, count, start, end)
    if rng.random() < 0.3:  # the days that hold most flaps: one link again and again
        host, rail, at = rng.choice(fabric.hosts).name, rng.choice(fabric.rails), start
        while at < end:
            made.append(Fault(at, Kind.FLAP, host, rail, rng.uniform(0.05, 1.0)))
            at += (made[-1].lasts or 0.0) + rng.uniform(0.05, 2.0)
    return tuple(sorted(made, key=lambda f: (f.at, f.kind, f.where, f.rail)))


def dumps(faults: Iterable[Fault]) -> list[dict[str, Any]]:
    """As JSON takes it."""
    return [{k: v for k, v in asdict(f).items() if v not in ("", None)} for f in faults]


def loads(text: str) -> tuple[Fault, ...]:
    """What `dumps` gave, as JSON text. LinkPassError says what is wrong."""
    try:
        return tuple(Fault(**{**raw, "kind": Kind(raw["kind"])}) for raw in json.loads(text))
    except (ValueError, TypeError, KeyError) as e:
        raise LinkPassError(f"not a list of faults as `--json` prints it: {e}") from e
