"""A data-parallel training run, bit for bit the same each time: `mpirun ... python3 training_job.py STEPS SEED`.

A perceptron with one hidden layer learns what a fixed random one does. In each step every rank draws a sample of its
own, the gradients are summed by an allreduce of some 29 KiB, and every rank takes the same step. Only + - * / are
used, which IEEE 754 makes exact to the last bit, so two runs of two ranks with one seed end with the same weights
wherever they run (in which order more than two are summed is MPI's). Rank 0 prints a JSON line: the weights' SHA-256,
and the mean loss of the first and the last steps. Ranks whose weights differ at the end make it exit code 3, as does
a loss that isn't finite. Runs with whichever interpreter has mpi4py; needs nothing of the project.
"""

import hashlib
import json
import math
import random
import sys
from array import array

from mpi4py import MPI

INPUTS, HIDDEN, OUTPUTS = 64, 48, 12
SIZE = HIDDEN * (INPUTS + OUTPUTS)
SAMPLES = 1  # of each rank in a step
RATE = 0.02
LOOK = 20  # steps whose mean loss is told


def drawn(rng: random.Random) -> "array[float]":
    """Weights that keep the size of what passes through them."""
    return array("d", [rng.uniform(-1, 1) / 4 for _ in range(SIZE)])


def forward(weights: "array[float]", given: list[float]) -> tuple[list[float], list[float]]:
    """What the hidden units and the outputs say."""
    rows = (weights[at : at + INPUTS] for at in range(0, HIDDEN * INPUTS, INPUTS))
    hidden = [max(0.0, sum(w * x for w, x in zip(row, given, strict=True))) for row in rows]
    rows = (weights[at : at + HIDDEN] for at in range(HIDDEN * INPUTS, SIZE, HIDDEN))
    return hidden, [sum(w * h for w, h in zip(row, hidden, strict=True)) for row in rows]


def backward(
    weights: "array[float]", gradient: "array[float]", given: list[float], hidden: list[float], errors: list[float]
) -> None:
    """Add the gradient of half the squared errors."""
    back = [0.0] * HIDDEN
    for o, error in enumerate(errors):
        at = HIDDEN * INPUTS + o * HIDDEN
        for h in range(HIDDEN):
            gradient[at + h] += error * hidden[h]
            back[h] += error * weights[at + h]
    for h in range(HIDDEN):
        if hidden[h] > 0.0:
            at, push = h * INPUTS, back[h]
            for i in range(INPUTS):
                gradient[at + i] += push * given[i]


def main(steps: int, seed: int) -> None:
    world = MPI.COMM_WORLD
    teacher, weights = drawn(random.Random(f"teacher {seed}")), drawn(random.Random(f"start {seed}"))
    rng = random.Random(f"samples {seed} {world.rank}")
    summed = array("d", bytes(8 * (SIZE + 1)))
    losses = []
    for _ in range(steps):
        gradient = array("d", bytes(8 * (SIZE + 1)))  # and the loss, last
        for _ in range(SAMPLES):
            given = [rng.uniform(-1, 1) for _ in range(INPUTS)]
            hidden, outputs = forward(weights, given)
            errors = [o - t for o, t in zip(outputs, forward(teacher, given)[1], strict=True)]
            backward(weights, gradient, given, hidden, errors)
            gradient[SIZE] += sum(e * e for e in errors)
        world.Allreduce([gradient, MPI.DOUBLE], [summed, MPI.DOUBLE], op=MPI.SUM)
        scale = RATE / (SAMPLES * world.size)
        weights = array("d", [w - scale * g for w, g in zip(weights, summed, strict=False)])
        losses.append(summed[SIZE] / (SAMPLES * world.size))
    digest = hashlib.sha256(weights.tobytes()).hexdigest()
    if len(set(world.allgather(digest))) != 1 or not math.isfinite(losses[-1]):
        print("training_job: the ranks' weights differ, or aren't numbers", file=sys.stderr, flush=True)
        world.Abort(3)
    if world.rank == 0:
        first, last = (sum(part) / len(part) for part in (losses[:LOOK], losses[-LOOK:]))
        print(json.dumps({"iterations": steps, "weights": digest, "first": first, "last": last}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
