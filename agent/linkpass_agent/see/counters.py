"""Which counters a driver has, what they mean and how they end: `drivers.toml` as values."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from linkpass_agent.judge.counting import CounterKind, Place

TABLES = Path(__file__).with_name("drivers.toml")
PLACES: tuple[Place, ...] = ("counters", "hw_counters", "netdev", "ethtool")
GENERIC, OTHER = "generic", "other"


@dataclass(frozen=True, slots=True)
class Driver:
    """What is known of a driver. `state` says which state to believe: the RDMA port's or the net device's."""

    name: str
    state: Literal["port", "netdev"]
    kinds: tuple[CounterKind, ...]

    def at(self, place: Place) -> tuple[CounterKind, ...]:
        """Its counters in one place."""
        return tuple(k for k in self.kinds if k.place == place)


@cache
def driver(module: str) -> Driver:
    """The table of a kernel module; an unknown one has what every driver has. The module of the RDMA part or of
    the net device will do: `ice` is irdma, `bnxt_en` is bnxt_re."""
    tables = _tables()
    name = _names().get(module, "")
    kinds = {(k.place, k.name): k for k in _kinds(tables[GENERIC])}
    if name:
        kinds |= {(k.place, k.name): k for k in _kinds(tables[name])}
    state = tables.get(name, {}).get("state", tables[GENERIC]["state"])
    return Driver(name or OTHER, state, tuple(kinds.values()))


def roles() -> frozenset[str]:
    """All roles that rules may watch."""
    return frozenset(k.role for table in _tables().values() for k in _kinds(table))


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(TABLES.read_text())


@cache
def _names() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, table in _tables().items():
        if name != GENERIC:
            found |= dict.fromkeys((name, *table.get("alias", ())), name)
    return found


def _kinds(table: dict[str, Any]) -> list[CounterKind]:
    return [
        CounterKind(place, name, role, bits, full)
        for place in PLACES
        for name, (role, bits, full) in table.get(place, {}).items()
    ]
