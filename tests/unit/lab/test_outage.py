"""The arithmetic of bench/outage.py."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def outage() -> ModuleType:
    file = Path(__file__).resolve().parents[3] / "bench" / "outage.py"
    spec = importlib.util.spec_from_file_location("bench_outage", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_outage"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [(1, 0.95, 1), (20, 0.95, 19), (30, 0.95, 29), (100, 0.95, 95), (4, 0.5, 2), (3, 0.5, 2)],
)
def test_percentile_is_the_nearest_rank(outage: ModuleType, count: int, share: float, expected: int) -> None:
    assert outage.percentile([float(n) for n in range(count, 0, -1)], share) == expected


def test_rows_are_one_for_each_fault_and_contender(outage: ModuleType) -> None:
    trials = [
        outage.Trial("x", "near", 10.0, 9, False, {"a seen": 1.0}),
        outage.Trial("y", "near", 2000.0, 1999, True),
        outage.Trial("x", "near", 20.0, 19, False, {"a seen": 3.0, "a acted": 4.0}),
        outage.Trial("x", "far", 5.0, 4, False),
    ]
    rows = outage.summarise(trials)
    assert [(r["fault"], r["contender"], r["trials"], r["capped"]) for r in rows] == [
        ("near", "x", 2, 0),
        ("near", "y", 1, 1),
        ("far", "x", 1, 0),
    ]
    assert (rows[0]["median"], rows[0]["p95"], rows[0]["min"], rows[0]["max"]) == (15.0, 20.0, 10.0, 20.0)
    stages = outage.stage_rows(trials)
    assert [(r["stage"], r["trials"], r["median"]) for r in stages] == [("a seen", 2, 2.0), ("a acted", 1, 4.0)]


def test_table_has_a_line_for_each_row(outage: ModuleType) -> None:
    text = outage.markdown([{"fault": "near", "ms": 1.5}, {"fault": "far", "ms": 2.0}])
    assert text == "| fault | ms |\n| --- | --- |\n| near | 1.5 |\n| far | 2.0 |\n"
