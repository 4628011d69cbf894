"""Joins membership, news, roads and sessions: whom this host talks to, and what it tells on. Sans I/O.

Up to `SwimRule.direct` members everybody keeps a session with everybody and a record goes straight to all. Beyond
that a host keeps sessions with the hosts that its owner named (`set_interested`), and with some hundred others by
chance: those that it probed, or that probed it, last. News goes straight to the former and spreads by the latter.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random
from typing import Protocol

from linkpass.model import HostRecord
from linkpass.wire import encode_checked, encode_delta, stamp_of
from linkpass_topology.gossip import messages as m
from linkpass_topology.gossip import row as acts
from linkpass_topology.gossip import sync
from linkpass_topology.gossip.membership import Membership
from linkpass_topology.gossip.news import News, limit
from linkpass_topology.gossip.outputs import Address, MemberTurned, Output
from linkpass_topology.gossip.roads import Roads
from linkpass_topology.gossip.row import Row, Status
from linkpass_topology.gossip.suspicion import SwimRule
from linkpass_topology.view import PortChange, View

JITTER = 0.005  # s at most until fresh news goes on; spreads the load of many who hear it at once
CONNECTS = 32  # sessions asked for in one round of upkeep
MAX_LATER = 1024  # hosts that something waits for
LATER = 4  # messages that wait for a session with one host
LITTLE = 512  # bytes of a record that is told whole: every receiver can use it
FIRST_SUMS = 3  # of our sessions after the start in which we compare everything


class Links(Protocol):
    """What the fleet needs of the core."""

    def tell(
        self, host: str, messages: Iterable[m.Message], addrs: list[Address] | None = None, *, filled: bool = False
    ) -> bool:
        """Say it in the session with the host, and some news unless `filled`; False if there is no session."""
        ...

    def connect(self, host: str, addrs: list[Address], now: float) -> None:
        """Ask for a session."""
        ...

    def talking(self) -> Collection[str]:
        """The hosts that we have sessions with."""
        ...

    def talks(self, host: str) -> bool:
        """Whether we have a session with the host."""
        ...

    def drop(self, host: str) -> None:
        """End the sessions with a host, without a word to the owner."""
        ...


class Fleet:
    """One host's place in the fleet."""

    def __init__(
        self, host: str, view: View, rule: SwimRule, rng: Random, links: Links, out: Callable[[Output], None]
    ) -> None:
        self.host, self.rule, self.view = host, rule, view
        self.table = Membership(host, rule, rng)
        self.roads = Roads(host, view.get, self._row)
        self.news = News()
        self._rng, self._links, self._out = rng, links, out
        self._interested: dict[str, frozenset[str]] = {}
        self._later: OrderedDict[str, list[m.Message]] = OrderedDict()
        self._gossip_at: float | None = None
        self._upkeep_at: float | None = None
        self._sums_left = FIRST_SUMS
        self._tries: dict[str, int] = {}  # of asking for a session

    # What the core asks

    @property
    def small(self) -> bool:
        """Whether everybody talks with everybody."""
        return self.table.here <= self.rule.direct

    def near(self, host: str) -> bool:
        """Whether we keep a session with the host."""
        return self.small or host in self._interested

    def status(self, host: str) -> Status | None:
        """What is believed of a host; None if it is no member."""
        found = self.table.members.get(host)
        return found.row.status if found else None

    def targets(self, changes: Iterable[PortChange]) -> list[str]:
        """Whom to push our new record to: first those who use a port that changed."""
        changed = {c.name for c in changes}
        first = [h for h, ports in self._interested.items() if not ports or not changed.isdisjoint(ports)]
        if not self.small:
            return first
        known = set(first)
        return [h for h in first if self._links.talks(h)] + [h for h in self._links.talking() if h not in known]

    def next_at(self) -> float | None:
        """When `tick` wants to be called."""
        times = [t for t in (self.table.next_at(), self._gossip_at, self._upkeep_at) if t is not None]
        return min(times, default=None)

    def fill(self, host: str, room: int) -> list[m.Message]:
        """News for the room that a datagram to `host` has left."""
        if not len(self.news) or room < 32:
            return []
        return self.news.take(room, host, limit(self.rule.multiplier, self.table.here))

    # What happens

    def start(self, now: float) -> None:
        """Begin to probe and to look after sessions."""
        self.table.start(now)
        self._upkeep_at = now + self._rng.uniform(0.0, self.rule.interval)

    def set_interested(self, hosts: Mapping[str, Collection[str]], now: float) -> None:
        """Who has routes or queue pairs over which of our ports; no port named: over any."""
        kept = list(hosts.items())[: self.rule.warm]
        self._interested = {host: frozenset(ports) for host, ports in kept if host != self.host}
        if self._upkeep_at is not None:
            self._upkeep_at = now

    def greeting(self, host: str) -> list[m.Message]:
        """What a new session begins with: who we are, and what is said of the other side."""
        self._tries.pop(host, None)
        rows = [row for row in (self.table.me, self._row(host)) if row is not None]
        made: list[m.Message] = [m.Rows(False, "", "", tuple(sorted(rows, key=lambda r: r.host)))] if rows else []
        made += self._later.pop(host, [])
        if not self.small and self._sums_left:
            self._sums_left -= 1
            made += [m.Summary(len(self.view), self.view.summary), self.roll()]
        return made

    def roll(self) -> m.Roll:
        """Our table in 12 bytes."""
        return m.Roll(self.table.here, self.table.sum)

    def learned(self, previous: HostRecord | None, record: HostRecord, source: str, now: float) -> None:
        """A record is new; in a large fleet we tell it on."""
        self.roads.learn(previous, record)
        if not self.small:
            self.news.put(("record", record.host), record_message(record, previous), source)
            self._hurry(now)

    def heard(self, host: str, now: float) -> None:
        """A genuine word of the host."""
        self.table.heard(host, now)
        self.act(now)

    def message(self, host: str, message: m.Message, answers: list[m.Message], now: float) -> None:
        """A message about the fleet."""
        match message:
            case m.Rows():
                answers += sync.table_offers(self.table, message) if message.complete else []
                for row in message.rows:
                    self.table.offer(row, now)
            case m.Roll(members, total):
                if (members, total) != (self.table.here, self.table.sum):
                    answers += sync.table_answer(self.table, members)
            case m.Ranges(kind):
                answers += sync.table_pieces(self.table, message) if kind else sync.view_pieces(self.view, message)
            case m.Probe(token, target):
                self.table.errand(host, target, token, now)
            case m.Probed(token, target, alive):
                self.table.report(host, target, token, alive, now)
        self.act(now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        self.table.tick(now)
        if self._upkeep_at is not None and now >= self._upkeep_at:
            self._upkeep_at = now + self.rule.interval * self._rng.uniform(0.8, 1.2)
            self._upkeep(now)
        if self._gossip_at is not None and now >= self._gossip_at:
            self._gossip_at = None
            self._gossip(now)
        self.act(now)

    def leave(self, now: float) -> None:
        """We go: tell whom we can."""
        row = self.table.leave(now)
        self.table.take()
        if row is None:
            return
        talking = list(self._links.talking())
        near = [h for h in talking if self.near(h)]
        some = self._rng.sample(talking, min(len(talking), self.rule.direct))
        for host in dict.fromkeys([*near, *some]):
            self._links.tell(host, [m.Rows(False, "", "", (row,))])

    def make_room(self, keep: str, peers: Collection[str]) -> None:
        """In a large fleet, end the session that was longest without use when there are too many. `peers`: all that
        we have, the longest unheard first."""
        if self.small or len(peers) < self.rule.sessions + len(self._interested):
            return
        spare = next((h for h in peers if h not in self._interested and h != keep), None)
        if spare is not None:
            self._links.drop(spare)

    # Inside

    def _row(self, host: str) -> Row | None:
        found = self.table.members.get(host)
        return found.row if found else None

    def act(self, now: float) -> None:
        """Carry out what the table wants."""
        for act in self.table.take():
            match act:
                case acts.Ask(host, wide):
                    self._ask(host, [m.Ping(self._rng.getrandbits(32))], now, wide=wide)
                case acts.AskVia(helper, target, token):
                    self._ask(helper, [m.Probe(token, target)], now, wide=False)
                case acts.Report(asker, target, token, alive):
                    self._links.tell(asker, [m.Probed(token, target, alive)])
                case acts.Spread(row):
                    self.news.put(("row", row.host), m.Rows(False, "", "", (row,)))
                    self._hurry(now)
                case acts.Warn(row):
                    self._links.tell(row.host, [m.Rows(False, "", "", (row,))])
                case acts.Turned(row, before):
                    self._turned(row, before, now)
                case acts.Reaped(host):
                    self._out(MemberTurned(host, None, "forgotten", ""))

    def _ask(self, host: str, messages: list[m.Message], now: float, *, wide: bool) -> None:
        if self.status(host) is Status.SUSPECT and (row := self._row(host)) is not None:
            messages = [m.Rows(False, "", "", (row,)), *messages]
        addrs = self.roads.to(host, wide=wide)
        if self._links.tell(host, messages, addrs or None) and not wide:
            return
        if len(self._later) >= MAX_LATER:
            self._later.popitem(last=False)
        waiting = self._later.setdefault(host, [])
        waiting += messages
        del waiting[:-LATER]
        self._links.connect(host, addrs, now)

    def _turned(self, row: Row, before: Status | None, now: float) -> None:
        was = None if before is None else before.name.lower()
        self._out(MemberTurned(row.host, was, row.status.name.lower(), row.by))
        # One side asks at once, the other one only if that didn't help: see _upkeep.
        if row.status is Status.ALIVE and self.small and self.host < row.host:
            self.connect(row.host, now)
        if not row.status.here:
            self._later.pop(row.host, None)
            self._tries.pop(row.host, None)

    def connect(self, host: str, now: float) -> None:
        """Ask for a session; over the usual road first, over all when that led nowhere."""
        if not self._links.talks(host):
            tries = self._tries[host] = self._tries.get(host, 0) + 1
            wide = tries > 2 or self.status(host) is not Status.ALIVE
            self._links.connect(host, self.roads.to(host, wide=wide), now)

    def _upkeep(self, now: float) -> None:
        """Ask for sessions that we should have and haven't."""
        wanted: list[str] = []
        if self.small:
            wanted = [n for n in self.table.names if n != self.host and self._settled(n, now)]
        else:
            wanted = [h for h in self._interested if (s := self.status(h)) is not None and s.here]
            talking = self._links.talking()
            lack = self.rule.neighbours - len(talking)
            if lack > 0:
                wanted += self.table.pick(lack, {self.host, *talking})
        missing = [h for h in dict.fromkeys(wanted) if not self._links.talks(h)]
        if len(missing) > CONNECTS:
            self._upkeep_at = now + 0.1 * self.rule.interval
            missing = self._rng.sample(missing, CONNECTS)
        for host in missing:
            self.connect(host, now)

    def _settled(self, host: str, now: float) -> bool:
        member = self.table.members[host]
        return member.row.status.here and (self.host < host or now - member.since >= self.rule.interval)

    def _hurry(self, now: float) -> None:
        if self._gossip_at is None:
            self._gossip_at = now + self._rng.uniform(0.0, JITTER)

    def _gossip(self, now: float) -> None:
        """A round: some members by chance hear what is new."""
        if not len(self.news):
            return
        self._gossip_at = now + self.rule.gossip
        there = [h for h in self._links.talking() if self.status(h) is Status.ALIVE]
        for host in self._rng.sample(there, min(len(there), self.rule.fanout)):
            datagrams = self.rule.burst if self.news.fresh else 1
            found = self.fill(host, datagrams * m.MAX_PAYLOAD)
            if found:
                self._links.tell(host, found, filled=True)


def record_message(record: HostRecord, previous: HostRecord | None) -> m.Message:
    """A record as one piece of news: all of it if that is little, what changed if that fits, or only its stamp."""
    data = encode_checked(record)
    mark = stamp_of(record, data)
    whole = m.parts(record.host, mark, data, delta=False)
    if len(data) <= LITTLE:
        return whole[0]
    if previous is not None:
        base = stamp_of(previous, encode_checked(previous)).digest
        changed = m.parts(record.host, mark, encode_delta(previous, base, record), delta=True)
        if len(changed) == 1:
            return changed[0]
    return whole[0] if len(whole) == 1 else m.Digests(False, "", "", ((record.host, mark),))
