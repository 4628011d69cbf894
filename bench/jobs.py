"""What the agents' side of a migration costs: pairing 64 connections; port verdict to orders in the shims' sockets.

    PYTHONPATH=. python bench/jobs.py [--count 64] [--repeat 50] [--json FILE]

Two agents' job parts in one process, joined by real gossip on loopback UDP; sessions are real sockets, the shims are
Python's. "Page": from the verdict until the shared page holds it. "Written": until the last order is in its shim's
socket. "Read": until a shim has read its last order (all parts share one thread, so real shims read earlier).
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from linkpass.model import PortState
from linkpass.shim import abi
from tests.fakes.joined import EchoShim, Host, two, until


async def once(folder: Path, count: int) -> dict[str, float]:
    """One job of `count` connections: milliseconds of each stage."""
    async with two(folder) as (one, other):
        shims = await attach(one, other)
        start = time.perf_counter()
        for conn in range(1, count + 1):
            who = one.world.identity(100 + conn)
            shims[0].up(conn, who)
            shims[1].up(conn, who.mirror)
        await until(lambda: all(s.count(abi.SparePeer) >= count for s in shims))
        paired = time.perf_counter()
        shown: list[float] = []
        show = one.jobs.desk._show
        one.jobs.desk._show = lambda states, now: (show(states, now), shown.append(time.perf_counter()))  # the page's
        given: list[float] = []
        now = one.jobs.desk.orders.now
        one.jobs.desk.orders.now = lambda *order: (now(*order), given.append(time.perf_counter()))  # type: ignore[method-assign, assignment, func-returns-value]
        fault, cpu = time.perf_counter(), time.thread_time()
        one.port(0, PortState.DOWN)
        cpu = time.thread_time() - cpu
        other.jobs.desk.moved(["a"])
        await until(lambda: all(s.count(abi.Order) == count for s in shims))
        read = time.perf_counter()
        for shim in shims:
            shim.close()
        return {
            "pairing": 1000 * (paired - start),
            "page": 1000 * (shown[0] - fault),
            "written": 1000 * (given[-1] - fault),
            "CPU of the whole call": 1000 * cpu,
            "read": 1000 * (read - fault),
        }


async def attach(one: Host, other: Host) -> tuple[EchoShim, EchoShim]:
    """Two shims, welcomed; the agents know each other."""
    shims = EchoShim(one.path, "a", one.world), EchoShim(other.path, "b", one.world)
    for shim in shims:
        shim.send(abi.Hello(0, "bench", "job"))
    await until(lambda: all(s.count(abi.Welcome) for s in shims))
    await until(lambda: all(p.state == "connected" for h in (one, other) for p in h.gossip.core.peers()))
    return shims


def main() -> int:
    """Measure, print a table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=64, help="queue pairs")
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    runs = []
    for _ in range(args.repeat):
        with tempfile.TemporaryDirectory(prefix="lp-bench-") as folder:
            runs.append(asyncio.run(once(Path(folder), args.count)))
    results = {}
    print(f"{args.count} queue pairs, {args.repeat} runs, ms; load average {os.getloadavg()[0]:.1f}")
    print("| stage | median | p95 | max |\n| --- | ---: | ---: | ---: |")
    for stage in runs[0]:
        values = sorted(r[stage] for r in runs)
        p95 = values[min(len(values) - 1, int(0.95 * len(values)))]
        results[stage] = {"median": statistics.median(values), "p95": p95, "max": values[-1]}
        print(f"| {stage} | {results[stage]['median']:.2f} | {p95:.2f} | {values[-1]:.2f} |")
    if args.json:
        args.json.write_text(json.dumps({"count": args.count, "ms": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
