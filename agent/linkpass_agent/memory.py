"""What the operators and the fleet rely on after a restart: drains, and the incarnation. Written before it counts.

    what                                restart of the agent    boot of the host
    drains, incarnation (state.json)    stay                    stay

What the agent merely learned is in `recall.py`.
"""

from dataclasses import dataclass, field
from pathlib import Path

from .statefile import STRICT, StateFile

SCHEMA = 2
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Drained:
    """An operator's drain of one port: why, who asked, and when (Unix time)."""

    reason: str
    who: str
    time: float

    __pydantic_config__ = STRICT


@dataclass(slots=True)
class State:
    """`boot_id` tells of which boot this was written; drains and incarnation survive boots as well."""

    incarnation: int = 0
    boot_id: str = ""
    drains: dict[str, Drained] = field(default_factory=dict)

    __pydantic_config__ = STRICT


class Memory:
    """The file. A damaged one is set aside, never silently forgotten."""

    def __init__(self, folder: Path) -> None:
        self._file = StateFile(folder / "state.json", SCHEMA, State, "drains")

    def load(self) -> tuple[State, str]:
        """What was remembered, and a complaint ('' if there is none)."""
        state, complaint = self._file.load()
        return state or State(), complaint

    def save(self, state: State) -> None:
        """Write and make durable: a drain that was acknowledged survives a power cut."""
        self._file.write(self._file.encode(state))


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
