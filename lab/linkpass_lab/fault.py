"""Faults, as values: a kind, where it strikes, how hard. A realisation (namespaces, guests) carries them out.

In a scenario or on the command line a fault is a flat table:

    { kind = "carrier", host = "b", rail = "rail0" }
    { kind = "silent", host = "b", rail = "rail1", way = "from" }
    { kind = "flap", host = "b", rail = "rail0", count = 6, down = 0.2, up = 0.3 }
    { kind = "leaf", leaf = "l0" }
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from linkpass.errors import LinkPassError


class FaultError(LinkPassError):
    """A fault is misspelt, or this realisation can't do it."""


class FaultKind(StrEnum):
    """The verbs."""

    CARRIER = "carrier"
    ADMIN_DOWN = "admin-down"
    SILENT = "silent"
    LOSS = "loss"
    RATE = "rate"
    FLAP = "flap"
    LEAF = "leaf"
    RAILS = "rails"
    LATENCY = "latency"
    ACKS = "acks"
    GID = "gid"
    MTU = "mtu"
    KILL = "kill"
    FREEZE = "freeze"


Value = str | int | float


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a verb: its type follows its default; `least` and `most` bound numbers, `choices` words."""

    default: Value
    text: str
    least: float = 0.0
    most: float = float("inf")
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verb:
    """What a kind means: which parts of a target it needs (host, rail, leaf), its parameters, a line of help."""

    target: tuple[str, ...]
    text: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


WAY = Parameter("both", "as seen from the host: what it sends, what it gets, or both", choices=("both", "from", "to"))
VERBS: Mapping[FaultKind, Verb] = {
    FaultKind.CARRIER: Verb(("host", "rail"), "the switch port goes down: the host loses carrier"),
    FaultKind.ADMIN_DOWN: Verb(("host", "rail"), "the port is set down on the host itself"),
    FaultKind.SILENT: Verb(("host", "rail"), "the switch port stays up and carries nothing", {"way": WAY}),
    FaultKind.LOSS: Verb(
        ("host", "rail"),
        "the switch port loses packets at random",
        {"percent": Parameter(10.0, "packets lost, in %", most=100.0), "way": WAY},
    ),
    FaultKind.RATE: Verb(
        ("host", "rail"),
        "the link is slow towards the host",
        {"mbit": Parameter(20.0, "Mbit/s", least=0.01)},
    ),
    FaultKind.FLAP: Verb(
        ("host", "rail"),
        "carrier goes and comes back, several times",
        {
            "count": Parameter(6, "times", least=1),
            "down": Parameter(0.2, "s without carrier"),
            "up": Parameter(0.3, "s with carrier"),
        },
    ),
    FaultKind.LEAF: Verb(("leaf",), "a whole leaf switch loses power: every port of it goes down"),
    FaultKind.RAILS: Verb(("host",), "the switch ports of all rails of a host go down"),
    FaultKind.LATENCY: Verb(("host", "rail"), "packets are late", {"ms": Parameter(10.0, "delay in ms"), "way": WAY}),
    FaultKind.ACKS: Verb(("host", "rail"), "RoCE acknowledgements sent by the host are lost, nothing else"),
    FaultKind.GID: Verb(
        ("host", "rail"), "the port's GID goes and returns at another index", {"index": Parameter(8, "new index")}
    ),
    FaultKind.MTU: Verb(("host", "rail"), "the port's MTU changes", {"bytes": Parameter(1280, "MTU", least=576)}),
    FaultKind.KILL: Verb(("host",), "the whole host dies at once"),
    FaultKind.FREEZE: Verb(("host",), "the whole host stands still until it is repaired"),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Target parts that the verb doesn't need are ''. `parameters` holds every parameter, defaults too."""

    kind: FaultKind
    host: str = ""
    rail: str = ""
    leaf: str = ""
    parameters: tuple[tuple[str, Value], ...] = ()

    def text(self, name: str) -> str:
        """A parameter that is a word."""
        return str(dict(self.parameters)[name])

    def number(self, name: str) -> float:
        """A parameter that is a number."""
        return float(dict(self.parameters)[name])

    def __str__(self) -> str:
        where = self.leaf or "/".join(p for p in (self.host, self.rail) if p)
        rest = "".join(f" {k}={v}" for k, v in self.parameters)
        return f"{self.kind} {where}{rest}"


def parse(raw: Mapping[str, Any]) -> Fault:
    """A fault from a table; every value may also be a word, as on a command line. FaultError says what is wrong."""
    try:
        kind = FaultKind(raw.get("kind", ""))
    except ValueError:
        known = ", ".join(FaultKind)
        raise FaultError(f"{raw.get('kind')!r} is not a kind of fault; these are: {known}") from None
    verb = VERBS[kind]
    unknown = set(raw) - {"kind", *verb.target, *verb.parameters}
    if unknown:
        takes = ", ".join((*verb.target, *verb.parameters))
        raise FaultError(f"{kind} takes {takes}; not {', '.join(sorted(unknown))}")
    for part in verb.target:
        if not isinstance(raw.get(part), str) or not raw[part]:
            raise FaultError(f"{kind} needs {part}, a name")
    return Fault(
        kind,
        **{part: raw[part] for part in verb.target},
        parameters=tuple((n, _value(kind, n, p, raw.get(n, p.default))) for n, p in verb.parameters.items()),
    )


def _value(kind: FaultKind, name: str, parameter: Parameter, value: Any) -> Value:
    wanted = type(parameter.default)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FaultError(f"{kind}: {name} must be {parameter.text}")
    try:
        made: Value = wanted(value)
    except ValueError:
        raise FaultError(f"{kind}: {name}={value!r} is not a number ({parameter.text})") from None
    if isinstance(made, str):
        if parameter.choices and made not in parameter.choices:
            raise FaultError(f"{kind}: {name}={made!r} must be one of {', '.join(parameter.choices)}")
    elif not parameter.least <= made <= parameter.most:
        raise FaultError(f"{kind}: {name}={made} must lie between {parameter.least:g} and {parameter.most:g}")
    return made


def unsupported(kind: FaultKind, realisation: str) -> FaultError:
    """The error for a kind that a realisation has no means for."""
    return FaultError(f"a lab of {realisation} can't do {str(kind)!r}; `linkpass-lab faults` says which lab can")
