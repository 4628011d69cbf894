"""`python -m linkpass_agent.simulate`: run seeds, replay one, shrink what breaks."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from linkpass.errors import LinkPassError

from .broken import VARIANTS
from .faults import Fault, dumps, loads
from .run import Result, Shape, run
from .shrink import shrink

EPILOG = """exit codes: 0 all holds, 1 something did not hold, 2 usage, 3 the input can't be read
A seed that breaks is run again with fewer and fewer faults, and told with what remains."""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="linkpass-lab simulate",
        description="a fleet on a virtual clock and network, with the agents' own code, against an oracle",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    top.add_argument("--seeds", type=int, default=1, metavar="N", help="how many seeds (default 1)")
    top.add_argument("--hosts", type=int, default=16)
    top.add_argument("--rails", type=int, default=3)
    top.add_argument("--leaves", type=int, default=2, metavar="N", help="leaves of each rail")
    top.add_argument(
        "--storm", type=float, default=10.0, metavar="S", help="virtual seconds with faults (default 10)"
    )
    top.add_argument("--quiet", type=float, default=10.0, metavar="S", help="virtual seconds without (default 10)")
    top.add_argument("--loss", type=float, default=0.01, help="share of management datagrams lost, always")
    top.add_argument(
        "--sealed", action="store_true", help="seal datagrams with real cryptography: slower, no different"
    )
    top.add_argument("--faults", type=Path, metavar="FILE", help="these faults, as JSON, instead of the seed's own")
    top.add_argument(
        "--broken", choices=sorted(VARIANTS), metavar="VARIANT", help="break the agents: " + ", ".join(VARIANTS)
    )
    top.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: one a core)"
    )
    top.add_argument("--no-shrink", action="store_true", help="leave a failing seed's faults as they are")
    top.add_argument("--trace", action="store_true", help="print the last lines of every run's trace")
    top.add_argument("--json", action="store_true", help="print one JSON object a seed")
    return top


def results(options: argparse.Namespace, shape: Shape, faults: tuple[Fault, ...] | None) -> Iterator[Result]:
    """The runs' results, in the order of the seeds."""
    one = partial(_one, shape=shape, faults=faults, broken=options.broken, trace=options.trace)
    seeds = range(options.seed, options.seed + options.seeds)
    if options.jobs <= 1 or options.seeds == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(options.jobs) as pool:
        yield from pool.map(one, seeds, chunksize=1)


def _one(seed: int, *, shape: Shape, faults: tuple[Fault, ...] | None, broken: str | None, trace: bool) -> Result:
    return run(seed, shape, faults, trace=trace, variant=VARIANTS[broken] if broken else None)


def shrunk(result: Result, broken: str | None) -> Result:
    """The same breach with as few faults as can be, and its trace."""
    what = result.broken.what if result.broken else ""
    variant = VARIANTS[broken] if broken else None

    def breaks(faults: tuple[Fault, ...]) -> bool:
        again = run(result.seed, result.shape, faults, variant=variant).broken
        return again is not None and again.what == what

    return run(result.seed, result.shape, shrink(result.faults, breaks), trace=True, variant=variant)


def tell(result: Result, whole: Result | None) -> None:
    """A run, for people."""
    if result.broken is None:
        c = result.counts
        print(
            f"seed {result.seed}: holds; {len(result.faults)} faults, {result.steps} steps, {c.verdicts} verdicts, "
            f"{c.acts} route changes, {result.took:.1f} s",
            flush=True,
        )
        return
    print(f"seed {result.seed}: DOES NOT HOLD: {result.broken}")
    if whole is not None:
        print(f"{len(result.faults)} of {len(whole.faults)} faults are enough:")
    print(*(f"  {fault}" for fault in result.faults), sep="\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    options = parser().parse_args(argv)
    shape = Shape(
        options.hosts, options.rails, options.leaves, options.storm, options.quiet, options.loss, options.sealed
    )
    try:
        faults = loads(options.faults.read_text()) if options.faults else None
    except (OSError, LinkPassError) as e:
        print(f"linkpass-lab simulate: {options.faults}: {e}", file=sys.stderr)
        return 3
    began, bad, count = time.monotonic(), 0, 0
    for result in results(options, shape, faults):
        count += 1
        small = None
        if result.broken:
            bad += 1
            if not options.no_shrink:
                small = shrunk(result, options.broken)
        shown = small if small and small.broken else result
        if options.json:
            print(json.dumps({**result.json(), "shrunk": dumps(small.faults) if small else None}), flush=True)
        else:
            tell(shown, result if shown is small else None)
        if not options.json and (options.trace or shown.trace):
            print(*shown.trace[-80:], sep="\n", flush=True)
    if not options.json and count > 1:
        print(f"{count - bad} of {count} seeds hold; {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
