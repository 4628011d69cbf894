"""Authentication and encryption of datagrams: a handshake with fresh nonces, then one key a session and direction.

    HELLO  'L' 0x11  key id (16)  nonce_i (16)  sealed[ session_i (8), length, host (64) ]  zeros, 160 bytes in all
    ACK    'L' 0x12  key id (16)  session_i (8)  nonce_r (16)  sealed[ session_r (8), length, host (64) ]
    DATA   'L' 0x13  session (8)  counter (8)  sealed[ messages ]

ChaCha20-Poly1305 throughout; the bytes before the sealed part are authenticated with it. Every key comes from a fleet
key by HKDF-SHA256: HELLO's from nonce_i and ACK's from both nonces, each used for one message; a session's two from
both nonces, both session ids and both host names, with the counter as nonce. A session's id is its receiver's choice.
Both sides put 128 random bits in, so nothing recorded earlier is valid in a session of a restarted side.
"""

import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from linkpass.wire import HOST, MAX_HOST
from linkpass_topology.gossip.keyring import Key, Keyring
from linkpass_topology.gossip.messages import MAX_DATAGRAM, MAX_PAYLOAD, OVERHEAD
from linkpass_topology.gossip.outputs import Drop

HELLO, ACK, DATA = b"L\x11", b"L\x12", b"L\x13"  # high half of the second byte: version 1 of the protocol
NONCE = 16
SESSION = 8
TAG = 16
_WHO = SESSION + 1 + MAX_HOST  # sealed part of HELLO and ACK, before its tag
HELLO_HEAD = 2 + 16 + NONCE
HELLO_USED = HELLO_HEAD + _WHO + TAG
HELLO_SIZE = 160  # an ACK has 131 bytes: the answer is never larger than the question
ACK_HEAD = 2 + 16 + SESSION + NONCE
ACK_SIZE = ACK_HEAD + _WHO + TAG
DATA_HEAD = 2 + SESSION + 8
MIN_PAYLOAD = HELLO_SIZE - OVERHEAD  # data is padded: a HELLO may answer it, and may not be larger
WINDOW = 1024  # datagrams that may overtake each other and still be accepted
_COUNTER = struct.Struct("!Q")
_ZERO = bytes(12)


class Refused(Exception):
    """A datagram that isn't believed, with the reason under which it is counted."""

    def __init__(self, reason: Drop) -> None:
        super().__init__(reason.value)
        self.reason = reason


def _derive(secret: bytes, salt: bytes, info: bytes, size: int = 32) -> bytes:
    return HKDF(algorithm=SHA256(), length=size, salt=salt, info=b"linkpass 1 " + info).derive(secret)


