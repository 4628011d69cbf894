"""When a dead agent's last word on its ports doesn't count any more. Pure.

A host whose agent has died can't take back what it said last, nor answer probes again. If a path was DOWN then, it
stays out until the agent runs again, also when the cable was mended an hour ago. But the host's kernel answers echo
requests (ICMP), and an answer proves the path in both directions. So: the record's DOWN, ABSENT or HELD, and that of
the probes, are passed over while the host is dead as a member *and* the last `PROOF` echoes on the path were all
answered. A drain is an operator's wish and stays. One unanswered echo, or a sign of life of the agent, and they count
again.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from linkpass.model import PathId, PortState

PROOF = 5  # echoes in a row, a second apart: as patient as a hold-down of some falls
VETOES = (PortState.DOWN, PortState.ABSENT, PortState.HELD)


@dataclass(slots=True)
class Echoes:
    """Echo by echo, per path: `ask` starts a round and says what the one before it proved."""

    _waiting: dict[PathId, int] = field(default_factory=dict)  # the round's number
    _row: dict[PathId, int] = field(default_factory=dict)  # answered in a row
    _round: int = 0

    def ask(self, paths: Collection[PathId]) -> tuple[int, frozenset[PathId]]:
        """A new round over these paths: its number, and the paths that are proven now."""
        self._round += 1
        self._row = {p: 0 if p in self._waiting else self._row.get(p, 0) for p in paths}
        self._waiting = dict.fromkeys(paths, self._round)
        return self._round, frozenset(p for p, n in self._row.items() if n >= PROOF)

    def answered(self, path: PathId, number: int) -> None:
        """An answer to this round's echo; late and repeated ones don't count."""
        if self._waiting.get(path) == number:
            del self._waiting[path]
            self._row[path] += 1
