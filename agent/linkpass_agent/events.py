"""Writes the host's story: numbers each event, logs it in one line, and hands it to `story.py`, which keeps it."""

import logging
from collections.abc import Callable

from linkpass.clock import Clock
from linkpass.model import Event, EventKind

Data = dict[str, str | int | float | bool | None]

log = logging.getLogger("linkpass.events")
LEVEL = {EventKind.FAILED: logging.ERROR, EventKind.REFUSED: logging.WARNING}
# First doubts come and go by the hundred on a busy host; the rest of the story is for the log.
QUIET_STATES = ("suspect", "unknown")


class EventLog:
    """Numbers start at 1 and have no gaps. `tell` keeps the event and hands it to followers."""

    def __init__(self, clock: Clock, tell: Callable[[Event], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._seq = 0

    def add(
        self,
        kind: EventKind,
        subject: str,
        text: str,
        cause: str = "",
        data: Data | None = None,
        at: float | None = None,
    ) -> Event:
        """Record one event; `at` is when it happened (monotonic seconds), now unless given."""
        self._seq += 1
        data = data or {}
        event = Event(
            self._seq, self._clock.now() if at is None else at, self._clock.wall(), kind, subject, text, cause, data
        )
        self._tell(event)
        passing = kind is EventKind.VERDICT and (data.get("to") in QUIET_STATES or data.get("from") in QUIET_STATES)
        level = logging.DEBUG if passing else LEVEL.get(kind, logging.INFO)
        if log.isEnabledFor(level):
            fields = {"event": kind.value, "subject": subject, "cause": cause, **data}
            log.log(level, "%s: %s", subject, text, extra={"fields": fields})
        return event
