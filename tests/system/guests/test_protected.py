"""Jobs under `linkpass run` in guests with real agents: a few of the matrix's cells and of the trials."""

import random

import pytest

from linkpass_lab.fault import parse
from linkpass_lab.guests import trials
from linkpass_lab.guests.protected import Protected


@pytest.fixture(scope="module")
def bench(shared_lab):
    """Agents in the shared lab, as long as this module's tests last."""
    made = Protected(shared_lab, say=print)
    made.start_agents()
    yield made
    made.agents.close()


@pytest.mark.parametrize(
    ("workload", "fault"),
    [
        ("rcflow", {"kind": "carrier", "host": "b", "rail": "rail0"}),
        ("ib_write_bw", {"kind": "admin-down", "host": "a", "rail": "rail0"}),  # its server only receives
        ("ib_send_bw -e", {"kind": "silent", "host": "b", "rail": "rail0"}),  # sleeps on events
    ],
)
def test_unmodified_job_survives_a_fault_and_returns(bench, workload, fault):
    result = bench.run(workload, parse(fault))
    print(result)
    assert result.survived, (result.outcome, result.words, result.story)
    assert {(m.host, m.source, m.target) for m in result.moves} >= {("a", "rail0", "rail1"), ("b", "rail0", "rail1")}


@pytest.mark.parametrize("name", ["drain", "bare"])
def test_trial_holds(bench, name):
    outcome = trials.TRIALS[name][0](bench, random.Random(name), 1)
    assert outcome.holds, (outcome.problem, outcome.results)
