"""The training trial: its model by finite differences, and what its verdict refuses."""

import random
from array import array
from types import SimpleNamespace

import pytest

from linkpass_lab.guests import trials

CALM = {"weights": "aa", "first": 4.0, "last": 2.0}


@pytest.fixture
def job(monkeypatch):
    """The job's module; mpi4py belongs to the distribution's interpreter, and one rank needs none."""
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", SimpleNamespace(MPI=None))
    from linkpass_lab.guests import training_job

    return training_job


def test_gradient_is_the_slope_of_the_loss(job):
    rng = random.Random(7)
    weights, given = job.drawn(rng), [rng.uniform(-1, 1) for _ in range(job.INPUTS)]

    def loss(of):
        return sum(o * o for o in job.forward(of, given)[1]) / 2

    gradient = array("d", bytes(8 * job.SIZE))
    job.backward(weights, gradient, given, *job.forward(weights, given))
    for at in rng.sample(range(job.SIZE), 40):
        lower, upper = array("d", weights), array("d", weights)
        lower[at] -= 1e-5
        upper[at] += 1e-5
        assert gradient[at] == pytest.approx((loss(upper) - loss(lower)) / 2e-5, abs=1e-6)
    assert any(gradient[: job.HIDDEN * job.INPUTS])


def test_trained_through_all_faults_to_the_same_weights_holds():
    assert trials.trained(CALM, dict(CALM), 20, 20) == ""


@pytest.mark.parametrize(
    ("calm", "struck", "strikes", "says"),
    [
        (CALM, CALM | {"weights": "ab"}, 20, "other weights: ab instead of aa"),
        (CALM, {}, 3, "after 3 of 20 faults a training told no weights"),
        (CALM, CALM, 19, "over after 19 of 20 faults"),
        (CALM | {"last": 4.0}, CALM, 20, "learned nothing"),
    ],
)
def test_trained_with_a_flaw_says_which(calm, struck, strikes, says):
    assert says in trials.trained(calm, struck, strikes, 20)
