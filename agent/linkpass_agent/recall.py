"""What the agent learned of its ports and would be worse off without after a restart.

    what                                   restart of the agent          boot of the host
    hold-downs: prices, what is owed       stay                          stay
    flaps and the time of the last one     stay                          stay
    counters' last values, best rates      stay, for the same device     forgotten: counters begin anew
    alarms' history                        stays                         stays
    time since an undrain                  stays                         stays

Nothing here can take a port down: a memory only makes a port that works serve a hold-down. All of it is kept as
lengths of time, and a gap in which no agent looked pays nothing off, so neither a new boot's monotonic clock nor a
step of the wall clock changes a penalty. Only for "how long ago" the gap counts: by the monotonic clock within a
boot, by the wall clock across boots, where one that was set back counts as no time.

Written beside the loop when a verdict or alarm changed, at most every `APART` seconds, every `EVERY` seconds for the
counters, and at a tidy stop. A crash loses what is younger.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from linkpass.model import PathId

from .judge.alarms import PastAlarm
from .judge.holddown import Past
from .judge.rules import Baselines
from .observing import CountersPast
from .statefile import STRICT, StateFile

SCHEMA = 1
APART = 5.0  # s between two writes
EVERY = 60.0  # s, the longest without one

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PathPast:
    """One path's past."""

    peer: str
    rail: str
    port: str
    past: Past


@dataclass(frozen=True, slots=True)
class Recall:
    """All of it, when (`at` monotonic, `wall` Unix seconds), and in which boot."""

    boot_id: str = ""
    at: float = 0.0
    wall: float = 0.0
    ports: dict[str, Past] = field(default_factory=dict)
    paths: tuple[PathPast, ...] = ()
    counters: dict[str, CountersPast] = field(default_factory=dict)
    alarms: tuple[PastAlarm, ...] = ()
    falls: dict[str, Baselines] = field(default_factory=dict)
    undrained: dict[str, float] = field(default_factory=dict)

    __pydantic_config__ = STRICT

    def by_path(self) -> dict[PathId, Past]:
        """The paths' pasts as `judge.Probing` takes them."""
        return {PathId(p.peer, p.rail, p.port): p.past for p in self.paths}


def after_gap(saved: Recall, boot_id: str, now: float, wall: float) -> Recall:
    """What was saved, as it is to be understood now."""
    same = bool(boot_id) and saved.boot_id == boot_id and saved.at <= now
    gap = now - saved.at if same else max(0.0, wall - saved.wall)

    def older(past: Past) -> Past:
        return past if past.last_flap is None else replace(past, last_flap=past.last_flap + gap)

    return replace(
        saved,
        ports={name: older(p) for name, p in saved.ports.items()},
        paths=tuple(replace(p, past=older(p.past)) for p in saved.paths),
        counters={n: replace(c, baselines=c.baselines.after(gap)) for n, c in saved.counters.items() if same},
        falls={name: b.after(gap) for name, b in saved.falls.items()},
        undrained={name: ago + gap for name, ago in saved.undrained.items()},
    )


class Recaller:
    """Keeps the file up to date. `gather` gives what there is to remember now."""

    def __init__(self, folder: Path) -> None:
        self._file = StateFile(folder / "recall.json", SCHEMA, Recall, "hold-downs, counters and alarms")
        self._changed = asyncio.Event()
        self._failed = False

    def load(self) -> tuple[Recall, str]:
        """What was remembered, and a complaint ('' if there is none)."""
        found, complaint = self._file.load()
        return found or Recall(), complaint

    def changed(self) -> None:
        """There is something new to remember."""
        self._changed.set()

    async def run(self, gather: Callable[[], Recall]) -> None:
        """Write until cancelled. A disk that refuses is told of once, and tried again."""
        while True:
            # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await self._changed.wait()
            self._changed.clear()
            data = self._file.encode(gather())
            await asyncio.to_thread(self._write, data)
            await asyncio.sleep(APART)

    def close(self, last: Recall) -> None:
        """Write once more."""
        self._write(self._file.encode(last))

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._failed = False
        except OSError as e:
            if not self._failed:
                log.warning("%s can't be written (%s): a restart would forget hold-downs", self._file.path, e)
            self._failed = True
