"""Run one workload between two guests, strike it with a fault half-way, and tell what became of it."""

import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from linkpass_lab.fault import Fault
from linkpass_lab.guests import results
from linkpass_lab.guests.channel import GuestProcess
from linkpass_lab.guests.clients import built
from linkpass_lab.guests.faults import gid_of
from linkpass_lab.guests.lab import GuestLab
from linkpass_lab.guests.traffic import Arrivals, Counting, longest_gap
from linkpass_lab.guests.workloads import Place, Workload
from linkpass_lab.lab import LabError

LISTENS = 60.0  # s until a server listens; UCX takes 3 s in an emulated guest, 25 on a busy machine
FLOWS = 60.0  # s until traffic flows; mpirun takes 6 s in emulated guests of a quiet machine
PACKETS = 60  # arrived at the client's ports: more than any connection set-up needs
RUN_UP = 0.7  # s of traffic before a fault
ALIVE = 20  # packets in the last second that show that a job goes on
LAST = 1.0  # s that the other end has to say what happened to it
LAST_WORDS = 300  # characters


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault and how long it lasts (s); after that it is repaired, and the job has `patience` s to end."""

    fault: Fault
    lasts: float
    patience: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job."""

    ended: str  # finished, died, carries on (no end yet, but traffic), hangs (neither)
    status: str  # the first verbs completion status that either end named, '' for none
    exits: dict[str, int | None]  # by end; None: had not ended, or ended with its guest
    seconds: float  # from the client's start to the end (or to when we stopped waiting)
    after: float | None  # from the fault to that
    gap: float | None  # longest time in which nothing arrived at the client, in s, to 0.1 s
    iterations: int
    bytes: int
    words: str  # the last of what the end that failed first said

    def json(self) -> dict[str, Any]:
        return asdict(self)


class TooShortError(LabError):
    """The job had ended before the fault could strike."""


def place(
    lab: GuestLab,
    client: str,
    server: str,
    workload: Workload,
    *,
    size: float = 1.0,
    wrap: Sequence[str] = (),
    log: Path | None = None,
) -> Place:
    """Where a workload runs on `lab`, over its first rail."""
    rail = lab.fabric.rails[0]
    device, _, address = lab.plan.holder(server, rail)
    _, _, own = lab.plan.holder(client, rail)
    return Place(
        server=server,
        client=client,
        server_management=lab.plan.guest(server).host.management,
        server_rail=address.partition("/")[0],
        device=device,
        gid=lab.gids(server, device)[gid_of(address)],
        client_gid=lab.gids(client, device)[gid_of(own)],
        tools=lab.tools,
        clients=built(workload.name) if workload.own else Path(),
        size=size,
        wrap=tuple(wrap),
        log=log,
    )


class Running:
    """A workload that runs. `close` ends what hasn't ended by itself.

    LabError if it can't even start, TooShortError when it had ended before the fault could strike.
    """

    def __init__(self, lab: GuestLab, workload: Workload, where: Place, arrivals: Counting | None = None) -> None:
        """`arrivals` counts packets at the client; it is closed with the job."""
        self.lab, self.workload, self.where = lab, workload, where
        self.ends: dict[str, GuestProcess] = {}
        self.struck: float | None = None  # monotonic
        self.arrivals: Counting = arrivals or Arrivals(lab, where.client).start()
        try:
            env = workload.env(where)
            if workload.server is not None:
                self.ends["server"] = lab.start(where.server, workload.server(where), env=env)
                _listening(lab, where.server, workload, self.ends["server"])
            self.began = time.monotonic()
            self.ends["client"] = lab.start(where.client, workload.client(where), env=env)
        except BaseException:
            self.close()
            raise

    def flowing(self) -> None:
        """Wait until traffic flows, and a little longer."""
        _flowing(self.arrivals, self.ends)

    def strike(self, blow: Blow) -> None:
        """Inject the fault, wait, repair it."""
        self.alive()
        self.struck = time.monotonic()
        self.lab.inject(blow.fault)
        until = time.monotonic() + blow.lasts
        while time.monotonic() < until and self.running:
            time.sleep(0.02)
        self.lab.repair(blow.fault)

    def alive(self) -> None:
        """TooShortError if an end has finished."""
        if any(p.returncode == 0 for p in self.ends.values()):
            raise TooShortError("the job ended before the fault")

    @property
    def running(self) -> bool:
        """Whether any end runs."""
        return any(p.running for p in self.ends.values())

    def outcome(self, until: float) -> Outcome:
        """Wait until it has ended, or `until` (monotonic), and say what became of it."""
        ended = _end(self.ends, until)
        now = time.monotonic()
        alive = self.arrivals.since(now - 1.0) >= ALIVE
        gap = longest_gap(self.arrivals.seen, self.struck, ended or now) if self.struck else None
        while ended is not None and self.running and time.monotonic() < ended + LAST:
            time.sleep(0.02)  # the end that failed first may have failed because of the other
        return _outcome(self.workload, self.ends, self.began, self.struck, ended or now, gap, alive)

    def said(self, end: str) -> str:
        """All that an end said."""
        return _text(self.ends[end])

    def close(self) -> None:
        """End it, and stop watching."""
        self.arrivals.close()
        for process in self.ends.values():
            _finish(process)

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run(lab: GuestLab, workload: Workload, where: Place, blow: Blow | None = None, limit: float = 60.0) -> Outcome:
    """Run it. Without a blow it has `limit` s. Errors as `Running` has them."""
    with Running(lab, workload, where) as job:
        until = job.began + limit
        if blow is not None:
            job.flowing()
            job.strike(blow)
            until = time.monotonic() + blow.patience
        return job.outcome(until)


