"""Orders to migrate: given once for each reason, told as one event for each process, and what became of them."""

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

from linkpass.clock import Clock
from linkpass.model import EventKind
from linkpass.shim import abi
from linkpass.shim.abi import ConnState
from linkpass_agent.events import EventLog
from linkpass_topology.gossip.limits import TokenBucket

from . import stages
from .decide import Leave
from .outlook import Way
from .registry import ORIGINAL, Connection, Process
from .stages import Move

WHY = {
    abi.C.LP_WHY_DOWN: "off a dead path",
    abi.C.LP_WHY_DRAIN: "gently",
    abi.C.LP_WHY_DEGRADED: "off a bad path",
    abi.C.LP_WHY_FAIL_BACK: "back",
}
GATHER = 0.05  # s that migrations of one process are gathered before they are told as one
AGAIN = 10.0  # s until an order that had no effect is repeated
BURST = 64.0  # connections that may go back at once


@dataclass(slots=True)
class _Moves:
    since: float
    gaps: list[float] = field(default_factory=list)
    stages: list[Move] = field(default_factory=list)
    requests: int = 0
    bytes: int = 0


class Orders:
    """Sends LP_ORDER frames, and keeps the story of them short."""

    def __init__(self, events: EventLog, clock: Clock, fail_back_rate: float, *, act: bool) -> None:
        self._events, self._clock, self._act = events, clock, act
        self._back = TokenBucket(fail_back_rate, max(1.0, min(BURST, fail_back_rate)))
        self._given: dict[tuple[int, str, str, int, str], int] = defaultdict(int)
        self._moves: dict[tuple[int, str, str], _Moves] = {}
        self._processes: dict[int, Process] = {}
        self._riding: set[tuple[int, int]] = set()

    def consider(self, c: Connection, here: Way | None, away: Leave | None) -> None:
        """Order it away unless that was done for the same reason already."""
        if away is None:
            self._ride(c, here)
            return
        now = self._clock.now()
        if c.ordered == (c.use, c.epoch, away.why) and now < c.ordered_at + AGAIN:
            return
        if away.why == abi.C.LP_WHY_FAIL_BACK and not self._back.allow(now):
            return
        self.now(c, here, away)

    def now(self, c: Connection, here: Way | None, away: Leave) -> None:
        """Order it away."""
        c.ordered, c.ordered_at = (c.use, c.epoch, away.why), self._clock.now()
        device = c.up.device if c.use == ORIGINAL else ""
        port = c.up.port if device else 0
        if self._act:
            c.process.line.send(abi.Order(c.up.conn, away.why, away.spare, device, port, away.reason))
        self._processes[c.process.number] = c.process
        self._given[c.process.number, c.rail or "?", away.rail, away.why, away.reason] += 1

    def _ride(self, c: Connection, here: Way | None) -> None:
        """It has nowhere to go, or nothing to flee from."""
        key = (c.process.number, c.up.conn)
        bad = here is not None and here.state.value in ("down", "absent", "drained") and not c.ended
        if not bad:
            if here is not None and c.ordered is not None and c.ordered[2] != abi.C.LP_WHY_FAIL_BACK:
                c.ordered = None  # the next time is another matter
            self._riding.discard(key)
        elif key not in self._riding and here is not None:
            self._riding.add(key)
            self._processes[c.process.number] = c.process
            self._given[c.process.number, c.rail or "?", "", 0, here.cause] += 1

    def moved(self, c: Connection, state: ConnState) -> None:
        """Its shim says that it has migrated. `c` still has the counters of the time before."""
        self._processes[c.process.number] = c.process
        key = (c.process.number, c.settled_rail or "?", c.rail or "?")
        moves = self._moves.setdefault(key, _Moves(self._clock.now()))
        moves.gaps.append(state.gap_ns / 1e9)
        move = stages.of(state, self._clock.now())
        if move is not None:
            moves.stages.append(move)
        moves.requests += max(0, state.replayed - c.replayed)
        moves.bytes += max(0, state.replayed_bytes - c.replayed_bytes)

    def failed(self, c: Connection, detail: int) -> None:
        """Its job got the original error."""
        self._events.add(
            EventKind.FAILED,
            f"job {c.process}",
            f"queue pair {c.name} to {c.peer or '?'} failed: its job got status {detail}",
            data={"job": c.process.number, "status": detail},
        )

    def forget(self, c: Connection) -> None:
        """It is gone."""
        self._riding.discard((c.process.number, c.up.conn))

    def told(self) -> None:
        """Tell what was ordered in this call, and migrations that were gathered long enough."""
        shadow = "" if self._act else " (shadow: not done)"
        for (number, source, target, why, reason), count in self._given.items():
            what = f"job {self._processes[number]}"
            data: dict[str, str | int | float | bool | None] = {"job": number, "queue_pairs": count, "from": source}
            if target:
                text = f"{_pairs(count)} ordered {WHY[why]}: {source} -> {target}{shadow}"
                self._events.add(EventKind.DECIDED, what, text, reason, {**data, "to": target})
            else:
                text = f"{_pairs(count)} on {source} can't go anywhere: they wait for it to come back"
                self._events.add(EventKind.REFUSED, what, text, reason, data)
        self._given.clear()
        now = self._clock.now()
        for key in [k for k, m in self._moves.items() if now >= m.since + GATHER]:
            number, source, target = key
            m = self._moves.pop(key)
            text = (
                f"{_pairs(len(m.gaps))} moved: {source} -> {target}, gap {1000 * median(m.gaps):.1f} ms"
                f" (longest {1000 * max(m.gaps):.1f} ms), {m.requests} requests replayed"
            )
            data = {
                "job": number, "queue_pairs": len(m.gaps), "from": source, "to": target, "gap": median(m.gaps),
                "longest_gap": max(m.gaps), "replayed": m.requests, "replayed_bytes": m.bytes,
            }  # fmt: skip
            at = None
            if m.stages:  # told when it is over, and dated to the last replay
                whole = stages.together(m.stages)
                at = whole.end
                text += (
                    f"; fenced after {1000 * whole.fenced:.1f}, settled after {1000 * whole.settled:.1f},"
                    f" all replayed after {1000 * whole.replayed:.1f} ms"
                )
                data |= {"began": whole.at, "fenced": whole.fenced, "settled": whole.settled, "flowed": whole.flowed}
                data |= {"replay": whole.replayed}
            self._events.add(EventKind.ACTED, f"job {self._processes[number]}", text, data=data, at=at)
        if not self._moves:
            self._processes.clear()


def _pairs(count: int) -> str:
    return "1 queue pair" if count == 1 else f"{count} queue pairs"
