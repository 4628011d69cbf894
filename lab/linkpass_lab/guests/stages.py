"""When each step of a failover was first told, from the agents' events in a `Result`'s story.

Times in s from the moment at which the fault was ordered, so what carrying it out takes is part of the first step:
a tenth of a second or more where a command has to be run in the guest (admin-down, GID, MTU).
"""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from linkpass_lab.guests.protected import CLIENT, SERVER

# The agent at the struck end sees it, the other one is told; each orders its shims away; the client's shim has fenced
# the old path, knows what arrived, and has posted the rest on the new one.
STEPS = ("seen", "told", "ordered there", "ordered here", "fenced", "settled", "moved")
# What the agent adds to "moved": a move's event is dated to its last replay.
SHIM = re.compile(r"fenced after ([\d.]+), settled after ([\d.]+), all replayed after ([\d.]+) ms")


def split(story: Sequence[str], struck: str) -> dict[str, float]:
    """The first time of each step that the story tells; `struck` is the host at whose end the fault is."""
    other = CLIENT if struck == SERVER else SERVER
    marks = {
        "seen": (f" {struck} verdict ", "-> down"),
        "told": (f" {other} learned {struck}: ", "-> down"),
        "ordered there": (f" {struck} decided job ", "ordered off"),
        "ordered here": (f" {other} decided job ", "ordered off"),
        "moved": (f" {CLIENT} acted job ", "moved: "),
    }
    found: dict[str, float] = {}
    for line in story:
        for step, (begin, part) in marks.items():
            if step not in found and begin in line and part in line and (at := float(line.split()[0])) >= 0:
                found[step] = at
                if step == "moved" and (told := SHIM.search(line)):
                    fenced, settled, replayed = (float(ms) / 1000 for ms in told.groups())
                    found["fenced"] = round(at - replayed + fenced, 6)
                    found["settled"] = round(at - replayed + settled, 6)
    return found


def table(runs: Iterable[tuple[str, str, Mapping[str, Any]]]) -> list[str]:
    """Markdown lines of (fault class, struck host, result): median and maximum of each step, in ms; [] for no run."""
    by_fault: dict[str, list[dict[str, float]]] = {}
    for fault, struck, result in runs:
        if result["verdict"] == "survived" and (steps := split(result["story"], struck)):
            by_fault.setdefault(fault, []).append(steps)
    if not by_fault:
        return []
    lines = [f"| fault | runs | {' | '.join(STEPS)} |", f"| --- | ---: |{' ---: |' * len(STEPS)}"]
    for fault, rows in by_fault.items():
        lines.append(
            f"| {fault} | {len(rows)} | {' | '.join(_cell([r[s] for r in rows if s in r]) for s in STEPS)} |"
        )
    return lines


def _cell(times: list[float]) -> str:
    return f"{1000 * statistics.median(times):.0f} ({1000 * max(times):.0f})" if times else ""
