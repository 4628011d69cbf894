"""Two agents try out a returned port by queue pairs: fake devices, real letters and datagrams."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from random import Random

import pytest

from linkpass.model import HostRecord, Observation, PathId, Signal, Value
from linkpass_agent.events import EventLog
from linkpass_agent.judge.holddown import HoldDownRule
from linkpass_agent.judge.pairs import Address
from linkpass_agent.judge.probe import ProbeRule
from linkpass_agent.judge.probing import Probing
from linkpass_agent.judge.schedule import ScheduleRule
from linkpass_agent.pairing import LANE, SERVED, Pairing
from linkpass_agent.reactor import Identity, Reactor
from linkpass_agent.see.rdma_devices import RdmaPort
from tests.fakes.clock import FakeClock

HOLD = HoldDownRule(1.0, 300.0, 10.0)


class Cloth:
    """All queue pairs, by address, and what waits in each. `deaf` GIDs get nothing, `broken` devices fail, `sick`
    ones can't send."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.waiting: dict[Address, list[bytes]] = {}
        self.deaf: set[str] = set()
        self.broken: set[str] = set()
        self.sick: set[str] = set()
        self.made = 0
        self.sent: list[str] = []


class FakePair:
    def __init__(self, cloth: Cloth, port: RdmaPort, gid: str) -> None:
        self._cloth, self._device = cloth, port.device
        self._check()
        cloth.made += 1
        self.address = Address(gid, cloth.made, 100 + cloth.made)
        cloth.waiting[self.address] = []

    def _check(self) -> None:
        if self._device in self._cloth.broken:
            raise OSError("Input/output error")

    def send(self, to: Address, datagram: bytes) -> None:
        self._check()
        if self._device in self._cloth.sick:
            raise OSError("Failed to create AH")
        self._cloth.sent.append(to.gid)
        if to in self._cloth.waiting and to.gid not in self._cloth.deaf:
            self._cloth.waiting[to].append(datagram)

    def take(self) -> list[bytes]:
        self._check()
        found, self._cloth.waiting[self.address] = self._cloth.waiting[self.address], []
        return found

    def close(self) -> None:
        del self._cloth.waiting[self.address]


class End:
    """One host's reactor and pairing; `peers` get its records and letters."""

    def __init__(self, name: str, number: int, cloth: Cloth) -> None:
        self.name, self.cloth, self.clock = name, cloth, cloth.clock
        self.peers: dict[str, End] = {}
        self.port, self.ip = f"{name}0", f"10.10.0.{number}"
        self.device: dict[str, RdmaPort] = {self.port: RdmaPort(f"{name}-rxe0", 1)}
        self.udp = True
        self.looks = 0
        self.mute = False
        self.reactor = Reactor(
            Identity(name, 1, (), {self.port: "rail0"}), HOLD,
            Probing(ProbeRule(HOLD), ScheduleRule(0.05, 1.0, 2000), Random(1)),
            self.publish, lambda targets: None, None, EventLog(self.clock), self.clock, {},
        )  # fmt: skip
        self.pairing = Pairing(
            self.reactor, self.behind, self.heard, self.post, self.look_soon, self.clock,
            lambda port, index, gid: FakePair(cloth, port, gid), lambda s: asyncio.sleep(0),
        )  # fmt: skip

    def behind(self) -> Mapping[str, RdmaPort]:
        return self.device

    def heard(self, path: PathId) -> float | None:
        return self.clock.now() if self.udp else None

    def look_soon(self) -> None:
        self.looks += 1

    def publish(self, record: HostRecord) -> None:
        for peer in self.peers.values():
            peer.reactor.learned(record)

    def post(self, host: str, lane: tuple[int, int], letters: list[bytes]) -> bool:
        assert lane == LANE
        for letter in letters if not self.mute else ():
            self.peers[host].pairing.letter(self.name, letter)
        return True

    def see(self, **facts: Value | None) -> None:
        now = self.clock.now()
        self.reactor.observe([Observation(now, "test", self.port, Signal[s], v) for s, v in facts.items()])

    def comes(self, gid_index: int = 1) -> None:
        self.see(
            PRESENT=True, ADMIN=True, CARRIER=True, RDMA="active", ADDRESSES=(self.ip,),
            GIDS=(f"0 RoCEv2 fe80::{self.ip[-1]}", f"{gid_index} RoCEv2 ::ffff:{self.ip}"),
        )  # fmt: skip

    def bounces(self) -> None:
        self.see(CARRIER=False)
        self.see(CARRIER=True)


async def passes(cloth: Cloth, *ends: End, seconds: float = 0.0) -> None:
    """Time, and rounds of the loop in it."""
    for _ in range(max(1, int(10 * seconds))):
        cloth.clock.advance(0.1)
        for end in ends:
            end.pairing.look()
        for _ in range(6):
            await asyncio.sleep(0)


