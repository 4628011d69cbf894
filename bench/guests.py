"""What protection costs jobs in the RDMA guests: the clients' own figures with and without `linkpass run`, in turn.

    PYTHONPATH=. python bench/guests.py [--runs 10] [--only NAME ...] [--json FILE] [--markdown FILE]

Two guests with two rails, an agent in each; every client runs bare and protected in turn, and which of the two goes
first changes each time. What is measured begins `SETTLED` s after the client's start (perftest's `--margin`, UCX's
intervals after so many), and a protected run counts only if both ends' agents called the job protected before that.
A ratio is that of one pair of runs. Emulated guests: the shim's work is slower here by the same factor as all else.
A job that is known has its paths probed at the fast period, which emulated agents pay for with a good part of a core:
here both periods are the same (`SLOWLY`), so that a ratio is the shim's, not the prober's.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from linkpass_lab.guests.protected import Protected, ProtectedJob
from linkpass_lab.guests.workloads import Place, Workload, every
from linkpass_lab.lab import LabError

SETTLED = 9  # s from the client's start until a job must be protected; UCX's and perftest's set-up is part of it
MEASURED = 10  # s
UCX_SIZE = 13.0  # at some 240 iterations a second
PATIENCE = 120.0  # s
TRIES = 4
SLOWLY = {"probe": {"period": 1.0, "idle_period": 1.0, "timeout": 0.5}}  # s


@dataclass(frozen=True, slots=True)
class Figure:
    """A client's figure. `shape` makes a workload's run long enough, `read` finds the figure in what it said."""

    unit: str
    more: bool  # whether more is better
    shape: Callable[[Workload], Workload]
    size: float
    read: Callable[[str], float]


def timed(workload: Workload) -> Workload:
    """Perftest by time instead of by count; it measures between its margins."""

    def by_time(argv: Callable[[Place], list[str]]) -> Callable[[Place], list[str]]:
        def new(place: Place) -> list[str]:
            old = argv(place)
            at = old.index("-n")
            return [*old[:at], "-D", str(2 * SETTLED + MEASURED), "--margin", str(SETTLED), *old[at + 2 :]]

        return new

    assert workload.server is not None
    return replace(workload, server=by_time(workload.server), client=by_time(workload.client))


def column(number: int) -> Callable[[str], float]:
    """The figure in a column of perftest's only row of figures."""

    def read(said: str) -> float:
        for line in said.splitlines():
            words = line.split()
            if len(words) > number and all(w.replace(".", "", 1).isdigit() for w in words):
                return float(words[number])
        raise LabError(f"no row of figures in {said[-300:]!r}")

    return read


def intervals(said: str) -> float:
    """MB/s of ucx_perftest, the mean of its one-second intervals after SETTLED of them; the last one isn't whole."""
    rates = [float(line.split()[6]) for line in said.splitlines() if line.startswith("[thread")]
    kept = rates[SETTLED:-1]
    if len(kept) < MEASURED:
        raise LabError(f"only {len(rates)} intervals in {said[-300:]!r}")
    return statistics.fmean(kept)


FIGURES = {
    "ib_write_bw": Figure("MB/s", True, timed, 1.0, column(3)),
    "ib_send_bw": Figure("MB/s", True, timed, 1.0, column(3)),
    "ib_write_lat": Figure("us", False, timed, 1.0, column(2)),
    "ucx tag": Figure("MB/s", True, lambda w: w, UCX_SIZE, intervals),
}


def once(bench: Protected, name: str, protected: bool) -> float:
    """A run's figure; LabError if it wasn't protected in time or didn't finish, TRIES times."""
    figure = FIGURES[name]
    why = ""
    for _ in range(TRIES):
        with bench.start(figure.shape(every()[name]), size=figure.size, wrapped=protected) as job:
            if protected and not _in_time(job):
                why = f"protected only after {job.protected_after} s: {job.why_not}"
                job.finish(PATIENCE)
                continue
            outcome = job.finish(PATIENCE).outcome
            if outcome["ended"] == "finished":
                return figure.read(job.running.said("client"))
            why = f"{outcome['ended']}: {outcome['words']}"
    raise LabError(f"{name} {'protected' if protected else 'bare'}: {why}")


def _in_time(job: ProtectedJob) -> bool:
    return job.protected(PATIENCE) and (job.protected_after or 0.0) <= SETTLED


def pairs(bench: Protected, name: str, runs: int) -> list[tuple[float, float]]:
    """(bare, protected) of each pair of runs."""
    found = []
    for run in range(runs):
        order = (False, True) if run % 2 else (True, False)
        values = {protected: once(bench, name, protected) for protected in order}
        found.append((values[False], values[True]))
        bare, protected = found[-1]
        print(
            f"  {name} {run + 1}/{runs}: bare {bare:.2f}, protected {protected:.2f}, ratio {protected / bare:.3f}",
            flush=True,
        )
    return found


def row(name: str, found: list[tuple[float, float]]) -> str:
    """A line of the table: medians and the ratios' median, quartiles and extremes."""
    ratios = sorted(p / b for b, p in found)
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    figure = FIGURES[name]
    return (
        f"| {name}, {figure.unit} | {statistics.median(b for b, _ in found):.2f} | "
        f"{statistics.median(p for _, p in found):.2f} | {statistics.median(ratios):.3f} | "
        f"{low:.3f} to {high:.3f} | {ratios[0]:.3f} to {ratios[-1]:.3f} | {len(ratios)} |"
    )


def main() -> int:
    """Run them; exit code 1 if one can't be measured."""
    parser = argparse.ArgumentParser(description="what protection costs jobs in RDMA guests")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=list(FIGURES), default=list(FIGURES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    lines = [
        "| client | bare | protected | ratio, median | middle half | extremes | pairs |",
        "| --- " + "| ---: " * 6 + "|",
    ]
    began, failed = time.monotonic(), 0
    with Protected.up(config=SLOWLY, label="cost", say=lambda text: print(f"  {text}", flush=True)) as bench:
        for name in args.only:
            try:
                found[name] = pairs(bench, name, args.runs)
            except LabError as e:
                print(f"{name}: not measured: {e}", file=sys.stderr, flush=True)
                failed = 1
                continue
            lines.append(row(name, found[name]))
    load = os.getloadavg()[1]
    lines.append(f"\n{time.monotonic() - began:.0f} s; load average at the end {load:.1f} on {os.cpu_count()} cores")
    print("\n".join(lines))
    if args.json:
        args.json.write_text(json.dumps({"pairs": found, "load": load}, indent=1))
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
