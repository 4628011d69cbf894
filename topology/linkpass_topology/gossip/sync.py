"""Anti-entropy: comparing two views by their digests, and pulling what is missing at a bounded pace.

    asking                         answering
    SUMMARY ------------------>    equal: silence. Otherwise:
    compare  <-----------------    DIGESTS of the whole view, in pages
    DIGESTS of what the other  ->  compare
    lacks; WANT, 16 at a time      WANT, 16 at a time

Large views, and the membership table (ROLL, ROWS), are compared piece by piece first:

    SUMMARY ------------------>    equal: silence. Otherwise:
    compare  <-----------------    DIGESTS of what changed last; RANGES: sums of up to 64 pieces of the view
    DIGESTS of pieces that differ  ->  as above

Records travel only when asked for. A lost datagram is repaired by the next round.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from linkpass.wire import Stamp, encode_checked
from linkpass_topology.gossip.membership import Membership
from linkpass_topology.gossip.messages import MAX_PAYLOAD, Digests, Part, Ranges, Rows, Want, entry_size, parts
from linkpass_topology.gossip.row import Row
from linkpass_topology.gossip.rows import pack_row
from linkpass_topology.view import SUMMARY_MASK, View

PAGE = MAX_PAYLOAD - 3 - 1 - 65 - 65  # bytes of entries in a page
MAX_PAGES = 64  # of one answer, 90 KB; a larger view is compared in random pieces, round by round
WINDOW = 16  # records that are asked for and not yet here
WANT_MOST = 32  # hosts of one WANT that are answered
TRIES = 3  # of asking one peer for one record in a round
PIECES = 64  # that a large view is compared in; their sums fit two datagrams
FEW = 64  # hosts; a view or table so small is answered whole, two pages
MAX_WANTED = 4096  # hosts to ask one peer for; the rest waits for the next round


def _fill(entries: Iterable[tuple[str, Stamp]]) -> list[list[tuple[str, Stamp]]]:
    pages: list[list[tuple[str, Stamp]]] = [[]]
    room = PAGE
    for entry in entries:
        size = entry_size(entry[0])
        if size > room:
            pages.append([])
            room = PAGE
        pages[-1].append(entry)
        room -= size
    return pages


def _entries(view: View, hosts: Iterable[str]) -> list[tuple[str, Stamp]]:
    return [(host, mark) for host in hosts if (mark := view.stamp(host)) is not None]


def pages(view: View, rng: Random) -> list[Digests]:
    """The whole view as ranges of hosts that leave no gap, or MAX_PAGES of them by chance."""
    filled = _fill(_entries(view, view.names()))
    borders = ["", *(page[0][0] for page in filled[1:]), ""]
    made = [Digests(True, borders[i], borders[i + 1], tuple(page)) for i, page in enumerate(filled)]
    return made if len(made) <= MAX_PAGES else rng.sample(made, MAX_PAGES)


def _pieces(names: list[str], digest: Callable[[str], int], kind: int) -> list[Ranges]:
    step = max(1, -(-len(names) // PIECES))
    made = []
    for at in range(0, len(names), step):
        piece = names[at : at + step]
        made.append((piece[0] if at else "", len(piece), sum(map(digest, piece)) & SUMMARY_MASK))
    half = len(made) // 2  # two datagrams, as long names don't fit one
    if not half:
        return [Ranges(kind, "", tuple(made))] if made else []
    return [Ranges(kind, made[half][0], tuple(made[:half])), Ranges(kind, "", tuple(made[half:]))]


def _differing(
    theirs: Ranges, names: Callable[[str, str], list[str]], digest: Callable[[str], int]
) -> list[tuple[str, str, list[str]]]:
    """The pieces in which we differ, as first, end and our own hosts there."""
    found = []
    for i, (first, count, total) in enumerate(theirs.pieces):
        end = theirs.pieces[i + 1][0] if i + 1 < len(theirs.pieces) else theirs.end
        ours = names(first, end)
        if (len(ours), sum(map(digest, ours)) & SUMMARY_MASK) != (count, total):
            found.append((first, end, ours))
    return found


def _view_digest(view: View) -> Callable[[str], int]:
    return lambda host: int.from_bytes(mark.digest, "big") if (mark := view.stamp(host)) else 0


def view_answer(view: View, hosts: int, rng: Random) -> list[Digests | Ranges]:
    """To a differing summary of `hosts` hosts: everything if that is little, or the other side has little. Otherwise
    sums of pieces, and what changed last: most likely it is that, and saves a network that loses two of its ways."""
    if len(view) <= FEW or hosts < len(view) // 4:
        return [*pages(view, rng)]
    return [*offers(_entries(view, view.recent())), *_pieces(view.names(), _view_digest(view), 0)]


def view_pieces(view: View, theirs: Ranges) -> list[Digests]:
    """What we hold in the pieces that differ."""
    made = []
    for first, end, ours in _differing(theirs, view.names, _view_digest(view)):
        filled = _fill(_entries(view, ours))
        borders = [first, *(page[0][0] for page in filled[1:]), end]
        made += [Digests(True, borders[i], borders[i + 1], tuple(page)) for i, page in enumerate(filled)]
    return made[:MAX_PAGES]


def _row_pages(rows: list[Row], first: str, end: str, *, complete: bool) -> list[Rows]:
    pages: list[list[Row]] = [[]]
    room = PAGE
    for row in rows:
        size = len(pack_row(row))
        if size > room:
            pages.append([])
            room = PAGE
        pages[-1].append(row)
        room -= size
    if not complete:
        return [Rows(False, "", "", tuple(page)) for page in pages if page]
    borders = [first, *(page[0].host for page in pages[1:]), end]
    return [Rows(True, borders[i], borders[i + 1], tuple(page)) for i, page in enumerate(pages)]


def _here(table: Membership, first: str = "", end: str = "") -> list[str]:
    """Members in the range. The dead don't count: they are forgotten one by one."""
    stop = bisect_left(table.names, end) if end else len(table.names)
    found = table.names[bisect_left(table.names, first) : stop]
    return [name for name in found if table.members[name].row.status.here]


