"""An MPI job whose every result is checked: `mpirun ... python3 mpi_job.py ITERATIONS`.

Each round is an allreduce of a number and of 64 KiB, whose sums are known. Rank 0 prints a JSON line at the end; a
wrong sum ends all ranks with exit code 3. Runs with whichever interpreter has mpi4py; needs nothing of the project.
"""

import json
import sys
from array import array

from mpi4py import MPI

NUMBERS = 8192  # of 8 bytes: 64 KiB, which UCX sends by rendezvous


def main(iterations: int) -> None:
    world = MPI.COMM_WORLD
    mine, total = array("q", [0] * NUMBERS), array("q", [0] * NUMBERS)
    ranks = world.size * (world.size + 1) // 2  # 1 + 2 + ...
    for n in range(iterations):
        for i in (0, NUMBERS // 2, NUMBERS - 1):
            mine[i] = (n + i) * (world.rank + 1)
        world.Allreduce([mine, MPI.INT64_T], [total, MPI.INT64_T], op=MPI.SUM)
        one = world.allreduce(n)
        wrong = [i for i in (0, NUMBERS // 2, NUMBERS - 1) if total[i] != (n + i) * ranks]
        if wrong or one != n * world.size:
            print(f"mpi_job: round {n}: wrong sums at {wrong}, {one}", file=sys.stderr, flush=True)
            world.Abort(3)
    if world.rank == 0:
        print(json.dumps({"iterations": iterations, "ranks": world.size}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
