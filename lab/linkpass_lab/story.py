"""Turns events of several hosts into a timeline that a person can read. Pure: text in, text out."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from linkpass_topology.fabric import Fabric

VIA = re.compile(r" via [0-9a-f.:]+")  # the device tells the way already


@dataclass(frozen=True, slots=True)
class Line:
    """One event of one host; `at` in monotonic s, which all hosts of a lab share."""

    at: float
    host: str
    kind: str
    subject: str
    text: str
    cause: str


class FiguresLike(Protocol):
    """What `summary` needs; times in ms unless they say otherwise."""

    outage_ms: float
    lost: int
    sent: int
    without_ms: float
    without_lost: int
    returned_s: float | None
    stages: dict[str, float]

    @property
    def survived(self) -> bool: ...


def picture(fabric: Fabric, near: str, far: str) -> str:
    """The fabric in a few lines."""
    lines = [f"{len(fabric.hosts)} hosts, {len(fabric.rails)} rails. Each rail is a switch of its own."]
    for host in fabric.hosts:
        if host.name in (near, far):
            rails = "   ".join(f"{r} {host.on_rail(i)}" for i, r in enumerate(fabric.rails))
            lines.append(f"  {host.name}  {host.service}   over   {rails}")
    return "\n".join(lines)


def timeline(lines: Iterable[Line], zero: float) -> Iterator[str]:
    """A line each, with milliseconds since `zero`. A cause that this host has just given isn't said again."""
    causes: dict[str, str] = {}
    for line in lines:
        known = not line.cause or line.cause in line.text or causes.get(line.host) == line.cause
        causes[line.host] = line.cause
        text = VIA.sub("", line.text if line.subject in line.text else f"{line.subject}: {line.text}")
        cause = "" if known else f"  [{line.cause}]"
        yield f"{(line.at - zero) * 1e3:+9.1f} ms  {line.host:<4} {line.kind:<8} {text}{cause}"


def first(lines: Iterable[Line], host: str, *kinds: str) -> float | None:
    """When the first event of these kinds came on a host."""
    return next((line.at for line in lines if line.host == host and line.kind in kinds), None)


def stages(lines: list[Line], zero: float, near: str, far: str) -> dict[str, float]:
    """Milliseconds from the fault to each stage: seen and shared at the far host, the rest at the near one."""
    found = {
        "seen": first(lines, far, "seen"),
        "shared": first(lines, far, "shared"),
        "learned": first(lines, near, "learned"),
        "decided": first(lines, near, "decided"),
        "acted": first(lines, near, "acted"),
        "flowed": first(lines, far, "flowed"),
    }
    return {name: round((at - zero) * 1e3, 2) for name, at in found.items() if at is not None}


def summary(figures: FiguresLike, seconds: float) -> Iterator[str]:
    """The figures at the end."""
    yield "                          with LinkPass    without"
    yield f"  longest gap             {figures.outage_ms:10.1f} ms {figures.without_ms:10.1f} ms (until repaired)"
    yield f"  packets lost            {figures.lost:13d} {figures.without_lost:13d}"
    if figures.stages:
        steps = "   ".join(f"{name} {ms:.1f}" for name, ms in figures.stages.items())
        yield f"  ms after the cut:       {steps}"
    if figures.returned_s is not None:
        yield f"  both rails in use again {figures.returned_s:.1f} s after the repair (hold-down)"
    else:
        yield "  the rail was not used again in time"
    end = "survived" if figures.survived else "DID NOT SURVIVE"
    yield f"The flow {end}. {seconds:.0f} s in all; nothing is left."
