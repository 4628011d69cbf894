"""A scenario: a folder with `scenario.toml` that says which fabric, traffic and faults, in which order, and what must
hold. Loading makes nothing; `runner` plays it on a lab.

    title = "The far host's carrier goes"
    why = "..."
    fabric = "2x2"                      # topology/fabrics/2x2.toml, or a path from the scenario's folder
    [lab]
    equal_ifindex = false               # options of the realisation
    [agents]
    run = true
    config.hold_down.first = 0.5        # laid over every agent's configuration
    [[traffic]]
    name = "stream"
    kind = "udpstream"
    source = "a"
    target = "b"
    [[step]]                            # one act each, in order; `wait` seconds pass before it
    wait = 1.0
    name = "cut"
    fault = { kind = "carrier", host = "b", rail = "in-use:stream" }
    [[step]]
    until = { check = "path", host = "a", peer = "b", rail = "cut", state = "down" }
    within = 5.0                        # s
    [[step]]
    repair = "cut"
    [[step]]
    agent = { host = "a", do = "kill" } # start, stop, kill
    [[step]]
    run = { host = "a", argv = ["linkpassctl", "drain", "{port}", "--reason", "optics"], rail = "rail0", exit = 0 }
    [[hold]]
    check = "gap"
    traffic = "stream"
    most_ms = 1000

Where a rail is asked for, `in-use:NAME` is the rail that the traffic NAME takes at that moment, `other:NAME` the
first that it doesn't take, and the name of an earlier step the rail that its fault struck.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linkpass.errors import ConfigError, NotFoundError
from linkpass_lab import fault
from linkpass_topology import fabric as fabrics

TREE = Path(__file__).resolve().parents[2]
SCENARIOS = TREE / "lab" / "scenarios"
FABRICS = TREE / "topology" / "fabrics"

Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """Something to find out: the name of a check and its parameters (`checks` knows them all)."""

    kind: str
    parameters: Table

    def __str__(self) -> str:
        return " ".join((self.kind, *(f"{k}={v}" for k, v in self.parameters.items())))


@dataclass(frozen=True, slots=True)
class Traffic:
    """A workload: a name, its kind (`traffic` knows them all), from where to where, parameters of the kind."""

    name: str
    kind: str
    source: str
    target: str
    parameters: Table = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One act of the timeline; exactly one of fault, repair, agent, run, until and pause is given."""

    name: str
    wait: float = 0.0  # s before the act
    fault: Table | None = None  # parsed when it strikes: its rail may be "in-use:NAME"
    repair: str | None = None  # name of an earlier step with a fault
    agent: Table | None = None  # host, do
    run: Table | None = None  # host, argv, exit
    until: Check | None = None
    within: float = 10.0  # s that `until` may take


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole scenario."""

    name: str
    title: str
    why: str
    fabric: fabrics.Fabric
    lab: Table
    agents: bool
    config: Table
    traffic: tuple[Traffic, ...]
    steps: tuple[Step, ...]
    holds: tuple[Check, ...]
    kind: str = "namespaces"  # the realisation that it is written for


ACTS = ("fault", "repair", "agent", "run", "until")


def find_fabric(name: str, beside: Path | None = None) -> Path:
    """The file of a fabric: a path (from the folder `beside`), or the name of one in topology/fabrics."""
    for path in ((beside or Path()) / name, FABRICS / f"{name}.toml"):
        if path.is_file():
            return path
    known = ", ".join(sorted(p.stem for p in FABRICS.glob("*.toml")))
    raise NotFoundError(f"no fabric {name!r}: neither a file nor one of {known}")


def names(folder: Path = SCENARIOS) -> list[str]:
    """The scenarios that there are."""
    return sorted(p.parent.name for p in folder.glob("*/scenario.toml"))


def find(name: str) -> Scenario:
    """A scenario by its name, or by the path of its folder."""
    for folder in (Path(name), SCENARIOS / name):
        if (folder / "scenario.toml").is_file():
            return load(folder)
    raise NotFoundError(f"no scenario {name!r}; there are: {', '.join(names())}")


def load(folder: Path) -> Scenario:
    """Read a scenario's folder. ConfigError names file, line where TOML tells it, key and problem."""
    path = folder / "scenario.toml"
    try:
        raw = tomllib.loads(path.read_text())
    except OSError as e:
        raise ConfigError(path, 0, "", e.strerror or str(e)) from e
    except tomllib.TOMLDecodeError as e:
        found = re.search(r"at line (\d+)", str(e))
        raise ConfigError(path, int(found[1]) if found else 0, "", str(e)) from e
    return _Reader(path).scenario(raw)


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path

    def bad(self, key: str, problem: str) -> ConfigError:
        return ConfigError(self.path, 0, key, problem)

    def table(self, raw: Table, key: str, known: set[str] | None = None, where: str = "") -> dict[str, Any]:
        value = raw.get(key, {})
        if not isinstance(value, dict):
            raise self.bad(where + key, "must be a table")
        if known is not None and (unknown := sorted(set(value) - known)):
            raise self.bad(f"{where}{key}.{unknown[0]}", f"unknown key; known: {', '.join(sorted(known))}")
        return value

    def tables(self, raw: Table, key: str) -> list[dict[str, Any]]:
        value = raw.get(key, [])
        if not isinstance(value, list) or not all(isinstance(t, dict) for t in value):
            raise self.bad(key, f"must be tables: [[{key}]]")
        return value

    def word(self, raw: Table, key: str, where: str = "") -> str:
        if not isinstance(raw.get(key), str) or not raw[key]:
            raise self.bad(where + key, "is missing or not a word")
        return str(raw[key])

    def seconds(self, raw: Table, key: str, default: float, where: str) -> float:
        value = raw.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 600:
            raise self.bad(where + key, f"{value!r} is not a time between 0 and 600 s")
        return float(value)

    def scenario(self, raw: Table) -> Scenario:
        known = {"title", "why", "kind", "fabric", "lab", "agents", "traffic", "step", "hold"}
        if unknown := sorted(set(raw) - known):
            raise self.bad(unknown[0], f"unknown key; known: {', '.join(sorted(known))}")
        agents = self.table(raw, "agents", {"run", "config"})
        if not isinstance(agents.get("run", True), bool):
            raise self.bad("agents.run", "must be true or false")
        try:
            fabric = fabrics.load(find_fabric(self.word(raw, "fabric"), self.path.parent))
        except NotFoundError as e:
            raise self.bad("fabric", str(e)) from e
        traffic = tuple(self.traffic(t, f"traffic[{i}].", fabric) for i, t in enumerate(self.tables(raw, "traffic")))
        steps: list[Step] = []
        for i, t in enumerate(self.tables(raw, "step")):
            steps.append(self.step(t, i, steps))
        return Scenario(
            name=self.path.parent.name,
            title=self.word(raw, "title"),
            why=str(raw.get("why", "")).strip(),
            kind=str(raw.get("kind", "namespaces")),
            fabric=fabric,
            lab=self.table(raw, "lab"),
            agents=agents.get("run", True),
            config=self.table(agents, "config", where="agents."),
            traffic=traffic,
            steps=tuple(steps),
            holds=tuple(self.check(t, f"hold[{i}].") for i, t in enumerate(self.tables(raw, "hold"))),
        )

    def traffic(self, raw: Table, where: str, fabric: fabrics.Fabric) -> Traffic:
        for end in ("source", "target"):
            try:
                fabric.host(self.word(raw, end, where))
            except KeyError as e:
                raise self.bad(where + end, str(e.args[0])) from e
        rest = {k: v for k, v in raw.items() if k not in ("name", "kind", "source", "target")}
        name, kind = (self.word(raw, k, where) for k in ("name", "kind"))
        return Traffic(name, kind, raw["source"], raw["target"], rest)

    def check(self, raw: Table, where: str) -> Check:
        return Check(self.word(raw, "check", where), {k: v for k, v in raw.items() if k != "check"})

    def step(self, raw: Table, index: int, earlier: list[Step]) -> Step:
        where = f"step[{index}]."
        acts = [a for a in ACTS if a in raw]
        if len(acts) != 1:
            raise self.bad(where.rstrip("."), f"needs exactly one of {', '.join(ACTS)}; has {acts or 'none'}")
        if unknown := sorted(set(raw) - {"name", "wait", "within", *ACTS}):
            raise self.bad(where + unknown[0], "unknown key")
        faults = [s.name for s in earlier if s.fault is not None]
        strike = self.table(raw, "fault", where=where) if "fault" in raw else None
        if strike is not None:
            try:  # all but the rail, which is known only when it strikes, can be checked now
                fault.parse(strike)
            except fault.FaultError as e:
                raise self.bad(where + "fault", str(e)) from e
        if "repair" in raw and raw["repair"] not in faults:
            raise self.bad(where + "repair", f"{raw['repair']!r} is no earlier step with a fault ({faults})")
        agent = self.table(raw, "agent", {"host", "do"}, where) if "agent" in raw else None
        if agent is not None and agent.get("do") not in ("start", "stop", "kill"):
            raise self.bad(where + "agent.do", "must be start, stop or kill")
        run = self.table(raw, "run", {"host", "argv", "exit", "rail"}, where) if "run" in raw else None
        if run is not None and not (isinstance(run.get("argv"), list) and run["argv"]):
            raise self.bad(where + "run.argv", "must be a list of words")
        until = self.check(self.table(raw, "until", where=where), where + "until.") if "until" in raw else None
        name = self.word(raw, "name", where) if "name" in raw else f"step{index}"
        if name in {s.name for s in earlier}:
            raise self.bad(where + "name", f"{name!r} is used twice")
        return Step(
            name=name,
            wait=self.seconds(raw, "wait", 0.0, where),
            fault=strike,
            repair=raw.get("repair"),
            agent=agent,
            run=run,
            until=until,
            within=self.seconds(raw, "within", 10.0, where),
        )
