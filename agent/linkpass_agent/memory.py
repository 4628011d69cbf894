"""What survives a restart: the incarnation and the operators' drains. One small file, replaced in one step."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
# What reading a damaged file may raise: bad UTF-8 or JSON, wrong shapes, numbers without end, a million brackets.
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Drained:
    """An operator's drain of one port: why, who asked, and when (Unix time)."""

    reason: str
    who: str
    time: float


@dataclass(slots=True)
class State:
    """`boot_id` tells of which boot this was written; drains and incarnation survive boots as well."""

    incarnation: int = 0
    boot_id: str = ""
    drains: dict[str, Drained] = field(default_factory=dict)


class Memory:
    """The file. A damaged one is set aside, never silently forgotten."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "state.json"

    def load(self) -> tuple[State, str]:
        """What was remembered, and a complaint ('' if there is none)."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return State(), ""
        except OSError as e:
            return State(), f"{self._path}: {e.strerror}; drains of earlier runs are unknown"
        try:
            return _state(json.loads(data)), ""
        except DAMAGE as e:
            aside = self._path.with_suffix(".bad")
            self._path.replace(aside)
            return (
                State(),
                f"{self._path} is damaged ({e}); set aside as {aside.name}, its drains are lost",
            )

    def save(self, state: State) -> None:
        """Write and make durable: a drain that was acknowledged survives a power cut."""
        text = json.dumps(
            {
                "schema": SCHEMA,
                "incarnation": state.incarnation,
                "boot_id": state.boot_id,
                "drains": {
                    port: {"reason": d.reason, "who": d.who, "time": d.time} for port, d in state.drains.items()
                },
            },
            indent=1,
        )
        new = self._path.with_suffix(".new")
        with new.open("w") as f:
            f.write(text + "\n")
            f.flush()
            os.fsync(f.fileno())
        new.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _state(raw: Any) -> State:
    if raw["schema"] != SCHEMA:
        raise ValueError(f"schema {raw['schema']}, expected {SCHEMA}")
    drains = {
        str(port): Drained(str(d["reason"]), str(d["who"]), float(d["time"])) for port, d in raw["drains"].items()
    }
    return State(int(raw["incarnation"]), str(raw["boot_id"]), drains)


def next_incarnation(state: State, wall: float) -> int:
    """Larger than every earlier one: Unix time in seconds, or one more than the last if the clock was set back.

    A host that lost its state file and whose clock is far behind learns the larger number from its peers (see
    `linkpass_topology.gossip`).
    """
    return max(state.incarnation + 1, int(wall))


def boot_id() -> str:
    """This boot's id, random for each boot of the kernel."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
