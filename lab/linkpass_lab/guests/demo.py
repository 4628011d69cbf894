"""The main demonstration: an RDMA job outlives the rail that it runs on, and the same job without LinkPass."""

import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from linkpass_lab.fault import Fault, FaultKind
from linkpass_lab.guests import jobs, stages, workloads
from linkpass_lab.guests.jobs import Blow, Outcome, Running
from linkpass_lab.guests.protected import CLIENT, SERVER, Protected, Result
from linkpass_lab.guests.roce import RoceArrivals

JOB = "rcflow"  # knows nothing of LinkPass, checks every byte and completion, gives up after 7 tries as most jobs do
# No atomics, as most jobs: with one under way a path is left only when the queue pair itself gives up (docs/shim.md).
OPERATIONS = ("--ops", "write,write_imm,send,send_imm,read")
SIZE = 4.0  # the job runs for 24 s
LASTS = 2.5  # s that the rail is cut
LEAD = 1.0  # s before the cut that are drawn
SPAN = 8.0  # s after it
BIN = 0.1  # s
PATIENCE = 60.0
BARS = " .:-=+*#@"
Say = Callable[[str], None]
Seen = Sequence[tuple[float, int]]


@dataclass(slots=True)
class Figures:
    """What was measured; s, and packets a second at the client's rails."""

    survived: bool = False
    gap: float | None = None  # the longest time without a completion, from the cut on
    stages: dict[str, float] = field(default_factory=dict)  # s after the cut
    before: float = 0.0  # packets a second before the cut
    after: float = 0.0  # and on the other rail, while the first is cut
    operations: int = 0
    replayed: int = 0
    without: str = ""  # what became of the same job without LinkPass
    seconds: float = 0.0


def rates(seen: Seen, zero: float) -> list[tuple[float, float]]:
    """(s after `zero`, packets a second) for each bin from LEAD before to SPAN after, 0.0 where nothing came."""
    edges = [zero - LEAD + BIN * i for i in range(int((LEAD + SPAN) / BIN) + 1)]
    return [
        (round(a - zero + BIN / 2, 3), max(0.0, (_at(seen, b) - _at(seen, a)) / BIN))
        for a, b in itertools.pairwise(edges)
    ]


def _at(seen: Seen, when: float) -> float:
    """Packets by that time, between two looks in proportion; after the last look as many as then."""
    for (t0, n0), (t1, n1) in itertools.pairwise(seen):
        if t0 <= when <= t1:
            return n0 + (n1 - n0) * (when - t0) / ((t1 - t0) or 1.0)
    return float(seen[-1][1]) if seen and when > seen[-1][0] else 0.0


def bars(points: Sequence[tuple[float, float]], top: float) -> str:
    """A line of text, a character a bin."""
    return "".join(BARS[min(len(BARS) - 1, round(rate / (top or 1.0) * (len(BARS) - 1)))] for _, rate in points)


def mean(points: Sequence[tuple[float, float]], start: float, end: float) -> float:
    """Mean rate between two times after the cut."""
    chosen = [rate for at, rate in points if start <= at < end]
    return sum(chosen) / len(chosen) if chosen else 0.0


