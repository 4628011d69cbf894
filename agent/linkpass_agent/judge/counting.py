"""Counters as values, and what two readings of one say: how much it grew, or that this can't be known.

A counter that sticks at its top tells nothing any more; one that wraps goes on from 0; one that reads less than
before was reset (by a driver's reload or a tool) and is counted from there on. Pure.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

Place = Literal["counters", "hw_counters", "netdev", "ethtool", "agent"]

# A wrapping counter that fell from the last quarter of its range into the first has wrapped; any other fall is a
# reset. Nothing that rules watch covers half its range between two looks.
NEAR = 4


@dataclass(frozen=True, slots=True)
class CounterKind:
    """One counter of a driver. At 2**bits - 1 it `sticks` (and tells no more) or `wraps` to 0."""

    place: Place
    name: str
    role: str
    bits: int
    full: Literal["sticks", "wraps"]

    @property
    def source(self) -> str:
        """Its name for people: where it is found."""
        return f"{self.place}/{self.name}"


class Sample(NamedTuple):
    """One counter's value; None with the reason in `why` when it can't be observed."""

    kind: CounterKind
    value: int | None
    why: str = ""


class Reading(StrEnum):
    """What a reading was."""

    FIRST = "first"  # nothing to compare with yet
    COUNTED = "counted"
    WRAPPED = "wrapped"
    RESET = "reset"
    SATURATED = "saturated"
    BLIND = "can't observe"


@dataclass(frozen=True, slots=True)
class Grown:
    """`by` is None where growth can't be known: never 0 by default."""

    reading: Reading
    by: int | None


def compare(before: int | None, value: int | None, kind: CounterKind) -> Grown:
    """The growth from `before` (the last value that could be read, None if none) to `value` (None: unreadable)."""
    top = (1 << kind.bits) - 1
    if value is None:
        return Grown(Reading.BLIND, None)
    if kind.full == "sticks" and value >= top:
        # The step up to the top is the least that happened; from then on nothing is known.
        return Grown(Reading.SATURATED, top - before if before is not None and before < top else None)
    if before is None:
        return Grown(Reading.FIRST, None)
    if value >= before:
        return Grown(Reading.COUNTED, value - before)
    quarter = (top + 1) // NEAR
    if kind.full == "wraps" and before > top - quarter and value < quarter:
        return Grown(Reading.WRAPPED, value + top + 1 - before)
    return Grown(Reading.RESET, None)
