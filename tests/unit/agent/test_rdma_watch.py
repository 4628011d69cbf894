"""The verbs watch: asynchronous events as the kernel writes them, and devices that fail, go and come."""

import asyncio
import os
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from linkpass.model import Observation, Signal, Value
from linkpass_agent.see import verbs
from linkpass_agent.see.rdma_devices import RdmaPort
from linkpass_agent.see.verbs import EVENT, RdmaWatch
from tests.fakes.clock import FakeClock


class Kernel:
    """RDMA devices by name, what their ports are like, and the event files that are open."""

    def __init__(self) -> None:
        self.state = dict.fromkeys(("rxe0", "rxe1"), 4)
        self.gids = [(1, "0000:0000:0000:0000:0000:ffff:0a0a:0001")]
        self.opened: list[tuple[str, int]] = []  # device, the event file's other end
        self.files: set[int] = set()
        self.closed = 0

    def Context(self, name: str) -> "Context":  # as pyverbs spells it
        if name not in self.state:
            raise OSError(f"Failed to open device {name}")
        read, write = os.pipe()
        self.opened.append((name, write))
        self.files.add(read)
        return Context(self, name, read)

    def event(self, device: str, kind: int, element: int = 1) -> None:
        write = next(w for n, w in reversed(self.opened) if n == device)
        os.write(write, EVENT.pack(element, kind, 0))


class Context:
    def __init__(self, kernel: Kernel, name: str, read: int) -> None:
        self._kernel, self._name, self._read = kernel, name, read

    def query_port(self, number: int) -> SimpleNamespace:
        if self._name not in self._kernel.state:
            raise OSError("Input/output error")
        state = self._kernel.state[self._name]
        return SimpleNamespace(
            state=state,
            phys_state=5 if state == 4 else 2,
            active_width=2,
            active_speed=64,
            active_mtu=5,
            gid_tbl_len=8,
        )

    def query_gid_table(self, most: int) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(gid_index=i, gid_type=2, port_num=1, gid_str=lambda g=g: g) for i, g in self._kernel.gids
        ]

    def close(self) -> None:
        self._kernel.closed += 1
        self._kernel.files.discard(self._read)
        os.close(self._read)


class Seen:
    """A watch of two ports over a kernel; `all` is what events told."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.all = kernel, list[Observation]()
        self.watch = RdmaWatch(("p", "q"), self.all.extend, FakeClock())
        self.start = self.facts(self.watch.refresh())

    @staticmethod
    def facts(seen: list[Observation]) -> dict[tuple[str, Signal], Value | None]:
        return {(o.port, o.signal): o.value for o in seen}

    async def told(self, device: str, kind: int, element: int = 1) -> dict[tuple[str, Signal], Value | None]:
        self.all.clear()
        self.kernel.event(device, kind, element)
        for _ in range(4):
            await asyncio.sleep(0)
        return self.facts(self.all)


@pytest.fixture
async def seen(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Seen]:
    kernel = Kernel()
    monkeypatch.setattr(verbs, "pyverbs", lambda module: kernel)
    monkeypatch.setattr(verbs, "_event_files", lambda: set(kernel.files))
    found = {"p": RdmaPort("rxe0", 1), "q": RdmaPort("rxe1", 1)}
    monkeypatch.setattr(
        verbs, "behind", lambda netdev: found[netdev] if found[netdev].device in kernel.state else None
    )
    made = Seen(kernel)
    yield made
    made.watch.close()
    for _, write in kernel.opened:
        os.close(write)


async def test_first_look_tells_state_rate_mtu_and_gids_of_each_port(seen: Seen) -> None:
    assert seen.start["p", Signal.RDMA] == "active"
    assert seen.start["p", Signal.RDMA_RATE] == 200_000
    assert seen.start["p", Signal.RDMA_MTU] == 4096
    assert seen.start["p", Signal.GIDS] == ("1 RoCEv2 ::ffff:10.10.0.1",)
    assert seen.start["q", Signal.RDMA_FATAL] is False


async def test_port_error_is_down_even_if_the_port_reads_active_again_by_then(seen: Seen) -> None:
    await seen.told("rxe0", verbs.PORT_ERR)
    first = next(o for o in seen.all if o.signal is Signal.RDMA)
    assert (first.port, first.value, first.detail) == ("p", "down", "PORT_ERR")
    assert {o.port for o in seen.all} == {"p"}


async def test_events_of_another_port_of_the_device_say_nothing_of_ours(seen: Seen) -> None:
    assert await seen.told("rxe0", verbs.PORT_ERR, element=2) == {}


async def test_gid_change_has_the_table_read_at_once(seen: Seen) -> None:
    seen.kernel.gids = [(4, "0000:0000:0000:0000:0000:ffff:0a0a:0001")]
    told = await seen.told("rxe0", verbs.GID_CHANGE)
    assert told["p", Signal.GIDS] == ("4 RoCEv2 ::ffff:10.10.0.1",)


@pytest.mark.parametrize("kind", [verbs.LID_CHANGE, verbs.SM_CHANGE, verbs.CLIENT_REREGISTER, verbs.PKEY_CHANGE])
async def test_events_of_the_subnet_take_no_port_down(seen: Seen, kind: int) -> None:
    told = await seen.told("rxe0", kind)
    assert told["p", Signal.RDMA] == "active"


async def test_unknown_event_is_passed_over(seen: Seen) -> None:
    assert await seen.told("rxe0", 99) == {}


async def test_fatal_device_fails_its_own_port_and_is_opened_anew_by_the_next_look(seen: Seen) -> None:
    assert await seen.told("rxe0", verbs.DEVICE_FATAL, element=0) == {("p", Signal.RDMA_FATAL): True}
    assert seen.kernel.closed == 1
    again = seen.facts(seen.watch.refresh())
    assert again["p", Signal.RDMA_FATAL] is False
    assert ("q", Signal.RDMA_FATAL) not in again  # it was never closed
    assert [n for n, _ in seen.kernel.opened] == ["rxe0", "rxe1", "rxe0"]


async def test_device_that_leaves_cant_be_observed_and_hides_no_other(seen: Seen) -> None:
    del seen.kernel.state["rxe0"]
    gone = seen.facts(seen.watch.refresh())
    assert gone["p", Signal.RDMA] is None
    assert gone["q", Signal.RDMA] == "active"
    seen.watch.look_anew()
    assert seen.facts(seen.watch.refresh())["p", Signal.RDMA] is None
    seen.kernel.state["rxe0"] = 4
    seen.watch.look_anew()
    assert seen.facts(seen.watch.refresh())["p", Signal.RDMA] == "active"


async def test_event_file_that_ends_is_let_go(seen: Seen) -> None:
    name, write = seen.kernel.opened.pop(0)
    os.close(write)
    for _ in range(4):
        await asyncio.sleep(0)
    assert seen.watch._devices[name]._files == []
    assert seen.facts(seen.watch.refresh())["p", Signal.RDMA] == "active"
