"""Fault verbs: parsing, refusing, and going through the ledger unchanged."""

from pathlib import Path
from typing import Any

import pytest

from linkpass_lab import breaking
from linkpass_lab import ledger as ledgers
from linkpass_lab.commands import parse_words
from linkpass_lab.fault import VERBS, Fault, FaultError, FaultKind, parse
from linkpass_lab.ledger import Ledger


def test_fault_parsed_gets_all_parameters() -> None:
    fault = parse({"kind": "flap", "host": "b", "rail": "rail0", "count": 3})
    assert fault == Fault(
        FaultKind.FLAP, host="b", rail="rail0", parameters=(("count", 3), ("down", 0.2), ("up", 0.3))
    )
    assert str(fault) == "flap b/rail0 count=3 down=0.2 up=0.3"


@pytest.mark.parametrize("kind", list(FaultKind))
def test_every_verb_parses_with_its_defaults(kind: FaultKind) -> None:
    target = dict.fromkeys(VERBS[kind].target, "x")
    fault = parse({"kind": str(kind), **target})
    assert {name for name, _ in fault.parameters} == set(VERBS[kind].parameters)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({}, "not a kind of fault"),
        ({"kind": "earthquake"}, "not a kind of fault; these are: carrier"),
        ({"kind": "carrier", "host": "a"}, "needs rail"),
        ({"kind": "carrier", "host": "a", "rail": ""}, "needs rail"),
        ({"kind": "carrier", "host": "a", "rail": "r", "way": "both"}, "not way"),
        ({"kind": "leaf", "leaf": "l0", "host": "a"}, "not host"),
        ({"kind": "silent", "host": "a", "rail": "r", "way": "up"}, "one of both, from, to"),
        ({"kind": "loss", "host": "a", "rail": "r", "percent": 101}, "between 0 and 100"),
        ({"kind": "loss", "host": "a", "rail": "r", "percent": "some"}, "not a number"),
        ({"kind": "loss", "host": "a", "rail": "r", "percent": float("nan")}, "between 0 and 100"),
        ({"kind": "flap", "host": "a", "rail": "r", "count": 0}, "between 1 and inf"),
        ({"kind": "flap", "host": "a", "rail": "r", "down": True}, "down must be"),
        ({"kind": "flap", "host": "a", "rail": "r", "down": [1]}, "down must be"),
    ],
)
def test_fault_misspelt_says_what_is_wrong(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(FaultError, match=problem):
        parse(table)


def test_words_of_the_command_line_are_a_fault() -> None:
    assert parse_words("silent", ["b", "rail1", "way=from"]) == parse(
        {"kind": "silent", "host": "b", "rail": "rail1", "way": "from"}
    )


def test_words_with_a_part_missing_name_what_is_needed() -> None:
    with pytest.raises(FaultError, match="host and rail; got b"):
        parse_words("carrier", ["b"])


class Recorder:
    """Stands for a lab: remembers what it was asked."""

    def __init__(self, ledger: Ledger, *, fails: bool = False) -> None:
        self.ledger = ledger
        self.fails = fails
        self.asked: list[tuple[str, Fault]] = []

    def inject(self, fault: Fault) -> None:
        if self.fails:
            raise FaultError("no")
        self.asked.append(("inject", fault))

    def repair(self, fault: Fault) -> None:
        self.asked.append(("repair", fault))


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv(ledgers.ROOT_VARIABLE, str(tmp_path))
    return Ledger.create("x")


def test_fault_struck_is_listed_by_another_process_until_mended(ledger: Ledger) -> None:
    lab: Any = Recorder(ledger)
    first = parse({"kind": "loss", "host": "a", "rail": "r", "percent": 2.5})
    second = parse({"kind": "leaf", "leaf": "l0"})
    breaking.strike(lab, first)
    breaking.strike(lab, second)
    assert breaking.broken(Ledger(ledger.folder)) == [first, second]
    breaking.mend(lab, first)
    assert breaking.broken(Ledger(ledger.folder)) == [second]
    assert lab.asked == [("inject", first), ("inject", second), ("repair", first)]


def test_fault_that_could_not_strike_is_not_listed(ledger: Ledger) -> None:
    lab: Any = Recorder(ledger, fails=True)
    with pytest.raises(FaultError):
        breaking.strike(lab, parse({"kind": "leaf", "leaf": "l0"}))
    assert breaking.broken(ledger) == []
