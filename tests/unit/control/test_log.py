"""What the agent writes to stderr."""

import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from linkpass.model import Event, EventKind
from linkpass.settings import LogSettings
from linkpass_agent import log
from linkpass_agent.log import Held, Journal, Json, Text

LOGGER = logging.getLogger("linkpass.test")


class Ticking:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 0.0


@pytest.fixture(autouse=True)
def logging_restored() -> Iterator[None]:
    """Puts the process's logging back as it was."""
    names = (None, *log.OURS)
    before = [(logging.getLogger(n), logging.getLogger(n).level, list(logging.getLogger(n).handlers)) for n in names]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


def written(format: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    log.setup(LogSettings.model_validate({"format": format, "level": level}), stream, {})
    return stream


def test_story_line_for_the_journal_has_priority_and_cause() -> None:
    stream = written("journal")
    log.tell(Event(7, 1.5, 1e9, EventKind.VERDICT, "a-rail0", "up -> down", "no carrier", {"flaps": 2, "rtt": 0.25}))
    assert stream.getvalue() == (
        '<6>up -> down kind=verdict subject=a-rail0 seq=7 cause="no carrier" flaps=2 rtt=0.25\n'
    )


@pytest.mark.parametrize(
    ("kind", "priority"),
    [
        (EventKind.SEEN, 7),
        (EventKind.LEARNED, 7),
        (EventKind.VERDICT, 6),
        (EventKind.DECIDED, 6),
        (EventKind.REFUSED, 4),
        (EventKind.FAILED, 3),
    ],
)
def test_priority_follows_the_kind(kind: EventKind, priority: int) -> None:
    stream = written("journal", "debug")
    log.tell(Event(1, 0, 0, kind, "x", "text"))
    assert stream.getvalue() == f"<{priority}>text kind={kind.value} subject=x seq=1\n"


def test_level_keeps_lower_ones_out_and_libraries_to_warnings() -> None:
    stream = written("journal")
    log.tell(Event(1, 0, 0, EventKind.SEEN, "x", "debug line"))
    logging.getLogger("somelibrary").info("chatter")
    logging.getLogger("somelibrary").warning("trouble")
    logging.getLogger("linkpass_topology.x").info("ours")
    assert stream.getvalue() == "<4>trouble\n<6>ours\n"


def test_one_event_is_one_line_whatever_it_holds() -> None:
    stream = written("journal")
    log.say(LOGGER, logging.INFO, "a\nb\x1b[2J", reason='say "x"\n<0>panic', empty="", none=None, yes=True, eq="a=b")
    assert stream.getvalue() == (
        '<6>a\\nb\\x1b[2J reason="say \\"x\\"\\n<0>panic" empty="" none=null yes=true eq="a=b"\n'
    )


def test_fields_may_have_any_name_and_extra_works_too() -> None:
    stream = written("journal")
    log.say(LOGGER, logging.INFO, "text %s", name="n", args="a", msg="m")
    LOGGER.info("by %s", "extra", extra={"peer": "b"})
    assert stream.getvalue() == "<6>text %s name=n args=a msg=m\n<6>by extra peer=b\n"


def test_event_data_never_hides_the_events_own_fields() -> None:
    stream = written("json")
    log.tell(Event(1, 0, 0, EventKind.AGENT, "x", "started", "boot", {"seq": 9, "text": "t", "level": 3, "n": 1}))
    found = json.loads(stream.getvalue())
    assert (found["seq"], found["text"], found["level"], found["cause"]) == (1, "started", "info", "boot")
    assert (found["data_seq"], found["data_text"], found["data_level"], found["n"]) == (9, "t", 3, 1)


def test_json_is_an_object_a_line_also_with_a_traceback() -> None:
    stream = written("json")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        LOGGER.exception("failed", extra={"path": Path("/x")})
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert (found["level"], found["logger"], found["text"], found["path"]) == ("error", LOGGER.name, "failed", "/x")
    assert found["traceback"].endswith("ValueError: two\nlines")
    assert found["time"] > 1e9


def test_traceback_in_the_journal_keeps_its_priority_on_each_line() -> None:
    stream = written("journal")
    try:
        raise ValueError("why")
    except ValueError:
        LOGGER.exception("failed")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "<3>failed"
    assert lines[-1] == "<3>ValueError: why"
    assert all(line.startswith("<3>") for line in lines)


def test_text_has_time_and_level() -> None:
    stream = written("text")
    log.say(LOGGER, logging.WARNING, "careful", port="a-rail0")
    at, level, rest = stream.getvalue().split(None, 2)
    assert len(at) == len("12:34:56.789")
    assert (level, rest) == ("warning", "careful port=a-rail0\n")


def test_auto_is_journal_only_when_the_journal_is_behind_the_stream(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as stream:
        there = os.fstat(stream.fileno())
        right = {"JOURNAL_STREAM": f"{there.st_dev}:{there.st_ino}"}
        assert isinstance(log.formatter("auto", stream, right), Journal)
        for wrong in ("", f"{there.st_dev}:{there.st_ino + 1}", "1", "a:b", f"{there.st_dev}:{there.st_ino}:"):
            assert isinstance(log.formatter("auto", stream, {"JOURNAL_STREAM": wrong}), Text)
        assert isinstance(log.formatter("auto", stream, {}), Text)
        assert isinstance(log.formatter("json", stream, right), Json)
    assert isinstance(log.formatter("auto", io.StringIO(), right), Text)


def test_setup_twice_does_not_write_twice() -> None:
    written("text")
    stream = written("text")
    LOGGER.warning("once")
    assert stream.getvalue().count("once") == 1
    assert sys.stderr is not stream


def test_noisy_message_passes_burst_times_then_tells_how_many_were_held_back() -> None:
    clock = Ticking()
    held = Held(clock, per=10.0, burst=2)
    assert [held.due("k") for _ in range(5)] == [0, 0, None, None, None]
    assert held.due("other") == 0
    clock.time += 9.999
    assert held.due("k") is None
    clock.time += 0.001
    assert [held.due("k") for _ in range(3)] == [4, 0, None]


def test_held_message_is_written_with_its_count() -> None:
    clock = Ticking()
    held = Held(clock, per=1.0, burst=1)
    stream = written("journal")
    for _ in range(3):
        held.say(LOGGER, logging.WARNING, "bad datagram", key="10.0.0.1", reason="replay")
    clock.time += 1.0
    held.say(LOGGER, logging.WARNING, "bad datagram", key="10.0.0.1", reason="replay")
    assert stream.getvalue() == "<4>bad datagram reason=replay\n<4>bad datagram reason=replay held_back=2\n"


def test_number_of_keys_is_bounded_and_the_one_not_heard_of_for_longest_goes() -> None:
    held = Held(Ticking(), per=10.0, burst=1, keys=2)
    assert [held.due(k) for k in ("a", "b", "a")] == [0, 0, None]
    assert held.due("c") == 0  # b goes
    assert held.due("a") is None
    assert held.due("b") == 0
