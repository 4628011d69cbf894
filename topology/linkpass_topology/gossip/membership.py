"""Who belongs to the fleet and lives: SWIM with Lifeguard's refinements. Sans I/O; acts come out as values.

After Das, Gupta, Motivala: "SWIM: Scalable Weakly-consistent Infection-style Process Group Membership", 2002. Every
`interval` one member is asked for a sign of life, over the usual road; then over all roads and through helpers. Who
is silent is suspected, told so as soon as he is heard, and believed dead when he hasn't denied in time.

A member's *row* is ordered by (life, count, status): `life` grows with every start of its agent (it is the record's
incarnation), `count` with every denial. Merging keeps the greatest, so everybody ends with the same rows. Only a host
itself makes rows with a higher life or count. Dead and left rows of hosts that we never knew are not taken.

Any genuine word from a member, by any road, is a sign of life: who hears a member never declares it dead. Membership
is for finding hosts, choosing whom to talk to and telling people. No link's state, route or record depends on it.
"""

from bisect import insort
from dataclasses import dataclass, replace
from random import Random

from linkpass.wire import MAX_NUMBER
from linkpass_topology.gossip.limits import Backoff
from linkpass_topology.gossip.outputs import Address
from linkpass_topology.gossip.row import (
    MAX_COUNT,
    Act,
    Ask,
    AskVia,
    Reaped,
    Report,
    Ring,
    Row,
    Spread,
    Status,
    Turned,
    Warn,
)
from linkpass_topology.gossip.suspicion import Health, Suspicion, SwimRule, suspect

__all__ = ["Member", "Membership", "Ring", "Row", "Status"]

WARN = 0.5  # s between two warnings of a member that it is suspected or thought dead
MAX_ERRANDS = 64  # probes that we do for others at a time
NACK = 0.8  # of the timeout: when a helper tells that it had no answer either
SUM_MASK = (1 << 64) - 1


@dataclass(slots=True)
class Member:
    """A row and what only we know of it. `heard`: the last genuine word, by any road."""

    row: Row
    since: float
    heard: float | None = None
    suspicion: Suspicion | None = None
    warned: float | None = None


@dataclass(slots=True)
class _Probe:
    host: str
    token: int
    start: float
    stage: int
    due: float
    timeout: float
    interval: float
    helpers: set[str]
    refusals: set[str]  # helpers that had no answer either: they are well, and so are we


@dataclass(frozen=True, slots=True)
class _Errand:
    asker: str
    target: str
    token: int
    until: float