@pytest.fixture
def cloth() -> Cloth:
    return Cloth()


@pytest.fixture
async def ends(cloth: Cloth) -> tuple[End, End]:
    a, b = End("a", 1, cloth), End("b", 2, cloth)
    a.peers, b.peers = defaultdict(lambda: b), defaultdict(lambda: a)
    a.peers["b"], b.peers["a"] = b, a
    a.comes()
    b.comes()
    return a, b


async def test_answered_port_passes_and_the_next_look_comes_at_once(cloth: Cloth, ends: tuple[End, End]) -> None:
    a, b = ends
    a.bounces()
    await passes(cloth, a, b)
    assert a.pairing.says("a0") == ("", "b answered by rail0")
    assert a.looks == 1


async def test_working_ports_have_no_queue_pairs(cloth: Cloth, ends: tuple[End, End]) -> None:
    await passes(cloth, *ends, seconds=5)
    assert (cloth.made, cloth.sent) == (0, [])


@pytest.mark.parametrize("deaf", ["::ffff:10.10.0.1", "::ffff:10.10.0.2"], ids=["to it", "from it"])
async def test_port_that_carries_one_way_only_is_held(cloth: Cloth, ends: tuple[End, End], deaf: str) -> None:
    a, b = ends
    cloth.deaf.add(deaf)
    a.bounces()
    await passes(cloth, a, b, seconds=3.5)
    assert a.pairing.says("a0")[0] == "no answer from b by rail0 for 3 s"
    cloth.deaf.clear()
    await passes(cloth, a, b, seconds=1)
    assert a.pairing.says("a0")[0] == ""


async def test_nothing_is_sent_to_a_peer_whose_udp_is_silent(cloth: Cloth, ends: tuple[End, End]) -> None:
    a, b = ends
    a.udp = False
    a.bounces()
    await passes(cloth, a, b, seconds=3.5)
    assert a.pairing.says("a0")[0] == "no answer from b by rail0 for 3 s, nor to UDP probes"
    assert cloth.sent == []


async def test_answer_from_before_the_fall_proves_nothing(cloth: Cloth, ends: tuple[End, End]) -> None:
    a, b = ends
    a.bounces()
    await passes(cloth, a, b)
    cloth.deaf.add("::ffff:10.10.0.1")
    cloth.clock.advance(0.1)
    a.bounces()
    await passes(cloth, a, b, seconds=1.5)
    assert a.pairing.says("a0")[0] == "no answer from b by rail0 for 1 s"


async def test_all_queue_pairs_close_when_nobody_waits(cloth: Cloth, ends: tuple[End, End]) -> None:
    a, b = ends
    a.bounces()
    await passes(cloth, a, b, seconds=1)
    assert len(cloth.waiting) == 2
    cloth.clock.advance(0.1)
    a.reactor.tick(retry=False)
    assert a.reactor.ports["a0"].state == "up"
    await passes(cloth, a, b)
    assert [at.gid for at in cloth.waiting] == ["::ffff:10.10.0.2"]
    await passes(cloth, a, b, seconds=SERVED)
    assert cloth.waiting == {}


async def test_gid_that_moves_takes_the_queue_pair_with_it(cloth: Cloth, ends: tuple[End, End]) -> None:
    a, b = ends
    cloth.deaf.add("::ffff:10.10.0.1")
    a.bounces()
    await passes(cloth, a, b, seconds=1)
    before = {at.number for at in cloth.waiting}
    a.comes(gid_index=5)
    b.comes(gid_index=7)
    await passes(cloth, a, b, seconds=1)
    assert len(cloth.waiting) == 2 and before.isdisjoint(at.number for at in cloth.waiting)
    cloth.deaf.clear()
    await passes(cloth, a, b, seconds=5)
    assert a.pairing.says("a0")[0] == ""


