"""The host's story: a bounded list of events, and queues for those who follow it live."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from linkpass.clock import Clock
from linkpass.model import Event, EventKind

KEEP = 10_000  # events; a flap leaves about six, so this is some 1,600 flaps
FOLLOWER_QUEUE = 2_000  # events that a slow follower may lag behind before it is cut off

Data = dict[str, str | int | float | bool | None]

log = logging.getLogger("linkpass.events")
LEVEL = {EventKind.FAILED: logging.ERROR, EventKind.REFUSED: logging.WARNING}
# First doubts come and go by the hundred on a busy host; the rest of the story is for the log.
QUIET_STATES = ("suspect", "unknown")


class EventLog:
    """Keeps, logs and hands out events. Sequence numbers start at 1 and have no gaps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=KEEP)
        self._seq = 0
        self._followers: set[asyncio.Queue[Event | None]] = set()

    def add(
        self,
        kind: EventKind,
        subject: str,
        text: str,
        cause: str = "",
        data: Data | None = None,
        at: float | None = None,
    ) -> Event:
        """Record one event; `at` is when it happened, now unless given."""
        self._seq += 1
        data = data or {}
        event = Event(
            self._seq, self._clock.now() if at is None else at, self._clock.wall(), kind, subject, text, cause, data
        )
        self._events.append(event)
        passing = kind is EventKind.VERDICT and (data.get("to") in QUIET_STATES or data.get("from") in QUIET_STATES)
        level = logging.DEBUG if passing else LEVEL.get(kind, logging.INFO)
        if log.isEnabledFor(level):
            fields = {"event": kind.value, "subject": subject, "cause": cause, **data}
            log.log(level, "%s: %s", subject, text, extra={"fields": fields})
        for queue in list(self._followers):
            self._offer(queue, event)
        return event

    def since(self, seq: int, limit: int) -> list[Event]:
        """Events after number `seq`, oldest first, at most `limit`; those no longer kept are missing."""
        first = self._events[0].seq if self._events else 0
        return list(islice(self._events, max(0, seq + 1 - first), max(0, seq + 1 - first) + limit))

    @contextmanager
    def follow(self) -> Iterator["asyncio.Queue[Event | None]"]:
        """A queue of the events to come. None in it means: too slow, cut off."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(FOLLOWER_QUEUE)
        self._followers.add(queue)
        try:
            yield queue
        finally:
            self._followers.discard(queue)

    def _offer(self, queue: "asyncio.Queue[Event | None]", event: Event) -> None:
        if queue.qsize() >= FOLLOWER_QUEUE - 1:
            self._followers.discard(queue)
            queue.put_nowait(None)
        else:
            queue.put_nowait(event)
