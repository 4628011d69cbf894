"""Runs in a guest: prints `TIME PACKETS` lines, the RoCE packets that its rxe devices have received so far.

    python3 -I -S roce_watch.py EVERY

TIME is the guest's monotonic clock in s. The counters are rxe's own, so probes and other traffic don't count.
"""

import sys
import time
from pathlib import Path

DEVICES, COUNTER = Path("/sys/class/infiniband"), "ports/1/hw_counters/rcvd_pkts"


def main(every: float) -> None:
    """Until standard output is closed."""
    files = [(device / COUNTER).open() for device in DEVICES.glob("rxe*")]
    while True:
        packets = 0
        for file in files:
            file.seek(0)
            packets += int(file.read())
        print(f"{time.monotonic():.4f} {packets}", flush=True)
        time.sleep(every)


if __name__ == "__main__":
    main(float(sys.argv[1]))
