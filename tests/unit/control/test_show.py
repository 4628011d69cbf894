"""How the command line shows things."""

import io
import time

import pytest

from linkpass.ctl.show import clock, duration, joined, plain, table, wants_colour


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0ms"),
        (0.0124, "12ms"),
        (0.9994, "999ms"),
        (0.9996, "1.0s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (192, "3m12s"),
        (3599.7, "1h00m"),
        (7500, "2h05m"),
        (86399, "23h59m"),
        (3 * 86400 + 4 * 3600 + 59, "3d04h"),
        (-2, "-2.0s"),
    ],
)
def test_durations_have_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_control_characters_are_spelled_out_and_letters_of_all_languages_kept() -> None:
    assert plain("a\x1b[2Jb\r\nc\x9b") == "a\\x1b[2Jb\\r\\nc\\x9b"
    assert plain("Zürich 東京") == "Zürich 東京"
    assert plain("\u202eabc") == "\\u202eabc"  # turns the writing direction


def test_table_is_aligned_and_ends_without_blanks() -> None:
    out = io.StringIO()
    table(out, ["PORT", "STATE", "CAUSE"], [["a", ("down", "31"), "x"], ["longer-name", "up", ""]])
    assert out.getvalue() == ("PORT         STATE  CAUSE\na            down   x\nlonger-name  up\n")


def test_table_without_rows_shows_its_headers() -> None:
    out = io.StringIO()
    table(out, ["A", "B"], [])
    assert out.getvalue() == "A  B\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_and_does_not_disturb_alignment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    table(out, ["STATE", "X"], [[("up", "32"), "1"]])
    assert out.getvalue() == "\x1b[1mSTATE\x1b[0m  \x1b[1mX\x1b[0m\n\x1b[32mup\x1b[0m     1\n"


def test_colour_is_off_for_pipes_dumb_terminals_and_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())


def test_clock_shows_the_date_of_other_days_and_rounds_to_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        assert clock(1_000_000_000.9996) == "2001-09-09 01:46:41.000"  # `date -u -d @1000000000`: 01:46:40
        assert len(clock(time.time())) in (12, 23)  # 23 if midnight passes just now
    finally:
        monkeypatch.undo()
        time.tzset()


def test_lists_are_joined_and_empty_ones_shown_as_a_dash() -> None:
    assert (joined(["a", "b"]), joined([])) == ("a, b", "-")
