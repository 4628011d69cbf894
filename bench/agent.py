"""What an agent costs: CPU idle and under a flap train, memory, start time, and `linkpassctl status`.

    python bench/agent.py [--seconds 10] [--repeat 20] [--json FILE]

Two hosts, two rails, in namespaces; both agents probe both paths every 50 ms, or, idle, every second as they do
where no job and no open socket uses the peer. CPU is user plus system time of the agent's process out of
/proc/PID/stat, as a share of one core.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

from linkpass_lab.agents import Agents
from linkpass_lab.fault import parse
from linkpass_lab.namespaces import NamespaceLab
from linkpass_topology.fabric import grid

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


def cpu_seconds(pid: int) -> float:
    """User and system time that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS  # proc(5): utime, stime


def rss_mib(pid: int) -> float:
    """Resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_KIB / 1024


def share(pid: int, seconds: float) -> float:
    """Share of one core that the process uses over `seconds`, in percent."""
    before, start = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_seconds(pid) - before) / (time.monotonic() - start)


def main() -> int:
    """Measure, print a table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each CPU measurement")
    parser.add_argument("--repeat", type=int, default=20, help="starts and status calls")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict[str, float] = {}
    lab = NamespaceLab.up(grid(2, 2), label="bench-agent")
    agents = Agents(lab, {"probe": {"peers_in_use": []}})
    try:
        agents.start_all()
        agents.wait_until_connected()
        time.sleep(4)  # hold-downs and what a start does once
        results["CPU idle, % of a core"] = share(agents.pid("a"), args.seconds)
        agents.stop_all()
        agents = Agents(lab)
        agents.start_all()
        agents.wait_until_connected()
        time.sleep(2)
        pid = agents.pid("a")
        results["RSS, MiB"] = rss_mib(pid)
        results["CPU with 2 paths in use (probed every 50 ms), % of a core"] = share(pid, args.seconds)
        table = {"kind": "flap", "host": "b", "rail": "rail0", "count": int(args.seconds) + 2, "down": 0.5, "up": 0.5}
        train = parse(table)
        lab.inject(train)
        results["CPU under a flap train (1 flap a second), % of a core"] = share(pid, args.seconds)
        lab.repair(train)
        results["RSS after it, MiB"] = rss_mib(pid)
        status, starts = [], []
        for _ in range(args.repeat):
            began = time.monotonic()
            agents.ctl("a", "status")
            status.append(time.monotonic() - began)
        for _ in range(args.repeat):
            agents.stop("a")
            began = time.monotonic()
            agents.start("a")
            starts.append(time.monotonic() - began)
        results["linkpassctl status, wall, median s"] = statistics.median(status)
        results["linkpassctl status, wall, max s"] = max(status)
        results["start until it answers, median s"] = statistics.median(starts)
        results["start until it answers, max s"] = max(starts)
    finally:
        agents.stop_all()
        lab.close()
    print("| what | value |\n| --- | ---: |")
    for name, value in results.items():
        print(f"| {name} | {value:.3g} |")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
