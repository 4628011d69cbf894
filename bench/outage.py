"""Outage of a 1 kHz UDP stream for each class of fault: with LinkPass, without anything, and with FRR.

    PYTHONPATH=.:agent:topology:lab python bench/outage.py --trials 30 --json outage.json --markdown outage.md

One lab of the same fabric for each contender stands side by side; trials go round, one fault class and contender at a
time, so that a noisy moment hits all alike. Before each trial the contender must use both paths again. The stream
runs until after the repair, so it is longer than any outage. What never recovers by itself (`none`) is cut off by the
repair after --cap seconds, and shown as such.

An outage is the longest gap between two arrivals (kernel receive times) that ended after the fault.
Needs root and, for frr, Debian's package frr.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from linkpass.errors import LinkPassError
from linkpass_lab import realisations, scenario, traffic
from linkpass_lab.agents import Agents
from linkpass_lab.fault import Fault, parse
from linkpass_lab.frr import Frr
from linkpass_lab.lab import Lab, LabError
from linkpass_lab.scenario import Traffic
from linkpass_topology import fabric as fabrics

CLASSES: Mapping[str, Callable[[str, Lab], Fault]] = {
    "near carrier": lambda rail, lab: parse({"kind": "carrier", "host": "a", "rail": rail}),
    "far carrier": lambda rail, lab: parse({"kind": "carrier", "host": "b", "rail": rail}),
    "silent both ways": lambda rail, lab: parse({"kind": "silent", "host": "b", "rail": rail}),
    "silent one way": lambda rail, lab: parse({"kind": "silent", "host": "b", "rail": rail, "way": "to"}),
    "whole leaf": lambda rail, lab: parse({"kind": "leaf", "leaf": lab.fabric.host("a").leaves[rail]}),
}
RETURN = 20.0  # s within which both paths must be in use again
TRIES = 4  # for one trial, until the measurement is given up
LASTS = 1.0  # s that a fault lasts for those who recover by themselves: 4 times the longest outage expected
FORGOTTEN = 2.0  # s after which a path that OSPF knows and the kernel doesn't have is lost for good
# 30 faults of one port in a few minutes are a flap train to a hold-down; it is not what is measured here.
CONFIG = {"hold_down": {"first": 0.2, "max": 0.2}}


class StuckError(LabError):
    """A contender doesn't return to all paths."""


class Contender(Protocol):
    """One way to route over the rails, running on a lab of its own."""

    lab: Lab
    lasts: float  # s that a fault lasts

    def whole(self) -> bool:
        """Both paths are in use."""
        ...

    def stages(self, zero: float) -> dict[str, float]:
        """ms from the fault to each stage, where it can tell."""
        ...


class Plain:
    """Nothing but static equal-cost routes."""

    def __init__(self, lab: Lab, cap: float) -> None:
        self.lab, self.lasts = lab, cap

    def whole(self) -> bool:
        return True

    def stages(self, zero: float) -> dict[str, float]:
        return {}


class WithFrr:
    """FRR: OSPF and BFD."""

    def __init__(self, lab: Lab, _: float) -> None:
        self.lab, self.lasts = lab, LASTS
        self.frr = Frr(lab)
        self.since: float | None = None  # when OSPF was whole and the kernel's routes were not
        self.reminders = 0
        self.frr.start()

    def whole(self) -> bool:
        """As `Frr.whole`; FRR is reminded of a path that it forgot for good, or there would be no next trial."""
        if not self.frr.sessions():
            self.since = None
            return False
        if not (short := self.frr.short()):
            return True
        self.since = self.since or time.monotonic()
        if time.monotonic() > self.since + FORGOTTEN:
            self.reminders += 1
            for host in short:
                self.frr.remind(host)
        return False

    def stages(self, zero: float) -> dict[str, float]:
        return {}


class WithLinkPass:
    """The agents."""

    def __init__(self, lab: Lab, _: float) -> None:
        self.lab, self.lasts = lab, LASTS
        self.agents = Agents(lab, CONFIG)
        self.agents.start_all()

    def whole(self) -> bool:
        return all(self.agents.whole(h.name) for h in self.lab.fabric.hosts)

    def stages(self, zero: float) -> dict[str, float]:
        """First of each kind on each host within the fault's time, as "a acted"."""
        found: dict[str, float] = {}
        for host in self.lab.fabric.hosts:
            for event in self.agents.events(host.name):
                if zero <= event["at"] < zero + self.lasts:
                    found.setdefault(f"{host.name} {event['kind']}", round((event["at"] - zero) * 1e3, 2))
        return found


CONTENDERS: Mapping[str, Callable[[Lab, float], Contender]] = {
    "linkpass": WithLinkPass,
    "none": Plain,
    "frr": WithFrr,
}


@dataclass
class Trial:
    """One fault."""

    contender: str
    fault: str
    outage_ms: float
    lost: int
    capped: bool  # ended by the repair
    stages: dict[str, float] = field(default_factory=dict)


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least this share of the values doesn't exceed."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * round(share * 100) // 100))  # ceiling, in whole numbers
    return ordered[int(rank) - 1]


