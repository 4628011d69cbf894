"""Sessions: their replay window, and what binds them."""

from random import Random

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given
from hypothesis import strategies as st

from linkpass_topology.gossip import seal
from linkpass_topology.gossip.keyring import Key
from linkpass_topology.gossip.outputs import Drop
from linkpass_topology.gossip.seal import End, Refused, Session

KEY = Key("one", bytes(range(32)))
ASKED = End(b"i" * 16, b"session1", "a")
ANSWERED = End(b"r" * 16, b"session2", "b")


def ends(
    asked: End = ASKED, answered: End = ANSWERED, key: Key = KEY, other: tuple[End, End] | None = None
) -> tuple[Session, Session]:
    there = other or (asked, answered)
    return Session(key, asked, answered, asking=True), Session(key, *there, asking=False)


def test_session_carries_both_ways_under_different_keys() -> None:
    a, b = ends()
    one, two = a.seal(b"hello"), b.seal(b"hello")
    assert b.open(one)[0].rstrip(b"\0") == a.open(two)[0].rstrip(b"\0") == b"hello"
    assert one[seal.DATA_HEAD :] != two[seal.DATA_HEAD :]


@pytest.mark.parametrize(
    "other",
    [
        (End(ASKED.nonce, ASKED.session, "x"), ANSWERED),
        (ASKED, End(ANSWERED.nonce, ANSWERED.session, "x")),
        (End(b"j" * 16, ASKED.session, "a"), ANSWERED),
        (ASKED, End(b"s" * 16, ANSWERED.session, "b")),
        (End(ASKED.nonce, b"session3", "a"), ANSWERED),
    ],
)
def test_session_is_bound_to_hosts_nonces_and_ids_of_both(other: tuple[End, End]) -> None:
    a, b = ends(other=other)
    with pytest.raises(Refused) as e:
        b.open(a.seal(b"x"))
    assert e.value.reason is Drop.BAD_TAG


def test_session_key_is_hkdf_as_documented() -> None:
    """An oracle of RFC 5869 in three lines of hmac, against what the session seals."""
    import hashlib
    import hmac

    def mac(key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, hashlib.sha256).digest()

    info = b"linkpass 1 session session1session2a\0b"
    root = mac(b"i" * 16 + b"r" * 16, KEY.secret)
    first = mac(root, info + b"\x01")
    a, _ = ends()
    data = a.seal(b"payload")
    opened = ChaCha20Poly1305(first).decrypt(bytes(12), data[18:], data[:18])
    assert opened == b"payload".ljust(126, b"\0")


@given(st.permutations(range(40)))
def test_window_accepts_any_order_once(order: list[int]) -> None:
    a, b = ends()
    sent = [a.seal(bytes((i,))) for i in range(40)]
    for i in order:
        assert b.open(sent[i])[0][0] == i
    for i in order:
        with pytest.raises(Refused):
            b.open(sent[i])


def test_window_drops_what_is_too_old_to_know() -> None:
    a, b = ends()
    sent = [a.seal(b"x") for _ in range(seal.WINDOW + 2)]
    b.open(sent[-1])
    b.open(sent[2])  # 1023 behind: the last that the window holds
    with pytest.raises(Refused) as e:
        b.open(sent[1])
    assert e.value.reason is Drop.REPLAY


def test_forged_counter_does_not_move_the_window() -> None:
    a, b = ends()
    one = a.seal(b"x")
    forged = one[:10] + (1 << 63).to_bytes(8, "big") + one[18:]
    with pytest.raises(Refused):
        b.open(forged)
    assert b.open(one)[1]


def test_open_tells_whether_it_is_the_newest() -> None:
    a, b = ends()
    first, second = a.seal(b"1"), a.seal(b"2")
    assert b.open(second)[1] and not b.open(first)[1]


def test_hello_round_trip_and_its_secrets() -> None:
    rng = Random(1)
    hello = seal.make_hello(KEY, rng.randbytes(16), b"12345678", "host-a")
    read = seal.open_hello(KEY, hello)
    assert (read.session, read.host) == (b"12345678", "host-a")
    assert b"host-a" not in hello and b"12345678" not in hello
    ack = seal.make_ack(read, b"n" * 16, b"87654321", "host-b")
    assert seal.open_ack(KEY, read.nonce, ack) == (b"n" * 16, b"87654321", "host-b")
    with pytest.raises(Refused):
        seal.open_ack(KEY, b"z" * 16, ack)
