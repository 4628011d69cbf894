"""What a scenario may ask for, during it (`until`) and at its end (`[[hold]]`). Each check says what it saw."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from linkpass_lab.agents import Agents, kernel_hops, kernel_routes
from linkpass_lab.lab import Lab, LabError
from linkpass_lab.scenario import Check


@dataclass
class Facts:
    """What the run has gathered that checks look at. Times are monotonic s."""

    lab: Lab
    agents: Agents | None
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # of traffic that has ended
    rails: dict[str, str] = field(default_factory=dict)  # struck by each step
    times: dict[str, float] = field(default_factory=dict)  # when each fault struck, or each other step was done
    routes: dict[str, str] = field(default_factory=dict)  # of each host before the agents started
    exits: dict[str, int] = field(default_factory=dict)  # of agents that were stopped

    def need_agents(self) -> Agents:
        if self.agents is None:
            raise LabError("this check asks the agents, and the scenario runs none")
        return self.agents

    def rail(self, parameters: Mapping[str, Any]) -> str:
        """The rail that a check names: a step's name stands for what it struck."""
        named = str(parameters["rail"])
        return self.rails.get(named, named)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether it holds, and what was seen."""

    ok: bool
    text: str


def evaluate(check: Check, facts: Facts) -> Outcome:
    """Look now. A check that can't be made doesn't hold, and says why."""
    try:
        return CHECKS[check.kind](facts, check.parameters)
    except KeyError as e:
        known = ", ".join(sorted(CHECKS))
        problem = f"needs {e}" if check.kind in CHECKS else f"no such check; there are {known}"
        return Outcome(False, f"{check.kind}: {problem}")
    except LabError as e:
        return Outcome(False, str(e))


def _bounded(value: float, p: Mapping[str, Any], unit: str, least: str = "least", most: str = "most") -> Outcome:
    ok = p.get(least, float("-inf")) <= value <= p.get(most, float("inf"))
    bounds = [f"at {word} {p[key]:g}" for word, key in (("least", least), ("most", most)) if key in p]
    return Outcome(ok, f"{value:g} {unit} ({' and '.join(bounds) or 'no bound'})")


def gap(facts: Facts, p: Mapping[str, Any]) -> Outcome:
    """traffic, least_ms, most_ms, after: the stream's longest gap (that ended after the step `after`)."""
    gaps = facts.results[p["traffic"]]["gaps"]
    begin = facts.times.get(str(p.get("after", "")), 0.0)
    return _bounded(max((g["ms"] for g in gaps if g["end"] > begin), default=0.0), p, "ms", "least_ms", "most_ms")


def lost(facts: Facts, p: Mapping[str, Any]) -> Outcome:
    """traffic, least, most: packets of the stream that never came."""
    return _bounded(facts.results[p["traffic"]]["lost"], p, "packets")


def moved(facts: Facts, p: Mapping[str, Any]) -> Outcome:
    """traffic, least, most: bytes that a TCP transfer brought over, without an error at its end."""
    result = facts.results[p["traffic"]]
    if result.get("error"):
        return Outcome(False, str(result["error"]))
    return _bounded(result["bytes"], p, "bytes")


def port(facts: Facts, p: Mapping[str, Any]) -> Outcome:
    """host, rail, state (or a list of states): what the agent says of its port."""
    rail = facts.rail(p)
    found = [v for v in facts.need_agents().ports(p["host"]) if v["rail"] == rail]
    return _state(found, p, f"{p['host']} {rail}")


def path(facts: Facts, p: Mapping[str, Any]) -> Outcome:
    """host, peer, rail, state (or a list of states): what the agent says of its path."""
    rail = facts.rail(p)
    found = [v for v in facts.need_agents().paths(p["host"]) if v["rail"] == rail and v["peer"] == p["peer"]]
    return _state(found, p, f"{p['host']} to {p['peer']} over {rail}")


def _state(found: list[dict[str, Any]], p: Mapping[str, Any], what: str) -> Outcome:
    wanted = p["state"] if isinstance(p["state"], list) else [p["state"]]
    if not found:
        return Outcome(False, f"{what}: unknown to the agent")
    return Outcome(found[0]["state"] in wanted, f"{what}: {found[0]['state']} ({found[0]['cause']})")


