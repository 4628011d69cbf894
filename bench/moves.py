"""What a move of queue pairs costs without a network: two hosts of the fake verbs library, and the real shim.

    python bench/moves.py [--counts 1 64 1024] [--outstanding 128] [--runs 30] [--json FILE]

Each queue pair has so many WRITEs under way that the path has swallowed; then its port goes and the agent's page says
so. Times are from the trigger in the shim to the slowest connection's fence, settled verdicts and last replay, and
from the page to the job's last completion; "shim thread" is the processor time of the shim's own thread until all
have said that they moved, for both ends, with the spares that it makes anew. The fake NICs, a small agent and the job
that spins are threads of the same process and take their share. Needs cmake, gcc and ninja.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "native" / "release"
STAGES = ("fence", "settle", "replay", "all_completed", "shim_thread")


def build() -> None:
    """The shim as it is installed, and the program that measures."""
    BUILD.mkdir(parents=True, exist_ok=True)
    options = ["-G", "Ninja", "-DLINKPASS_TESTS=ON", "-DCMAKE_BUILD_TYPE=Release"]
    targets = ["linkpass_shim", "fakeverbs", "engine_moves"]
    for command in (
        ["cmake", "-S", str(ROOT / "linkpass" / "shim"), "-B", str(BUILD), *options],
        ["ninja", "-C", str(BUILD), *targets],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure(count: int, outstanding: int, runs: int) -> list[dict[str, float]]:
    """One line for each run, microseconds. RuntimeError if one failed."""
    env = {
        **os.environ,
        "LD_PRELOAD": str(BUILD / "liblinkpass_shim.so"),
        "LINKPASS_REAL_IBVERBS": str(BUILD / "fakeverbs" / "lib" / "libfakeverbs.so.1"),
        "LINKPASS_PSN": "trust",
    }
    program = [str(BUILD / "engine" / "engine_moves"), str(count), str(outstanding), str(runs)]
    done = subprocess.run(program, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    """Measure, print a table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 64, 1024])
    parser.add_argument("--outstanding", type=int, default=128)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    build()
    results: dict[int, list[dict[str, float]]] = {}
    print(f"{args.outstanding} requests each, {args.runs} runs, ms; load average {os.getloadavg()[0]:.1f}")
    print("| queue pairs | stage | median | p95 | max |\n| ---: | --- | ---: | ---: | ---: |")
    failed = False
    for count in args.counts:
        try:
            results[count] = measure(count, args.outstanding, args.runs)
        except RuntimeError as e:
            print(f"| {count} | failed: {e} | | | |", flush=True)
            failed = True
            continue
        for stage in STAGES:
            values = sorted(run[stage] / 1000 for run in results[count])
            p95 = values[min(len(values) - 1, int(0.95 * len(values)))]
            shown = f"{statistics.median(values):.2f} | {p95:.2f} | {values[-1]:.2f}"
            print(f"| {count} | {stage.replace('_', ' ')} | {shown} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
