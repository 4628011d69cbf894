"""A flap train, as a program of its own, so that it outlives the command that started it.

`python -m linkpass_lab.flap PID LINK COUNT DOWN UP`: the link of PID's namespace goes down for DOWN s and up for
UP s, COUNT times. It ends with the link up, also on SIGTERM.
"""

import signal
import sys
import time
from collections.abc import Sequence

from linkpass_lab.netns import Links


def main(argv: Sequence[str]) -> int:
    pid, link, count, down, up = int(argv[0]), argv[1], int(argv[2]), float(argv[3]), float(argv[4])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    links = Links(pid)
    due = time.monotonic()  # absolute, so that a busy machine doesn't stretch the train
    try:
        for _ in range(count):
            for state, seconds in ((False, down), (True, up)):
                links.set(link, up=state)
                due += seconds
                time.sleep(max(0.0, due - time.monotonic()))
    finally:
        links.set(link, up=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