def _listening(lab: GuestLab, guest: str, workload: Workload, server: GuestProcess) -> None:
    """Wait until the server listens; by asking the guest's kernel, as most clients don't say."""
    if workload.listens:
        test = f"grep -qi ':{workload.listens:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6"
    else:
        test = "rdma resource show cm_id 2>/dev/null | grep -q LISTEN"
    loop = f"until {test}; do sleep 0.05; done"
    try:
        done = lab.run(guest, ["timeout", str(LISTENS), "sh", "-c", loop], timeout=LISTENS + 10, check=False)
    except LabError as e:
        raise LabError(f"{workload.name}: {e}") from e
    if done.returncode or not server.running:
        raise LabError(f"{workload.name}: its server doesn't listen; it said {_said(server)!r}")


def _flowing(arrivals: Counting, ends: dict[str, GuestProcess]) -> None:
    until = time.monotonic() + FLOWS
    while arrivals.total() < PACKETS:
        gone = [name for name, p in ends.items() if not p.running]
        if gone and all(p.returncode == 0 for p in ends.values() if not p.running):
            raise TooShortError("the job ended before traffic was seen")
        if gone or time.monotonic() > until:
            raise LabError(f"no traffic; {'; '.join(f'{n} said {_said(p)!r}' for n, p in ends.items())}")
        time.sleep(0.05)
    time.sleep(RUN_UP)


def _end(ends: dict[str, GuestProcess], until: float) -> float | None:
    """Wait until all have ended, or one has failed; returns when that was, None when it wasn't by `until`.

    An end whose guest died has no say: what counts is what the other one makes of it.
    """
    while True:
        failed = [p.ended_at for p in ends.values() if p.returncode]
        if failed:
            return min(at for at in failed if at is not None)
        if not any(p.running for p in ends.values()):
            return max(p.ended_at for p in ends.values() if p.ended_at is not None)
        if time.monotonic() > until:
            return None
        time.sleep(0.02)


def _outcome(
    workload: Workload,
    ends: dict[str, GuestProcess],
    began: float,
    struck: float | None,
    at: float,
    gap: float | None,
    alive: bool,
) -> Outcome:
    texts = {name: _text(p) for name, p in ends.items()}
    exits = {name: p.returncode for name, p in ends.items()}
    failed = [(p.ended_at or at, name) for name, p in ends.items() if p.returncode]
    if failed or ends["client"].failure:
        ended = "died"
    elif not any(p.running for p in ends.values()):
        ended = "finished"
    else:
        ended = "carries on" if alive else "hangs"
    first = min(failed)[1] if failed else "client"
    statuses = [results.status_of(texts[n]) for n in (first, *texts)]
    amount = workload.read(texts["client"])
    gone = ends[first].failure or ""
    return Outcome(
        ended=ended,
        status=next((s for s in statuses if s), ""),
        exits=exits,
        seconds=round(at - began, 2),
        after=round(at - struck, 2) if struck else None,
        gap=gap,
        iterations=amount.iterations,
        bytes=amount.bytes,
        words="" if ended == "finished" else (texts[first].strip()[-LAST_WORDS:] or gone),
    )


def _text(process: GuestProcess) -> str:
    return (process.stdout_bytes + b"\n" + process.stderr_bytes).decode(errors="replace")


def _said(process: GuestProcess) -> str:
    return (_text(process).strip() or process.failure or "")[-LAST_WORDS:]


def _finish(process: GuestProcess) -> None:
    """Make sure that it has ended, and its whole process group."""
    if process.running:
        try:
            process.send_signal(signal.SIGKILL)
            process.wait(3.0)
        except (LabError, subprocess.TimeoutExpired):
            pass  # a dead or frozen guest: there is nobody to tell
    process.close()
