"""What is to be told on: each piece a bounded number of times, the least told first, the newest first among those.

Newer news of the same thing replaces older. Pure.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import ceil, log10

from linkpass_topology.gossip.messages import Message, size

MAX_ITEMS = 4096  # what is beyond is left to anti-entropy, the most told first


def limit(multiplier: int, members: int) -> int:
    """How often one piece is told by each who hears it. memberlist's retransmit limit."""
    return multiplier * ceil(log10(members + 1))


@dataclass(slots=True)
class _Item:
    message: Message
    size: int
    source: str  # who told us; he needn't hear it from us
    sent: int = 0


class News:
    """Pieces by their key, in heaps of how often they were told."""

    def __init__(self) -> None:
        self._heaps: list[OrderedDict[Hashable, _Item]] = []
        self._items: dict[Hashable, _Item] = {}

    def __len__(self) -> int:
        return len(self._items)

    @property
    def fresh(self) -> bool:
        """Whether something was never told."""
        return bool(self._heaps and self._heaps[0])

    def put(self, key: Hashable, message: Message, source: str = "") -> None:
        """News, in place of what we had under that key."""
        self.drop(key)
        if len(self._items) >= MAX_ITEMS:
            self.drop(next(iter(next(h for h in reversed(self._heaps) if h))))
        item = _Item(message, size(message), source)
        self._items[key] = item
        self._heap(0)[key] = item

    def drop(self, key: Hashable) -> None:
        """No news any more."""
        item = self._items.pop(key, None)
        if item is not None:
            del self._heaps[item.sent][key]

    def take(self, room: int, target: str, most: int) -> list[Message]:
        """Messages of at most `room` bytes for `target`; pieces that were told `most` times are dropped."""
        chosen: list[tuple[Hashable, _Item]] = []
        for key, item in self._candidates():
            if item.size <= room and item.source != target:
                chosen.append((key, item))
                room -= item.size
                if room < 16:  # bytes; no piece is smaller
                    break
        for key, item in chosen:
            del self._heaps[item.sent][key]
            item.sent += 1
            if item.sent >= most:
                del self._items[key]
            else:
                self._heap(item.sent)[key] = item
        return [item.message for _, item in chosen]

    def _candidates(self) -> Iterator[tuple[Hashable, _Item]]:
        for heap in self._heaps:
            yield from reversed(heap.items())

    def _heap(self, sent: int) -> OrderedDict[Hashable, _Item]:
        while len(self._heaps) <= sent:
            self._heaps.append(OrderedDict())
        return self._heaps[sent]
