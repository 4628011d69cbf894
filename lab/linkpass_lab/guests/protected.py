"""Unmodified jobs under `linkpass run` between guests with real agents, struck by a fault: one result for each run.

    with Protected.up(say=print) as bench:              # the 2x2 fabric, an agent in each guest
        result = bench.run("rcflow", parse({"kind": "carrier", "host": "b", "rail": "rail0"}))
        result.verdict        # survived, died, wrong, hangs, carries on, unprotected
        result.json()         # everything, for machines

`Bench.start` gives a `ProtectedJob` for stories of their own: wait until it is `protected`, inject and repair on
`bench.lab`, kill agents by `bench.agents`, then `finish`.
"""

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from linkpass_lab.agents import laid_over
from linkpass_lab.clients.completion_log import read_completions
from linkpass_lab.fault import Fault
from linkpass_lab.guests import jobs, shim, workloads
from linkpass_lab.guests.agents import GuestAgents
from linkpass_lab.guests.jobs import Blow, Outcome, Running, TooShortError
from linkpass_lab.guests.lab import GuestLab
from linkpass_lab.guests.roce import RoceArrivals
from linkpass_lab.guests.workloads import Workload
from linkpass_lab.lab import LabError
from linkpass_topology.fabric import Fabric, grid

CLIENT, SERVER = "a", "b"
LASTS = 2.5  # s, as in the baselines
PATIENCE = 90.0  # s from the repair to the end: emulated, and a whole give-up
PROTECTED = 90.0  # s until a job must be protected; emulated agents beside a job that spins take 10 to 30
WHOLE = 60.0  # s until agents use every path again after a repair
LOOK = 0.1  # s between looks
WORDS = 200_000  # characters of each end's output that are kept
TRIES = 4
# Ports come back after half a second and jobs half a second later, so that fail-back is seen within a run.
CONFIG: Mapping[str, Any] = {
    "hold_down": {"first": 0.5, "max": 2.0},
    "jobs": {"fail_back_wait": 0.5, "give_up": 60.0},
    "log": {"level": "debug"},
}
TOLD = ("decided", "acted", "failed", "refused", "verdict", "learned", "agent")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Move:
    """Queue pairs that moved at one end; times in s."""

    host: str
    source: str
    target: str
    gap: float
    longest: float
    replayed: int


@dataclass(slots=True)
class Result:
    """What became of a job. Times in s, `at` of events from the fault on."""

    workload: str
    fault: str
    verdict: str
    outcome: dict[str, Any]
    protected_after: float | None = None  # from the client's start until both ends' agents said so
    why_not: dict[str, str] = field(default_factory=dict)  # by host, what they said last when it wasn't
    gap: float | None = None  # longest time without a completion from the fault on; rcflow and ncclflow only
    moves: list[Move] = field(default_factory=list)
    story: list[str] = field(default_factory=list)  # the agents' events from the fault on
    words: dict[str, str] = field(default_factory=dict)  # what the ends said, when it didn't survive or debugs

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def survived(self) -> bool:
        return self.verdict == "survived"

    def __str__(self) -> str:
        gap = f", gap {1000 * self.gap:.0f} ms" if self.gap is not None else ""
        moves = ", ".join(f"{m.host} {m.source}->{m.target} {1000 * m.longest:.0f} ms" for m in self.moves)
        after = f"{self.protected_after:.1f} s" if self.protected_after is not None else "never"
        return (
            f"{self.workload} | {self.fault or 'no fault'}: {self.verdict}{gap}; protected after {after}; "
            f"moves: {moves or 'none'}"
        )


def verdict(outcome: Outcome, protected: bool) -> str:
    """In one word: `wrong` is exit code 3 of clients that check their bytes, `unprotected` a job that never was."""
    if 3 in outcome.exits.values():
        return "wrong"
    if outcome.ended != "finished":
        return outcome.ended
    return "survived" if protected else "unprotected"


