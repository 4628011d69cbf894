"""What the verbs shim adds to a post, a completion and an empty poll over a provider that does nothing; its memory.

    python bench/shim.py [--runs 10] [--rounds 301] [--json FILE] [--markdown FILE]

The same program runs bare, with the shim passing through (no agent) and with its queue pairs recorded, one after the
other, so many times over; a figure is the median over the runs of the difference to the bare run beside it. Needs
cmake, gcc and ninja; about a minute. The machine's load is printed beside the figures: differences grow with it.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "native" / "release"
CASES = {
    "pair": "post + poll",
    "pair_batch_16": "post + poll, 16 a call",
    "pair_64_queue_pairs": "post + poll, 64 queue pairs in turn",
    "threads_4": "post + poll, 4 threads (CPU time)",
    "empty_poll": "poll that finds nothing",
}
MODES = ("bare", "passing", "protected")
RECORDED = re.compile(r"queue pairs recorded: (\d+)")


def build() -> Path:
    """The folder with the shim as it is installed and the program that measures."""
    BUILD.mkdir(parents=True, exist_ok=True)
    shim = ROOT / "linkpass" / "shim"
    options = ["-G", "Ninja", "-DLINKPASS_TESTS=ON", "-DCMAKE_BUILD_TYPE=Release"]
    targets = ["linkpass_shim", "nullverbs", "attach_bench"]
    for command in (["cmake", "-S", str(shim), "-B", str(BUILD), *options], ["ninja", "-C", str(BUILD), *targets]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return BUILD


def measure(folder: Path, mode: str, rounds: int) -> dict[str, Any]:
    """One run. Raises RuntimeError if it failed, or if the shim did anything else than the mode says."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LINKPASS")}
    with tempfile.TemporaryDirectory() as place:
        if mode != "bare":
            env["LD_PRELOAD"] = str(folder / "liblinkpass_shim.so")
            env["LINKPASS_REAL_IBVERBS"] = str(folder / "attach" / "libnullverbs.so.1")
            env["LINKPASS_DEBUG"] = "1"
        if mode == "protected":
            env["LINKPASS_SOCKET"] = f"{place}/jobs.sock"
        program = str(folder / "attach" / "attach_bench")
        done = subprocess.run([program, str(rounds)], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{program} ({mode}): exit code {done.returncode}: {done.stderr[-500:]}")
    if mode != "bare" and "attached=yes" not in done.stderr:
        raise RuntimeError(f"{program} ({mode}): the shim isn't in it: {done.stderr[-500:]}")
    if (mode == "protected") != bool(RECORDED.search(done.stderr)) or (
        mode == "protected" and "queue pairs unprotected" in done.stderr
    ):
        raise RuntimeError(f"{program} ({mode}): queue pairs aren't as they should be: {done.stderr[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def table(runs: list[dict[str, dict[str, Any]]]) -> list[str]:
    """Markdown: a case a line, what is added in ns (median over the runs, least, most)."""

    def spread(values: list[float]) -> str:
        return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"

    lines = [
        "| | bare, ns | passing adds | protected adds | protected, 95th percentile adds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for case, name in CASES.items():
        bare = [run["bare"][case]["median"] for run in runs]
        added = {
            (mode, what): [run[mode][case][what] - run["bare"][case][what] for run in runs]
            for mode in MODES[1:]
            for what in ("median", "p95")
        }
        cells = [added["passing", "median"], added["protected", "median"], added["protected", "p95"]]
        lines.append(
            f"| {name} | {statistics.median(bare):.1f} | " + " | ".join(spread(cell) for cell in cells) + " |"
        )
    for mode in MODES[1:]:
        more = {
            what: statistics.median(run[mode][f"{what}_per_qp"] - run["bare"][f"{what}_per_qp"] for run in runs)
            for what in ("allocated", "resident")
        }
        lines.append(
            f"\n{mode.capitalize()}: {more['allocated']:,.0f} bytes allocated a queue pair of 128 sends and 512 "
            f"receives of one piece, {more['resident']:,.0f} resident."
        )
    waits = sum(run["protected"]["thread_waits"] for run in runs)
    lines.append(
        f"\nOf the four threads, each with its own queue pair and completion queue, one waited {waits} times in all."
    )
    return lines


def main() -> int:
    """Measure and print; 1 if a run failed."""
    parser = argparse.ArgumentParser(description="what the verbs shim adds")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=301)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    folder = build()
    try:
        runs = [{mode: measure(folder, mode, args.rounds) for mode in MODES} for _ in range(args.runs)]
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    text = "\n".join(
        [*table(runs), f"\nLoad while measuring: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors."]
    )
    print(text)
    if args.json:
        args.json.write_text(json.dumps(runs, indent=1))
    if args.markdown:
        args.markdown.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