def health(facts: Facts, p: Mapping[str, Any]) -> Outcome:
    """host, state: ok or degraded."""
    said = facts.need_agents().status(p["host"])
    return Outcome(said["health"] == p["state"], f"{said['health']} {'; '.join(said['problems'])}".strip())


def whole(facts: Facts, _: Mapping[str, Any]) -> Outcome:
    """Every path of every host is up and in use."""
    agents = facts.need_agents()
    bad = [
        f"{h.name} to {v['peer']} over {v['rail']}: {v['state']}{'' if v['in_use'] else ', not in use'}"
        for h in facts.lab.fabric.hosts
        for v in agents.paths(h.name)
        if v["state"] != "up" or not v["in_use"]
    ]
    return Outcome(not bad, "; ".join(bad) or "all paths up and in use")


def hops(facts: Facts, p: Mapping[str, Any]) -> Outcome:
    """host, peer, rails (a list) or not (a rail): over which the kernel sends to the peer's own address."""
    fabric = facts.lab.fabric
    devices = kernel_hops(facts.lab, p["host"], fabric.host(p["peer"]).service)
    rails = [r for r in fabric.rails if facts.lab.port(p["host"], r) in devices]
    if "not" in p:
        ok = bool(rails) and facts.rails.get(p["not"], p["not"]) not in rails
    else:
        ok = rails == sorted({facts.rails.get(r, r) for r in p["rails"]}, key=fabric.rails.index)
    return Outcome(ok, f"{p['host']} sends to {p['peer']} over {', '.join(rails) or 'nothing'}")


def events(facts: Facts, p: Mapping[str, Any]) -> Outcome:
    """host, order (a list of kinds), after: such events came in this order (after the step `after`)."""
    begin = facts.times.get(str(p.get("after", "")), 0.0)
    kinds = [e["kind"] for e in facts.need_agents().events(p["host"]) if e["at"] >= begin]
    return Outcome(in_order(kinds, p["order"]), f"{p['host']}: {' '.join(kinds) or 'no events'}")


def in_order(seen: list[str], wanted: list[str]) -> bool:
    """`wanted` is a subsequence of `seen`."""
    rest = iter(seen)
    return all(kind in rest for kind in wanted)


def route_changes(facts: Facts, p: Mapping[str, Any]) -> Outcome:
    """host, least, most, after: times that the agent changed routes (after the step `after`)."""
    begin = facts.times.get(str(p.get("after", "")), 0.0)
    acted = [e for e in facts.need_agents().events(p["host"]) if e["kind"] == "acted" and e["at"] >= begin]
    return _bounded(len(acted), p, "route changes")


def restored(facts: Facts, p: Mapping[str, Any]) -> Outcome:
    """hosts (all unless given): routes and next-hop objects are what they were before the agents started."""
    for host in p.get("hosts", [h.name for h in facts.lab.fabric.hosts]):
        now, before = (set(text.split("\n")) for text in (kernel_routes(facts.lab, host), facts.routes[host]))
        if now != before:
            return Outcome(False, f"{host}: more: {sorted(now - before)}; less: {sorted(before - now)}")
    return Outcome(True, "routes are as before")


def exits(facts: Facts, p: Mapping[str, Any]) -> Outcome:
    """All agents that were stopped ended with 0."""
    bad = {h: code for h, code in facts.exits.items() if code}
    return Outcome(not bad and bool(facts.exits), f"agents' exit codes: {facts.exits}")


CHECKS: Mapping[str, Callable[[Facts, Mapping[str, Any]], Outcome]] = {
    "gap": gap,
    "lost": lost,
    "moved": moved,
    "port": port,
    "path": path,
    "health": health,
    "whole": whole,
    "hops": hops,
    "events": events,
    "route-changes": route_changes,
    "restored": restored,
    "exits": exits,
}
# These look at what is left after the agents have been stopped; all others at the agents, or at results.
AFTERWARDS = frozenset({"restored", "exits"})
