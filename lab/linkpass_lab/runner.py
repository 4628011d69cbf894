"""Plays a scenario on a lab: brings it up, follows the timeline, looks whether all holds, takes everything away."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linkpass.errors import LinkPassError
from linkpass_lab import fault as faults
from linkpass_lab import realisations, traffic
from linkpass_lab.agents import Agents, kernel_routes
from linkpass_lab.breaking import mend, strike
from linkpass_lab.checks import AFTERWARDS, Facts, Outcome, evaluate
from linkpass_lab.fault import Fault
from linkpass_lab.lab import Lab, LabError
from linkpass_lab.ledger import marked
from linkpass_lab.scenario import Check, Scenario, Step

POLL = 0.05  # s between two looks at an `until`
Say = Callable[[str], None]


@dataclass
class Report:
    """How a scenario went."""

    name: str
    title: str
    verdicts: list[tuple[str, Outcome]] = field(default_factory=list)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return bool(self.verdicts) and all(o.ok for _, o in self.verdicts)

    def json(self) -> dict[str, Any]:
        verdicts = [{"what": w, "ok": o.ok, "saw": o.text} for w, o in self.verdicts]
        return {
            "scenario": self.name,
            "ok": self.ok,
            "seconds": round(self.seconds, 1),
            "verdicts": verdicts,
            "traffic": self.results,
        }


def play(scenario: Scenario, *, say: Say = lambda _: None, keep: Path | None = None) -> Report:
    """Play it and report. `keep`: a folder that gets the run folder's files (logs) when something didn't hold."""
    report = Report(scenario.name, scenario.title)
    begin = time.monotonic()
    lab: Lab | None = None
    try:
        lab = realisations.up(scenario.kind, scenario.fabric, **scenario.lab)
        _Play(scenario, lab, report, say, begin).run()
    except LinkPassError as e:
        report.verdicts.append(("the scenario runs to its end", Outcome(False, str(e))))
    finally:
        if lab is not None:
            if keep is not None and not report.ok:
                _save(lab.folder, keep / scenario.name)
            report.verdicts.append(("nothing is left behind", _closed(lab)))
    report.seconds = time.monotonic() - begin
    return report


def _closed(lab: Lab) -> Outcome:
    try:
        lab.close()
    except LinkPassError as e:
        return Outcome(False, str(e))
    left = [f"process {p}" for p in marked(lab.folder)] + [str(lab.folder)] * lab.folder.exists()
    return Outcome(not left, ", ".join(left) or "no process, no folder")


def _save(folder: Path, to: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "fleet.keys":
            there = to / file.relative_to(folder)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(file.read_bytes())


class _Play:
    def __init__(self, scenario: Scenario, lab: Lab, report: Report, say: Say, begin: float) -> None:
        self.scenario = scenario
        self.lab = lab
        self.report = report
        self._say = say
        self._begin = begin
        self.agents = Agents(lab, scenario.config) if scenario.agents else None
        self.facts = Facts(lab, self.agents, rails={}, results=report.results)
        self.struck: dict[str, Fault] = {}

    def say(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._begin:7.2f} s  {text}")

    def run(self) -> None:
        self.say(f"{self.scenario.fabric.name} is up in {self.lab.folder}")
        self.facts.routes = {h.name: kernel_routes(self.lab, h.name) for h in self.scenario.fabric.hosts}
        if self.agents is not None:
            self.agents.start_all()
            self.agents.wait_until_connected()
            self.say("agents use all paths")
        running = [traffic.make(self.lab, t) for t in self.scenario.traffic]
        for workload in running:
            workload.start()
            self.say(f"traffic {workload.traffic.name} runs")
        for step in self.scenario.steps:
            time.sleep(step.wait)
            self.say(f"{step.name}: {self.act(step)}")
            self.facts.times.setdefault(step.name, time.monotonic())
        for workload in running:
            self.report.results[workload.traffic.name] = workload.stop()
        self.judge([c for c in self.scenario.holds if c.kind not in AFTERWARDS])
        if self.agents is not None:
            self.facts.exits = self.agents.stop_all()
        self.judge([c for c in self.scenario.holds if c.kind in AFTERWARDS])

    def judge(self, holds: list[Check]) -> None:
        for check in holds:
            self.report.verdicts.append((str(check), evaluate(check, self.facts)))

    def act(self, step: Step) -> str:
        """Do one step; returns what to say of it."""
        if step.fault is not None:
            return self.strike(step)
        if step.repair is not None:
            mend(self.lab, self.struck[step.repair])
            return f"repaired {self.struck[step.repair]}"
        if step.agent is not None:
            return self.agent(step.agent["host"], step.agent["do"])
        if step.run is not None:
            return self.command(step)
        return self.until(step)

    def strike(self, step: Step) -> str:
        assert step.fault is not None
        table = dict(step.fault)
        if "rail" in table:
            table["rail"] = self.facts.rails[step.name] = self.rail(table["rail"])
        fault = faults.parse(table)
        self.struck[step.name] = fault
        self.facts.times[step.name] = time.monotonic()
        strike(self.lab, fault)
        return str(fault)

    def rail(self, named: str) -> str:
        """A rail by its name, by an earlier step's name, as `in-use:TRAFFIC` or as `other:TRAFFIC`."""
        how, colon, name = named.partition(":")
        if not colon:
            return self.facts.rails.get(named, named)
        flows = {t.name: t.source for t in self.scenario.traffic}
        if name not in flows or how not in ("in-use", "other"):
            raise LabError(f"rail {named!r}: must be in-use:TRAFFIC or other:TRAFFIC; traffic is {list(flows)}")
        used = traffic.rail_in_use(self.lab, flows[name])
        return used if how == "in-use" else next(r for r in self.lab.fabric.rails if r != used)

    def agent(self, host: str, do: str) -> str:
        agents = self.facts.need_agents()
        if do == "start":
            agents.start(host)
        elif do == "kill":
            agents.kill(host)
        else:
            self.facts.exits[host] = agents.stop(host)
        return f"agent of {host}: {do}"

    def command(self, step: Step) -> str:
        assert step.run is not None
        host, words, wanted = step.run["host"], [str(w) for w in step.run["argv"]], step.run.get("exit", 0)
        if "rail" in step.run:
            rail = self.facts.rails[step.name] = self.rail(step.run["rail"])
            words = [w.replace("{rail}", rail).replace("{port}", self.lab.port(host, rail)) for w in words]
        argv = self.facts.need_agents().command(host, words[1:]) if words[0] == "linkpassctl" else words
        done = self.lab.run(host, argv, check=False)
        said = " ".join((done.stdout + done.stderr).split())
        if done.returncode != wanted:
            raise LabError(f"{host}: {' '.join(words)}: exit {done.returncode} instead of {wanted}: {said}")
        return f"{host}: {' '.join(words)}: {said[:160]}"

    def until(self, step: Step) -> str:
        assert step.until is not None
        begin = time.monotonic()
        while not (outcome := evaluate(step.until, self.facts)).ok:
            if time.monotonic() - begin > step.within:
                raise LabError(f"{step.name}: not within {step.within:g} s: {step.until}: {outcome.text}")
            time.sleep(POLL)
        return f"{outcome.text}, after {time.monotonic() - begin:.2f} s"
