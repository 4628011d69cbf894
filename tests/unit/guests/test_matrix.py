"""Gaps, cells and tables of the baseline."""

import pytest

from linkpass_lab.guests import matrix
from linkpass_lab.guests.matrix import Cell
from linkpass_lab.guests.traffic import longest_gap


def seen(*counts):
    """Looks 0.1 s apart, from 10.0 s on, with so many packets so far."""
    return [(10.0 + i / 10, n) for i, n in enumerate(counts)]


def test_gap_lasts_from_the_last_traffic_to_the_next():
    assert longest_gap(seen(0, 50, 100, 100, 101, 101, 150), 10.0, 11.0) == pytest.approx(0.3)


def test_gap_before_the_fault_is_not_counted():
    assert longest_gap(seen(0, 0, 0, 0, 50, 100), 10.4, 11.0) == 0.0


def test_gap_ends_with_the_watching():
    assert longest_gap(seen(0, 50, 50, 50, 50, 50), 10.0, 10.3) == pytest.approx(0.2)


def cell(ended, **more):
    return {"ended": ended, "status": "", "after": None, "gap": None, **more}


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (None, ""),
        (cell("finished"), "ok"),
        (cell("finished", gap=2.5, after=4.0), "ok, gap 2.5 s"),
        (cell("carries on", gap=0.0), "goes on"),
        (cell("died", status="RETRY_EXC_ERR", after=0.48), "**RETRY_EXC_ERR** 0.5 s"),
        (cell("died", after=3.0), "**died** 3.0 s"),
        (cell("hangs", status="LOC_QP_OP_ERR"), "**hangs** LOC_QP_OP_ERR"),
        (cell("not run"), "?"),
    ],
)
def test_cell_text_says_end_status_and_time(outcome, text):
    assert matrix.short(outcome) == text


def test_every_fault_class_is_one_that_the_lab_can_strike():
    struck = [Cell("bond", "rping", name).strike() for name in matrix.FAULTS]
    assert struck.count(None) == 1
    assert len({str(f) for f in struck}) == len(matrix.FAULTS)


def test_cells_come_workload_by_workload():
    listed = matrix.cells(["one rail", "bond"], ["rping", "rcflow"], ["none", "flaps"])
    assert [c.key for c in listed[:4]] == [
        "one rail|rping|none",
        "one rail|rping|flaps",
        "bond|rping|none",
        "bond|rping|flaps",
    ]
    assert len(listed) == 8


def test_table_leaves_out_workloads_that_were_not_run():
    done = {"bond|rping|none": cell("finished")}
    lines = matrix.table(done, "bond", ["rcflow", "rping"])
    assert lines[0] == "| fault | rping |"
    assert lines[2] == "| none | ok |"


def test_tally_counts_runs_with_a_fault_only():
    done = {
        "bond|rping|none": cell("finished"),
        "bond|rping|flaps": cell("died"),
        "bond|rcflow|flaps": cell("carries on"),
        "one rail|rping|flaps": cell("died"),
    }
    assert matrix.tally(done, "bond") == "2 runs with a fault on a bond: 1 went on, 1 died."
