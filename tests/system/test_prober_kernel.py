"""Two probers on real cables: dead and one-way ones, devices made anew, and what strangers can't make them do."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from random import Random

import pytest

from linkpass.clock import SystemClock
from linkpass.model import PathId, PortState
from linkpass_agent.judge.holddown import HoldDownRule
from linkpass_agent.judge.probe import ProbeRule
from linkpass_agent.judge.probing import Probing
from linkpass_agent.judge.schedule import ScheduleRule
from linkpass_agent.see.probe_wire import ANSWER, REQUEST, Probe, ProbeCodec, rail_mark
from linkpass_agent.see.prober import Prober
from tests.system.sandbox import Sandbox, run, sandbox

pytestmark = pytest.mark.system
S = PortState
KEY, UDP_PORT = b"k" * 32, 7472
CLOCK = SystemClock()
DROP = "1,6 0 0 2,"  # classic BPF: return TC_ACT_SHOT


class End:
    """One agent's probing half."""

    def __init__(self, peer: str, rails: dict[str, str], session: int, answer_rate: float = 4000.0) -> None:
        # A long time-out: the machine may be busy, and what is found counts here, not how fast.
        self.rule = ProbeRule(HoldDownRule(0.3, 60.0, 10.0), timeout=0.1, lost=3)
        self.probing = Probing(self.rule, ScheduleRule(0.05, 1.0, 2000.0), Random(session))
        self.changes: list[tuple[PathId, PortState]] = []
        self.paths = [PathId(peer, rail, port) for port, rail in rails.items()]
        self.prober = Prober(
            self.probing, ProbeCodec([KEY]), rails, UDP_PORT, session, answer_rate, self.changed, CLOCK
        )  # fmt: skip

    def changed(self, paths: list[PathId]) -> None:
        self.changes += [(p, self.probing.get(p).state) for p in paths]

    def states(self) -> list[PortState]:
        return [self.probing.get(p).state for p in self.paths]


