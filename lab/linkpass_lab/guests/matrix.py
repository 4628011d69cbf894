"""The baseline's cells as values: every workload x every fault class, on one rail and on a bond."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from linkpass_lab.fault import Fault, parse

CLIENT, SERVER, RAIL, LEAF = "a", "b", "rail0", "l0"
LASTS = 2.5  # s; a flap as operators see it, longer than (6+1) x 4.096 us x 2^14 = 0.47 s of retries
PATIENCE = 4.0  # s that a job has after the repair

VARIANTS = ("one rail", "bond")

_OWN = {"host": CLIENT, "rail": RAIL}
_FAR = {"host": SERVER, "rail": RAIL}
# "Own" is the client's end, "far" the server's. Each strikes once, and is repaired after LASTS.
FAULTS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "own carrier": {"kind": "carrier", **_OWN},
    "far carrier": {"kind": "carrier", **_FAR},
    "own admin-down": {"kind": "admin-down", **_OWN},
    "far admin-down": {"kind": "admin-down", **_FAR},
    "silent port": {"kind": "silent", **_FAR},
    "requests lost": {"kind": "silent", "way": "to", **_FAR},
    "acks lost": {"kind": "acks", **_FAR},
    "loss 5 %": {"kind": "loss", "percent": 5, **_FAR},
    "latency 10 ms": {"kind": "latency", "ms": 10, **_FAR},
    "own GID moves": {"kind": "gid", **_OWN},
    "far GID moves": {"kind": "gid", **_FAR},
    "far MTU 1280": {"kind": "mtu", **_FAR},
    "flaps": {"kind": "flap", "count": 5, "down": 0.2, "up": 0.3, **_FAR},
    "all rails": {"kind": "rails", "host": SERVER},
    "whole leaf": {"kind": "leaf", "leaf": LEAF},
    "far host frozen": {"kind": "freeze", "host": SERVER},
    "far host killed": {"kind": "kill", "host": SERVER},
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a variant of the lab, a workload, a fault class."""

    variant: str
    workload: str
    fault: str

    @property
    def key(self) -> str:
        return "|".join((self.variant, self.workload, self.fault))

    def strike(self) -> Fault | None:
        """The fault, None for the run without one."""
        raw = FAULTS[self.fault]
        return None if raw is None else parse(raw)


def cells(variants: Iterable[str], workloads: Iterable[str], faults: Iterable[str]) -> list[Cell]:
    """The cells in the order to run them: workload by workload, so that a broken-off run has whole rows."""
    faults = list(faults)
    return [Cell(v, w, f) for w in workloads for v in variants for f in faults]


def short(cell: dict[str, Any] | None) -> str:
    """A cell's text in the table."""
    if cell is None:
        return ""
    match cell["ended"]:
        case "died":
            after = f" {cell['after']:.1f} s" if cell["after"] is not None else ""
            return f"**{cell['status'] or 'died'}**{after}"
        case "hangs":
            return f"**hangs**{' ' + cell['status'] if cell['status'] else ''}"
        case "not run":
            return "?"
        case ended:
            gap = cell["gap"]
            return f"{'ok' if ended == 'finished' else 'goes on'}{f', gap {gap:.1f} s' if gap else ''}"


def table(done: dict[str, dict[str, Any]], variant: str, workloads: Iterable[str]) -> list[str]:
    """Markdown lines: a row for each fault class, a column for each workload that has been run."""
    names = [w for w in workloads if any(Cell(variant, w, f).key in done for f in FAULTS)]
    if not names:
        return ["Nothing run yet."]
    lines = [f"| fault | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    for fault in FAULTS:
        row = [short(done.get(Cell(variant, w, fault).key)) for w in names]
        lines.append(f"| {fault} | {' | '.join(row)} |")
    return lines


def tally(done: dict[str, dict[str, Any]], variant: str) -> str:
    """How many of a variant's runs with a fault ended how."""
    mine = [c for k, c in done.items() if k.startswith(f"{variant}|") and not k.endswith("|none")]
    ends: dict[str, int] = {}
    for cell in mine:
        ends[cell["ended"]] = ends.get(cell["ended"], 0) + 1
    words = ", ".join(f"{n} {'went on' if e == 'carries on' else e}" for e, n in sorted(ends.items()))
    return f"{len(mine)} runs with a fault on {'a bond' if variant == 'bond' else variant}: {words or 'none yet'}."
