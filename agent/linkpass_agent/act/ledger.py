"""What this agent made in the kernel, written down before it is made.

The ledger lives in the run folder, which is empty after a boot like the kernel's tables. Every object also carries
our protocol number, so that a lost or torn ledger can be rebuilt from the kernel.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

SCHEMA = 1
# What reading a damaged file may raise: bad UTF-8 or JSON, wrong shapes, numbers without end, a million brackets.
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(slots=True)
class Made:
    """All that was made: ids of next-hop objects by (device, via), of groups by destination."""

    nexthops: dict[tuple[str, str], int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)


class Ledger:
    """The file. `load` never fails on bad contents: it returns what it can and says what was wrong."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = ""

    def load(self) -> tuple[Made, str]:
        """What was made, and a complaint ('' if there is none). A file that can't be read is set aside."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return Made(), ""
        except OSError as e:
            return Made(), f"{self._path}: {e.strerror}; starting with an empty ledger"
        try:
            raw = json.loads(data)
            if raw["schema"] != SCHEMA:
                raise ValueError(f"schema {raw['schema']}, expected {SCHEMA}")
            nexthops = {(str(n["device"]), str(n["via"])): int(n["id"]) for n in raw["nexthops"]}
            groups = {str(d): int(i) for d, i in raw["groups"].items()}
            return Made(nexthops, groups), ""
        except DAMAGE as e:
            aside = self._path.with_suffix(".bad")
            self._path.replace(aside)
            return Made(), f"{self._path} is damaged ({e}); set aside as {aside.name}, rebuilt from the kernel"

    def save(self, made: Made) -> None:
        """Replace the file in one step; nothing is written when nothing changed."""
        text = json.dumps(
            {
                "schema": SCHEMA,
                "nexthops": [{"device": d, "via": v, "id": i} for (d, v), i in made.nexthops.items()],
                "groups": made.groups,
            }
        )
        if text == self._last:
            return
        new = self._path.with_suffix(".new")
        new.write_text(text)
        new.replace(self._path)
        self._last = text

    def remove(self) -> None:
        """Everything is undone: the file goes too."""
        self._path.unlink(missing_ok=True)
        self._last = ""
