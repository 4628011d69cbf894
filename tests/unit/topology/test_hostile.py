"""The protocol core among hostile input: garbage, forgeries, replays and floods change nothing but counters."""

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkpass_topology.gossip import seal
from linkpass_topology.gossip.handshake import MAX_HALF, MAX_HALF_HOST, MAX_LONE
from linkpass_topology.gossip.keyring import Key, Keyring
from linkpass_topology.gossip.outputs import Address, Drop, Dropped, Learned, Output, Outrun, PeerUp, Send
from tests.fakes.mesh import KEYRING, Mesh, record, wide_record

STRANGER: Address = ("203.0.113.9", 4000)


def busy_pair() -> Mesh:
    """Two hosts that have exchanged records of all sizes."""
    mesh = Mesh()
    mesh.add("a", ["b"])
    mesh.add("b", [])
    mesh.publish(wide_record("a"))
    mesh.publish(record("b"))
    mesh.run(12)
    assert mesh.agree()
    return mesh


def state(mesh: Mesh, host: str) -> tuple[object, ...]:
    """All that an attacker might want to change."""
    core = mesh.cores[host]
    return ({r.host: r for r in core.view}, core.peers(), core._links.sizes[2], core.view.conflicts)


def reasons(outputs: Iterable[Output]) -> list[Drop]:
    return [o.reason for o in outputs if isinstance(o, Dropped)]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=1500), st.sampled_from([b"", seal.HELLO, seal.ACK, seal.DATA]))
def test_garbage_changes_nothing_and_is_counted(data: bytes, head: bytes) -> None:
    mesh = PAIR
    before = state(mesh, "a")
    outputs = mesh.cores["a"].on_datagram(head + data, STRANGER, mesh.now)
    assert len(reasons(outputs)) == 1
    assert not any(isinstance(o, Learned | PeerUp | Outrun) for o in outputs)
    assert state(mesh, "a") == before


PAIR = busy_pair()
TO_B = [(data, source) for _, source, target, data in PAIR.wire if target == Mesh.address("b")]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(TO_B), st.data())
def test_flipped_bit_changes_nothing(recorded: tuple[bytes, Address], data: st.DataObject) -> None:
    raw, source = recorded
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    bad = bytearray(raw)
    bad[bit // 8] ^= 1 << bit % 8
    before = state(PAIR, "b")
    assert len(reasons(PAIR.cores["b"].on_datagram(bytes(bad), source, PAIR.now))) == 1
    assert state(PAIR, "b") == before


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(TO_B), st.data())
def test_truncated_or_extended_datagram_changes_nothing(recorded: tuple[bytes, Address], data: st.DataObject) -> None:
    raw, source = recorded
    bad = raw[: data.draw(st.integers(0, len(raw) - 1))] if data.draw(st.booleans()) else raw + b"\0"
    before = state(PAIR, "b")
    assert len(reasons(PAIR.cores["b"].on_datagram(bad, source, PAIR.now))) == 1
    assert state(PAIR, "b") == before


def test_flipped_bit_in_a_datagram_on_its_way_is_dropped_and_the_original_still_counts() -> None:
    mesh = busy_pair()
    outputs = mesh.cores["a"].publish(record("a", 2), mesh.now)
    (sent,) = [o for o in outputs if isinstance(o, Send)]
    before = state(mesh, "b")
    for at in range(len(sent.data)):
        bad = bytearray(sent.data)
        bad[at] ^= 0x80
        assert reasons(mesh.cores["b"].on_datagram(bytes(bad), mesh.address("a"), mesh.now)) != []
    assert state(mesh, "b") == before
    assert any(isinstance(o, Learned) for o in mesh.cores["b"].on_datagram(sent.data, mesh.address("a"), mesh.now))


def test_replay_of_everything_to_the_running_host_changes_nothing() -> None:
    mesh = busy_pair()
    before = state(mesh, "b")
    for data, source in [(d, s) for _, s, t, d in mesh.wire if t == mesh.address("b")]:
        outputs = mesh.cores["b"].on_datagram(data, source, mesh.now)
        assert reasons(outputs) in ([Drop.REPLAY], [Drop.RATE])
        assert len(outputs) == 1
    assert state(mesh, "b") == before


@pytest.mark.parametrize("order", ["as recorded", "backwards", "shuffled", "twice"])
def test_replay_of_everything_to_a_restarted_host_changes_nothing(order: str) -> None:
    mesh = busy_pair()
    recorded = [(d, s) for _, s, t, d in mesh.wire if t == mesh.address("b")]
    if order == "backwards":
        recorded.reverse()
    elif order == "shuffled":
        Random(1).shuffle(recorded)
    elif order == "twice":
        recorded *= 2
    del mesh.cores["a"]
    b = mesh.restart("b")
    before = state(mesh, "b")
    for data, source in recorded:
        outputs = b.on_datagram(data, source, mesh.now)
        assert not any(isinstance(o, Learned | PeerUp | Outrun) for o in outputs)
        mesh.now += 0.01
    assert state(mesh, "b") == before
    # nor do both sides' recordings together make a session
    for data, source in [(d, s) for _, s, _, d in mesh.wire]:
        assert not any(isinstance(o, Learned | PeerUp | Outrun) for o in b.on_datagram(data, source, mesh.now))
    assert state(mesh, "b") == before


