"""The shared view: the newest record of every host that this one has heard of. Pure: no I/O, no clock.

The order of all records of a host is total (`linkpass.wire.Stamp`), and merging keeps the greatest; so it doesn't
matter in which order, how often or by which road records come in: hosts that got the same set hold the same view. The
one exception is the viewer's own record, which nobody else can write: what others claim of it never enters the view.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from linkpass.model import HostRecord, PortRecord
from linkpass.wire import Stamp, stamp

SUMMARY_MASK = (1 << 64) - 1
RECENT = 64  # changes that are remembered: those of a leaf with as many hosts


class Outcome(StrEnum):
    """What became of a record that was offered."""

    LEARNED = "learned"  # newer than what we had, or the first of its host
    SAME = "same"  # we have it already
    OLDER = "older"  # we have a newer one
    CONFLICT_WON = "conflict-won"  # as old as ours, other contents: taken
    CONFLICT_LOST = "conflict-lost"  # as old as ours, other contents: ours stays
    OUTRUN = "outrun"  # of ourselves, and above our own: the owner must jump above it
    OWN = "own"  # of ourselves, and not above our own
    FULL = "full"  # of an unknown host, and the view holds as many as it may


@dataclass(frozen=True, slots=True)
class PortChange:
    """One port that differs; `before` or `after` None: it came or went."""

    name: str
    before: PortRecord | None
    after: PortRecord | None


@dataclass(frozen=True, slots=True)
class Change:
    """A host's record was replaced."""

    host: str
    previous: HostRecord | None
    record: HostRecord
    ports: tuple[PortChange, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """Answer of a merge: what became of the record, and the changes (none or one) that it made."""

    outcome: Outcome
    changes: tuple[Change, ...] = ()


def changed_ports(before: HostRecord | None, after: HostRecord) -> tuple[PortChange, ...]:
    """The ports in which two records of a host differ, in the order of `after`, gone ones last."""
    old = {p.name: p for p in before.ports} if before else {}
    found = [PortChange(p.name, old.get(p.name), p) for p in after.ports if old.get(p.name) != p]
    kept = {p.name for p in after.ports}
    return (*found, *(PortChange(name, p, None) for name, p in old.items() if name not in kept))


class View:
    """Records by host. `owner` is the host whose view this is; '' for a mere watcher without a record of its own."""

    def __init__(self, owner: str = "", *, max_hosts: int = 16_384) -> None:
        self.owner = owner
        self.max_hosts = max_hosts
        self.conflicts = 0  # records that claimed the age of another with other contents
        self._records: dict[str, tuple[HostRecord, Stamp]] = {}
        self._names: list[str] = []  # sorted
        self._recent: deque[str] = deque(maxlen=RECENT)
        self._sum = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[HostRecord]:
        """Records in the order of their hosts' names."""
        return (self._records[name][0] for name in self._names)

    def get(self, host: str) -> HostRecord | None:
        """The record of `host`, if known."""
        found = self._records.get(host)
        return found[0] if found else None

    def stamp(self, host: str) -> Stamp | None:
        """The stamp of what we hold of `host`."""
        found = self._records.get(host)
        return found[1] if found else None

    @property
    def summary(self) -> int:
        """64 bits that are equal for equal views: the sum of all digests (which cover host, age and contents)."""
        return self._sum

    def names(self, first: str = "", end: str = "") -> list[str]:
        """Sorted hosts from `first` up to but without `end` ('': no end)."""
        stop = bisect_left(self._names, end) if end else len(self._names)
        return self._names[bisect_left(self._names, first) : stop]

    def recent(self) -> list[str]:
        """Hosts whose records changed last, the latest first."""
        return list(dict.fromkeys(reversed(self._recent)))

    def publish(self, record: HostRecord, mark: Stamp | None = None) -> Change | None:
        """The owner's new record. ValueError unless it is ours and newer than our last; the same again is None."""
        if record.host != self.owner:
            raise ValueError(f"{record.host!r} is not our own record; we are {self.owner!r}")
        new, old = mark or stamp(record), self.stamp(self.owner)
        if old is not None:
            if new == old:
                return None
            if new[:2] <= old[:2]:
                raise ValueError(f"own record must grow: {new[:2]} after {old[:2]}")
        return self._put(record, new)

    def merge(self, record: HostRecord, mark: Stamp | None = None) -> Merged:
        """Take the record in if it is newer. `mark` is its stamp, when the caller has it already."""
        new = mark or stamp(record)
        old = self.stamp(record.host)
        if record.host == self.owner:
            return Merged(Outcome.OUTRUN if old is None or new > old else Outcome.OWN)
        if old is None:
            if len(self._records) >= self.max_hosts:
                return Merged(Outcome.FULL)
            return Merged(Outcome.LEARNED, (self._put(record, new),))
        if new == old:
            return Merged(Outcome.SAME)
        conflict = new[:2] == old[:2]
        self.conflicts += conflict
        if new < old:
            return Merged(Outcome.CONFLICT_LOST if conflict else Outcome.OLDER)
        return Merged(Outcome.CONFLICT_WON if conflict else Outcome.LEARNED, (self._put(record, new),))

    def forget(self, host: str) -> bool:
        """Drop what we know of another host; it comes back if any peer still holds it."""
        if host == self.owner or host not in self._records:
            return False
        _, old = self._records.pop(host)
        self._names.remove(host)
        self._sum = (self._sum - int.from_bytes(old.digest, "big")) & SUMMARY_MASK
        return True

    def _put(self, record: HostRecord, new: Stamp) -> Change:
        found = self._records.get(record.host)
        if found is None:
            insort(self._names, record.host)
        taken = int.from_bytes(found[1].digest, "big") if found else 0
        self._sum = (self._sum - taken + int.from_bytes(new.digest, "big")) & SUMMARY_MASK
        self._records[record.host] = (record, new)
        self._recent.append(record.host)
        previous = found[0] if found else None
        return Change(record.host, previous, record, changed_ports(previous, record))
