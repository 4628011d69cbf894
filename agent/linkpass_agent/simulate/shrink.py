"""From many faults that break something to few that still do: Zeller's ddmin over the list, then shorter faults."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from .faults import Fault

Breaks = Callable[[tuple[Fault, ...]], bool]


def shrink(faults: Sequence[Fault], breaks: Breaks, tries: int = 400) -> tuple[Fault, ...]:
    """A subset, in order, that still `breaks` and of which no single fault can go (within `tries` runs)."""
    left = _Tries(breaks, tries)
    kept = tuple(faults)
    parts = 2
    while len(kept) >= 2:
        size = -(-len(kept) // parts)
        chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
        for i, chunk in enumerate(chunks):
            rest = tuple(f for j, c in enumerate(chunks) if j != i for f in c)
            if parts > 2 and len(chunk) < len(kept) and left.breaks(chunk):
                kept, parts = chunk, 2
                break
            if left.breaks(rest):
                kept, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(kept):
                break
            parts = min(len(kept), 2 * parts)
    if len(kept) == 1 and left.breaks(()):
        return ()
    return _simpler(kept, left)


def _simpler(kept: tuple[Fault, ...], left: "_Tries") -> tuple[Fault, ...]:
    """Round the times, where that still breaks."""
    for i, fault in enumerate(kept):
        lasts = None if fault.lasts is None else max(0.001, round(fault.lasts, 2))
        for other in (replace(fault, at=round(fault.at, 1), lasts=lasts), replace(fault, at=round(fault.at, 3))):
            tried = (*kept[:i], other, *kept[i + 1 :])
            if other != fault and left.breaks(tried):
                kept = tried
                break
    return kept


class _Tries:
    """Asks, but not without end, and nothing twice."""

    def __init__(self, breaks: Breaks, tries: int) -> None:
        self._breaks, self._left = breaks, tries
        self._known: dict[tuple[Fault, ...], bool] = {}

    def breaks(self, faults: tuple[Fault, ...]) -> bool:
        if faults not in self._known:
            if self._left <= 0:
                return False
            self._left -= 1
            self._known[faults] = self._breaks(faults)
        return self._known[faults]