class Membership:
    """One host's table. Tell it what comes in and the time; carry out what `take` gives."""

    def __init__(self, host: str, rule: SwimRule, rng: Random) -> None:
        self.host, self.rule = host, rule
        self.members: dict[str, Member] = {}
        self.names: list[str] = []  # sorted
        self.here = 0  # members alive or suspected, ourselves included
        self.sum = 0
        self.health = Health(rule.worst_health)
        self._rng = rng
        self._acts: list[Act] = []
        self._others: list[str] = []  # members to choose from, in no order
        self._place: dict[str, int] = {}
        self._order: list[str] = []  # still to probe in this turn, the next one last
        self._probe: _Probe | None = None
        self._next_probe: float | None = None
        self._suspects: set[str] = set()
        self._gone: set[str] = set()  # dead or left
        self._errands: list[_Errand] = []
        self._rejoin: float | None = None
        self._heard_any: float | None = None
        self._leaving = False
        self._twins = Backoff(1.0, 60.0)

    # Ourselves

    @property
    def me(self) -> Row | None:
        """Our own row; None before `announce`."""
        found = self.members.get(self.host)
        return found.row if found else None

    def announce(self, life: int, addr: Address | None, ring: Ring, now: float) -> None:
        """We live: call at the start, and when address or keys changed."""
        me = self.me
        if me is None or life > me.life:
            self._put(Row(self.host, life, 0, Status.ALIVE, addr, ring), now)
        elif (me.addr, me.ring) != (addr, ring):
            self._put(replace(me, count=me.count + 1, status=Status.ALIVE, addr=addr, ring=ring), now)

    def leave(self, now: float) -> Row | None:
        """We go on purpose: the row that says so."""
        self._leaving = True
        if self.me is not None:
            self._put(replace(self.me, status=Status.LEFT), now)
        return self.me

    # What comes in

    def take(self) -> list[Act]:
        """What is to be done since the last call."""
        acts, self._acts = self._acts, []
        return acts

    def offer(self, row: Row, now: float) -> bool:
        """A row came in, from anywhere. Whether it is news."""
        if row.host == self.host:
            self._about_us(row, now)
            return False
        member = self.members.get(row.host)
        if member is None:
            if not row.status.here or len(self.members) >= self.rule.most:
                return False
            self._put(row, now)
            return True
        held = member.row
        if row.age == held.age and row.status is Status.SUSPECT and member.suspicion is not None:
            if not member.suspicion.confirm(row.by):
                return False
            self._acts.append(Spread(row))
            return True
        if row.age < held.age or (row.age == held.age and _rest(row) <= _rest(held)):
            return False
        self._put(row, now)
        if not row.status.here or row.status is Status.SUSPECT:
            self._warn(member, now)
        return True

    def heard(self, host: str, now: float) -> None:
        """A genuine word came from the host itself."""
        self._heard_any = now
        for errand in [e for e in self._errands if e.target == host]:
            self._errands.remove(errand)
            self._acts.append(Report(errand.asker, host, errand.token, True))
        member = self.members.get(host)
        if member is None:
            return
        member.heard = now
        if member.row.status is not Status.ALIVE:
            self._warn(member, now)
        if self._probe is not None and self._probe.host == host:
            self._answered()

    def report(self, helper: str, target: str, token: int, alive: bool, now: float) -> None:
        """A helper tells what came of our request."""
        probe = self._probe
        if probe is None or (probe.host, probe.token) != (target, token) or helper not in probe.helpers:
            return
        if alive:
            self._answered()
        else:
            probe.refusals.add(helper)

    def errand(self, asker: str, target: str, token: int, now: float) -> None:
        """Somebody asks us to ask `target`."""
        if target == self.host:
            self._acts.append(Report(asker, target, token, True))
        elif len(self._errands) < MAX_ERRANDS:
            self._errands.append(_Errand(asker, target, token, now + NACK * self.rule.timeout))
            self._acts.append(Ask(target, wide=True))

    # Time

    def start(self, now: float) -> None:
        """Begin to probe."""
        self._next_probe = now + self._rng.uniform(0.0, self.rule.interval)
        self._rejoin = now + self._rng.uniform(0.5, 1.5) * self.rule.rejoin

    def next_at(self) -> float | None:
        """When `tick` wants to be called."""
        if self._next_probe is None:
            return None
        times = [self._probe.due if self._probe else self._next_probe]
        times += [s.ends for h in self._suspects if (s := self.members[h].suspicion) is not None]
        times += [e.until for e in self._errands]
        if self._rejoin is not None:
            times.append(self._rejoin)
        return min(times)

    def tick(self, now: float) -> None:
        """Do what is due. Called much too late, it takes nobody's silence for a fault of theirs."""
        due = self.next_at()
        if due is None or self._leaving:
            return
        if now - due > self.rule.late:
            self._stood_still(now - due, now)
        for errand in [e for e in self._errands if e.until <= now]:
            self._errands.remove(errand)
            self._acts.append(Report(errand.asker, errand.target, errand.token, False))
        for host in sorted(self._suspects):
            self._judge(self.members[host], now)
        if self._probe is not None and self._probe.due <= now:
            self._go_on(self._probe, now)
        elif self._probe is None and self._next_probe is not None and self._next_probe <= now:
            self._begin(now)
        if self._rejoin is not None and self._rejoin <= now:
            self._rejoin = now + self._rng.uniform(0.8, 1.2) * self.rule.rejoin
            self._look_for_the_dead(now)

    def pick(self, count: int, without: set[str]) -> list[str]:
        """Up to `count` other members by chance."""
        found: list[str] = []
        for _ in range(4 * count + 8):
            if not self._others or len(found) == count:
                break
            host = self._rng.choice(self._others)
            if host not in without and host not in found:
                found.append(host)
        return found

    def isolated(self, now: float) -> bool:
        """Whether we hear nobody at all, of at least two: then it is us."""
        deaf = self._heard_any is None or now - self._heard_any > 2.0 * self.rule.interval * self.health.scale
        return self.here > 2 and deaf

    # Inside

    def _about_us(self, row: Row, now: float) -> None:
        me = self.me
        if me is None or self._leaving:
            return
        if row.age > me.age or (row.age == me.age and _rest(row) != _rest(me)):
            if row.status is Status.ALIVE and not self._twins.allow(now):
                return  # two hosts of one name would never stop
            if row.status is Status.SUSPECT:
                self.health.worse()  # perhaps we were too slow to answer
            life, count = (row.life, row.count + 1) if row.count < MAX_COUNT else (row.life + 1, 0)
            if life <= MAX_NUMBER:  # a lie with the largest numbers can't be outrun, as with records
                self._put(replace(me, life=life, count=count, status=Status.ALIVE, by=""), now)

    def _put(self, row: Row, now: float) -> None:
        member = self.members.get(row.host)
        before = member.row if member else None
        if member is None:
            member = self.members[row.host] = Member(row, now)
            insort(self.names, row.host)
        self.sum = (self.sum - (before.digest if before else 0) + row.digest) & SUM_MASK
        was = before.status if before else None
        self.here += row.status.here - (was is not None and was.here)
        member.row = row
        if was is not row.status:
            member.since = now
        if row.status is Status.SUSPECT:
            member.suspicion = suspect(now, row.by, self.here, self.rule)
            self._suspects.add(row.host)
        else:
            member.suspicion = None
            self._suspects.discard(row.host)
        if row.host != self.host:
            self._enlist(row)
        self._acts.append(Spread(row))
        if row.host != self.host and (was is not row.status or (before is not None and before.life != row.life)):
            self._acts.append(Turned(row, was))

    def _enlist(self, row: Row) -> None:
        """Keep the lists of those to choose from and to probe."""
        place = self._place.get(row.host)
        if row.status.here:
            self._gone.discard(row.host)
            if place is None:
                self._place[row.host] = len(self._others)
                self._others.append(row.host)
                self._order.insert(self._rng.randint(0, len(self._order)), row.host)
            return
        self._gone.add(row.host)
        if place is not None:
            last = self._others.pop()
            if last != row.host:
                self._others[place] = last
                self._place[last] = place
            del self._place[row.host]

    def _warn(self, member: Member, now: float) -> None:
        if member.warned is None or now - member.warned >= WARN:
            member.warned = now
            self._acts.append(Warn(member.row))

    def _stood_still(self, late: float, now: float) -> None:
        self.health.worse()
        if self._probe is not None:
            self._order.append(self._probe.host)
            self._probe = None
        self._next_probe = now
        self._errands.clear()
        for host in self._suspects:
            if (suspicion := self.members[host].suspicion) is not None:
                suspicion.extra += late

    def _judge(self, member: Member, now: float) -> None:
        suspicion = member.suspicion
        if suspicion is None or now < suspicion.ends:
            return
        if self.isolated(now) or (member.heard is not None and member.heard >= suspicion.start):
            suspicion.extra += now - suspicion.ends + suspicion.least
            self._warn(member, now)
            self._acts.append(Ask(member.row.host, wide=True))
            return
        self._put(replace(member.row, status=Status.DEAD, by=""), now)

    def _begin(self, now: float) -> None:
        scale = self.health.scale
        interval = self.rule.interval * scale
        self._next_probe = now + interval
        host = self._next_in_turn()
        if host is None:
            return
        timeout = self.rule.timeout * scale
        token = self._rng.getrandbits(32)
        self._probe = _Probe(host, token, now, 0, now + timeout / 3, timeout, interval, set(), set())
        self._acts.append(Ask(host, wide=False))

    def _next_in_turn(self) -> str | None:
        for refilled in (False, True):
            while self._order:
                host = self._order.pop()
                if host in self._place:
                    return host
            if not refilled:
                self._order = list(self._others)
                self._rng.shuffle(self._order)
        return None

    def _go_on(self, probe: _Probe, now: float) -> None:
        """Ask again, twice; then by all roads and helpers, twice; then judge."""
        probe.stage += 1
        if probe.stage <= 2:
            self._acts.append(Ask(probe.host, wide=False))
            probe.due = probe.start + probe.timeout * (probe.stage + 1) / 3
        elif probe.stage <= 4:
            self._acts.append(Ask(probe.host, wide=True))
            if probe.stage == 3:
                probe.helpers.update(self.pick(self.rule.helpers, {probe.host}))
            wanting = probe.helpers - probe.refusals
            self._acts += [AskVia(h, probe.host, probe.token) for h in sorted(wanting)]
            left = probe.interval - probe.timeout
            probe.due = probe.start + probe.timeout + left * (probe.stage - 2) / 2
        else:
            self._failed(probe, now)

    def _answered(self) -> None:
        self._probe = None
        self.health.better()

    def _failed(self, probe: _Probe, now: float) -> None:
        self._probe = None
        missing = len(probe.helpers - probe.refusals)
        if probe.helpers:
            self.health.worse(missing)
        else:
            self.health.worse()
        member = self.members.get(probe.host)
        if member is None or self.isolated(now):
            return
        if member.row.status is Status.ALIVE:
            self._put(replace(member.row, status=Status.SUSPECT, by=self.host), now)
        elif member.suspicion is not None and member.suspicion.confirm(self.host):
            self._acts.append(Spread(replace(member.row, by=self.host)))

    def _look_for_the_dead(self, now: float) -> None:
        """A partition that has healed is found by somebody asking one of those that he thinks dead."""
        for host in [h for h in self._gone if now - self.members[h].since > self.rule.reap]:
            member = self.members.pop(host)
            self._gone.discard(host)
            self.names.remove(host)
            self._acts.append(Reaped(member.row.host))
        dead = sorted(h for h in self._gone if self.members[h].row.status is Status.DEAD)
        if dead:
            self._acts.append(Ask(self._rng.choice(dead), wide=True))


def _rest(row: Row) -> tuple[Address, Ring]:
    """What decides between rows of one age; only a host that forgot its count makes such."""
    return (row.addr or ("", 0), row.ring)
