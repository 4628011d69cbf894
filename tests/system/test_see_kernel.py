"""What the sources see of real links: carrier, administrative state, MTU, addresses, devices that go and come."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from linkpass.clock import SystemClock
from linkpass.model import Observation, Signal, Value
from linkpass_agent.see import carrier
from linkpass_agent.see.carrier import CarrierFiles
from linkpass_agent.see.names import Names
from linkpass_agent.see.netlink import LinkEvents, Sweep
from tests.system.sandbox import Sandbox, sandbox

pytestmark = pytest.mark.system
CLOCK = SystemClock()


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with sandbox() as made:
        made.cable(0)
        yield made


class Seen:
    """Collects observations; `when` waits for one."""

    def __init__(self) -> None:
        self.all: list[Observation] = []
        self.addresses_moved = 0

    def emit(self, seen: list[Observation]) -> None:
        self.all += seen

    def moved(self) -> None:
        self.addresses_moved += 1

    def values(self, signal: Signal, port: str = "a-rail0") -> list[Value | None]:
        """The values of one signal, repetitions left out."""
        found: list[Value | None] = []
        for o in self.all:
            if (o.port, o.signal) == (port, signal) and (not found or found[-1] != o.value):
                found.append(o.value)
        return found

    async def when(self, signal: Signal, value: Value | None, port: str = "a-rail0") -> Observation:
        async with asyncio.timeout(5):
            while True:
                for o in self.all:
                    if (o.port, o.signal, o.value) == (port, signal, value):
                        return o
                await asyncio.sleep(0.002)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def events(*ports: str) -> AsyncIterator[Seen]:
    """Link events of these ports, subscribed to."""
    seen = Seen()
    task = asyncio.create_task(LinkEvents(Names(ports), seen.emit, seen.moved, CLOCK).run())
    await asyncio.sleep(0.1)  # the subscription; nothing tells of it
    try:
        yield seen
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def files(box: Sandbox, *ports: str) -> AsyncIterator[Seen]:
    """The fast read of these ports' carrier, every 2 ms."""
    seen, opened = Seen(), CarrierFiles(ports, box.sysfs)
    task = asyncio.create_task(carrier.watch(opened, 0.002, 0.002, seen.emit, CLOCK))
    await asyncio.sleep(0.02)
    try:
        yield seen
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        opened.close()


def facts(seen: list[Observation], port: str = "a-rail0") -> dict[Signal, Value | None]:
    return {o.signal: o.value for o in seen if o.port == port}


# -- events ------------------------------------------------------------------------------------------------------


async def test_events_tell_carrier_loss_and_return(box: Sandbox) -> None:
    async with events("a-rail0") as seen:
        box.far_end(0, up=False)
        lost = await seen.when(Signal.CARRIER, False)
        assert (lost.source, lost.at <= CLOCK.now()) == ("netlink", True)
        assert facts(seen.all)[Signal.OPERSTATE] in ("down", "lowerlayerdown")
        box.far_end(0, up=True)
        await seen.when(Signal.CARRIER, True)
        await seen.when(Signal.OPERSTATE, "up")


async def test_events_tell_administrative_down_with_carrier_unobservable(box: Sandbox) -> None:
    async with events("a-rail0") as seen:
        box.ip("link", "set", "a-rail0", "down")
        await seen.when(Signal.ADMIN, False)
        assert facts(seen.all)[Signal.CARRIER] is None
        assert False not in seen.values(Signal.CARRIER)


async def test_events_tell_mtu_and_that_addresses_moved(box: Sandbox) -> None:
    async with events("a-rail0") as seen:
        box.ip("link", "set", "a-rail0", "mtu", "9000")
        await seen.when(Signal.MTU, 9000)
        before = seen.addresses_moved
        box.ip("addr", "add", "10.10.0.9/24", "dev", "a-rail0")
        await until(lambda: seen.addresses_moved > before)
        before = seen.addresses_moved
        box.ip("addr", "del", "10.10.0.9/24", "dev", "a-rail0")
        await until(lambda: seen.addresses_moved > before)


async def test_events_tell_that_a_device_goes_and_comes(box: Sandbox) -> None:
    async with events("a-rail0") as seen:
        box.ip("link", "del", "a-rail0")
        await seen.when(Signal.PRESENT, False)
        seen.all.clear()
        box.cable(0)
        await seen.when(Signal.PRESENT, True)
        await seen.when(Signal.CARRIER, True)


