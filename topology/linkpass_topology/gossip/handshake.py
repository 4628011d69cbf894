"""Who we are talking to: questions under way, answers not yet confirmed, and established sessions. Sans I/O.

    asking                                answering
    hello(addr)        -- HELLO -->       on_hello: keeps an unconfirmed session
    on_ack: session    <-- ACK ---
                       -- DATA --->       on_data: the first genuine one confirms the session

A replayed HELLO gets an answer that nobody can use, and touches no established session. Nothing here is stored for
input that isn't genuine; what replays can make us store is bounded.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from linkpass_topology.gossip import seal
from linkpass_topology.gossip.keyring import Key, Keyring
from linkpass_topology.gossip.outputs import Address, Drop
from linkpass_topology.gossip.seal import End, Refused, Session

ASK_LIFE = 10.0  # s that one question is repeated before a fresh one is made; far above any round trip
HALF_LIFE = 10.0  # s that an answer may wait for its confirmation; retransmissions come every second
MAX_HALF = 1024  # unconfirmed answers in all, 1 KiB each
MAX_HALF_HOST = 8  # unconfirmed answers to one host
MAX_LONE = 64  # single questions to strangers that speak in a session we don't know
REPEAT = 0.1  # s between two questions to one address that others provoke


@dataclass(slots=True)
class Question:
    """A HELLO that was sent."""

    addr: Address
    key: Key
    end: End
    data: bytes
    born: float
    sent: float
    tries: int
    lone: bool


@dataclass(slots=True)
class Half:
    """A session that we answered and that the other side hasn't used yet."""

    session: Session
    asked: bytes  # its HELLO's nonce
    ack: bytes
    born: float
    acks: int = 0  # times it was sent


@dataclass(frozen=True, slots=True)
class Opened:
    """What a datagram of a session was: `confirmed` if it is the first one of a session that we answered."""

    session: Session
    payload: bytes
    newest: bool  # no later one came before it
    confirmed: bool
    rtt: float | None  # s from our answer to the confirmation, if the answer went out once


