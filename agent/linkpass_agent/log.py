"""What the agent writes to stderr: one line for each thing worth telling, with its cause, fit for the journal.

    log.setup(settings.log, sys.stderr, os.environ)
    log.tell(event)                                       # a line of the host's story
    log.say(logger, logging.INFO, "text", peer="b")       # anything else, with fields
    held.say(logger, logging.WARNING, "bad datagram", key="10.99.0.7", reason="replay")     # at a bounded rate

Formats: `journal` puts the priority in front (<6>, sd-daemon(3)) and leaves the time to journald; `text` is for a
terminal; `json` is an object a line. Fields follow the text as key=value.
"""

import json
import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TextIO

from linkpass.clock import Clock
from linkpass.model import Event, EventKind
from linkpass.settings import LogSettings

OURS = ("linkpass", "linkpass_agent", "linkpass_topology")
PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
STORY = logging.getLogger("linkpass.story")
# Everything that a record has of itself; the rest came by `extra`.
_OWN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "fields", "taskName"}

LEVELS = {
    EventKind.SEEN: logging.DEBUG,
    EventKind.SHARED: logging.DEBUG,
    EventKind.LEARNED: logging.DEBUG,
    EventKind.REFUSED: logging.WARNING,
    EventKind.FAILED: logging.ERROR,
}
PASSING = frozenset({"suspect", "unknown"})


def setup(settings: LogSettings, stream: TextIO, environ: Mapping[str, str]) -> logging.Handler:
    """Send all logging to `stream`: ours from the configured level on, that of libraries from WARNING on."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter(settings.format, stream, environ))
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(settings.level.upper())
    return handler


def formatter(format: str, stream: TextIO, environ: Mapping[str, str]) -> logging.Formatter:
    """The formatter of that name; `auto` asks where `stream` leads."""
    if format == "auto":
        format = "journal" if leads_to_journal(stream, environ) else "text"
    return {"journal": Journal, "text": Text, "json": Json}[format]()


def leads_to_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether `stream` is the one that systemd connected to the journal (JOURNAL_STREAM, systemd.exec(5))."""
    found = re.fullmatch(r"(\d+):(\d+)", environ.get("JOURNAL_STREAM", ""), re.ASCII)
    if not found:
        return False
    try:
        there = os.fstat(stream.fileno())
    except (OSError, ValueError):  # a stream without a file
        return False
    return (there.st_dev, there.st_ino) == (int(found[1]), int(found[2]))


def say(logger: logging.Logger, level: int, text: str, **fields: object) -> None:
    """One line, with fields. Names of fields are free."""
    logger.log(level, "%s", text, extra={"fields": fields}, stacklevel=2)


def tell(event: Event) -> None:
    """One line of the story: what happened, to whom, and why."""
    fields: dict[str, object] = {"kind": event.kind.value, "subject": event.subject, "seq": event.seq}
    if event.cause:
        fields["cause"] = event.cause
    say(STORY, _level(event), event.text, **fields, **_apart(event.data, fields))


def _level(event: Event) -> int:
    # First doubts come and go by the hundred on a busy host; `linkpassctl events` still shows them.
    if event.kind is EventKind.VERDICT and not PASSING.isdisjoint((event.data.get("from"), event.data.get("to"))):
        return logging.DEBUG
    return LEVELS.get(event.kind, logging.INFO)


def _apart(data: Mapping[str, object], taken: Mapping[str, object]) -> dict[str, object]:
    return {(f"data_{k}" if k in taken or k in ("logger", "level", "text") else k): v for k, v in data.items()}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a record, given by `say` or as `extra`."""
    extra = {k: v for k, v in vars(record).items() if k not in _OWN}
    return {**extra, **vars(record).get("fields", {})}


def _value(value: object) -> str:
    """As logfmt: bare where that is clear, else quoted as in JSON. Never more than one line."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    text = str(value)
    return text if re.fullmatch(r"[!#-<>-~]+", text) else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Line(logging.Formatter):
    """Text and fields in one line; a traceback follows line by line."""

    def prefix(self, record: logging.LogRecord) -> str:
        return ""

    def begin(self, record: logging.LogRecord) -> str:
        return ""

    def format(self, record: logging.LogRecord) -> str:
        prefix = self.prefix(record)
        fields = "".join(f" {_one_line(k)}={_one_line(_value(v))}" for k, v in fields_of(record).items())
        lines = [f"{self.begin(record)}{_one_line(record.getMessage())}{fields}"]
        if record.exc_info:
            lines += map(_one_line, self.formatException(record.exc_info).splitlines())
        return "\n".join(prefix + line for line in lines)


class Journal(Line):
    """For journald, which knows the time and reads the priority from the front."""

    def prefix(self, record: logging.LogRecord) -> str:
        return f"<{PRIORITIES.get(record.levelno, 6)}>"


class Text(Line):
    """For a terminal or a file."""

    def begin(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{at}.{int(record.msecs):03} {record.levelname.lower():<7} "


class Json(logging.Formatter):
    """An object a line, for collectors. `time` is Unix time in seconds."""

    def format(self, record: logging.LogRecord) -> str:
        found = {
            **fields_of(record),
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


class Held:
    """Holds noisy messages back: at most `burst` in `per` seconds for each key, and for at most `keys` keys at once
    (the key not heard of for longest goes). The next one that passes tells how many were held back."""

    def __init__(self, clock: Clock, per: float = 10.0, burst: int = 3, keys: int = 256) -> None:
        self._clock = clock
        self._per = per
        self._burst = burst
        self._keys = keys
        self._windows: OrderedDict[str, tuple[float, int, int]] = OrderedDict()  # key -> start, passed, held back

    def due(self, key: str) -> int | None:
        """None: hold this one back. Otherwise how many with this key were held back since the last that passed."""
        now = self._clock.now()
        start, passed, held = self._windows.pop(key, (now, 0, 0))
        if now - start >= self._per:
            start, passed = now, 0
        passes = passed < self._burst
        self._windows[key] = (start, passed + 1, 0) if passes else (start, passed, held + 1)
        if len(self._windows) > self._keys:
            self._windows.popitem(last=False)
        return held if passes else None

    def say(self, logger: logging.Logger, level: int, text: str, key: str, **fields: object) -> None:
        """As `say`, if it is due."""
        held = self.due(f"{logger.name} {key}")
        if held is not None:
            say(logger, level, text, **({**fields, "held_back": held} if held else fields))