async def test_events_of_other_devices_and_of_bridge_ports_say_nothing_of_ours(box: Sandbox) -> None:
    async with events("a-rail0") as seen:
        box.cable(1)
        box.ip("link", "add", "br0", "type", "bridge")
        box.ip("link", "set", "a-rail0", "master", "br0")
        box.ip("link", "set", "a-rail0", "nomaster")  # AF_BRIDGE RTM_DELLINK: the port left, not the device
        box.ip("link", "set", "a-rail0", "mtu", "1400")
        await seen.when(Signal.MTU, 1400)
        assert {o.port for o in seen.all} == {"a-rail0"}
        assert seen.values(Signal.PRESENT) == [True]


async def test_events_survive_a_storm_that_overflows_their_socket(box: Sandbox) -> None:
    async with events("a-rail0") as seen:
        batch = "\n".join(f"link set dev a-rail0 mtu {1400 + n % 2}" for n in range(4000))
        subprocess.run(["ip", "-n", box.near, "-batch", "-"], input=batch, text=True, check=True)  # noqa: ASYNC221
        box.ip("link", "set", "a-rail0", "mtu", "1777")
        # The loop didn't run meanwhile. Events may be lost, the subscription may not.
        for _ in range(50):
            await asyncio.sleep(0.05)
            if 1777 in seen.values(Signal.MTU):
                break
        box.ip("link", "set", "a-rail0", "mtu", "1888")
        await seen.when(Signal.MTU, 1888)


# -- sweep -------------------------------------------------------------------------------------------------------


async def test_sweep_sees_every_fact_of_a_port(box: Sandbox) -> None:
    box.ip("addr", "add", "10.10.0.9/24", "dev", "a-rail0")
    box.ip("addr", "add", "fd10::1/64", "dev", "a-rail0", "nodad")
    seen = await Sweep(["a-rail0"], 3, CLOCK, Names(["a-rail0"])).look()
    assert facts(seen) == {
        Signal.PRESENT: True,
        Signal.ADMIN: True,
        Signal.CARRIER: True,
        Signal.OPERSTATE: "up",
        Signal.MTU: 1500,
        Signal.ADDRESSES: ("10.10.0.1", "10.10.0.9", "fd10::1"),  # without the link-local one
        Signal.NETWORKS: ("10.10.0.1/24", "10.10.0.9/24", "fd10::1/64"),
    }


async def test_sweep_leaves_out_addresses_that_can_not_be_used_yet(box: Sandbox) -> None:
    box.far_end(0, up=False)  # without carrier duplicate address detection doesn't end
    box.ip("addr", "add", "fd10::1/64", "dev", "a-rail0")
    seen = await Sweep(["a-rail0"], 3, CLOCK, Names(["a-rail0"])).look()
    assert facts(seen)[Signal.ADDRESSES] == ("10.10.0.1",)


async def test_sweep_says_absent_only_after_so_many_looks(box: Sandbox) -> None:
    sweep = Sweep(["a-rail0", "never0"], 3, CLOCK, Names(["a-rail0", "never0"]))
    box.ip("link", "del", "a-rail0")
    assert await sweep.look() == []
    assert await sweep.look() == []
    third = await sweep.look()
    assert [(o.port, o.signal, o.value) for o in third] == [
        ("a-rail0", Signal.PRESENT, False),
        ("never0", Signal.PRESENT, False),
    ]
    box.cable(0)
    assert facts(await sweep.look())[Signal.PRESENT] is True
    box.ip("link", "del", "a-rail0")
    assert facts(await sweep.look()) == {}


async def test_sweep_after_sweep_leaks_no_descriptor(box: Sandbox) -> None:
    sweep = Sweep(["a-rail0"], 3, CLOCK, Names(["a-rail0"]))
    await sweep.look()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(50):
        await sweep.look()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


# -- carrier files -----------------------------------------------------------------------------------------------


async def test_files_tell_carrier_loss_and_return(box: Sandbox) -> None:
    async with files(box, "a-rail0") as seen:
        assert seen.values(Signal.CARRIER) == [True]
        box.far_end(0, up=False)
        await seen.when(Signal.CARRIER, False)
        seen.all.clear()
        box.far_end(0, up=True)
        await seen.when(Signal.CARRIER, True)


async def test_files_can_not_observe_a_device_that_is_down_or_gone(box: Sandbox) -> None:
    async with files(box, "a-rail0") as seen:
        box.ip("link", "set", "a-rail0", "down")
        await seen.when(Signal.CARRIER, None)
        box.ip("link", "set", "a-rail0", "up")
        await until(lambda: seen.values(Signal.CARRIER)[-1] is True)
        box.ip("link", "del", "a-rail0")
        await until(lambda: seen.values(Signal.CARRIER)[-1] is None)
        assert False not in seen.values(Signal.CARRIER)


