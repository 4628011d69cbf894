"""Events: numbered without gaps, told in order, and told later where that was asked for."""

from collections.abc import Callable

from linkpass.model import Event, EventKind
from linkpass_agent.events import EventLog
from tests.fakes.clock import FakeClock


def test_events_are_numbered_from_one_without_gaps_and_told_in_order() -> None:
    told: list[Event] = []
    log = EventLog(FakeClock(), told.append)
    for n in range(5):
        assert log.add(EventKind.AGENT, "a", f"text {n}").seq == n + 1
    assert [(e.seq, e.text) for e in told] == [(n + 1, f"text {n}") for n in range(5)]


def test_event_carries_both_clocks_and_when_it_happened() -> None:
    clock = FakeClock(time=50.0, wall_time=1000.0)
    log = EventLog(clock)
    assert (log.add(EventKind.SEEN, "p", "x").at, log.add(EventKind.SEEN, "p", "x", at=49.5).at) == (50.0, 49.5)
    event = log.add(EventKind.SEEN, "p", "x", "why", {"n": 1})
    assert (event.wall, event.cause, event.data) == (1050.0, "why", {"n": 1})


def test_events_wait_for_later_and_are_then_told_whole_and_once() -> None:
    told: list[str] = []
    due: list[Callable[[], None]] = []
    log = EventLog(FakeClock(), lambda e: told.append(e.text), later=due.append)
    log.add(EventKind.AGENT, "a", "one")
    log.add(EventKind.AGENT, "a", "two")
    assert (told, len(due)) == ([], 1)
    due.pop()()
    log.flush()
    assert told == ["one", "two"]
    log.add(EventKind.AGENT, "a", "three")
    assert len(due) == 1
    log.flush()  # the daemon's last words
    due.pop()()
    assert told == ["one", "two", "three"]


def test_every_teller_hears_every_event() -> None:
    heard: tuple[list[int], list[int]] = ([], [])
    log = EventLog(FakeClock(), lambda e: heard[0].append(e.seq), lambda e: heard[1].append(e.seq))
    log.add(EventKind.AGENT, "a", "x")
    assert heard == ([1], [1])


def test_event_told_of_while_telling_is_not_lost() -> None:
    told: list[str] = []
    log = EventLog(FakeClock(), lambda e: react(e))

    def react(event: Event) -> None:
        told.append(event.text)
        if event.text == "one":
            log.add(EventKind.AGENT, "a", "two")

    log.add(EventKind.AGENT, "a", "one")
    assert told == ["one", "two"]