class ProtectedJob:
    """A job that runs. `close` ends it."""

    def __init__(
        self,
        bench: "Protected",
        workload: Workload,
        size: float,
        wrap: tuple[str, ...],
        log: Path | None,
        *,
        debug: bool = False,
        bare: str = "",
    ) -> None:
        self.bench, self.name, self.debug, self.log = bench, workload.name, debug, log
        self.seen = {h: bench.last_event(h) for h in (CLIENT, SERVER)}
        where = jobs.place(bench.lab, CLIENT, SERVER, workload, size=size, wrap=wrap, log=log)
        plain = replace(where, wrap=())
        if bare == CLIENT:
            argv = workload.client
            workload = replace(workload, client=lambda _: argv(plain))
        elif bare == SERVER and workload.server is not None:
            listen = workload.server
            workload = replace(workload, server=lambda _: listen(plain))
        arrivals = RoceArrivals(bench.lab, CLIENT, bench.agents.asker(CLIENT).offset())
        self.running = Running(bench.lab, workload, where, arrivals)
        self.zero: float | None = None  # when it was struck first (monotonic)
        self.protected_after: float | None = None
        self.why_not: dict[str, str] = {}

    def protected(self, within: float = PROTECTED) -> bool:
        """Wait until both ends' agents call every queue pair protected; False, and `why_not`, if they don't."""
        deadline = time.monotonic() + within
        while True:
            self.why_not = {h: why for h in (CLIENT, SERVER) if (why := self._why_not(h))}
            now = time.monotonic()
            if not self.why_not:
                if self.protected_after is None:
                    self.protected_after = round(now - self.running.began, 2)
                return True
            self.running.alive()
            if now > deadline or not self.running.running:
                return False
            time.sleep(LOOK)

    def _why_not(self, host: str) -> str:
        try:
            rows = self.bench.agents.ask(host, "jobs")
        except LabError as e:
            return str(e)
        rows = [r for r in rows if r["queue_pairs"]]
        if not rows:
            return "no job with queue pairs is attached"
        reasons = [why for r in rows for why in r["why_not"]]
        return "; ".join(reasons) if any(r["protected"] < r["queue_pairs"] for r in rows) else ""

    def strike(self, fault: Fault, lasts: float = LASTS) -> None:
        """Inject it, wait, repair it."""
        self.zero = time.monotonic() if self.zero is None else self.zero
        self.running.strike(Blow(fault, lasts, PATIENCE))

    def finish(self, patience: float = PATIENCE, fault: str = "") -> Result:
        """Wait for its end, `patience` s at most, and put everything together."""
        outcome = self.running.outcome(time.monotonic() + patience)
        word = verdict(outcome, self.protected_after is not None)
        found = Result(self.name, fault, word, outcome.json(), self.protected_after, self.why_not)
        struck = self.zero or self.running.struck
        if self.debug or not found.survived:
            found.words = {end: self.running.said(end)[-WORDS:] for end in self.running.ends}
        for host in (CLIENT, SERVER):
            try:
                self._hear(host, struck or self.running.began, found)
            except LabError as e:
                found.story.append(f"{host}: {e}")
        if struck is not None and self.log is not None and self.log.exists():
            found.gap = self._gap(struck)
        return found

    def _hear(self, host: str, zero: float, found: Result) -> None:
        shift = self.bench.agents.asker(host).offset()
        for event in self.bench.agents.since(host, self.seen[host]):
            at, data = event["at"] - shift - zero, event["data"]
            if at < -0.5 or event["kind"] not in TOLD:
                continue
            cause = f" ({event['cause']})" if event["cause"] else ""
            found.story.append(f"{at:8.3f} {host} {event['kind']} {event['subject']}: {event['text']}{cause}")
            if event["kind"] == "acted" and "longest_gap" in data:
                found.moves.append(
                    Move(host, data["from"], data["to"], data["gap"], data["longest_gap"], data["replayed"])
                )
        found.story.sort(key=lambda line: float(line.split()[0]) if line[:8].strip()[:1] in "-0123456789" else 0.0)

    def _gap(self, struck: float) -> float | None:
        assert self.log is not None
        shift = self.bench.agents.asker(CLIENT).offset()
        times = [c.at_ns * 1e-9 - shift for c in read_completions(self.log)]
        after = [t for t in times if t >= struck]
        before = [t for t in times if t < struck]
        if not after:
            return None
        points = [max(before) if before else struck, *sorted(after)]
        return round(max(b - max(a, struck) for a, b in itertools.pairwise(points)), 4)

    def close(self) -> None:
        self.running.close()

    def __enter__(self) -> "ProtectedJob":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Protected:
    """A lab of guests with an agent in each."""

    def __init__(self, lab: GuestLab, config: Mapping[str, Any] | None = None, say: Say = lambda _: None) -> None:
        self.lab, self.say = lab, say
        self.agents = GuestAgents(lab, laid_over(CONFIG, config or {}))
        self.shim = shim.built()
        self._runs = 0

    @classmethod
    def up(
        cls,
        fabric: Fabric | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        label: str = "prot",
        say: Say = lambda _: None,
    ) -> "Protected":
        """Make the lab and start the agents; LabError, and nothing left, if that can't be."""
        lab = GuestLab.up(fabric or grid(2, 2, mtu=9000), label=label, say=say)
        try:
            bench = cls(lab, config, say)
            bench.start_agents()
        except BaseException:
            lab.close()
            raise
        return bench

    def start_agents(self) -> None:
        """And wait until they use every path."""
        began = time.monotonic()
        self.agents.start_all()
        self.agents.wait_until_connected(WHOLE)
        self.say(f"agents use every path after {time.monotonic() - began:.1f} s")

    def wrap(self, debug: bool = False) -> tuple[str, ...]:
        """What a job is started with: `linkpass run`, with the shim of this source tree."""
        own = self.lab.environment(CLIENT)
        told = {"LINKPASS_SHIM": str(self.shim), "PYTHONPATH": own["PYTHONPATH"], "PATH": own["PATH"]}
        told |= {"LINKPASS_DEBUG": "1"} if debug else {}
        socket = str(self.lab.local(CLIENT) / "jobs.sock")
        python = own["PATH"].split(":")[1] + "/python"
        run = (python, "-m", "linkpass.run", "run", "--socket", socket, "--")
        return ("env", *(f"{k}={v}" for k, v in told.items()), *run)

    def start(
        self,
        workload: str | Workload,
        *,
        size: float = 2.0,
        debug: bool = False,
        bare: str = "",
        wrapped: bool = True,
    ) -> ProtectedJob:
        """Start a workload; `bare` names an end that runs without `linkpass run`; unless `wrapped`, both do.

        LabError if it can't.
        """
        self._runs += 1
        chosen = workloads.every()[workload] if isinstance(workload, str) else workload
        log = self.lab.folder / f"completions-{self._runs}" if chosen.own else None
        wrap = self.wrap(debug) if wrapped else ()
        return ProtectedJob(self, chosen, size, wrap, log, debug=debug, bare=bare)

    def run(
        self,
        name: str,
        fault: Fault | None = None,
        *,
        lasts: float = LASTS,
        size: float = 2.0,
        debug: bool = False,
        patience: float = PATIENCE,
    ) -> Result:
        """One run; a job that ends before the fault strikes is run again, twice as long."""
        for _ in range(TRIES):
            self.heal()
            try:
                with self.start(name, size=size, debug=debug) as job:
                    job.running.flowing()
                    job.protected()
                    if fault is not None:
                        job.strike(fault, lasts)
                    return job.finish(patience, str(fault or ""))
            except TooShortError:
                size *= 2
        raise LabError(f"{name}: even {size:g} times the job is too short")

    def heal(self) -> None:
        """Repair what is broken and wait until the agents use every path; LabError if they don't."""
        for fault in self.lab.broken():
            self.lab.repair(fault)
        self.agents.wait_until_connected(WHOLE)

    def last_event(self, host: str) -> int:
        """The number of the agent's latest event; 0 if it can't be asked."""
        try:
            events = self.agents.ask(host, "events")
        except LabError:
            return 0
        return int(events[-1]["seq"]) if events else 0

    def close(self) -> None:
        """Everything ends."""
        try:
            self.agents.close()
        finally:
            self.lab.close()

    def __enter__(self) -> "Protected":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