def test_files_find_a_device_that_came_again_only_after_reopen(box: Sandbox) -> None:
    opened = CarrierFiles(["a-rail0", "a-rail1"], box.sysfs)
    try:
        assert opened.changes(0.0) == [("a-rail0", True)]
        box.ip("link", "del", "a-rail0")
        assert opened.changes(0.01) == [("a-rail0", None)]
        box.cable(0)
        box.cable(1)
        assert opened.changes(0.02) == []
        opened.reopen()
        assert sorted(opened.changes(0.03)) == [("a-rail0", True), ("a-rail1", True)]
    finally:
        opened.close()


def test_files_do_not_take_a_renamed_device_for_the_one_that_took_its_name(box: Sandbox) -> None:
    opened = CarrierFiles(["a-rail0"], box.sysfs)
    try:
        opened.changes(0.0)
        box.ip("link", "set", "a-rail0", "down")
        box.ip("link", "set", "a-rail0", "name", "old0")
        box.ip("link", "set", "old0", "up")
        opened.changes(0.01)
        box.ip("link", "add", "a-rail0", "type", "veth", "peer", "name", "x0")
        box.ip("link", "set", "a-rail0", "up")  # no carrier: x0 is down
        opened.reopen()
        assert opened.changes(0.02) == [("a-rail0", False)]
    finally:
        opened.close()


def test_files_tell_of_a_link_that_blinks_between_two_reads(box: Sandbox) -> None:
    opened = CarrierFiles(["a-rail0"], box.sysfs)
    try:
        opened.changes(0.0)
        box.far_end(0, up=False)
        box.far_end(0, up=True)
        assert opened.changes(0.01) == [("a-rail0", False), ("a-rail0", True)]
    finally:
        opened.close()


async def test_files_see_a_device_come_up_whose_driver_does_not_count_that(box: Sandbox) -> None:
    box.ip("link", "add", "vx0", "type", "vxlan", "id", "7", "dstport", "4789", "local", "10.10.0.1")
    async with files(box, "vx0") as seen:
        await seen.when(Signal.CARRIER, None, "vx0")
        box.ip("link", "set", "vx0", "up")
        await seen.when(Signal.CARRIER, True, "vx0")


# -- the kernel's throttle ---------------------------------------------------------------------------------------


FLAPS = 6


async def flap(box: Sandbox, rail: int) -> None:
    """Out and in, `FLAPS` times within half a second."""
    for _ in range(FLAPS):
        for up in (False, True):
            box.far_end(rail, up=up)
            await asyncio.sleep(0.03)


async def test_events_alone_are_late_where_both_ends_have_one_index(box: Sandbox) -> None:
    """Why the files are read: the kernel reports such a link at most once a second (net/core/link_watch.c)."""
    box.cable(1, index=77)
    async with events("a-rail1") as seen:
        await asyncio.sleep(1.2)  # the second since the cable came up is over
        seen.all.clear()
        await flap(box, 1)
        assert len(seen.values(Signal.CARRIER, "a-rail1")) < 2 * FLAPS


async def test_files_see_every_flap_where_the_kernel_holds_link_events_back(box: Sandbox) -> None:
    box.cable(1, index=77)
    async with files(box, "a-rail1") as seen:
        await asyncio.sleep(1.2)
        seen.all.clear()
        await flap(box, 1)
        assert seen.values(Signal.CARRIER, "a-rail1")[-2 * FLAPS :] == [False, True] * FLAPS


async def test_renamed_device_stays_the_same_port_and_its_link_events_are_still_seen(box: Sandbox) -> None:
    names = Names(["a-rail0"])
    seen = Seen()
    task = asyncio.create_task(LinkEvents(names, seen.emit, seen.moved, CLOCK).run())
    await asyncio.sleep(0.1)
    try:
        box.ip("link", "set", "a-rail0", "down")
        box.ip("link", "set", "a-rail0", "name", "other7")
        box.ip("link", "set", "other7", "up")
        await until(lambda: names.device("a-rail0") == "other7")
        await seen.when(Signal.ADMIN, False)
        await until(lambda: seen.values(Signal.ADMIN)[-1:] == [True])
        assert False not in seen.values(Signal.PRESENT)
        (sweep,) = [o for o in await Sweep(["a-rail0"], 3, CLOCK, names).look() if o.signal is Signal.PRESENT]
        assert (sweep.port, sweep.value) == ("a-rail0", True)
        assert [m.text for m in names.moves()] == ["a-rail0 is called other7 now"]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