def summarise(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """A row for each fault class and contender."""
    rows = []
    for fault in dict.fromkeys(t.fault for t in trials):
        for contender in dict.fromkeys(t.contender for t in trials):
            chosen = [t for t in trials if (t.fault, t.contender) == (fault, contender)]
            if not chosen:
                continue
            ms = [t.outage_ms for t in chosen]
            row = {"fault": fault, "contender": contender, "trials": len(ms), "capped": sum(t.capped for t in chosen)}
            row |= {"median": round(statistics.median(ms), 1), "p95": round(percentile(ms, 0.95), 1)}
            row |= {"min": round(min(ms), 1), "max": round(max(ms), 1)}
            rows.append(row)
    return rows


def stage_rows(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Median and p95 of each stage for each fault class, of those contenders that tell."""
    rows = []
    for fault in dict.fromkeys(t.fault for t in trials):
        told = [t.stages for t in trials if t.fault == fault and t.stages]
        for stage in dict.fromkeys(name for s in told for name in s):
            ms = [s[stage] for s in told if stage in s]
            rows.append(
                {
                    "fault": fault,
                    "stage": stage,
                    "trials": len(ms),
                    "median": round(statistics.median(ms), 2),
                    "p95": round(percentile(ms, 0.95), 2),
                }
            )
    return rows


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table; a row whose trials were all ended by the repair says so."""
    columns = list(rows[0]) if rows else []
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    return "\n".join([*lines, *("| " + " | ".join(str(r[c]) for c in columns) + " |" for r in rows)]) + "\n"


def trial(name: str, contender: Contender, fault: str) -> Trial:
    """Wait until whole, stream, break, repair; LabError if the contender doesn't come back in time."""
    deadline = time.monotonic() + RETURN
    while not contender.whole():
        if time.monotonic() > deadline:
            raise StuckError(f"{name}: not on both paths {RETURN:g} s after the last fault")
        time.sleep(0.1)
    lab = contender.lab
    stream = traffic.UdpStream(lab, Traffic("stream", "udpstream", "a", "b", {"realtime": True}))
    stream.start()
    try:
        made = CLASSES[fault](traffic.rail_in_use(lab, "a"), lab)
    except LabError:
        stream.stop()
        raise
    zero = time.monotonic()
    lab.inject(made)
    time.sleep(max(0.0, zero + contender.lasts - time.monotonic()))
    mended = time.monotonic()
    lab.repair(made)
    time.sleep(0.3)
    stream.stop()
    result = stream.result(after=int(zero * 1e9))
    longest = next((g for g in result.gaps), None)
    capped = longest is not None and longest.start < zero + 0.1 and longest.end > mended
    return Trial(name, fault, result.longest_ms, result.lost, capped, contender.stages(zero))


def main() -> int:
    parser = argparse.ArgumentParser(description="outage of a 1 kHz stream per fault class and contender")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--classes", nargs="+", choices=list(CLASSES), default=list(CLASSES))
    parser.add_argument("--cap", type=float, default=2.0, help="s after which `none` is repaired")
    parser.add_argument("--json", type=Path, help="write all trials there")
    parser.add_argument("--markdown", type=Path, help="write the tables there")
    options = parser.parse_args()
    fabric = fabrics.load(scenario.find_fabric("2x2"))
    trials: list[Trial] = []
    running: dict[str, Contender] = {}
    stuck: list[str] = []  # contenders that had to be started anew
    reminders = 0

    def begin(name: str) -> None:
        lab = realisations.up("namespaces", fabric, label=f"outage-{name}")
        try:
            running[name] = CONTENDERS[name](lab, options.cap)
        except BaseException:
            lab.close()
            raise

    try:
        for name in options.contenders:
            begin(name)
        for number in range(1, options.trials + 1):
            for fault in options.classes:
                for name in options.contenders:
                    for left in reversed(range(TRIES)):
                        try:
                            trials.append(trial(name, running[name], fault))
                            break
                        except StuckError as e:
                            print(f"outage: {e}; starting it anew", file=sys.stderr)
                            stuck.append(name)
                            reminders += getattr(running[name], "reminders", 0)
                            running.pop(name).lab.close()
                            begin(name)
                        except LabError as e:  # before the fault: a stream that hadn't got going, say
                            print(f"outage: {name}: {e}; once more", file=sys.stderr)
                            if not left:
                                raise
                said = ", ".join(f"{t.contender} {t.outage_ms:.1f}" for t in trials[-len(running) :])
                print(f"{number}/{options.trials} {fault}: {said} ms", file=sys.stderr, flush=True)
    except LinkPassError as e:
        print(f"outage: {e}", file=sys.stderr)
        return 3
    finally:
        for contender in running.values():
            contender.lab.close()
    frr = running.get("frr")
    reminders += frr.reminders if isinstance(frr, WithFrr) else 0
    rows, stages = summarise(trials), stage_rows(trials)
    note = (
        f"{options.trials} trials each, ms; `capped` were ended by the repair "
        f"({LASTS:g} s, for none {options.cap:g} s). Python {platform.python_version()}, {platform.release()}.\n"
    )
    if reminders:
        note += f"FRR forgot a path {reminders} times after carrier had come back and had to be reminded by hand.\n"
    for name in sorted(set(stuck)):
        note += f"{name} did not come back within {RETURN:g} s and was started anew {stuck.count(name)} times.\n"
    text = "\n".join([note, markdown(rows), "First event of each kind after the fault, ms:\n", markdown(stages)])
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "stages": stages, "trials": [t.__dict__ for t in trials]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
