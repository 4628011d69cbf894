"""The queue pair probe, joined: which ports wait, the letters to their peers, and the queue pairs that are open.

    a's port is HELD ── ask ──> b opens a queue pair on its port of that rail ── offer ──> a
    a's queue pair ── ping ──> b's ── pong ──> a's: the gate opens (`judge.pairs`)

A host has a queue pair open only on ports that wait, or that a waiting peer asked for lately. It is polled: a
device that dies wakes nobody, and the call that notices closes the pair, which is made anew while it is wanted.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from linkpass.clock import Clock
from linkpass.errors import WireError
from linkpass.model import PathId, PortState, Signal

from . import pair_talk as talk
from .judge.gates import NO_GID, usable
from .judge.pairs import AGAIN, Address, Wait, heard_lately
from .pair_talk import Datagram, Letter
from .reactor import Reactor
from .see.queue_pair import QueuePair
from .see.rdma_devices import RdmaPort

log = logging.getLogger(__name__)

POLL = 0.05  # s between two looks into the queue pairs that are open
LANE = (0, 0)  # of letters; jobs' lanes name a process
SERVED = 3 * AGAIN  # s that a peer is answered after it asked
MOST = 64  # waits of peers that are served at once; a leaf's hosts that return together ask a few peers each
RETRY = 1.0  # s until a queue pair that couldn't be made is tried again
CANDIDATES = (PortState.UP, PortState.SUSPECT, PortState.HELD)  # held: two ports that wait may prove each other


class Pair(Protocol):
    """What this needs of a queue pair; `see.queue_pair.QueuePair` is one."""

    address: Address

    def send(self, to: Address, datagram: bytes) -> None: ...
    def take(self) -> list[bytes]: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class Served:
    """A peer's wait that one of our ports answers."""

    host: str
    port: str
    to: Address
    until: float
    told: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a port's queue pair belongs."""

    rdma: RdmaPort
    index: int
    gid: str


