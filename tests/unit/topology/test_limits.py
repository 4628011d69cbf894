"""The small brakes."""

from linkpass.wire import Stamp
from linkpass_topology.gossip.assembly import MAX_BYTES, MAX_PARTIAL, Assembly
from linkpass_topology.gossip.limits import Backoff, Timers, TokenBucket
from linkpass_topology.gossip.messages import CHUNK, Part


def test_bucket_allows_burst_then_rate() -> None:
    bucket = TokenBucket(rate=2.0, burst=3.0)
    assert [bucket.allow(10.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.allow(10.4), bucket.allow(10.5), bucket.allow(10.5)] == [False, True, False]
    assert [bucket.allow(100.0) for _ in range(4)] == [True, True, True, False]


def test_backoff_doubles_and_forgets_after_calm() -> None:
    backoff = Backoff(1.0, 4.0)
    allowed = [t for t in range(20) if backoff.allow(float(t))]
    assert allowed == [0, 1, 3, 7, 11, 15, 19]
    assert backoff.allow(40.0) and backoff.allow(41.0)


def test_timers_are_due_in_order_once_and_move() -> None:
    timers: Timers[str] = Timers()
    for key, at in (("late", 3.0), ("early", 1.0), ("moved", 1.5), ("gone", 0.5)):
        timers.set(key, at)
    timers.set("moved", 2.0)
    timers.cancel("gone")
    assert timers.next() == 1.0
    assert timers.due(2.0) == ["early", "moved"] and timers.due(2.0) == []
    assert timers.next() == 3.0 and timers.armed("late") and not timers.armed("early")


def test_timers_moved_often_stay_small() -> None:
    timers: Timers[str] = Timers()
    for i in range(10_000):
        timers.set("key", float(i))
        timers.set("same", 1.0)
    assert len(timers._heap) < 100 and timers.next() == 1.0
    assert timers.due(1.0) == ["same"] and timers.next() == 9999.0


def part(host: str, version: int, index: int, count: int, chunk: bytes = b"x") -> Part:
    return Part(host, Stamp(1, version, bytes(8)), False, index, count, chunk)


def test_assembly_joins_in_any_order_and_ignores_doubles() -> None:
    assembly = Assembly()
    assert assembly.feed("p", part("h", 1, 2, 3, b"c")) is None
    assert assembly.feed("p", part("h", 1, 0, 3, b"a")) is None
    assert assembly.feed("p", part("h", 1, 0, 3, b"a")) is None
    assert assembly.feed("p", part("h", 1, 1, 3, b"b")) == b"abc"
    assert assembly.bytes == 0


def test_assembly_newer_record_displaces_older_never_back() -> None:
    assembly = Assembly()
    assembly.feed("p", part("h", 1, 0, 2, b"a"))
    assembly.feed("p", part("h", 2, 0, 2, b"A"))
    assert assembly.feed("p", part("h", 1, 1, 2, b"b")) is None
    assert assembly.feed("p", part("h", 2, 1, 2, b"B")) == b"AB"


def test_assembly_is_bounded_for_a_peer_and_in_all() -> None:
    assembly = Assembly()
    for i in range(100):
        assembly.feed("p", part(f"h{i}", 1, 0, 2, bytes(CHUNK)))
    assert assembly.bytes == MAX_PARTIAL * CHUNK
    for peer in range(1000):
        for host in range(20):
            assembly.feed(f"p{peer}", part(f"h{host}", 1, 0, 2, bytes(CHUNK)))
    assert assembly.bytes <= MAX_BYTES
    for peer in range(1000):
        assembly.forget(f"p{peer}")
    assembly.forget("p")
    assert assembly.bytes == 0 and not assembly._of_peer