class Handshakes:
    """All sessions of a host, by the id under which we are addressed."""

    def __init__(self, host: str, keyring: Keyring, entropy: Callable[[int], bytes]) -> None:
        self.host = host
        self.keyring = keyring
        self._entropy = entropy
        self._asked: dict[Address, Question] = {}
        self._by_id: dict[bytes, Question] = {}
        self._halves: OrderedDict[bytes, Half] = OrderedDict()  # oldest first
        self._half_of: dict[bytes, Half] = {}  # by the HELLO's nonce
        self._sessions: dict[bytes, Session] = {}
        self._used: set[bytes] = set()  # HELLO nonces of established sessions that we answered

    def hello(self, addr: Address, now: float) -> bytes:
        """The question for an address that we want to reach; the same one again while it is young."""
        question = self._asked.get(addr)
        if question is None or now - question.born > ASK_LIFE or question.key != self.keyring.sending:
            question = self._ask(addr, now, lone=False)
        question.lone = False
        question.sent = now
        question.tries += 1
        return question.data

    def lone_hello(self, addr: Address, now: float) -> bytes | None:
        """A question to someone who uses a session that we don't know; None if one went there just now."""
        question = self._asked.get(addr)
        if question is not None and now - question.sent < REPEAT:
            return None
        if question is not None and not question.lone:
            return self.hello(addr, now)
        lone = [q for q in self._asked.values() if q.lone]
        if len(lone) >= MAX_LONE:
            self.drop_question(lone[0].addr)
        question = self._ask(addr, now, lone=True)
        question.tries = 1
        return question.data

    def drop_question(self, addr: Address) -> None:
        """No more interest in an answer from there."""
        question = self._asked.pop(addr, None)
        if question is not None:
            del self._by_id[question.end.session]

    def on_hello(self, data: bytes, key: Key, now: float) -> bytes:
        """The answer to a HELLO that names `key`. Refused if it isn't genuine, or was answered and used already."""
        hello = seal.open_hello(key, data)
        if hello.host == self.host:
            raise Refused(Drop.OWN_NAME)
        if hello.nonce in self._used:
            raise Refused(Drop.REPLAY)
        half = self._half_of.get(hello.nonce)
        if half is None or half.session.remote.host != hello.host:
            self._make_room(hello.host, now)
            end = End(self._entropy(seal.NONCE), self._new_id(), self.host)
            session = Session(key, End(hello.nonce, hello.session, hello.host), end, asking=False)
            half = Half(session, hello.nonce, seal.make_ack(hello, end.nonce, end.session, self.host), now)
            self._halves[end.session] = half
            self._half_of[hello.nonce] = half
        half.acks += 1
        return half.ack

    def on_ack(self, data: bytes, now: float) -> tuple[Session, Address, float | None]:
        """The session, the address that we had asked, and the round trip in seconds if the question went out once."""
        if len(data) != seal.ACK_SIZE:
            raise Refused(Drop.GARBAGE)
        question = self._by_id.get(seal.session_of(data))
        if question is None:
            raise Refused(Drop.STALE_SESSION)
        if seal.key_of(data, self.keyring) != question.key:
            raise Refused(Drop.UNKNOWN_KEY)
        nonce, session_id, host = seal.open_ack(question.key, question.end.nonce, data)
        if host == self.host:
            raise Refused(Drop.OWN_NAME)
        session = Session(question.key, question.end, End(nonce, session_id, host), asking=True)
        self.drop_question(question.addr)
        self._sessions[session.local.session] = session
        return session, question.addr, now - question.sent if question.tries == 1 else None

    def on_data(self, data: bytes, now: float) -> Opened:
        """A datagram of a session. Refused if it isn't genuine, or was seen before."""
        session_id = seal.session_of(data)
        session = self._sessions.get(session_id)
        if session is not None:
            payload, newest = session.open(data)
            return Opened(session, payload, newest, confirmed=False, rtt=None)
        half = self._halves.get(session_id)
        if half is None:
            raise Refused(Drop.STALE_SESSION)
        payload, newest = half.session.open(data)
        self._drop_half(session_id)
        self._sessions[session_id] = half.session
        self._used.add(half.asked)
        rtt = now - half.born if half.acks == 1 else None
        return Opened(half.session, payload, newest, confirmed=True, rtt=rtt)

    def close(self, session: Session) -> None:
        """Forget a session; datagrams of it are stale from now on."""
        self._sessions.pop(session.local.session, None)
        self._used.discard(session.remote.nonce)

    def set_keyring(self, keyring: Keyring) -> None:
        """Accept other keys; drops questions and unconfirmed answers with keys that are gone, not sessions."""
        self.keyring = keyring
        for session_id in [i for i, h in self._halves.items() if h.session.key not in keyring.keys]:
            self._drop_half(session_id)
        for question in [q for q in self._asked.values() if q.key not in keyring.keys]:
            self.drop_question(question.addr)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Questions, unconfirmed answers, sessions; for watching the bounds."""
        return len(self._asked), len(self._halves), len(self._sessions)

    def _ask(self, addr: Address, now: float, *, lone: bool) -> Question:
        self.drop_question(addr)
        key = self.keyring.sending
        end = End(self._entropy(seal.NONCE), self._new_id(), self.host)
        data = seal.make_hello(key, end.nonce, end.session, self.host)
        question = Question(addr, key, end, data, born=now, sent=now, tries=0, lone=lone)
        self._asked[addr] = question
        self._by_id[end.session] = question
        return question

    def _new_id(self) -> bytes:
        while True:
            made = self._entropy(seal.SESSION)
            if made not in self._sessions and made not in self._halves and made not in self._by_id:
                return made

    def _make_room(self, host: str, now: float) -> None:
        while self._halves:
            oldest = next(iter(self._halves))
            if now - self._halves[oldest].born < HALF_LIFE and len(self._halves) < MAX_HALF:
                break
            self._drop_half(oldest)
        same = [i for i, h in self._halves.items() if h.session.remote.host == host]
        for session_id in same[: max(0, len(same) - MAX_HALF_HOST + 1)]:
            self._drop_half(session_id)

    def _drop_half(self, session_id: bytes) -> None:
        half = self._halves.pop(session_id)
        if self._half_of.get(half.asked) is half:
            del self._half_of[half.asked]
