"""The UDP adapter with real sockets on loopback."""

import asyncio
import logging
import os
import socket
from random import Random

import pytest

from linkpass.clock import SystemClock
from linkpass.model import HostRecord, PortRecord, PortState
from linkpass_topology.gossip.core import Gossip
from linkpass_topology.gossip.options import Options
from linkpass_topology.gossip.outputs import Address, Drop, Learned, Output, PeerUp
from linkpass_topology.gossip.suspicion import SwimRule
from linkpass_topology.gossip.udp import GossipUdp, RailEnd
from tests.fakes.mesh import KEYRING, record, wide_record, with_state


class Owner:
    """Collects outputs and lets a test wait for one."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.changed = asyncio.Event()

    def __call__(self, output: Output) -> None:
        self.outputs.append(output)
        self.changed.set()

    async def until(self, kind: type, count: int = 1) -> list[Output]:
        async with asyncio.timeout(20):
            while len(found := [o for o in self.outputs if isinstance(o, kind)]) < count:
                self.changed.clear()
                await self.changed.wait()
        return found


def node(host: str, seeds: list[Address]) -> tuple[GossipUdp, Owner]:
    owner = Owner()
    core = Gossip(host, KEYRING, seeds, rng=Random(host), entropy=os.urandom)
    return GossipUdp(core, SystemClock(), owner), owner


async def test_two_cores_on_loopback_exchange_records() -> None:
    a, owner_a = node("a", [])
    address = await a.open(("127.0.0.1", 0))
    b, owner_b = node("b", [address])
    await b.open(("127.0.0.1", 0))
    try:
        a.publish(wide_record("a"))
        b.publish(record("b"))
        await owner_b.until(Learned)
        await owner_a.until(Learned)
        a.publish(with_state(wide_record("a"), 3, PortState.DOWN))
        await owner_b.until(Learned, 2)
        assert b.core.view.get("a") == with_state(wide_record("a"), 3, PortState.DOWN)
        assert a.core.view.get("b") == record("b")
        assert [type(o) for o in owner_a.outputs].count(PeerUp) == 1
    finally:
        a.close()
        b.close()


async def test_timers_run_without_traffic() -> None:
    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind(("127.0.0.1", 0))
    silent.setblocking(False)
    a, _ = node("a", [silent.getsockname()])
    await a.open(("127.0.0.1", 0))
    try:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            first, second = [await loop.sock_recv(silent, 2000) for _ in range(2)]
        assert first == second and len(first) == 160  # the question, and its repetition
    finally:
        a.close()
        silent.close()


async def test_own_address_among_the_seeds_is_left_out() -> None:
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    probe.bind(("127.0.0.1", 0))
    here: Address = probe.getsockname()
    probe.close()
    a, _ = node("a", [here])
    assert await a.open(here) == here
    try:
        assert a.core.peers() == [] and a.core.next_timer() is not None
    finally:
        a.close()


async def test_garbage_is_counted_and_logged_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    a, owner = node("a", [])
    address = await a.open(("127.0.0.1", 0))
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(200):
                probe.sendto(b"garbage", address)
            async with asyncio.timeout(20):
                while a.core.dropped[Drop.GARBAGE] < 200:
                    await asyncio.sleep(0)
        assert 5 <= len(caplog.records) < 50 and "garbage" in caplog.text
        assert owner.outputs == []
    finally:
        probe.close()
        a.close()


async def test_send_that_the_kernel_refuses_is_counted_and_not_fatal() -> None:
    # 255.255.255.255 without SO_BROADCAST: EACCES. An IPv6 address on an IPv4 socket: no errno at all.
    a, _ = node("a", [("255.255.255.255", 9), ("::1", 9)])
    address = await a.open(("127.0.0.1", 0))
    b, owner_b = node("b", [address])
    await b.open(("127.0.0.1", 0))
    try:
        await owner_b.until(PeerUp)
        assert a.send_errors["EACCES"] >= 1 and a.send_errors.total() >= 2
    finally:
        a.close()
        b.close()


async def test_owner_that_raises_does_not_stop_the_protocol(caplog: pytest.LogCaptureFixture) -> None:
    def failing(output: Output) -> None:
        raise RuntimeError("owner's mistake")

    core = Gossip("a", KEYRING, [], rng=Random(1), entropy=os.urandom)
    a = GossipUdp(core, SystemClock(), failing)
    address = await a.open(("127.0.0.1", 0))
    b, owner_b = node("b", [address])
    await b.open(("127.0.0.1", 0))
    try:
        b.publish(record("b"))
        a.publish(record("a"))
        await owner_b.until(Learned)
        assert a.core.view.get("b") == record("b")
        assert "owner's mistake" in caplog.text
    finally:
        a.close()
        b.close()


async def test_open_on_a_taken_address_names_it() -> None:
    a, _ = node("a", [])
    host, port = await a.open(("127.0.0.1", 0))
    b, _ = node("b", [])
    with pytest.raises(OSError, match=f"{host}:{port}: Address already in use"):
        await b.open((host, port))
    a.close()
    a.close()
    a.publish(record("a"))  # after closing: kept, not sent


async def test_records_pass_over_a_rail_when_management_is_not_listened_to() -> None:
    """Rails are 127.0.1.0/24 here; what comes in on the management socket of either side is thrown away."""
    rail_a, rail_b, options = "127.0.1.1", "127.0.1.2", Options(swim=SwimRule())
    owner_a, owner_b = Owner(), Owner()
    core_b = Gossip("b", KEYRING, [], rng=Random(2), entropy=os.urandom, options=options)
    b = GossipUdp(core_b, SystemClock(), owner_b)
    port = (await b.open(("127.0.0.2", 0)))[1]
    core_a = Gossip("a", KEYRING, [(rail_b, port)], rng=Random(1), entropy=os.urandom, options=options)
    a = GossipUdp(core_a, SystemClock(), owner_a)
    try:
        b.set_rails({"rail0": RailEnd(rail_b)})
        await a.open(("127.0.0.1", port))
        a.set_rails({"rail0": RailEnd(rail_a)})
        a.publish(HostRecord("a", 1, 1, (), (PortRecord("p0", "rail0", PortState.UP, "", (rail_a,)),)))
        b.publish(HostRecord("b", 1, 1, (), (PortRecord("p0", "rail0", PortState.UP, "", (rail_b,)),)))
        await owner_a.until(Learned)
        await owner_b.until(Learned)
        a.datagram_received = b.datagram_received = lambda data, addr: None  # type: ignore[method-assign]
        a.publish(HostRecord("a", 1, 2, (), (PortRecord("p0", "rail0", PortState.DOWN, "", (rail_a,)),)))
        await owner_b.until(Learned, 2)
        assert b.core.view.get("a") == a.core.view.get("a")
    finally:
        a.close()
        b.close()
