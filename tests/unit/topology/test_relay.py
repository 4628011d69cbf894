"""Letters between agents over a bad network: in order within a lane, each once, noticed restarts, bounds."""

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass.errors import WireError
from linkpass_topology.gossip import messages as m
from linkpass_topology.gossip import relay as relays
from linkpass_topology.gossip.outputs import Relayed, RelayLost, RelayReset
from linkpass_topology.gossip.relay import Relay
from tests.fakes.mesh import Mesh, Weather, record

BAD = Weather(loss=0.2, duplicate=0.2, least=0.0002, most=0.02)


def pair(weather: Weather | None = None, seed: int = 0) -> Mesh:
    mesh = Mesh(seed, weather)
    mesh.add("a", ["b"])
    mesh.add("b", ["a"])
    mesh.publish(record("a"))
    mesh.publish(record("b"))
    assert mesh.run(60, mesh.agree)
    return mesh


def post(mesh: Mesh, host: str, to: str, lane: m.Lane, letters: Iterable[bytes]) -> bool:
    taken, outputs = mesh.cores[host].post(to, lane, letters, mesh.now)
    mesh.take(host, outputs)
    return taken


def got(mesh: Mesh, host: str, lane: m.Lane | None = None) -> list[bytes]:
    return [o.payload for _, o in mesh.out[host] if isinstance(o, Relayed) and lane in (None, o.lane)]


def numbered(count: int, size: int = 100, tag: bytes = b"") -> list[bytes]:
    return [tag + n.to_bytes(4, "big") + bytes(size) for n in range(count)]


def test_letters_arrive_in_one_way_and_are_told_once() -> None:
    mesh = pair()
    mesh.run(2)
    at = mesh.now
    assert post(mesh, "a", "b", (1, 2), numbered(3))
    mesh.run(5)
    found = [(t, o) for t, o in mesh.out["b"] if isinstance(o, Relayed)]
    assert [o.payload for _, o in found] == numbered(3)
    assert {o.lane for _, o in found} == {(1, 2)} and {o.host for _, o in found} == {"a"}
    assert found[-1][0] == pytest.approx(at + 0.0005)
    assert mesh.cores["a"].relay.waiting("b") == 0


def test_64_spares_halves_travel_in_few_datagrams() -> None:
    mesh = pair()
    mesh.run(2)
    before = len(mesh.wire)
    post(mesh, "a", "b", (1, 2), numbered(64, size=101))
    sent = [data for _, source, _, data in mesh.wire[before:] if source == mesh.address("a")]
    assert len(sent) == 6  # 64 x (2 + 105) bytes, 12 of them in the 1,327 bytes of a datagram


@pytest.mark.parametrize("seed", range(20))
def test_letters_of_many_lanes_survive_a_bad_network_in_order_and_once(seed: int) -> None:
    mesh = pair(BAD, seed)
    rng = Random(seed)
    sent: dict[tuple[str, m.Lane], list[bytes]] = {}
    for n in range(60):
        host = rng.choice("ab")
        lane = (rng.randrange(4), rng.randrange(2))
        letters = numbered(rng.randrange(1, 40), rng.randrange(1, 300), bytes((n,)))
        assert post(mesh, host, "b" if host == "a" else "a", lane, letters)
        sent.setdefault((host, lane), []).extend(letters)
        mesh.run(rng.random() * 0.05)
    mesh.run(
        60, lambda: not any(core.relay.waiting(p) for p, core in (("b", mesh.cores["a"]), ("a", mesh.cores["b"])))
    )
    for (host, lane), letters in sent.items():
        assert got(mesh, "b" if host == "a" else "a", lane) == letters


def test_lane_does_not_wait_for_another_one() -> None:
    mesh = pair()
    mesh.run(2)
    core = mesh.cores["b"]
    taken: list[m.Message] = []
    lost = m.Letters(5, 0, (1, 1), 1, 0, 1, (b"second",))
    assert core.relay.take("a", lost, taken, mesh.now) == []
    other = m.Letters(5, 0, (2, 2), 2, 0, 0, (b"other",))
    assert core.relay.take("a", other, taken, mesh.now) == [Relayed("a", (2, 2), b"other")]
    first = m.Letters(5, 0, (1, 1), 1, 0, 0, (b"first",))
    found = core.relay.take("a", first, taken, mesh.now)
    assert [o.payload for o in found if isinstance(o, Relayed)] == [b"first", b"second"]


def test_cut_network_delivers_once_it_is_back() -> None:
    mesh = pair()
    mesh.cut = lambda source, target: True
    post(mesh, "a", "b", (1, 2), numbered(10))
    mesh.run(10)
    assert got(mesh, "b") == []
    mesh.cut = lambda source, target: False
    assert mesh.run(10, lambda: got(mesh, "b") == numbered(10))


