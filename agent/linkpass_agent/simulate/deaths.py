"""How often members are wrongly declared dead: a fleet in which every host lives, for a long idle time.

    python -m linkpass_agent.simulate.deaths --hosts 256 --minutes 15 --loss 0.05 --slow 0.01

The share `--loss` of all datagrams is lost. Of the share `--slow` of the hosts the agent stands still for 0.5 to 8 s,
again and again, 5 to 35 s apart: what comes meanwhile waits in its socket, its timers run late. Prints a JSON line.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .paper import memo, paper
from .scale import Crowd

SAME = 60.0  # s in which verdicts on one host are one death that its members tell each other
DAY = 86_400.0  # s
NONE_SEEN = 3.0  # expected events that stay below with 95 % when none is seen: -ln 0.05


@dataclass(frozen=True, slots=True)
class Deaths:
    """One run. Deaths are wrong ones: nobody dies. Bounds are of 95 %, None where deaths were seen."""

    hosts: int
    loss: float
    slow_hosts: int
    host_days: float
    deaths: int  # of hosts that were never slow
    slow_deaths: int  # of hosts whose agents stood still
    suspicions: int
    per_host_day_below: float | None  # deaths of a host that isn't slow
    took: float  # s of CPU


def measure(hosts: int, minutes: float, loss: float, slow: float, seed: int = 1) -> Deaths:
    """One run of `minutes` virtual minutes."""
    began = time.process_time()
    with paper(), memo():
        crowd = Crowd(hosts, 2, loss, seed)
        gc.freeze()
        sick = crowd.rng.sample(range(hosts), round(slow * hosts))
        end = crowd.now + 60.0 * minutes
        pauses = []
        for n in sick:
            at = crowd.rng.uniform(5.0, 35.0)
            while at < end:
                until = at + crowd.rng.uniform(0.5, 8.0)
                pauses.append((at, n, until))
                at = until + crowd.rng.uniform(5.0, 35.0)
        for at, n, until in sorted(pauses):
            crowd.run(at)
            crowd.frozen[n] = until
        crowd.run(end)
    gc.unfreeze()
    names = {crowd.fabric.hosts[n].name for n in sick}
    counted = {"dead": [0, 0], "suspect": [0, 0]}
    last: dict[tuple[str, str], float] = {}
    for at, host, status in crowd.turned:
        if at - last.get((host, status), -SAME) >= SAME:
            counted[status][host in names] += 1
            last[host, status] = at
    well, ill = counted["dead"]
    days = hosts * 60.0 * minutes / DAY
    healthy = days * (hosts - len(sick)) / hosts
    below = NONE_SEEN / healthy if not well else None
    took = time.process_time() - began
    return Deaths(hosts, loss, len(sick), days, well, ill, sum(counted["suspect"]), below, took)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    top = argparse.ArgumentParser(prog="python -m linkpass_agent.simulate.deaths", description=__doc__)
    top.add_argument("--hosts", type=int, default=256)
    top.add_argument("--minutes", type=float, default=15.0, help="virtual minutes")
    top.add_argument("--loss", type=float, default=0.05)
    top.add_argument("--slow", type=float, default=0.0, help="share of the hosts whose agents stand still")
    top.add_argument("--seed", type=int, default=1)
    options = top.parse_args(argv)
    found = measure(options.hosts, options.minutes, options.loss, options.slow, options.seed)
    print(json.dumps(asdict(found)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
