"""What must hold beyond single faults: stories on one job, each with a verdict that the program makes.

    linkpass-lab trial faults --count 200 --seed 7

Each needs a `Protected` lab and leaves it whole. A trial holds when the job ended well by its own checks of bytes and
completions, and what the trial itself asks for was so; else `problem` says what wasn't.
"""

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from linkpass_lab.fault import Fault, parse
from linkpass_lab.guests import results, workloads
from linkpass_lab.guests.protected import CLIENT, SERVER, Protected, ProtectedJob, Result
from linkpass_lab.lab import LabError

HOSTS = (CLIENT, SERVER)
LONG = 10.0  # s that agents or guests are out of action
AFTER = 12.0  # s that a job is given to go on after the last fault
FAILBACK = 30.0  # s until a job must be back on its rail
GOES_ON = 75.0  # s until a job must complete something after the last repair: longer than its give-up
STEPS = 40  # of a training for each fault; with too few the trial says that not all faults struck
LEARNS = 600.0  # s that a training has to end after the last fault
UNTIL_TOLD = 10_000.0  # s: guests may be slow, so rcflow runs until it is told to end


@dataclass(slots=True)
class Outcome:
    """What became of a trial."""

    name: str
    problem: str  # '' when it holds
    results: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return not self.problem


Do = Callable[[Protected, random.Random, int], Outcome]


def flow(
    seconds: float, *options: str, port: int = workloads.PERFTEST_PORT, name: str = "rcflow"
) -> workloads.Workload:
    """rcflow for so long, every byte and completion checked."""
    made = workloads.own(name, "", *options, port=port)
    whole = made.client

    def client(place: workloads.Place) -> list[str]:
        argv = whole(place)
        argv[argv.index("-D") + 1] = f"{seconds:g}"
        return argv

    return replace(made, client=client)


def _judged(name: str, ended: list[Result], problem: str = "", **figures: Any) -> Outcome:
    bad = [r for r in ended if not r.survived]
    if bad and not problem:
        problem = f"{bad[0].workload}: {bad[0].verdict} {bad[0].outcome['status']}".strip()
    return Outcome(name, problem, [r.json() for r in ended], figures)


@contextmanager
def _job(bench: Protected, *options: str, seconds: float = UNTIL_TOLD, **how: Any) -> Iterator[ProtectedJob]:
    bench.heal()
    with bench.start(flow(seconds, *options), **how) as job:
        job.running.flowing()
        if "bare" not in how and not job.protected():
            raise LabError(f"not protected: {job.why_not}")
        job.running.struck = time.monotonic()
        yield job


def _goes_on(job: ProtectedJob) -> str:
    """Wait until the job completes something from now on."""
    assert job.log is not None
    log, before = job.log, job.log.stat().st_size
    return _wait("a completion after the last repair", lambda: log.stat().st_size > before, GOES_ON)


def _told(job: ProtectedJob, fault: str = "") -> Result:
    """Tell the job to end and see how it does."""
    if job.running.running:
        job.running.ends["client"].send_signal(signal.SIGINT)
    return job.finish(60.0, fault)


def _rails(bench: Protected, host: str) -> set[str]:
    return {rail for row in bench.agents.ask(host, "jobs") for rail, count in row["rails"].items() if count}


def _wait(what: str, there: Callable[[], bool], seconds: float) -> str:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if there():
                return ""
        except LabError:
            pass
        time.sleep(0.1)
    return f"{what}: not within {seconds:g} s"


KINDS: tuple[dict[str, Any], ...] = (
    {"kind": "carrier"}, {"kind": "silent"}, {"kind": "silent", "way": "from"}, {"kind": "silent", "way": "to"},
    {"kind": "admin-down"}, {"kind": "acks"}, {"kind": "loss", "percent": 20}, {"kind": "gid"},
)  # fmt: skip


def draw(rng: random.Random) -> tuple[Fault, float, float]:
    """A fault, how long it lasts, and the time until the next (s): often before the move or the return is over."""
    if rng.random() < 0.1:
        fault = parse({"kind": "rails", "host": rng.choice(HOSTS)})
    else:
        where = {"host": rng.choice(HOSTS), "rail": rng.choice(("rail0", "rail1"))}
        fault = parse({**rng.choice(KINDS), **where})
    return fault, rng.choice((0.05, 0.3, 1.0, 2.0)), rng.choice((0.0, 0.1, 0.5, 1.5))


def _struck(bench: Protected, job: ProtectedJob, rng: random.Random, count: int) -> int:
    """Strike a job `count` times, as long as it runs; how often it was."""
    struck = 0
    while struck < count and job.running.running:
        fault, lasts, rest = draw(rng)
        job.strike(fault, lasts)
        struck += 1
        if struck % 20 == 0:
            bench.say(f"{struck} of {count} faults")
        time.sleep(rest)
    return struck