class Pairing:
    """`heard` gives when a path's latest answer over UDP came."""

    def __init__(
        self,
        reactor: Reactor,
        behind: Callable[[], Mapping[str, RdmaPort]],
        heard: Callable[[PathId], float | None],
        post: Callable[[str, tuple[int, int], list[bytes]], bool],
        look_soon: Callable[[], None],
        clock: Clock,
        make: Callable[[RdmaPort, int, str], Pair] = QueuePair,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._reactor, self._behind, self._heard, self._post = reactor, behind, heard, post
        self._look_soon, self._clock, self._make = look_soon, clock, make
        self._sleep = sleep
        self.waits: dict[str, Wait] = {}
        self._tokens: dict[bytes, tuple[str, str]] = {}  # of our waits: the port and the peer
        self._served: dict[bytes, Served] = {}
        self._open: dict[str, tuple[Place, Pair]] = {}
        self._failed: dict[str, tuple[float, str]] = {}  # port -> when, why
        self._number = 0
        self._cant = ""  # a defect ended all probes
        self._running: asyncio.Task[None] | None = None
        self.dropped: Counter[str] = Counter()

    def says(self, port: str) -> tuple[str | None, str]:
        """What a held port's wait shuts (see `Wait.says`)."""
        wait = self.waits.get(port)
        if wait is None:
            return None, self._place(port)[1] or "not asked yet"
        return wait.says(self._clock.now(), {h: self._heard(PathId(h, wait.rail, port)) for h in wait.peers})

    def paths(self) -> frozenset[PathId]:
        """The paths that waits and answers need to know of at once."""
        asked = {PathId(host, wait.rail, port) for port, wait in self.waits.items() for host in wait.peers}
        rails = self._reactor.rails
        return frozenset(asked | {PathId(s.host, rails[s.port], s.port) for s in self._served.values()})

    def look(self) -> None:
        """With each sweep: who waits now, and whom it asks."""
        now = self._clock.now()
        held = {name for name, port in self._reactor.ports.items() if port.state is PortState.HELD}
        fresh = set()
        for port in set(self.waits) - held:
            del self.waits[port]
        for port in sorted(held):
            since, wait = self._reactor.ports[port].since, self.waits.get(port)
            if wait is None or wait.since != since:
                wait = self.waits[port] = Wait(self._reactor.rails[port], since)
                fresh.add(port)  # with new tokens: an answer from before this wait proves nothing
            wait.hindrance = self._failed[port][1] if port in self._failed else self._place(port)[1]
            wait.choose(self._candidates(wait.rail), now)
        self._tokens = {
            token: (port, host)
            for token, (port, host) in self._tokens.items()
            if port in self.waits and port not in fresh and host in self.waits[port].peers
        }
        self._start(now)

    def letter(self, host: str, payload: bytes) -> None:
        """A letter from another host's agent."""
        try:
            letter = talk.read(payload)
        except WireError:
            self.dropped["pair-letter-malformed"] += 1
            return
        if letter.kind == talk.ASK:
            self._asked(host, letter)
            return
        wait = self.waits.get(self._tokens.get(letter.token, ("", ""))[0])
        if wait is None or self._tokens[letter.token][1] != host or host not in wait.peers:
            self.dropped["pair-letter-stray"] += 1
            return
        asked = wait.peers[host]
        asked.offer, asked.why = (self._clock.now(), "") if letter.at else (None, letter.why)
        asked.at = letter.at
        self._start(self._clock.now())

    def poll(self) -> bool:
        """Open what is needed, take in what came, send what is due. False when nothing is needed any more."""
        now = self._clock.now()
        needed = self._needed(now)
        for port in [p for p in self._open if p not in needed or self._place(p)[0] != self._open[p][0]]:
            self._close(port)
        for port in sorted(needed):
            if port not in self._open:
                self._try(port, now)
            if port in self._open:
                self._guarded(port, now)
        return bool(needed)

    def close(self) -> None:
        """Let go of everything."""
        if self._running:
            self._running.cancel()
        for port in list(self._open):
            self._close(port)

    # -- inside -----------------------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        if self._running is None and self._needed(now):
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self.poll():
                await self._sleep(POLL)
        except Exception as e:  # a defect of this part must hold no port
            self._cant = f"no queue pair probes: {e!r}"
            log.exception("queue pair probes end")
        finally:
            self._running = None

    def _needed(self, now: float) -> set[str]:
        for token in [t for t, s in self._served.items() if now >= s.until]:
            del self._served[token]
        waiting = {p for p, w in self.waits.items() if w.peers}
        return {p for p in waiting | {s.port for s in self._served.values()} if self._place(p)[0] is not None}

    def _place(self, port: str) -> tuple[Place | None, str]:
        """Where the port's queue pair belongs now, or why it can't have one."""
        if self._cant:
            return None, self._cant
        rdma = self._behind().get(port)
        if rdma is None:
            return None, "no RDMA port: UDP probes decide over each path"
        facts = self._reactor.ports[port].facts
        if facts.get(Signal.LINK_LAYER) == "infiniband":
            return None, "InfiniBand: UDP probes decide over each path"
        gids = usable(facts.get(Signal.GIDS), facts.get(Signal.ADDRESSES))
        return (Place(rdma, *gids[0]), "") if gids else (None, NO_GID)

    def _candidates(self, rail: str) -> list[str]:
        """Peers that may answer on a rail, in an order that differs from host to host: all peers get their share."""
        me = self._reactor.record.host
        found = [
            host
            for host, record in self._reactor.peers.items()
            if host not in self._reactor.dead
            and (there := record.port_on(rail)) is not None
            and there.state in CANDIDATES
            and there.gids
        ]
        return sorted(found, key=lambda host: (host < me, host))

    def _asked(self, host: str, letter: Letter) -> None:
        port = next((p for p, rail in self._reactor.rails.items() if rail == letter.rail), None)
        now = self._clock.now()
        place, why = self._place(port) if port else (None, f"no port on {letter.rail}")
        if port in self._failed and now < self._failed[port][0] + RETRY:
            place, why = None, self._failed[port][1]
        if letter.at is None or (len(self._served) >= MOST and letter.token not in self._served):
            self.dropped["pair-letter-too-many"] += 1
            return
        if port is None or place is None:
            self._send_letter(host, Letter(talk.CANT, letter.token, letter.rail, why=why))
            return
        if letter.token not in self._served:
            self._look_soon()  # its path is probed at the fast period from then on
        self._served[letter.token] = Served(host, port, letter.at, now + SERVED)
        self._start(now)

    def _try(self, port: str, now: float) -> None:
        place, _ = self._place(port)
        if place is None or (port in self._failed and now < self._failed[port][0] + RETRY):
            return
        try:
            self._open[port] = place, self._make(place.rdma, place.index, place.gid)
            self._failed.pop(port, None)
        except Exception as e:  # pyverbs raises errors of its own
            self._fail(port, f"no queue pair on {place.rdma.device}: {e}", now)

    def _fail(self, port: str, why: str, now: float) -> None:
        if self._failed.get(port, (0.0, ""))[1] != why:
            log.warning("%s: %s", port, why)
        self._failed[port] = now, why
        for token in [t for t, s in self._served.items() if s.port == port]:
            served = self._served.pop(token)
            self._send_letter(served.host, Letter(talk.CANT, token, self._reactor.rails[port], why=why))

    def _guarded(self, port: str, now: float) -> None:
        place, pair = self._open[port]
        try:
            self._exchange(port, pair, now)
        except Exception as e:  # a device that failed or left, under a call of pyverbs
            why = f"queue pair on {place.rdma.device} failed: {e}"
            if isinstance(e, OSError) and port in self.waits:
                self.waits[port].broken = why  # the NIC took the datagram, and couldn't send or receive it
            self._close(port)
            self._fail(port, why, now)

    def _exchange(self, port: str, pair: Pair, now: float) -> None:
        for data in pair.take():
            datagram = talk.read_datagram(data)
            if datagram is None:
                self.dropped["pair-garbage"] += 1
            elif datagram.kind == talk.PING:
                self._pong(port, pair, datagram)
            else:
                self._answered(port, datagram, now)
        for token, served in self._served.items():
            if served.port == port and not served.told:
                served.told = True
                letter = Letter(talk.OFFER, token, self._reactor.rails[port], pair.address)
                self._send_letter(served.host, letter)
        wait = self.waits.get(port)
        for host in wait.peers if wait else ():
            assert wait is not None
            if wait.asks(host, now):
                wait.peers[host].letter = now
                self._send_letter(host, Letter(talk.ASK, self._token(port, host), wait.rail, pair.address))
            to = wait.peers[host].at
            if to is not None and wait.sends(host, now, self._heard(PathId(host, wait.rail, port))):
                wait.peers[host].sent = now
                self._number += 1
                pair.send(to, talk.pack_datagram(Datagram(talk.PING, self._token(port, host), self._number)))

    def _pong(self, port: str, pair: Pair, ping: Datagram) -> None:
        served = self._served.get(ping.token)
        if served is None or served.port != port:
            self.dropped["pair-stray"] += 1
        elif not heard_lately(self._heard(PathId(served.host, self._reactor.rails[port], port)), self._clock.now()):
            self.dropped["pair-unheard"] += 1  # the kernel would look for the neighbour, and hold us up
        else:
            try:
                pair.send(served.to, talk.pack_datagram(Datagram(talk.PONG, ping.token, ping.number)))
            except OSError:  # to this peer; a pair that is broken says so when it is read
                self.dropped["pair-unsent"] += 1

    def _answered(self, port: str, pong: Datagram, now: float) -> None:
        for_port, host = self._tokens.get(pong.token, ("", ""))
        wait = self.waits.get(port)
        if wait is None or for_port != port or host not in wait.peers:
            self.dropped["pair-stray"] += 1
            return
        first = not wait.answered(now)
        wait.answer(host, now)
        if first:
            self._look_soon()

    def _token(self, port: str, host: str) -> bytes:
        known = next((t for t, whose in self._tokens.items() if whose == (port, host)), None)
        if known is None:
            known = secrets.token_bytes(talk.TOKEN)
            self._tokens[known] = port, host
        return known

    def _send_letter(self, host: str, letter: Letter) -> None:
        if not self._post(host, LANE, [talk.pack(letter)]):
            self.dropped["pair-letters-full"] += 1

    def _close(self, port: str) -> None:
        _, pair = self._open.pop(port)
        try:
            pair.close()
        except Exception as e:  # the device is gone, and all that was made on it
            log.info("%s: closing a queue pair: %s", port, e)
        for served in self._served.values():
            served.told = served.told and served.port != port  # the next pair has another address
        for asked in self.waits[port].peers.values() if port in self.waits else ():
            asked.letter = None
