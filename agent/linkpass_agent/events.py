"""Numbers the events of the host's story and hands them on: to `story.py`, which keeps them, and to the log."""

from collections.abc import Callable

from linkpass.clock import Clock
from linkpass.model import Event, EventKind

Data = dict[str, str | int | float | bool | None]


class EventLog:
    """Numbers start at 1 and have no gaps. Every event goes to each of `tells`, in order."""

    def __init__(self, clock: Clock, *tells: Callable[[Event], None]) -> None:
        self._clock = clock
        self._tells = tells
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
        when = self._clock.now() if at is None else at
        event = Event(self._seq, when, self._clock.wall(), kind, subject, text, cause, data or {})
        for tell in self._tells:
            tell(event)
        return event
