"""Jobs as the control socket shows them, and the operators' wishes concerning them."""

from collections import Counter
from collections.abc import Callable

from linkpass.api import JobView, MigrateAnswer, MoveView, QpView
from linkpass.clock import Clock
from linkpass.errors import NotFoundError
from linkpass.shim import abi

from . import stages
from .desk import Desk
from .outlook import show_gid
from .registry import Connection, Pair, Process

TOGETHER = 1.0  # s: queue pairs that began to move within it moved for the same reason


class JobsFacade:
    """What the API asks of jobs. Without a desk (jobs.enabled = false) there are none."""

    def __init__(self, desk: Desk | None, clock: Clock) -> None:
        self._desk, self._clock = desk, clock

    def jobs(self) -> list[JobView]:
        """All attached processes."""
        return [self._job(p) for p in self._desk.registry.processes.values()] if self._desk else []

    def qps(self, job: int | None) -> list[QpView]:
        """All queue pairs, or those of one job. NotFoundError if there is no such job."""
        processes = self._desk.registry.processes if self._desk else {}
        if job is not None and job not in processes:
            known = ", ".join(map(str, processes)) or "none"
            raise NotFoundError(f"no job {job} here; attached are: {known}")
        chosen = list(processes.values()) if job is None else [processes[job]]
        return [self._qp(c) for p in chosen for c in p.connections.values()]

    def on_port(self, port: str) -> list[Connection]:
        """Queue pairs whose traffic uses that port of ours, or may: those with an unknown path are on their home."""
        if self._desk is None:
            return []
        return [c for c in self._desk.registry.all() if not c.ended and self._port(c) == port]

    def stay(self, connections: list[Connection]) -> list[str]:
        """Which of them can't move, and why."""
        desk = self._desk
        return [f"{c.name}: {why}" for c in connections if desk and (why := desk.why_unprotected(c))]

    def migrate(self, what: str, to: str, known: Callable[[str], bool], who: str) -> MigrateAnswer:
        """Order one queue pair (JOB.NUMBER) or all on a port to another port. NotFoundError for unknown names."""
        if not known(to):
            raise NotFoundError(f"no port {to!r} here")
        if known(what):
            chosen = self.on_port(what)
        else:
            chosen = [c for c in (self._desk.registry.all() if self._desk else []) if c.name == what]
            if not chosen:
                raise NotFoundError(f"{what!r} is neither a queue pair (see 'linkpassctl qps') nor a port")
        refused, ordered = {}, 0
        for c in chosen:
            assert self._desk is not None
            why = self._desk.order(c, self._desk.outlook.rail(to))
            if why:
                refused[c.name] = why
            else:
                ordered += 1
        text = f"ordered {ordered} of {len(chosen)} queue pairs to {to}" if chosen else f"no queue pair uses {what}"
        return MigrateAnswer(what=what, to=to, ordered=ordered, refused=refused, text=text)

    # -- inside -----------------------------------------------------------------------------------------------

    def _port(self, c: Connection) -> str | None:
        if self._desk is None or c.rail is None or c.rail == c.home_rail:
            return c.home
        return self._desk.outlook.port_on(c.rail)

    def _job(self, process: Process) -> JobView:
        assert self._desk is not None
        connections = [c for c in process.connections.values() if not c.ended]
        reasons = Counter(self._desk.why_unprotected(c) for c in connections)
        protected = reasons.pop("", 0)
        if process.untold:
            reasons["its user has too many queue pairs"] = process.untold
        if process.let_go:
            reasons["it made memory windows, which can't be followed: runs on as without LinkPass"] = process.let_go
        gaps = [(c.state_at, c.gap) for c in process.connections.values() if c.gap is not None]
        return JobView(
            job=process.number,
            name=process.name,
            pid=process.line.pid,
            uid=process.line.uid,
            since=self._clock.now() - process.since,
            queue_pairs=len(process.connections) + process.untold + process.let_go,
            protected=protected,
            why_not=dict(reasons),
            rails=dict(Counter(c.rail or "?" for c in connections)),
            peers=sorted({c.peer for c in connections if c.peer}),
            migrations=sum(c.migrations for c in process.connections.values()),
            last_gap=max(gaps)[1] if gaps else None,
            last_move=_move(stages.latest([c.move for c in process.connections.values() if c.move], TOGETHER)),
            replayed_bytes=sum(c.replayed_bytes for c in process.connections.values()),
        )

    def _qp(self, c: Connection) -> QpView:
        assert self._desk is not None
        why = self._desk.why_unprotected(c)
        return QpView(
            qp=c.name,
            job=c.process.number,
            number=c.who.local_qpn,
            device=c.up.device,
            peer=c.peer,
            address=show_gid(c.who.remote_gid),
            remote_number=c.who.remote_qpn,
            port=self._port(c),
            rail=c.rail,
            home=c.target,
            state=abi.STATES[c.state],
            protected=not why,
            why_not=why,
            spares={p.rail: _spare(p) for p in sorted(c.pairs.values(), key=lambda p: p.made) if not c.uses(p)},
            leads=c.leads,
            migrations=c.migrations,
            last_gap=c.gap,
            last_move=_move(c.move),
            replayed=c.replayed,
            replayed_bytes=c.replayed_bytes,
            executed=c.executed,
        )


def _move(move: stages.Move | None) -> MoveView | None:
    if move is None:
        return None
    return MoveView(
        at=move.at, fenced=move.fenced, settled=move.settled, flowed=move.flowed, replayed=move.replayed
    )  # fmt: skip


def _spare(pair: Pair) -> str:
    if pair.refused:
        return pair.refused
    if pair.spent:
        return "used up"
    if pair.stale:
        return "stale"
    return "ready" if pair.proven else "being made"
