"""Rules as values: the shipped ones (rules.toml), and what a host's file changes of them.

The agent's evaluator (`linkpass_agent.judge.rules`) applies them; see docs/observing.md for what each field means.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

SHIPPED = Path(__file__).with_name("rules.toml")

Kind = Literal["growth", "ratio", "drop", "value"]
Act = Literal["alarm", "suspect", "down"]
ACTS: tuple[str, ...] = get_args(Act)
# Those with a table of their own (linkpass_agent/see/drivers.toml); all others are "other".
DRIVERS = ("mlx5", "bnxt_re", "irdma", "ionic", "efa", "rxe", "other")

# What `watch` may name beside counters and facts: the agent's own verdicts on a port.
AGENTS_OWN = ("flaps", "outage")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `window` and `clear` are seconds; `limit` counts events (growth) or is a share (ratio)."""

    name: str
    watch: str
    kind: Kind
    window: float
    clear: float
    act: Act
    source: str
    limit: float = 0.0
    per: str = ""
    values: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    but_not: tuple[str, ...] = ()  # drivers that have a version of their own
    enabled: bool = True

    def applies(self, driver: str) -> bool:
        """Whether the rule is for ports of this driver."""
        return self.enabled and driver not in self.but_not and (not self.drivers or driver in self.drivers)


class Change(Protocol):
    """What a host's file says of one rule; None leaves a field as it is. `settings.RuleSettings` is one."""

    @property
    def name(self) -> str: ...
    @property
    def drivers(self) -> tuple[str, ...]: ...
    @property
    def limit(self) -> float | None: ...
    @property
    def window(self) -> float | None: ...
    @property
    def clear(self) -> float | None: ...
    @property
    def act(self) -> Act | None: ...
    @property
    def enabled(self) -> bool | None: ...


@cache
def shipped() -> tuple[Rule, ...]:
    """The rules that come with LinkPass, in the order of the file."""
    return tuple(_rule(row) for row in tomllib.loads(SHIPPED.read_text())["rule"])


def names() -> tuple[str, ...]:
    """All names that a change may speak of."""
    return tuple(r.name for r in shipped())


def changed(changes: Iterable[Change], rules: Iterable[Rule] | None = None) -> tuple[Rule, ...]:
    """The rules with the changes of a file applied, in order. A change for some drivers leaves the rule as it was
    for all others; the later change of the same driver wins."""
    found = list(shipped() if rules is None else rules)
    for change in changes:
        after: list[Rule] = []
        for rule in found:
            after += _apply(rule, change) if rule.name == change.name else [rule]
        found = after
    return tuple(found)


def for_driver(rules: Iterable[Rule], driver: str) -> tuple[Rule, ...]:
    """The rules that hold for one driver's ports."""
    return tuple(r for r in rules if r.applies(driver))


def _apply(rule: Rule, change: Change) -> list[Rule]:
    said: dict[str, Any] = {
        key: value
        for key in ("limit", "window", "clear", "act", "enabled")
        if (value := getattr(change, key)) is not None
    }
    if not change.drivers:
        return [replace(rule, **said)]
    rest = replace(rule, but_not=(*rule.but_not, *change.drivers))
    taken = tuple(d for d in change.drivers if d not in rule.but_not and (not rule.drivers or d in rule.drivers))
    return [rest, replace(rule, drivers=taken, **said)] if taken else [rule]


def _rule(row: dict[str, Any]) -> Rule:
    row = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    return Rule(**row)
