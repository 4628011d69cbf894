"""Numbers the events of the host's story and hands them on: to `story.py`, which keeps them, and to the log."""

from collections.abc import Callable

from linkpass.clock import Clock
from linkpass.model import Event, EventKind

Data = dict[str, str | int | float | bool | None]


def at_once(flush: Callable[[], None]) -> None:
    """The simplest `later`."""
    flush()


class EventLog:
    """Numbers start at 1 and have no gaps. Every event goes to each of `tells`, in order.

    `later` says when: the daemon gives its loop's `call_soon`, so that nobody waits for a log line to be written
    before the routes are in place.
    """

    def __init__(
        self,
        clock: Clock,
        *tells: Callable[[Event], None],
        later: Callable[[Callable[[], None]], object] = at_once,
    ) -> None:
        self._clock = clock
        self._tells = tells
        self._later = later
        self._seq = 0
        self._untold: list[Event] = []

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
        self._untold.append(event)
        if len(self._untold) == 1:
            self._later(self.flush)
        return event

    def flush(self) -> None:
        """Tell what is still untold."""
        untold, self._untold = self._untold, []
        for event in untold:
            for tell in self._tells:
                tell(event)