def table_answer(table: Membership, members: int) -> list[Rows] | list[Ranges]:
    """To a differing roll, as `view_answer`."""
    if table.here <= FEW or members < table.here // 4:
        rows = [table.members[name].row for name in table.names]
        return _row_pages(rows, "", "", complete=True)[: 2 * MAX_PAGES]
    return _pieces(_here(table), lambda host: table.members[host].row.digest, 1)


def table_pieces(table: Membership, theirs: Ranges) -> list[Rows]:
    """All our rows in the pieces that differ, the dead as well."""
    made: list[Rows] = []
    differing = _differing(theirs, lambda a, b: _here(table, a, b), lambda host: table.members[host].row.digest)
    for first, end, _ in differing:
        stop = bisect_left(table.names, end) if end else len(table.names)
        rows = [table.members[n].row for n in table.names[bisect_left(table.names, first) : stop]]
        made += _row_pages(rows, first, end, complete=True)
    return made[: 2 * MAX_PAGES]


def table_offers(table: Membership, theirs: Rows) -> list[Rows]:
    """Our rows that are newer than theirs, or that they lack in a complete range."""
    told = {row.host: row for row in theirs.rows}
    newer = [m.row for row in theirs.rows if (m := table.members.get(row.host)) and m.row.age > row.age]
    if theirs.complete:
        newer += [table.members[n].row for n in _here(table, theirs.first, theirs.end) if n not in told]
    return _row_pages(newer, "", "", complete=False)


def offers(entries: list[tuple[str, Stamp]]) -> list[Digests]:
    """Digests of single hosts, without a claim to be all; at most MAX_PAGES, the next round brings the rest."""
    return [Digests(False, "", "", tuple(page)) for page in _fill(entries)[:MAX_PAGES] if page]


@dataclass(frozen=True, slots=True)
class Difference:
    """What one side has over the other. `own`: the peer's stamp of our own record, if that is above ours."""

    wanted: list[tuple[str, Stamp]]
    offered: list[tuple[str, Stamp]]
    own: Stamp | None


def compare(view: View, digests: Digests) -> Difference:
    """Our view against what a peer says that it holds."""
    wanted: list[tuple[str, Stamp]] = []
    offered: list[tuple[str, Stamp]] = []
    own = None
    full = len(view) >= view.max_hosts
    for host, theirs in digests.entries:
        ours = view.stamp(host)
        if host == view.owner and (ours is None or theirs > ours):
            own = theirs
        elif ours is None:
            if not full:
                wanted.append((host, theirs))
        elif theirs > ours:
            wanted.append((host, theirs))
        elif ours > theirs:
            offered.append((host, ours))
    if digests.complete:
        told = {host for host, _ in digests.entries}
        offered += _entries(view, (h for h in view.names(digests.first, digests.end) if h not in told))
    return Difference(wanted, offered, own)


def whole(view: View, hosts: Iterable[str]) -> list[Part]:
    """The records that a WANT asks for, as far as we hold them."""
    made: list[Part] = []
    for host in list(dict.fromkeys(hosts))[:WANT_MOST]:
        record, mark = view.get(host), view.stamp(host)
        if record is not None and mark is not None:
            made += parts(host, mark, encode_checked(record), delta=False)
    return made


@dataclass(slots=True)
class Pull:
    """Records that one peer has and we want: those to ask for, and those asked for."""

    waiting: dict[str, tuple[Stamp, int]] = field(default_factory=dict)  # host -> stamp, times asked
    asked: dict[str, tuple[Stamp, int]] = field(default_factory=dict)

    def want(self, entries: list[tuple[str, Stamp]]) -> None:
        """Note hosts to ask for."""
        for host, mark in entries:
            if host not in self.asked and len(self.waiting) < MAX_WANTED:
                self.waiting[host] = (mark, 0)

    def arrived(self, host: str) -> None:
        """A record of the host is here."""
        self.asked.pop(host, None)

    def late(self) -> None:
        """What was asked for didn't come: ask again, or give up until the next round."""
        again = {h: (mark, tries) for h, (mark, tries) in self.asked.items() if tries < TRIES}
        self.asked.clear()
        self.waiting = again | self.waiting

    def next(self, view: View) -> Want | None:
        """The next question, if there is room for one and something to ask."""
        if len(self.asked) > WINDOW // 2:
            return None
        hosts = []
        while self.waiting and len(self.asked) < WINDOW:
            host, (mark, tries) = next(iter(self.waiting.items()))
            del self.waiting[host]
            ours = view.stamp(host)
            if ours is None or ours < mark:
                self.asked[host] = (mark, tries + 1)
                hosts.append(host)
        return Want(tuple(hosts)) if hosts else None
