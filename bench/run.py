"""All measurements of docs/measurements.md, one after the other: `make bench`.

    python bench/run.py [--trials 30] [--only NAME ...] [--out build/bench]

Each part prints its tables and writes them, with every single trial, into the output folder. In all about an hour,
half of it in RDMA guests; `--trials 5` gives a first impression sooner. Needs root, and FRR for the comparison
(scripts/setup bench).
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def parts(trials: int, out: Path) -> dict[str, list[str]]:
    """Name -> command line of each part."""
    return {
        "outage": [
            "outage.py",
            "--trials",
            str(trials),
            "--json",
            f"{out}/outage.json",
            "--markdown",
            f"{out}/outage.md",
        ],
        "agent": ["agent.py", "--json", f"{out}/agent.json"],
        "gossip": ["gossip.py"],
        "sweep": ["sweep.py"],
        "moves": ["moves.py", "--json", f"{out}/moves.json"],
        "jobs": ["jobs.py", "--json", f"{out}/jobs.json"],
        "shim": ["shim.py", "--json", f"{out}/shim.json", "--markdown", f"{out}/shim.md"],
        "guests": ["guests.py", "--json", f"{out}/guests.json", "--markdown", f"{out}/guests.md"],
    }


def main() -> int:
    """Run the parts; the exit code is that of the first one that failed."""
    parser = argparse.ArgumentParser(description="run all benchmarks")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="outage, agent, gossip, sweep, moves, jobs, shim, guests"
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    known = parts(args.trials, args.out)
    if unknown := set(args.only or ()) - set(known):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    failed = 0
    for name, (script, *rest) in known.items():
        if args.only and name not in args.only:
            continue
        print(f"== {name}", flush=True)
        began = time.monotonic()
        code = subprocess.run([sys.executable, str(HERE / script), *rest], check=False).returncode
        print(f"== {name}: {'failed' if code else 'done'} after {time.monotonic() - began:.0f} s\n", flush=True)
        failed = failed or code
    return failed


if __name__ == "__main__":
    sys.exit(main())
