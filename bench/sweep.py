"""CPU time of one look at 8 ports with all watched counters, with and without the rules.

    PYTHONPATH=.:agent:topology python bench/sweep.py [--looks 500]

Plain files stand for sysfs (the recorded tree of mlx5): the reading and judging is measured, not a driver's firmware.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from linkpass.rules import for_driver, shipped
from linkpass_agent.judge.rules import PortRules
from linkpass_agent.see.rdma_devices import RdmaPort
from linkpass_agent.see.rdma_ports import PortFiles
from tests.fakes.tree import Tree

PORTS = 8


def main() -> None:
    """Print medians and worst, in ms of CPU for all ports together."""
    parser = argparse.ArgumentParser(description="CPU time of a look at 8 ports")
    parser.add_argument("--looks", type=int, default=500)
    looks = parser.parse_args().looks
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder), "mlx5")
        ports = [PortFiles("eth1", RdmaPort("mlx5_0", 1), tree.infiniband, tree.net) for _ in range(PORTS)]
        rules = [PortRules(f"port{n}", for_driver(shipped(), "mlx5")) for n in range(PORTS)]
        reading, whole = [], []
        for n in range(looks):
            begun = time.process_time()
            seen = [p.look() for p in ports]
            read = time.process_time()
            for rule, look in zip(rules, seen, strict=True):
                rule.look(float(n), {"rate": look.rate, "phys": look.phys}, look.samples, True)
            reading.append(1e3 * (read - begun))
            whole.append(1e3 * (time.process_time() - begun))
        for port in ports:
            port.close()
    print(f"{PORTS} ports, {len(seen[0].samples)} counters each, {looks} looks; CPU in ms for all ports")
    for name, times in (("reading", reading), ("with rules", whole)):
        print(f"  {name:<11} median {statistics.median(times):.2f}   worst {max(times):.2f}")


if __name__ == "__main__":
    main()