def plot(path: Path, lines: dict[str, Sequence[tuple[float, float]]]) -> None:
    """Both jobs' packets a second over time, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 3.5), layout="constrained")
    axes.axvspan(0, LASTS, color="0.9", label="rail cut")
    for name, points in lines.items():
        axes.plot([at for at, _ in points], [rate for _, rate in points], label=name)
    axes.set(
        xlabel="s after the cut", ylabel="packets/s at the client", title=f"{JOB}, 2 guests x 2 rails, Soft-RoCE"
    )
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def is_doubt(line: str) -> bool:
    """A path that was SUSPECT for a moment and stayed in use."""
    return " verdict " in line and ("up -> suspect" in line or "suspect -> up" in line)


class Tour:
    """One run on guests that are up."""

    def __init__(self, bench: Protected, say: Say) -> None:
        self.bench, self.say = bench, say
        self.figures = Figures()
        self.cut = Fault(FaultKind.CARRIER, host=SERVER, rail=bench.lab.fabric.rails[0])

    def run(self, picture: Path) -> Figures:
        """With LinkPass, then without."""
        protected = self.protected()
        self.bench.heal()
        bare = self.unprotected()
        top = max(rate for _, rate in (*protected, *bare))
        self.say(f"\nPackets a second at {CLIENT}, {BIN:g} s a character; the rail is cut from | for {LASTS:g} s:")
        mark = int(LEAD / BIN)
        for name, points in (("with LinkPass", protected), ("without", bare)):
            text = bars(points, top)
            self.say(f"  {name:<14}{text[:mark]}|{text[mark:]}")
        plot(picture, {"with LinkPass": protected, "without": bare})
        self.say(f"  the same as a picture: {picture}\n")
        return self.figures

    def protected(self) -> list[tuple[float, float]]:
        self.say(f"\nWITH LinkPass: {JOB} runs from {CLIENT} to {SERVER} under `linkpass run`, over {self.cut.rail}.")
        with self.bench.start(workloads.own(JOB, "", *OPERATIONS), size=SIZE) as job:
            job.running.flowing()
            if job.protected():
                self.say(f"  every queue pair protected {job.protected_after:.1f} s after its start")
            else:
                self.say(f"  NOT PROTECTED: {job.why_not}")
            time.sleep(LEAD)
            self.say(f"  CUT: the switch port of {SERVER} on {self.cut.rail}; {CLIENT}'s own port stays up")
            job.strike(self.cut, LASTS)
            self.say(f"  REPAIRED after {LASTS:g} s; the job goes on")
            result = job.finish(PATIENCE, str(self.cut))
            points = rates(job.running.arrivals.seen, job.running.struck or 0.0)
        self._tell(result)
        self._count(result, points)
        return points

    def _tell(self, result: Result) -> None:
        self.say("  What the agents told (s after the cut):")
        doubts = [line for line in result.story if is_doubt(line)]
        for line in result.story:
            if line not in doubts:
                self.say(f"  {line}")
        if doubts:
            self.say(f"  ... and {len(doubts)} lines of doubt and its end: emulated guests answer some probes late")
        end = (
            "exit code 0 at both ends, every byte and completion right"
            if result.survived
            else result.outcome["words"]
        )
        self.say(f"  The job {result.verdict}: {end}")

    def _count(self, result: Result, points: Sequence[tuple[float, float]]) -> None:
        figures = self.figures
        figures.survived, figures.gap, figures.stages = (
            result.survived,
            result.gap,
            stages.split(result.story, SERVER),
        )
        figures.before, figures.after = mean(points, -LEAD, 0.0), mean(points, 1.0, LASTS)
        figures.operations = int(result.outcome["iterations"])
        figures.replayed = sum(m.replayed for m in result.moves)

    def unprotected(self) -> list[tuple[float, float]]:
        self.say(f"\nWITHOUT LinkPass: the same job, the same cut of {self.cut.rail}.")
        workload = workloads.own(JOB, "", *OPERATIONS)
        lab = self.bench.lab
        where = jobs.place(lab, CLIENT, SERVER, workload, size=SIZE)
        arrivals = RoceArrivals(lab, CLIENT, self.bench.agents.asker(CLIENT).offset())
        with Running(lab, workload, where, arrivals) as job:
            job.flowing()
            time.sleep(LEAD)
            job.strike(Blow(self.cut, LASTS, PATIENCE))
            outcome = job.outcome(time.monotonic() + PATIENCE)
            points = rates(arrivals.seen, job.struck or 0.0)
        self.figures.without = _became(outcome)
        self.say(f"  The job {self.figures.without}")
        return points


def _became(outcome: Outcome) -> str:
    when = f" {outcome.after:.2f} s after the cut" if outcome.after is not None and outcome.ended == "died" else ""
    return f"{outcome.ended}{when}{f' with {outcome.status}' if outcome.status else ''}"


def summary(figures: Figures) -> list[str]:
    """The figures at the end."""
    gap = "unknown" if figures.gap is None else f"{1000 * figures.gap:.0f} ms"
    ratio = figures.after / figures.before if figures.before else 0.0
    steps = ", ".join(f"{name} {1000 * at:.0f} ms" for name, at in figures.stages.items())
    return [
        "Figures:",
        f"  with LinkPass     {'survived' if figures.survived else 'DID NOT SURVIVE'}; gap {gap}",
        f"  steps             {steps or 'none seen'} after the cut",
        f"  replayed          {figures.replayed} requests, both ends together",
        f"  throughput        {figures.after:.0f} packets/s on the other rail, {ratio:.2f} of before",
        f"  without LinkPass  {figures.without}",
        f"{figures.seconds:.0f} s in all, emulated guests; nothing is left.",
    ]


def demonstrate(picture: Path, *, as_json: bool) -> int:
    """Boot the guests, run the tour, take all down; 0 if the job survived."""
    began = time.monotonic()
    out = sys.stderr if as_json else sys.stdout
    say: Say = lambda text: print(text, file=out, flush=True)  # noqa: E731
    with Protected.up(label="demo", say=say) as bench:
        figures = Tour(bench, say).run(picture)
    figures.seconds = round(time.monotonic() - began, 1)
    for line in summary(figures):
        say(line)
    if as_json:
        told: dict[str, Any] = asdict(figures)
        print(json.dumps(told))
    return 0 if figures.survived else 1