class Pair:
    """Hosts `a` (near) and `f` (far) with two rails."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        for rail in (0, 1):
            box.cable(rail)
            box.ip_far("addr", "add", f"10.{10 + rail}.0.2/24", "dev", f"f-rail{rail}")
        self.near = End("f", {"a-rail0": "rail0", "a-rail1": "rail1"}, 1)
        self.far = End("a", {"f-rail0": "rail0", "f-rail1": "rail1"}, 2)
        for rail in (0, 1):
            self.near.prober.listen(f"a-rail{rail}", (f"10.{10 + rail}.0.1",))
            with box.inside_far():
                self.far.prober.listen(f"f-rail{rail}", (f"10.{10 + rail}.0.2",))
        self.near.prober.set_targets(
            {p: f"10.{10 + n}.0.2" for n, p in enumerate(self.near.paths)}, frozenset(self.near.paths)
        )
        self.far.prober.set_targets(
            {p: f"10.{10 + n}.0.1" for n, p in enumerate(self.far.paths)}, frozenset(self.far.paths)
        )

    def stranger(self) -> socket.socket:
        """A socket on the far host, that sends what it likes."""
        with self.box.inside_far():
            return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    with sandbox() as box:
        made = Pair(box)
        try:
            await until(lambda: made.near.states() == made.far.states() == [S.UP, S.UP])
            yield made
        finally:
            made.near.prober.close()
            made.far.prober.close()


async def test_path_that_carries_nothing_is_down_at_both_ends_and_comes_back_by_way_of_held() -> None:
    async with pair() as both:
        for direction in ("ingress", "egress"):
            run(
                "tc", "-n", both.box.far, "qdisc", "add", "dev", "f-rail0", "clsact"
            ) if direction == "ingress" else None
            run("tc", "-n", both.box.far, "filter", "add", "dev", "f-rail0", direction, "bpf", "da", "bytecode", DROP)
        await until(lambda: both.near.states() == both.far.states() == [S.DOWN, S.UP])
        run("tc", "-n", both.box.far, "qdisc", "del", "dev", "f-rail0", "clsact")
        await until(lambda: both.near.states() == both.far.states() == [S.UP, S.UP])
        seen = [s for p, s in both.near.changes if p == both.near.paths[0]]
        assert seen[-4:] == [S.SUSPECT, S.DOWN, S.HELD, S.UP]


async def test_path_that_carries_one_way_only_is_down_at_both_ends() -> None:
    async with pair() as both:
        run("tc", "-n", both.box.far, "qdisc", "add", "dev", "f-rail1", "clsact")
        run("tc", "-n", both.box.far, "filter", "add", "dev", "f-rail1", "ingress", "bpf", "da", "bytecode", DROP)
        await until(lambda: both.near.states() == both.far.states() == [S.UP, S.DOWN])


async def test_dead_agent_leaves_its_peers_paths_in_doubt_and_no_worse() -> None:
    async with pair() as both:
        both.far.prober.close()
        await until(lambda: both.near.states() == [S.SUSPECT, S.SUSPECT])
        await asyncio.sleep(0.6)
        assert both.near.states() == [S.SUSPECT, S.SUSPECT]


async def test_device_made_anew_is_listened_on_anew_although_its_address_is_the_same() -> None:
    async with pair() as both:
        both.box.ip("link", "del", "a-rail0")
        both.box.cable(0)
        both.box.ip_far("addr", "add", "10.10.0.2/24", "dev", "f-rail0")
        with both.box.inside_far():
            both.far.prober.listen("f-rail0", ("10.10.0.2",))
        both.near.prober.listen("a-rail0", ("10.10.0.1",))
        await asyncio.sleep(0.3)  # what was answered before is taken in
        before = both.near.probing.get(both.near.paths[0]).rtt
        await until(lambda: both.near.probing.get(both.near.paths[0]).rtt != before)
        await until(lambda: both.near.states() == both.far.states() == [S.UP, S.UP])


async def test_strangers_datagrams_are_counted_and_change_nothing() -> None:
    async with pair() as both:
        good, wrong = ProbeCodec([KEY]), ProbeCodec([b"w" * 32])
        with closing(both.stranger()) as sock:
            for data in (
                b"",
                b"hello",
                bytes(49),
                bytes(2000),
                wrong.pack(Probe(REQUEST, 9, 9, rail_mark("rail0"))),
                wrong.pack(Probe(ANSWER, 1, 1, rail_mark("rail0"))),
            ):
                sock.sendto(data, ("10.10.0.1", UDP_PORT))
            sock.sendto(good.pack(Probe(ANSWER, 1, 10**9, rail_mark("rail0"))), ("10.10.0.1", UDP_PORT))  # unasked
            sock.sendto(
                good.pack(Probe(ANSWER, 77, 1, rail_mark("rail0"))), ("10.10.0.1", UDP_PORT)
            )  # another start's
            sock.sendto(good.pack(Probe(REQUEST, 9, 9, rail_mark("rail1"))), ("10.10.0.1", UDP_PORT))  # crossed cable
            sock.sendto(good.pack(Probe(3, 9, 9, rail_mark("rail0"))), ("10.10.0.1", UDP_PORT))  # of a later version
            dropped = both.near.prober.dropped
            await until(lambda: dropped.total() >= 10)
            assert dict(dropped) == {"probe-garbage": 6, "probe-unasked": 1, "probe-stale": 2, "probe-wrong-rail": 1}
            sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                sock.recv(100)  # and none of it was answered
        assert both.near.states() == [S.UP, S.UP]


async def test_answers_to_a_flood_are_bounded() -> None:
    with sandbox() as box:
        box.cable(0)
        box.ip_far("addr", "add", "10.10.0.2/24", "dev", "f-rail0")
        end = End("f", {"a-rail0": "rail0"}, 1, answer_rate=50.0)
        end.prober.listen("a-rail0", ("10.10.0.1",))
        with box.inside_far():
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with closing(sock):
            request = ProbeCodec([KEY]).pack(Probe(REQUEST, 9, 9, rail_mark("rail0")))
            for _ in range(200):
                sock.sendto(request, ("10.10.0.1", UDP_PORT))
            await until(lambda: end.prober.dropped["probe-rate"] > 0)
            await asyncio.sleep(0.1)
            answers = 0
            while True:
                try:
                    sock.recv(100)
                except BlockingIOError:
                    break
                answers += 1
            assert answers + end.prober.dropped["probe-rate"] == 200
            assert 50 <= answers < 150
        end.prober.close()


async def test_failing_reaction_stops_no_probing() -> None:
    async with pair() as both:
        loop, raised = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _loop, context: raised.append(context))
        usual = both.near.prober._changed

        def fail(paths: list[PathId]) -> None:
            raise OSError("the reaction failed")

        both.near.prober._changed = fail
        run("tc", "-n", both.box.far, "qdisc", "add", "dev", "f-rail0", "clsact")
        run("tc", "-n", both.box.far, "filter", "add", "dev", "f-rail0", "ingress", "bpf", "da", "bytecode", DROP)
        await until(lambda: both.near.states() == [S.DOWN, S.UP])
        both.near.prober._changed = usual
        run("tc", "-n", both.box.far, "qdisc", "del", "dev", "f-rail0", "clsact")
        await until(lambda: both.near.states() == [S.UP, S.UP])
        assert raised