async def test_device_that_fails_under_the_probe_is_told_and_tried_again(
    cloth: Cloth, ends: tuple[End, End], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = ends
    cloth.deaf.add("::ffff:10.10.0.1")
    a.bounces()
    await passes(cloth, a, b, seconds=1)
    cloth.broken.add("a-rxe0")
    await passes(cloth, a, b, seconds=3)
    assert a.pairing.says("a0") == ("queue pair on a-rxe0 failed: Input/output error", "")
    assert len(caplog.records) <= 2
    cloth.broken.clear()
    cloth.deaf.clear()
    await passes(cloth, a, b, seconds=5)
    assert a.pairing.says("a0")[0] == ""


async def test_device_that_makes_no_queue_pair_holds_nobody(cloth: Cloth, ends: tuple[End, End]) -> None:
    a, b = ends
    cloth.broken.add("a-rxe0")
    a.bounces()
    await passes(cloth, a, b, seconds=3)
    assert a.pairing.says("a0") == (None, "no queue pair on a-rxe0: Input/output error")


@pytest.mark.parametrize(
    ("sick", "says"),
    [
        ("a-rxe0", "queue pair on a-rxe0 failed: Failed to create AH"),
        ("b-rxe0", "no answer from b by rail0 for 2 s"),
    ],
)
async def test_device_that_cant_send_holds_the_port_that_waits(
    cloth: Cloth, ends: tuple[End, End], sick: str, says: str
) -> None:
    a, b = ends
    cloth.sick.add(sick)
    a.bounces()
    await passes(cloth, a, b, seconds=2.5)
    assert a.pairing.says("a0") == (says, "")
    cloth.sick.clear()
    await passes(cloth, a, b, seconds=5)
    assert a.pairing.says("a0")[0] == ""


async def test_peer_that_hears_nothing_over_udp_sends_nothing(cloth: Cloth, ends: tuple[End, End]) -> None:
    a, b = ends
    b.udp = False
    a.bounces()
    await passes(cloth, a, b, seconds=2)
    assert a.pairing.says("a0")[0] == "no answer from b by rail0 for 1 s"
    assert b.pairing.dropped["pair-unheard"] > 0
    b.udp = True
    await passes(cloth, a, b, seconds=1)
    assert a.pairing.says("a0")[0] == ""


async def test_paths_of_ports_that_wait_are_known_at_both_ends(cloth: Cloth, ends: tuple[End, End]) -> None:
    a, b = ends
    assert a.pairing.paths() == b.pairing.paths() == frozenset()
    a.bounces()
    await passes(cloth, a, b)
    assert (a.pairing.paths(), b.pairing.paths()) == ({PathId("b", "rail0", "a0")}, {PathId("a", "rail0", "b0")})
    assert b.looks == 1


async def test_peer_whose_device_fails_says_so_and_holds_nobody(cloth: Cloth, ends: tuple[End, End]) -> None:
    a, b = ends
    cloth.broken.add("b-rxe0")
    a.bounces()
    await passes(cloth, a, b, seconds=1)
    assert a.pairing.says("a0") == (None, "b: no queue pair on b-rxe0: Input/output error")


async def test_host_without_pyverbs_says_so_once_and_holds_nobody(
    cloth: Cloth, ends: tuple[End, End], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = ends

    def missing(port: RdmaPort, index: int, gid: str) -> FakePair:
        raise ModuleNotFoundError("No module named 'pyverbs'")

    for end in ends:
        end.pairing._make = missing
    a.bounces()
    await passes(cloth, a, b, seconds=3)
    text = "no queue pair on a-rxe0: No module named 'pyverbs'"
    assert a.pairing.says("a0") == (None, text)
    assert [r.message for r in caplog.records] == [f"a0: {text}"]


async def test_defect_of_the_probes_ends_them_and_holds_nobody(
    cloth: Cloth, ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = ends
    monkeypatch.setattr(a.pairing, "poll", lambda: 1 // 0)
    a.bounces()
    await passes(cloth, a, b, seconds=1)
    assert a.pairing.says("a0")[0] is None and "ZeroDivisionError" in a.pairing.says("a0")[1]


async def test_port_without_rdma_says_that_udp_probes_apply(cloth: Cloth, ends: tuple[End, End]) -> None:
    a, b = ends
    a.device = {}
    a.bounces()
    await passes(cloth, a, b, seconds=1)
    assert a.pairing.says("a0") == (None, "no RDMA port: UDP probes decide over each path")


async def test_two_ports_that_wait_prove_each_other(cloth: Cloth, ends: tuple[End, End]) -> None:
    a, b = ends
    a.bounces()
    b.bounces()
    await passes(cloth, a, b, seconds=1)
    assert (a.pairing.says("a0")[0], b.pairing.says("b0")[0]) == ("", "")


async def test_strangers_datagrams_and_letters_are_counted_and_dropped(cloth: Cloth, ends: tuple[End, End]) -> None:
    a, b = ends
    a.bounces()
    await passes(cloth, a, b)
    from linkpass_agent import pair_talk as talk

    for at in cloth.waiting:
        for kind in (talk.PING, talk.PONG):
            cloth.waiting[at].append(talk.pack_datagram(talk.Datagram(kind, bytes(16), 1)))
        cloth.waiting[at].append(b"noise")
    await passes(cloth, a, b)
    b.pairing.letter("a", b"\x51")
    b.pairing.letter("a", talk.pack(talk.Letter(talk.OFFER, bytes(16), "rail0", Address("::1", 1, 1))))
    assert b.pairing.dropped == {
        "pair-stray": 2, "pair-garbage": 1, "pair-letter-malformed": 1, "pair-letter-stray": 1,
    }  # fmt: skip
