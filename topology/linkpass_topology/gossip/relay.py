"""Letters between agents: small payloads, delivered in order within a lane, inside the sessions of `core`. Sans I/O.

The owner names lanes (two numbers, such as the process here and the process there): within one, letters arrive in
the order in which they were posted; one lane never waits for another. What waits together travels together.

Letters are numbered from 0 within a lane's `born`. The receiver acknowledges the next number that it expects; the
sender repeats what isn't acknowledged, from the oldest on, at doubling times. Each agent's start has a random `run`:
a letter meant for another run than ours is answered, not taken, so that a restart on either side is noticed at the
first exchange, and the owner is told (`RelayReset`) to begin anew. A letter may come twice only if the receiver had
to forget an idle lane; owners take repeated letters calmly.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from linkpass_topology.gossip.messages import MAX_LETTER, Lane, Letters, Message, Received, letters
from linkpass_topology.gossip.outputs import Output, Relayed, RelayLost, RelayReset

WINDOW = 128  # letters of a lane that may be under way: about 17 KiB of the usual ones
MAX_QUEUE = 4096  # letters of a lane that wait
MAX_BYTES = 2 << 20  # of all letters that wait for one host
MAX_LANES = 4096  # of one host, each way; the longest idle one makes room
GIVE_UP = 60.0  # s without any progress, after which a lane's letters are given up
IDLE_OUT = 30.0  # s after which an empty lane's numbering is forgotten here; must be less than
IDLE_IN = 180.0  # s, there (plus GIVE_UP)
DEAD_RUNS = 4  # earlier runs of a peer, whose late datagrams are known as such
FIRST, LEAST, MOST = 0.05, 0.005, 1.0  # s until a letter is repeated: without a round trip known, at least, at most


@dataclass(slots=True)
class _Out:
    born: int
    base: int = 0  # number of queue[0]
    queue: deque[bytes] = field(default_factory=deque)
    flying: int = 0  # of the queue's front, what was sent at least once
    tries: int = 0
    due: float | None = None  # when to repeat
    since: float = 0.0  # last progress, or the moment when it got something to do
    used: float = 0.0


@dataclass(slots=True)
class _In:
    born: int
    next: int = 0
    early: dict[int, bytes] = field(default_factory=dict)
    used: float = 0.0


@dataclass(slots=True)
class _Host:
    run: int | None = None
    dead: deque[int] = field(default_factory=lambda: deque(maxlen=DEAD_RUNS))
    out: OrderedDict[Lane, _Out] = field(default_factory=OrderedDict)
    into: OrderedDict[Lane, _In] = field(default_factory=OrderedDict)
    bytes: int = 0


class Relay:
    """All lanes of one agent. `tell` hands messages to a peer's session, if there is one; `rtt` is its round trip."""

    def __init__(
        self, run: int, tell: Callable[[str, list[Message]], bool], rtt: Callable[[str], float | None]
    ) -> None:
        self.run = run
        self.dropped: Counter[str] = Counter()  # letters that never went out or came in, by reason
        self._tell, self._rtt = tell, rtt
        self._hosts: dict[str, _Host] = {}
        self._births = 0

    def post(self, host: str, lane: Lane, payloads: Iterable[bytes], now: float) -> bool:
        """Queue letters and send what the window allows. False, and nothing is queued, if there is no room."""
        payloads = list(payloads)
        if any(not 0 < len(p) <= MAX_LETTER for p in payloads):
            raise ValueError(f"a letter holds 1 to {MAX_LETTER} bytes")
        known = self._hosts.setdefault(host, _Host())
        size = sum(map(len, payloads))
        out = known.out.get(lane)
        waiting = len(out.queue) if out else 0
        if waiting + len(payloads) > MAX_QUEUE or known.bytes + size > MAX_BYTES:
            self.dropped["relay-full"] += len(payloads)
            return False
        if out is None:
            self._make_room(known)
            self._births += 1
            out = known.out[lane] = _Out(self._births)
        if not out.queue:
            out.since = now
        out.queue.extend(payloads)
        out.used = now
        known.out.move_to_end(lane)
        known.bytes += size
        self._pour(host, known, lane, out, now)
        return True

    def take(self, host: str, message: Letters, answers: list[Message], now: float) -> list[Output]:
        """Letters came; what is in order goes to the owner."""
        known = self._hosts.setdefault(host, _Host())
        found = self._met(known, host, message.run)
        if found is None:
            return []
        into = known.into.get(message.lane)
        if message.to not in (0, self.run):
            answers.append(Received(message.run, self.run, message.lane, message.born, 0))
            return found
        if into is not None and message.born < into.born:
            return found  # late: its sender numbers that lane anew since
        if into is None or message.born > into.born:
            if into is None and len(known.into) >= MAX_LANES:
                known.into.popitem(last=False)
            into = known.into[message.lane] = _In(message.born, message.base)
        into.used = now
        known.into.move_to_end(message.lane)
        for number, payload in enumerate(message.payloads, message.first):
            if into.next <= number < into.next + WINDOW:
                into.early.setdefault(number, payload)
        while (payload := into.early.pop(into.next, b"")) != b"":
            into.next += 1
            found.append(Relayed(host, message.lane, payload))
        answers.append(Received(message.run, self.run, message.lane, message.born, into.next))
        return found

    def acknowledged(self, host: str, message: Received, now: float) -> list[Output]:
        """The peer tells what it expects next."""
        known = self._hosts.get(host)
        if known is None or message.run != self.run:
            return []
        found = self._met(known, host, message.mine)
        out = known.out.get(message.lane)
        if found is None or out is None or out.born != message.born or found:
            return found or []
        done = message.next - out.base
        if 0 < done <= out.flying:
            for _ in range(done):
                known.bytes -= len(out.queue.popleft())
            out.base, out.flying, out.tries, out.since = message.next, out.flying - done, 0, now
            out.due = now + self._wait(host, out) if out.flying else None
            out.used = now
            self._pour(host, known, message.lane, out, now)
        return found

    def kick(self, host: str, now: float) -> None:
        """The peer speaks again: repeat at once what waits for it."""
        known = self._hosts.get(host)
        for lane, out in list(known.out.items()) if known else ():
            out.flying = out.tries = 0
            self._pour(host, known, lane, out, now) if known else None

    def tick(self, now: float) -> list[Output]:
        """Repeat what is due, give up what is hopeless, forget what is idle."""
        found: list[Output] = []
        for host, known in self._hosts.items():
            for lane, out in list(known.out.items()):
                if out.queue and now >= out.since + GIVE_UP:
                    found.append(RelayLost(host, lane, len(out.queue)))
                    self.dropped["relay-lost"] += len(out.queue)
                    self._forget(known, lane)
                elif out.queue and out.due is not None and now >= out.due:
                    out.tries += 1
                    out.flying = 0
                    self._pour(host, known, lane, out, now)
                elif not out.queue and now >= out.used + IDLE_OUT:
                    self._forget(known, lane)
            for lane, into in list(known.into.items()):
                if now < into.used + IDLE_IN + GIVE_UP:
                    break  # the rest was used later
                del known.into[lane]
        return found

    def next_at(self) -> float | None:
        """When `tick` matters next; idle lanes are forgotten at some other tick."""
        times = (
            min(o.since + GIVE_UP, o.due if o.due is not None else o.since + GIVE_UP)
            for known in self._hosts.values()
            for o in known.out.values()
            if o.queue
        )
        return min(times, default=None)

    def forget(self, host: str) -> None:
        """The peer is gone for good."""
        self._hosts.pop(host, None)

    def waiting(self, host: str) -> int:
        """Letters that wait for the host's acknowledgement."""
        known = self._hosts.get(host)
        return sum(len(o.queue) for o in known.out.values()) if known else 0

    # -- inside -----------------------------------------------------------------------------------------------

    def _met(self, known: _Host, host: str, run: int) -> list[Output] | None:
        """Note the peer's run. None: a late word of an earlier one; RelayReset: it was started anew."""
        if run == known.run:
            return []
        if run in known.dead:
            return None
        first = known.run is None
        if known.run is not None:
            known.dead.append(known.run)
        known.run = run
        if first:
            return []
        known.out.clear()
        known.into.clear()
        known.bytes = 0
        return [RelayReset(host)]

    def _pour(self, host: str, known: _Host, lane: Lane, out: _Out, now: float) -> None:
        """Send what the window allows beyond what flies already."""
        fresh = min(len(out.queue), WINDOW)
        if fresh <= out.flying:
            return
        payloads = [out.queue[i] for i in range(out.flying, fresh)]
        made = letters(self.run, known.run or 0, lane, out.born, out.base, out.base + out.flying, payloads)
        self._tell(host, list(made))
        out.flying = fresh
        out.due = now + self._wait(host, out)

    def _wait(self, host: str, out: _Out) -> float:
        rtt = self._rtt(host)
        first = FIRST if rtt is None else max(2.0 * rtt, LEAST)
        return min(first * 2.0 ** min(out.tries, 16), MOST)

    def _make_room(self, known: _Host) -> None:
        if len(known.out) >= MAX_LANES:
            lane = next((k for k, o in known.out.items() if not o.queue), next(iter(known.out)))
            self.dropped["relay-full"] += len(known.out[lane].queue)
            self._forget(known, lane)

    def _forget(self, known: _Host, lane: Lane) -> None:
        known.bytes -= sum(map(len, known.out.pop(lane).queue))
