"""Faults as values: drawn, written, shrunk."""

import json
from random import Random

import pytest

from linkpass.errors import LinkPassError
from linkpass_agent.simulate.faults import Fault, Kind, dumps, field_faults, flap_length, heavy, loads
from linkpass_agent.simulate.shrink import shrink
from linkpass_topology.fabric import grid

FABRIC = grid(16, 3, leaves=2)


def test_faults_written_as_json_are_read_as_the_same() -> None:
    drawn = heavy(5, FABRIC, 3.0, 15.0)
    assert len(drawn) > 5
    assert loads(json.dumps(dumps(drawn))) == drawn


@pytest.mark.parametrize("text", ["", "{}x", '[{"kind": "earthquake", "at": 1}]', '[{"kind": "flap"}]', "[3]", "7"])
def test_faults_that_are_none_are_refused_with_a_reason(text: str) -> None:
    with pytest.raises(LinkPassError, match="not a list of faults"):
        loads(text)


def test_flaps_of_the_field_last_one_to_twelve_seconds_mostly_and_sixty_at_most() -> None:
    rng = Random(1)
    drawn = [flap_length(rng) for _ in range(4000)]
    within = sum(1.0 <= x <= 12.0 for x in drawn) / len(drawn)
    assert 0.93 < within < 0.97  # two standard deviations of a log-normal
    assert max(drawn) <= 60.0


def test_mix_of_link_faults_is_the_fields() -> None:
    drawn = field_faults(Random(2), FABRIC, 10_000, 0.0, 1e9)
    leaves = sum(f.kind is Kind.LEAF for f in drawn)
    slow = sum(f.kind is Kind.RATE for f in drawn)
    for_good = sum(f.kind is Kind.FLAP and f.lasts is None for f in drawn)
    for found, share in ((leaves, 0.04), (slow, 0.04), (for_good, 0.02)):
        assert abs(found / 10_000 - share) < 0.01


def test_shrinking_leaves_just_the_faults_that_break_it() -> None:
    faults = tuple(Fault(float(n), Kind.FLAP, "a", f"rail{n}", 1.0) for n in range(40))
    guilty = {faults[7], faults[29]}
    asked: list[int] = []

    def breaks(some: tuple[Fault, ...]) -> bool:
        asked.append(len(some))
        return guilty <= set(some)

    assert set(shrink(faults, breaks)) == guilty
    assert len(asked) < 120


def test_shrinking_what_breaks_without_faults_leaves_none() -> None:
    faults = tuple(Fault(float(n), Kind.FLAP, "a", "rail0", 1.0) for n in range(8))
    assert shrink(faults, lambda some: True) == ()
