"""The stages of a move as the shim tells them: fenced, settled, first and last request posted on the new path.

Values without a clock. A shim is believed as far as it harms nobody: its times are shown and decide nothing.
"""

from collections.abc import Collection
from dataclasses import dataclass

from linkpass.shim.abi import ConnState


@dataclass(frozen=True, slots=True)
class Move:
    """`at` is when the move began (monotonic s); the stages are s after it, each when it was over."""

    at: float
    fenced: float
    settled: float
    flowed: float  # first request on the new path: the gap
    replayed: float  # all that had waited is on the new path

    @property
    def end(self) -> float:
        """Monotonic s of the last replay."""
        return self.at + self.replayed


def of(state: ConnState, now: float) -> Move | None:
    """The last move of a connection; None if it never moved. One that a shim sets into the future ends now."""
    if not state.migrations or not state.trigger_ns:
        return None
    stages = [ns / 1e9 for ns in (state.fence_ns, state.settle_ns, state.gap_ns, state.replay_ns)]
    return Move(min(state.trigger_ns / 1e9, now - stages[-1]), *stages)


def together(moves: Collection[Move]) -> Move:
    """Many connections' moves as one: from the first beginning until the last of them had finished each stage."""
    at = min(m.at for m in moves)
    return Move(
        at,
        max(m.at + m.fenced for m in moves) - at,
        max(m.at + m.settled for m in moves) - at,
        max(m.at + m.flowed for m in moves) - at,
        max(m.end for m in moves) - at,
    )


def latest(moves: Collection[Move], within: float) -> Move | None:
    """The last move of a process: of all connections that began at most `within` s before the last one."""
    if not moves:
        return None
    last = max(m.at for m in moves)
    return together([m for m in moves if m.at >= last - within])