def faults(bench: Protected, rng: random.Random, count: int) -> Outcome:
    """`count` random faults in a row on one job: both rails, both ends, during moves and during the way back."""
    began = time.monotonic()
    with _job(bench, "--stall", "120", debug=True) as job:
        struck = _struck(bench, job, rng, count)
        time.sleep(AFTER if job.running.running else 0.0)
        alive = job.running.running
        took = time.monotonic() - began
        result = _told(job, f"{struck} random faults")
    problem = "" if alive else f"ended after {struck} of {count} faults: {result.outcome['status']} {result.verdict}"
    return _judged("faults", [result], problem, struck=struck, moves=len(result.moves), seconds=round(took))


def training(bench: Protected, rng: random.Random, count: int) -> Outcome:
    """Train a model without a fault, then with the same seed through `count` random ones: the weights are the same.

    Holds only if every fault struck while it trained.
    """
    seed = rng.randrange(1 << 30)
    steps = STEPS * count
    ended: list[Result] = []
    told: list[dict[str, Any]] = []
    struck = 0
    for through in (0, count):
        bench.heal()
        with bench.start(workloads.training(steps, seed), debug=bool(through)) as job:
            job.running.flowing()
            if not job.protected():
                raise LabError(f"not protected: {job.why_not}")
            struck = _struck(bench, job, rng, through)
            ended.append(job.finish(LEARNS, f"{struck} random faults"))
            told.append(results.json_object(job.running.said("client")))
    problem = trained(told[0], told[1], struck, count)
    return _judged("training", ended, problem, steps=steps, struck=struck, weights=[t.get("weights") for t in told])


def trained(calm: dict[str, Any], struck: dict[str, Any], strikes: int, wanted: int) -> str:
    """What is wrong with a training through faults, of what both runs told; '' for nothing."""
    if "weights" not in calm or "weights" not in struck:
        return f"after {strikes} of {wanted} faults a training told no weights"
    if not calm["last"] < calm["first"]:
        return f"it learned nothing: the loss went from {calm['first']:g} to {calm['last']:g}"
    if struck["weights"] != calm["weights"]:
        return f"other weights: {struck['weights']} instead of {calm['weights']}"
    return "" if strikes == wanted else f"the training was over after {strikes} of {wanted} faults"


def drain(bench: Protected, rng: random.Random, _: int) -> Outcome:
    """Drain the job's port under load: no error, no wait for a timeout; undrain brings it back."""
    host = rng.choice(HOSTS)
    port = bench.lab.port(host, "rail0")
    with _job(bench) as job:
        try:
            done = bench.agents.ctl(host, "drain", port, "--reason", "trial", "--wait", "20")
            problem = (
                "" if done.returncode == 0 and "safe to pull" in done.stdout else f"drain: {done.stdout}{done.stderr}"
            )
            problem = problem or ("" if _rails(bench, host) == {"rail1"} else f"still on {_rails(bench, host)}")
        finally:
            bench.agents.ctl(host, "undrain", port)
        problem = problem or _wait("back on rail0", lambda: _rails(bench, host) == {"rail0"}, FAILBACK)
        result = _told(job)
    gaps = [m.longest for m in result.moves]
    return _judged("drain", [result], problem, host=host, gap=result.gap, gaps=gaps)


def _away(bench: Protected, rng: random.Random) -> Fault | None:
    where = {"host": rng.choice(HOSTS), "rail": "rail0"}
    return parse({"kind": "carrier", **where}) if rng.random() < 0.7 else None


def kill(bench: Protected, rng: random.Random, _: int) -> Outcome:
    """kill -9 of either or both agents at a random moment around a fault; they come back."""
    hosts = rng.choice(((CLIENT,), (SERVER,), HOSTS))
    fault = _away(bench, rng)
    with _job(bench) as job:
        early = rng.random() < 0.5
        if early:
            for host in hosts:
                bench.agents.end(host)
        if fault is not None:
            bench.lab.inject(fault)
        time.sleep(rng.uniform(0.0, 1.0))
        if not early:
            for host in hosts:
                bench.agents.end(host)
        for host in hosts:
            bench.agents.start(host)
        if fault is not None:
            bench.lab.repair(fault)
        problem = _goes_on(job)
        result = _told(job, f"kill {'+'.join(hosts)}{' early' if early else ''} {fault or ''}")
    return _judged("kill", [result], problem, hosts=list(hosts), gap=result.gap)


def stop(bench: Protected, rng: random.Random, _: int) -> Outcome:
    """SIGSTOP of one agent for 10 s, with or without a fault meanwhile."""
    host, fault = rng.choice(HOSTS), _away(bench, rng)
    with _job(bench) as job:
        bench.agents.signal(host, 19)
        if fault is not None:
            bench.lab.inject(fault)
        time.sleep(LONG)
        bench.agents.signal(host, 18)
        if fault is not None:
            bench.lab.repair(fault)
        problem = _goes_on(job)
        result = _told(job, f"agent of {host} stopped {fault or ''}")
    return _judged("stop", [result], problem, host=host, gap=result.gap)


