"""The matrix under LinkPass: verdicts, cells, tables, counts."""

import json

import pytest

from linkpass_lab.fault import parse
from linkpass_lab.guests import survival, workloads
from linkpass_lab.guests.baseline import Book
from linkpass_lab.guests.jobs import Outcome
from linkpass_lab.guests.matrix import FAULTS as STRUCK
from linkpass_lab.guests.protected import verdict


def outcome(ended="finished", server=0, client=0):
    return Outcome(ended, "", {"server": server, "client": client}, 9.0, 3.0, 0.2, 1, 1, "")


@pytest.mark.parametrize(
    ("found", "protected", "word"),
    [
        (outcome(), True, "survived"),
        (outcome(), False, "unprotected"),
        (outcome("died", client=1), True, "died"),
        (outcome("died", server=3), True, "wrong"),
        (outcome("died", server=3), False, "wrong"),
        (outcome("hangs", None, None), True, "hangs"),
        (outcome("carries on", None, None), True, "carries on"),
    ],
)
def test_verdict_is_survived_only_for_a_protected_job_that_ended_well(found, protected, word):
    assert verdict(found, protected) == word


def test_every_fault_can_be_struck_and_most_at_both_ends():
    faults = {name: parse(raw) for name, raw in survival.FAULTS.items() if raw is not None}
    for name, fault in faults.items():
        if name.startswith("own "):
            assert fault.host == "a"
            assert faults["far " + name.removeprefix("own ")].host == "b"


def test_names_of_the_baseline_are_names_of_the_baseline():
    assert set(survival.SAME) <= set(survival.FAULTS)
    assert set(survival.SAME.values()) <= set(STRUCK)


def cell(verdict, gap=None, status=""):
    return {"verdict": verdict, "gap": gap, "outcome": {"status": status, "gap": 0.3}, "story": []}


def test_cells_tell_gap_or_what_went_wrong():
    assert survival.short(None) == ""
    assert survival.short(cell("survived", gap=0.134)) == "ok 0.13 s"
    assert survival.short(cell("survived")) == "ok 0.30 s"
    assert survival.short(cell("died", status="RETRY_EXC_ERR")) == "**died** RETRY_EXC_ERR"
    assert survival.short(cell("not run")) == "?"


def test_page_counts_what_would_have_died(tmp_path):
    before = {
        "one rail|rcflow|far carrier": {"ended": "died"},
        "one rail|rcflow|silent port": {"ended": "hangs"},
        "one rail|rcflow|loss 5 %": {"ended": "finished"},
    }
    baseline, page = tmp_path / "baselines.json", tmp_path / "matrix.md"
    baseline.write_text(json.dumps({"cells": before}))
    book = Book(tmp_path / "matrix.json")
    book.raw["cells"] |= {
        "linkpass|rcflow|far carrier": cell("survived", gap=0.2),
        "linkpass|rcflow|own silent port": cell("died", status="RETRY_EXC_ERR"),
        "linkpass|rcflow|far loss 5 %": cell("survived", gap=0.1),
        "linkpass|rcflow|none": cell("survived"),
    }
    page.write_text("# Head\n\nReading.\n")
    for _ in range(2):  # again, it replaces what it wrote
        survival.render(book, page, baseline)
    text = page.read_text()
    assert text.startswith("# Head\n\nReading.\n")
    assert text.count("| fault | rcflow |") == 1
    assert "| far carrier | ok 0.20 s |" in text
    assert "3 runs with a fault: 2 survived, 1 died." in text
    assert "2 of them died or hung without LinkPass; with it: 1 survived, 1 died." in text


def test_matrix_has_a_row_of_cells_for_each_workload():
    names = list(workloads.every())
    made = survival.cells(names, survival.FAULTS)
    assert len({c.key for c in made}) == len(names) * len(survival.FAULTS)
