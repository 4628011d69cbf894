"""Unmodified clients between two guests. The others, and what faults do to them, are in the baseline."""

import pytest

from linkpass_lab.guests import jobs, workloads


@pytest.mark.parametrize("name", ["ib_send_bw -e", "rc_pingpong -N", "rping", "ucx tag", "mpi4py", "ncclflow"])
def test_client_finishes_on_a_whole_lab(lab, name):
    workload = workloads.every()[name]
    where = jobs.place(lab, "a", "b", workload, size=0.25)
    outcome = jobs.run(lab, workload, where, limit=150)
    assert (outcome.ended, outcome.status, outcome.words) == ("finished", "", "")
    assert set(outcome.exits.values()) == {0}