def management(bench: Protected, rng: random.Random, _: int) -> Outcome:
    """The management network cut for 10 s, with or without a fault meanwhile."""
    fault = _away(bench, rng)
    with _job(bench) as job:
        for host in HOSTS:
            bench.lab.in_lab(["ip", "link", "set", f"{host}-mgmt", "down"])
        if fault is not None:
            bench.lab.inject(fault)
        time.sleep(LONG)
        for host in HOSTS:
            bench.lab.in_lab(["ip", "link", "set", f"{host}-mgmt", "up"])
        if fault is not None:
            bench.lab.repair(fault)
        problem = _goes_on(job)
        result = _told(job, f"management cut {fault or ''}")
    return _judged("management", [result], problem, gap=result.gap)


def freeze(bench: Protected, rng: random.Random, _: int) -> Outcome:
    """One guest frozen for 10 s."""
    host = rng.choice(HOSTS)
    with _job(bench) as job:
        job.strike(parse({"kind": "freeze", "host": host}), LONG)
        problem = _goes_on(job)
        result = _told(job, f"{host} frozen")
    return _judged("freeze", [result], problem, host=host, gap=result.gap)


def ride(bench: Protected, rng: random.Random, _: int) -> Outcome:
    """No spare: the other rail is down already. The job waits for its rail and goes on."""
    host = rng.choice(HOSTS)
    with _job(bench) as job:
        other = parse({"kind": "carrier", "host": host, "rail": "rail1"})
        bench.lab.inject(other)
        time.sleep(1.0)
        job.strike(parse({"kind": "carrier", "host": host, "rail": "rail0"}), 4.0)
        bench.lab.repair(other)
        problem = _goes_on(job)
        result = _told(job, f"both rails of {host}, one after the other")
    return _judged("ride", [result], problem, host=host, gap=result.gap)


def many(bench: Protected, rng: random.Random, count: int) -> Outcome:
    """4 processes a host with `count` queue pairs each, all moved by one fault."""
    jobs, ended = [], []
    bench.heal()
    try:
        for n in range(4):
            jobs.append(bench.start(flow(40.0, "-q", str(count), "-t", "2", "--window", "4", port=18600 + n)))
        for job in jobs:
            job.running.flowing()
        if not jobs[0].protected(60.0):
            raise LabError(f"not protected: {jobs[0].why_not}")
        for job in jobs:
            job.protected_after = jobs[0].protected_after
        fault = parse({"kind": "carrier", "host": rng.choice(HOSTS), "rail": "rail0"})
        jobs[0].strike(fault, 5.0)
        ended = [job.finish(fault=str(fault)) for job in jobs]
    finally:
        for job in jobs:
            job.close()
    return _judged("many", ended, queue_pairs=4 * count)


def bare(bench: Protected, rng: random.Random, _: int) -> Outcome:
    """One end without the shim: it runs as without LinkPass, and `linkpassctl jobs` says so."""
    end = rng.choice(HOSTS)
    other = SERVER if end == CLIENT else CLIENT
    wanted = "no shim there"
    with _job(bench, seconds=12.0, bare=end) as job:
        problem = _wait(
            f"{other}'s agent says {wanted!r}",
            lambda: any(wanted in why for row in bench.agents.ask(other, "jobs") for why in row["why_not"]),
            10.0,
        )
        result = job.finish(fault=f"{end} without shim")
    if result.verdict == "unprotected":
        return Outcome("bare", problem, [result.json()], {"bare": end})
    return _judged("bare", [result], problem, bare=end)


def alone(bench: Protected, rng: random.Random, _: int) -> Outcome:
    """No agent at the peer: it runs as without LinkPass, and `linkpassctl jobs` says so."""
    gone = rng.choice(HOSTS)
    other = SERVER if gone == CLIENT else CLIENT
    bench.heal()
    bench.agents.stop(gone)
    try:
        with bench.start(flow(12.0)) as job:
            job.running.flowing()
            problem = _wait(
                f"{other}'s agent says why not",
                lambda: any(row["why_not"] and not row["protected"] for row in bench.agents.ask(other, "jobs")),
                10.0,
            )
            result = job.finish(fault=f"no agent on {gone}")
    finally:
        bench.agents.start(gone)
    ok = result.outcome["ended"] == "finished"
    return Outcome("alone", problem or ("" if ok else result.verdict), [result.json()], {"gone": gone})


TRIALS: dict[str, tuple[Do, int]] = {  # and the usual count
    "faults": (faults, 200),
    "training": (training, 20),
    "drain": (drain, 1),
    "kill": (kill, 1),
    "stop": (stop, 1),
    "management": (management, 1),
    "freeze": (freeze, 1),
    "ride": (ride, 1),
    "many": (many, 64),
    "bare": (bare, 1),
    "alone": (alone, 1),
}