def test_replay_of_old_questions_does_not_disturb_an_established_session() -> None:
    mesh = busy_pair()
    old = [(d, s) for _, s, t, d in mesh.wire if t == mesh.address("b")]
    mesh.restart("b")
    mesh.publish(record("b", 2))
    assert mesh.run(5, mesh.agree)
    before = state(mesh, "b")
    for data, source in old:
        mesh.deliver("b", data, source)
    assert state(mesh, "b") == before
    mesh.publish(record("a", 2))
    assert mesh.run(0.01, mesh.agree)


def test_other_key_of_the_same_name_is_a_bad_tag_and_of_another_name_is_unknown() -> None:
    for key, reason in ((Key("one", bytes(32)), Drop.BAD_TAG), (Key("other", bytes(range(32))), Drop.UNKNOWN_KEY)):
        mesh = Mesh()
        mesh.add("a", [])
        mesh.add("b", ["a"], Keyring((key,)))
        mesh.publish(record("a"))
        mesh.publish(record("b"))
        mesh.run(10)
        assert set(mesh.cores["a"].dropped) == {reason}
        assert mesh.cores["a"].peers() == [] and mesh.cores["a"].view.names() == ["a"]
        assert mesh.cores["a"]._links.sizes == (0, 0, 0)


def test_answer_is_never_larger_than_the_question() -> None:
    assert seal.ACK_SIZE <= seal.HELLO_SIZE
    hello = seal.make_hello(KEYRING.sending, bytes(16), bytes(8), "h" * 64)
    assert len(hello) == seal.HELLO_SIZE
    assert len(seal.make_ack(seal.open_hello(KEYRING.sending, hello), bytes(16), bytes(8), "h" * 64)) == seal.ACK_SIZE
    mesh = busy_pair()
    b = mesh.restart("b")
    for _, source, _, data in [w for w in mesh.wire if w[2] == mesh.address("b")]:
        mesh.now += 1.0
        for output in b.on_datagram(data, source, mesh.now):
            assert not isinstance(output, Send) or len(output.data) <= len(data)


def test_flood_of_genuine_questions_is_bounded_in_answers_and_memory() -> None:
    mesh = Mesh()
    a = mesh.add("a", [])
    rng = Random(3)
    answers = 0
    for i in range(5000):  # within one second, from as many addresses, each of another host
        hello = seal.make_hello(KEYRING.sending, rng.randbytes(16), rng.randbytes(8), f"h{i}")
        outputs = a.on_datagram(hello, (f"10.1.{i >> 8}.{i & 255}", 7471), i / 5000)
        answers += any(isinstance(o, Send) for o in outputs)
    assert answers <= 1000  # a burst of 500, then 500 a second
    assert a._links.sizes[1] <= MAX_HALF and a.peers() == []
    for i in range(100):
        hello = seal.make_hello(KEYRING.sending, rng.randbytes(16), rng.randbytes(8), "same")
        a.on_datagram(hello, STRANGER, 20.0 + i)
    assert a._links.sizes[1] <= MAX_HALF_HOST


def test_flood_of_questions_from_strangers_does_not_shut_out_a_seed() -> None:
    mesh = Mesh()
    a = mesh.add("a", ["b"])
    rng = Random(3)
    for _ in range(2000):
        hello = seal.make_hello(KEYRING.sending, rng.randbytes(16), rng.randbytes(8), "x")
        a.on_datagram(hello, STRANGER, 0.0)
    assert a.dropped[Drop.RATE] > 1000
    mesh.add("b", ["a"])
    mesh.publish(record("b"))
    assert mesh.run(0.01, lambda: a.view.get("b") is not None)


def test_flood_of_invented_sessions_is_bounded_in_questions_and_memory() -> None:
    mesh = Mesh()
    a = mesh.add("a", [])
    rng = Random(3)
    sent = 0
    for i in range(5000):  # in ten seconds
        data = seal.DATA + rng.randbytes(200)
        sent += any(isinstance(o, Send) for o in a.on_datagram(data, (f"10.1.{i >> 8}.{i & 255}", 7471), i / 500))
    assert sent <= 20 + 10 * 20
    assert a._links.sizes[0] <= MAX_LONE
    assert a.dropped == {Drop.STALE_SESSION: 5000}


def test_reflected_datagrams_are_not_believed() -> None:
    mesh = busy_pair()
    before = state(mesh, "a")
    for data in [d for _, s, _, d in mesh.wire if s == mesh.address("a")]:
        outputs = mesh.cores["a"].on_datagram(data, mesh.address("b"), mesh.now)
        assert len(reasons(outputs)) == 1
    assert state(mesh, "a") == before


def test_no_nonce_is_used_twice_with_one_key() -> None:
    mesh = busy_pair()
    for incarnation in range(2, 7):
        mesh.restart("b")
        mesh.publish(record("b", incarnation))
        mesh.run(8)
    headers: dict[bytes, bytes] = {}
    for _, _, _, data in mesh.wire:
        size = {seal.HELLO: seal.HELLO_HEAD, seal.ACK: seal.ACK_HEAD, seal.DATA: seal.DATA_HEAD}[data[:2]]
        assert headers.setdefault(data[:size], data) == data  # the same header only ever bears the same bytes
    assert len(headers) > 100


def test_old_address_of_a_peer_does_not_come_back_by_a_late_datagram() -> None:
    mesh = busy_pair()
    first, second = (
        next(o for o in mesh.cores["a"].publish(record("a", n), mesh.now) if isinstance(o, Send)) for n in (2, 3)
    )
    b = mesh.cores["b"]
    b.on_datagram(second.data, ("10.99.0.50", 7471), mesh.now)
    b.on_datagram(first.data, STRANGER, mesh.now)  # older, sent on by someone else
    assert b.peers()[0].addr == ("10.99.0.50", 7471)