def _once(secret: bytes, salt: bytes, info: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(_derive(secret, salt, info))


def _who(session: bytes, host: str) -> bytes:
    return session + bytes((len(host),)) + host.encode("ascii").ljust(MAX_HOST, b"\0")


def _read_who(sealed: bytes) -> tuple[bytes, str]:
    length = sealed[SESSION]
    name, pad = sealed[SESSION + 1 : SESSION + 1 + length], sealed[SESSION + 1 + length :]
    try:
        host = name.decode("ascii")
    except UnicodeDecodeError as e:
        raise Refused(Drop.MALFORMED) from e
    if length > MAX_HOST or any(pad) or not HOST.fullmatch(host):
        raise Refused(Drop.MALFORMED)
    return sealed[:SESSION], host


def _open(box: ChaCha20Poly1305, nonce: bytes, data: bytes, head: int, end: int) -> bytes:
    try:
        return box.decrypt(nonce, data[head:end], data[:head])
    except InvalidTag as e:
        raise Refused(Drop.BAD_TAG) from e


def key_of(data: bytes, keyring: Keyring) -> Key:
    """The accepted key that a HELLO or ACK names; Refused otherwise. Costs no cryptography."""
    name = data[2:18].rstrip(b"\0")
    found = keyring.find(name.decode("ascii", "replace"))
    if found is None:
        raise Refused(Drop.UNKNOWN_KEY)
    return found


def _key_id(key: Key) -> bytes:
    return key.id.encode("ascii").ljust(16, b"\0")


@dataclass(frozen=True, slots=True)
class Hello:
    """The question of a handshake, as its receiver reads it."""

    key: Key
    nonce: bytes
    session: bytes
    host: str


def make_hello(key: Key, nonce: bytes, session: bytes, host: str) -> bytes:
    """HELLO_SIZE bytes. `nonce` must be fresh; `session` is the id under which we want to be answered."""
    head = HELLO + _key_id(key) + nonce
    sealed = _once(key.secret, nonce, b"hello").encrypt(_ZERO, _who(session, host), head)
    return (head + sealed).ljust(HELLO_SIZE, b"\0")


def open_hello(key: Key, data: bytes) -> Hello:
    """Check and read a HELLO."""
    if len(data) != HELLO_SIZE or any(data[HELLO_USED:]):
        raise Refused(Drop.GARBAGE)
    nonce = data[18:HELLO_HEAD]
    sealed = _open(_once(key.secret, nonce, b"hello"), _ZERO, data, HELLO_HEAD, HELLO_USED)
    session, host = _read_who(sealed)
    return Hello(key, nonce, session, host)


def make_ack(hello: Hello, nonce: bytes, session: bytes, host: str) -> bytes:
    """ACK_SIZE bytes that answer a HELLO. `nonce` must be fresh."""
    head = ACK + _key_id(hello.key) + hello.session + nonce
    box = _once(hello.key.secret, hello.nonce + nonce, b"ack")
    return head + box.encrypt(_ZERO, _who(session, host), head)


def session_of(data: bytes) -> bytes:
    """The session id that an ACK or DATA datagram names."""
    return data[18:26] if data[:2] == ACK else data[2:10]


def open_ack(key: Key, our_nonce: bytes, data: bytes) -> tuple[bytes, bytes, str]:
    """Check an ACK to our HELLO: its nonce, its session id, its host."""
    if len(data) != ACK_SIZE:
        raise Refused(Drop.GARBAGE)
    nonce = data[26:ACK_HEAD]
    sealed = _open(_once(key.secret, our_nonce + nonce, b"ack"), _ZERO, data, ACK_HEAD, ACK_SIZE)
    session, host = _read_who(sealed)
    return nonce, session, host


@dataclass(frozen=True, slots=True)
class End:
    """What one side put into a handshake."""

    nonce: bytes
    session: bytes
    host: str


class Session:
    """One end of an established session: seals what goes to the peer, opens what comes from it."""

    __slots__ = ("_counter", "_highest", "_in", "_out", "_seen", "key", "local", "remote")

    def __init__(self, key: Key, asked: End, answered: End, *, asking: bool) -> None:
        ids = asked.session + answered.session
        names = b"\0".join((asked.host.encode("ascii"), answered.host.encode("ascii")))
        keys = _derive(key.secret, asked.nonce + answered.nonce, b"session " + ids + names, 64)
        first, second = ChaCha20Poly1305(keys[:32]), ChaCha20Poly1305(keys[32:])
        self._out, self._in = (first, second) if asking else (second, first)
        self.key = key
        self.local, self.remote = (asked, answered) if asking else (answered, asked)
        self._counter = 0
        self._highest = -1
        self._seen = 0  # bit n: counter highest - n was seen

    def seal(self, payload: bytes) -> bytes:
        """A DATA datagram. Counters never repeat: past 2**64 packing fails."""
        head = DATA + self.remote.session + _COUNTER.pack(self._counter)
        nonce = b"\0\0\0\0" + head[10:]
        self._counter += 1
        return head + self._out.encrypt(nonce, payload.ljust(MIN_PAYLOAD, b"\0"), head)

    def open(self, data: bytes) -> tuple[bytes, bool]:
        """The payload, and whether this is the newest datagram so far. Refused if replayed, too old or forged."""
        if not HELLO_SIZE <= len(data) <= MAX_DATAGRAM:
            raise Refused(Drop.GARBAGE)
        counter = int.from_bytes(data[10:DATA_HEAD], "big")
        behind = self._highest - counter
        if behind >= 0 and (behind >= WINDOW or self._seen >> behind & 1):
            raise Refused(Drop.REPLAY)
        payload = _open(self._in, b"\0\0\0\0" + data[10:DATA_HEAD], data, DATA_HEAD, len(data))
        if behind >= 0:
            self._seen |= 1 << behind
            return payload, False
        ahead = min(-behind, WINDOW)
        self._seen = (self._seen << ahead | 1) & ((1 << WINDOW) - 1)
        self._highest = counter
        return payload, True


assert MAX_PAYLOAD + DATA_HEAD + TAG == MAX_DATAGRAM
