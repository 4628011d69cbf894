"""Tables that thousands of hosts share until they differ: 8,192 tables of 8,192 rows don't fit in memory."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
B = TypeVar("B")


class Overlay(dict[K, V]):
    """A dict that begins with the keys of `base`, which is shared and must not change. Looking at a value makes it,
    by `make` of the base's, and keeps it: what is changed in it stays this table's own. Nothing of the base can go.
    """

    def __init__(self, base: Mapping[K, B], make: Callable[[B], V]) -> None:
        super().__init__()
        self._base, self._make = base, make
        self._more = 0  # keys that the base hasn't

    def __missing__(self, key: K) -> V:
        made = self._make(self._base[key])
        super().__setitem__(key, made)
        return made

    def get(self, key: K, default: V | None = None) -> V | None:  # type: ignore[override]
        if dict.__contains__(self, key) or key in self._base:
            return self[key]
        return default

    def __setitem__(self, key: K, value: V) -> None:
        self._more += key not in self._base and not dict.__contains__(self, key)
        super().__setitem__(key, value)

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, key) or key in self._base

    def __len__(self) -> int:
        return len(self._base) + self._more

    def __iter__(self) -> Iterator[K]:
        yield from self._base
        yield from (key for key in dict.keys(self) if key not in self._base)

    def __delitem__(self, key: K) -> None:
        raise TypeError(f"{key!r} can't be taken out of a shared table; simulate its going in a smaller fleet")

    def pop(self, key: K, *default: V) -> V:  # type: ignore[override]
        raise TypeError(f"{key!r} can't be taken out of a shared table; simulate its going in a smaller fleet")
