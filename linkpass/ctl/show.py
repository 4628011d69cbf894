"""How things look to people: aligned tables, durations with units, colour only where it helps.

What the agent says may hold text from other hosts and other users, so control characters never reach the terminal.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import TextIO

GREEN, YELLOW, RED, BLUE, BOLD, DIM = "32", "33", "31", "34", "1", "2"
STATES = {
    "up": GREEN,
    "ok": GREEN,
    "connected": GREEN,
    "suspect": YELLOW,
    "held": YELLOW,
    "degraded": YELLOW,
    "silent": YELLOW,
    "drained": BLUE,
    "left": BLUE,
    "down": RED,
    "absent": RED,
    "unknown": RED,
    "never-seen": RED,
}

Cell = str | tuple[str, str]  # text, or text and its colour


def plain(text: object) -> str:
    """The text with its control characters spelled out, so that nobody's words can steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def duration(seconds: float | None) -> str:
    """`250ms`, `3.2s`, `45s`, `3m12s`, `2h05m`, `3d04h`; `-` for None."""
    if seconds is None:
        return "-"
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def clock(wall: float) -> str:
    """Local time of day to the millisecond, with the date unless it is today's."""
    millis = round(wall * 1000)
    local = time.localtime(millis // 1000)
    today = time.localtime()[:3] == local[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", local) + f".{millis % 1000:03}"


def wants_colour(out: TextIO) -> bool:
    """Only a terminal that isn't dumb gets colour, and only without NO_COLOR (no-color.org)."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painter(out: TextIO) -> Callable[[str, str], str]:
    """A function that colours text for `out`, or leaves it."""
    if not wants_colour(out):
        return lambda text, colour: text
    return lambda text, colour: f"\x1b[{colour}m{text}\x1b[0m" if colour else text


def state(name: str) -> Cell:
    """A state in its colour."""
    return name, STATES.get(name, "")


def table(out: TextIO, headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Columns as wide as their widest cell, two blanks apart, none behind the last."""
    paint = painter(out)
    cells = [[(plain(c), "") if isinstance(c, str) else (plain(c[0]), c[1]) for c in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *([t for t, _ in row] for row in cells), strict=True)]
    for line in ([(h, BOLD) for h in headers], *cells):
        padded = [paint(t, c) + " " * (w - len(t)) for (t, c), w in zip(line, widths, strict=True)]
        print("  ".join(padded).rstrip(), file=out)


def joined(items: Sequence[object]) -> str:
    """A list in one cell."""
    return ", ".join(map(str, items)) or "-"
