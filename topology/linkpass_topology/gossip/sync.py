"""Anti-entropy: comparing two views by their digests, and pulling what is missing at a bounded pace.

    asking                         answering
    SUMMARY ------------------>    equal: silence. Otherwise:
    compare  <-----------------    DIGESTS of the whole view, in pages
    DIGESTS of what the other  ->  compare
    lacks; WANT, 16 at a time      WANT, 16 at a time

Records travel only when asked for. A lost datagram is repaired by the next round.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from linkpass.wire import Stamp, encode_checked
from linkpass_topology.gossip.messages import MAX_PAYLOAD, Digests, Part, Want, entry_size, parts
from linkpass_topology.view import View

PAGE = MAX_PAYLOAD - 3 - 1 - 65 - 65  # bytes of entries in a page
MAX_PAGES = 64  # of one answer, 90 KB; a larger view is compared in random pieces, round by round
WINDOW = 16  # records that are asked for and not yet here
WANT_MOST = 32  # hosts of one WANT that are answered
TRIES = 3  # of asking one peer for one record in a round
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
