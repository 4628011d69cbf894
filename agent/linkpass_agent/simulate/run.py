"""One seed: boot, a time of faults, a quiet time, a verdict. The same seed and faults give the same run again."""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from linkpass_topology.fabric import grid
from linkpass_topology.gossip.options import Options
from linkpass_topology.gossip.suspicion import SwimRule

from .faults import Fault, dumps, heavy
from .fleet import Fleet, Setup
from .network import Weather
from .paper import paper
from .watch import KEEP, Broken, Counts, Watch

BOOT = 3.0  # s until everybody knows everybody
Variant = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a run; times in seconds. `loss`: of the management network, always."""

    hosts: int = 16
    rails: int = 3
    leaves: int = 2
    storm: float = 10.0
    quiet: float = 10.0
    loss: float = 0.01
    sealed: bool = False  # with the real cryptography


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a run. `broken` None: everything held."""

    seed: int
    shape: Shape
    faults: tuple[Fault, ...]
    broken: Broken | None
    counts: Counts
    steps: int
    took: float  # s of this process
    trace: tuple[str, ...]
    fingerprint: int

    def json(self) -> dict[str, Any]:
        """For `--json`."""
        wrong = None
        if self.broken:
            wrong = {"what": self.broken.what, "at": round(self.broken.at, 6), "text": self.broken.text}
        return {
            "seed": self.seed,
            "ok": self.broken is None,
            "broken": wrong,
            "faults": dumps(self.faults),
            "steps": self.steps,
            "seconds": round(self.took, 3),
            "fingerprint": f"{self.fingerprint:016x}",
            "verdicts": self.counts.verdicts,
            "convicted_under_loss": self.counts.lossy,
            "acts": self.counts.acts,
            "learned": self.counts.learned,
        }


def setup(seed: int, shape: Shape) -> Setup:
    """The fleet of a seed. A third of the seeds have a rough management network; a quarter are fleets that count as
    large ones, where news spreads by rumour and hosts keep only some sessions."""
    rough = seed % 3 == 0
    weather = Weather(
        loss=shape.loss, duplicate=0.02 if rough else 0.0, least=0.0001, most=0.0004, late=0.05 if rough else 0.0
    )
    options = Options(swim=SwimRule(direct=4 if seed % 4 == 1 else 64))
    return Setup(seed, grid(shape.hosts, shape.rails, mtu=9000, leaves=shape.leaves), weather, options=options)


def faults_of(seed: int, shape: Shape) -> tuple[Fault, ...]:
    """The faults of a seed."""
    fabric = grid(shape.hosts, shape.rails, leaves=shape.leaves)
    return heavy(seed, fabric, BOOT, BOOT + shape.storm)


def run(
    seed: int,
    shape: Shape,
    faults: Iterable[Fault] | None = None,
    *,
    trace: bool = False,
    variant: Variant | None = None,
) -> Result:
    """Run one seed, with its own faults or those given; `variant` breaks the agents on purpose."""
    chosen = faults_of(seed, shape) if faults is None else tuple(faults)
    watch = Watch(KEEP if trace else 0)
    began = time.process_time()
    broken = None
    with variant() if variant else nullcontext(), nullcontext() if shape.sealed else paper():
        fleet = Fleet(setup(seed, shape), watch)
        heal_at = BOOT + shape.storm
        fleet.plan(chosen, heal_at)
        try:
            fleet.run(heal_at + shape.quiet)
            watch.finish()
        except Broken as e:
            broken = e
    took = time.process_time() - began
    return Result(
        seed, shape, chosen, broken, watch.counts, fleet.queue.steps, took, tuple(watch.lines), _fingerprint(fleet)
    )


def _fingerprint(fleet: Fleet) -> int:
    """64 bits that differ for runs that weren't the same."""
    running = (h for h in fleet.hosts.values() if h.running)
    parts = (fleet.queue.steps, fleet.sent_bytes, *(h.gossip.view.summary for h in running))
    found = 0
    for part in parts:
        found = (found * 1_000_003 + part) & ((1 << 64) - 1)
    return found