def test_letters_are_given_up_after_a_minute_of_silence_and_the_owner_knows() -> None:
    mesh = pair()
    mesh.cut = lambda source, target: True
    at = mesh.now
    post(mesh, "a", "b", (1, 2), numbered(10))
    mesh.run(100)
    lost = [(t, o) for t, o in mesh.out["a"] if isinstance(o, RelayLost)]
    assert [o for _, o in lost] == [RelayLost("b", (1, 2), 10)]
    assert lost[0][0] == pytest.approx(at + 60.0, abs=1.0)
    assert mesh.cores["a"].relay.waiting("b") == 0


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("host", ["a", "b"])
def test_restart_of_either_side_is_told_to_the_other_and_letters_flow_again(host: str, seed: int) -> None:
    mesh = pair(BAD, seed)
    other = "b" if host == "a" else "a"
    post(mesh, host, other, (1, 2), numbered(50))
    post(mesh, other, host, (3, 4), numbered(50))
    mesh.run(0.03)
    mesh.restart(host)
    mesh.out[host].clear()
    mesh.run(30)
    post(mesh, host, other, (1, 2), [b"new"])
    mesh.run(30)
    assert any(isinstance(o, RelayReset) for _, o in mesh.out[other])
    after = [o for _, o in mesh.out[other]]
    reset = max(i for i, o in enumerate(after) if isinstance(o, RelayReset))
    assert [o.payload for o in after[reset:] if isinstance(o, Relayed)] == [b"new"]
    post(mesh, other, host, (3, 4), [b"again"])
    mesh.run(30)
    assert got(mesh, host)[-1] == b"again"


def test_lane_forgotten_when_idle_starts_anew_without_loss() -> None:
    mesh = pair()
    post(mesh, "a", "b", (1, 2), numbered(3))
    mesh.run(relays.IDLE_OUT + 5)
    post(mesh, "a", "b", (9, 9), [b"x"])  # something must make time pass for the sender
    mesh.run(5)
    post(mesh, "a", "b", (1, 2), [b"later"])
    mesh.run(5)
    assert got(mesh, "b", (1, 2)) == [*numbered(3), b"later"]


def test_receiver_that_forgot_a_lane_gets_the_unacknowledged_rest() -> None:
    mesh = pair()
    post(mesh, "a", "b", (1, 2), numbered(3))
    mesh.run(5)
    del mesh.cores["b"].relay._hosts["a"].into[1, 2]
    post(mesh, "a", "b", (1, 2), [b"later"])
    mesh.run(5)
    assert got(mesh, "b", (1, 2)) == [*numbered(3), b"later"]


def test_queue_is_bounded_in_letters_and_bytes() -> None:
    mesh = pair()
    mesh.cut = lambda source, target: True
    assert post(mesh, "a", "b", (1, 2), numbered(relays.MAX_QUEUE, 4))
    assert not post(mesh, "a", "b", (1, 2), [b"x"])
    assert mesh.cores["a"].relay.dropped["relay-full"] == 1
    lane = 0
    while post(mesh, "a", "b", (7, lane), numbered(1000, 1000)):
        lane += 1
    assert lane == 2  # 4,096 x 8 bytes and two thousand of 1,004 leave no room for a third in 2 MiB
    with pytest.raises(ValueError, match="1 to 1024 bytes"):
        post(mesh, "a", "b", (1, 2), [bytes(1025)])


def test_lanes_are_bounded() -> None:
    told: list[m.Message] = []
    relay = Relay(1, lambda host, messages: told.extend(messages) is None, lambda host: None)
    for n in range(relays.MAX_LANES + 10):
        relay.post("b", (n, 0), [b"x"], 0.0)
        relay.take("b", m.Letters(2, 0, (n, 0), n, 0, 0, (b"x",)), [], 0.0)
    known = relay._hosts["b"]
    assert (len(known.out), len(known.into)) == (relays.MAX_LANES, relays.MAX_LANES)


def test_letters_for_an_earlier_run_of_ours_are_answered_not_taken() -> None:
    relay = Relay(7, lambda host, messages: True, lambda host: None)
    answers: list[m.Message] = []
    assert relay.take("a", m.Letters(1, 6, (1, 1), 3, 0, 57, (b"late",)), answers, 0.0) == []
    assert answers == [m.Received(1, 7, (1, 1), 3, 0)]


def test_late_word_of_an_earlier_run_changes_nothing() -> None:
    relay = Relay(7, lambda host, messages: True, lambda host: None)
    relay.take("a", m.Letters(1, 0, (1, 1), 1, 0, 0, (b"old",)), [], 0.0)
    assert relay.take("a", m.Letters(2, 0, (1, 1), 1, 0, 0, (b"new",)), [], 0.0) == [
        RelayReset("a"),
        Relayed("a", (1, 1), b"new"),
    ]
    answers: list[m.Message] = []
    assert relay.take("a", m.Letters(1, 0, (1, 1), 1, 0, 1, (b"older",)), answers, 0.0) == []
    assert answers == []


WORDS = st.binary(min_size=1, max_size=60)


@given(st.lists(WORDS, min_size=1, max_size=200), st.integers(0, 2**32 - 1))
def test_letters_message_comes_back_whole(payloads: list[bytes], first: int) -> None:
    made = m.letters(1, 2, (3, 4), 5, 6, min(first, 2**32 - 1 - len(payloads)), payloads)
    back = [x for payload in m.pack(made) for x in m.unpack(payload)]
    assert back == made
    assert [p for x in back if isinstance(x, m.Letters) for p in x.payloads] == payloads


@given(st.binary(max_size=120))
def test_letters_of_noise_are_refused_or_bounded(body: bytes) -> None:
    payload = b"\x08" + len(body).to_bytes(2, "big") + body
    try:
        found = m.unpack(payload)
    except WireError:
        return
    assert all(0 < len(p) <= m.MAX_LETTER for x in found if isinstance(x, m.Letters) for p in x.payloads)
