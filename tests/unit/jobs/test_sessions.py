"""The shims' socket: real sockets, honest and hostile shims."""

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linkpass.clock import SystemClock
from linkpass.errors import LinkPassError, WireError
from linkpass.model import PortState
from linkpass.shim import abi
from linkpass_agent.jobs.page import Page
from linkpass_agent.jobs.registry import Line
from linkpass_agent.jobs.sessions import Limits, Sessions
from linkpass_agent.see.rdma_devices import RdmaPort
from tests.fakes.shim_socket import SocketShim


class Owner:
    """Takes every frame."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.frames: list[abi.Message] = []
        self.gone: list[Line] = []

    def arrived(self, line: Line, hello: abi.Hello) -> abi.Welcome:
        self.lines.append(line)
        return abi.Welcome(60_000, 1_000)

    def frame(self, line: Line, message: abi.Message) -> None:
        if isinstance(message, abi.ConnState):
            raise WireError("the owner minds")
        self.frames.append(message)

    def left(self, line: Line) -> None:
        self.gone.append(line)


@asynccontextmanager
async def serving(folder: Path, **limits: float) -> AsyncIterator[tuple[Sessions, Owner, Path]]:
    owner, page = Owner(), Page(1)
    page.show({RdmaPort("rxe0", 1): PortState.UP}, 1.0)
    made = Limits(**{k: type(getattr(Limits(), k))(v) for k, v in limits.items()})  # type: ignore[arg-type]
    sessions = Sessions(folder / "jobs.sock", owner, page.fd, SystemClock(), made)
    sessions.open()
    try:
        yield sessions, owner, folder / "jobs.sock"
    finally:
        sessions.close()
        page.close()


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.005)


async def test_shim_is_known_by_the_kernel_s_word_and_gets_the_page(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, owner, path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        shim = SocketShim(path)
        assert await shim.hello() == abi.Welcome(60_000, 1_000)
        assert shim.nics() == {"rxe0": 1}
        assert (owner.lines[0].pid, owner.lines[0].uid) == (os.getpid(), os.getuid())
        shim.send(abi.ConnDown(5, 1, 0))
        await until(lambda: owner.frames == [abi.ConnDown(5, 1, 0)])
        owner.lines[0].send(abi.SpareDrop(5, "rxe0", 1, 0, 0))
        assert await shim.get() == abi.SpareDrop(5, "rxe0", 1, 0, 0)
        shim.close()
        await until(lambda: owner.gone == owner.lines)


async def test_session_ends_with_its_process_though_a_child_keeps_the_socket(tmp_path: Path) -> None:
    program = f"""
import os, socket, sys, time
sys.path[:0] = {sys.path!r}
from linkpass.shim import abi
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect({str(tmp_path / "jobs.sock")!r})
s.send(abi.pack(abi.Hello(0, "1", "parent")))
s.recv(1024)
child = os.fork()
if child:
    print(child, flush=True)
    os._exit(0)
os.close(1)  # or asyncio waits for the child's end of the pipe too, and its transport outlives the loop
time.sleep(60)
"""
    async with serving(tmp_path) as (_, owner, _):
        parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
        assert parent.stdout is not None
        child = int(await parent.stdout.readline())
        try:
            await parent.wait()
            await until(lambda: owner.gone == owner.lines and bool(owner.gone))
            os.kill(child, 0)  # it lives, and its copy of the socket with it
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not LinkPass's"),
        (b"x", "1 bytes"),
        (bytes(2000), "1025 bytes"),
        (
            abi.pack(abi.Relay(1, abi.Identity(bytes(16), bytes(16), 1, 2, 3, 4), abi.Tell(1, 0, 0, 0))),
            "before any Hello",
        ),
    ],
)
async def test_bad_first_frame_is_counted_and_its_session_refused(tmp_path: Path, frame: bytes, reason: str) -> None:
    async with serving(tmp_path) as (sessions, owner, path):
        shim = SocketShim(path)
        shim.sock.send(frame)
        refused = await shim.get()
        assert isinstance(refused, abi.Refused) and reason in refused.reason
        assert await shim.get() is None
        assert sessions.dropped["job-bad-frame"] == 1
        assert owner.lines == owner.gone == []


async def test_frame_that_the_owner_minds_ends_the_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as (sessions, owner, path):
        shim = SocketShim(path)
        await shim.hello()
        shim.send(abi.ConnState(1, 1, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0))
        assert await shim.get() == abi.Refused("the owner minds")
        await until(lambda: owner.gone == owner.lines)
        assert sessions.dropped["job-bad-frame"] == 1


async def test_second_hello_is_the_owner_s_to_judge_and_no_second_arrival(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, owner, path):
        shim = SocketShim(path)
        await shim.hello()
        shim.send(abi.Hello(0, "1", "other"))
        await until(lambda: len(owner.frames) == 1)
        assert len(owner.lines) == 1


async def test_user_has_only_so_many_sessions(tmp_path: Path) -> None:
    async with serving(tmp_path, sessions=2) as (sessions, _, path):
        shims = [SocketShim(path) for _ in range(2)]
        for shim in shims:
            await shim.hello()
        third = SocketShim(path)
        refused = await third.get()
        assert isinstance(refused, abi.Refused) and "has 2 attached processes already" in refused.reason
        assert sessions.dropped["job-sessions"] == 1
        shims[0].close()
        await until(lambda: len(sessions._sessions) == 1)
        await SocketShim(path).hello()


async def test_flood_of_frames_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, rate=100) as (sessions, owner, path):
        shim = SocketShim(path)
        await shim.hello()

        def flood() -> None:
            for _ in range(100_000):
                shim.send(abi.ConnDown(1, 1, 0))

        with pytest.raises(OSError):
            await asyncio.to_thread(flood)
        await until(lambda: owner.gone == owner.lines)
        assert sessions.dropped["job-bad-frame"] == 1
        assert len(owner.frames) < 200


async def test_shim_that_does_not_read_waits_then_is_let_go(tmp_path: Path) -> None:
    async with serving(tmp_path, waiting=1000) as (sessions, owner, path):
        shim = SocketShim(path)
        await shim.hello()
        for n in range(600):
            owner.lines[0].send(abi.SpareDrop(n + 1, "rxe0", 1, 0, 0))
        got = [await shim.get() for _ in range(600)]
        assert [g.conn for g in got if isinstance(g, abi.SpareDrop)] == list(range(1, 601))
        for n in range(5000):
            owner.lines[0].send(abi.SpareDrop(n + 1, "rxe0", 1, 0, 0))
        await until(lambda: owner.gone == owner.lines)
        assert sessions.dropped["job-not-reading"] == 1


async def test_whoever_says_nothing_is_let_go_without_a_word(tmp_path: Path) -> None:
    async with serving(tmp_path, patience=0.05) as (sessions, owner, path):
        shim = SocketShim(path)
        assert await shim.get() is None
        assert owner.lines == [] and not sessions.dropped


async def test_passed_descriptors_are_not_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, owner, path):
        shim = SocketShim(path)
        await shim.hello()
        before = len(list(Path("/proc/self/fd").iterdir()))
        reading, writing = os.pipe()
        for n in range(50):
            frame = abi.pack(abi.ConnDown(n + 1, 1, 0))
            shim.sock.sendmsg([frame], [(1, 1, reading.to_bytes(4, sys.byteorder))])  # SOL_SOCKET, SCM_RIGHTS
        await until(lambda: len(owner.frames) == 50)
        os.close(reading)
        os.close(writing)
        assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_path_of_a_living_agent_is_left_alone_that_of_a_dead_one_taken(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, owner, path):
        with pytest.raises(LinkPassError, match="another agent answers"):
            Sessions(path, owner, 0, SystemClock()).open()
        await SocketShim(path).hello()
    assert not path.exists()
    path.write_text("")
    with pytest.raises(LinkPassError, match="is no socket"):
        Sessions(path, owner, 0, SystemClock()).open()


FRAMES = [
    abi.pack(abi.Hello(0, "1", "job")),
    abi.pack(abi.ConnDown(1, 1, 0)),
    abi.pack(abi.ConnUp(1, abi.Identity(bytes(16), bytes(16), 1, 2, 3, 4), "rxe0", 1, 3, 0, 1, 1)),
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.sampled_from(FRAMES), st.binary(min_size=1, max_size=1200)), max_size=8), st.data())
def test_no_sequence_of_datagrams_breaks_the_server(
    tmp_path: Path, datagrams: list[bytes], data: st.DataObject
) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (_, owner, path):
            shim = SocketShim(path)
            for datagram in datagrams:
                frame = bytearray(datagram)
                if data.draw(st.booleans()):
                    frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
                try:
                    shim.sock.send(frame)
                except OSError:
                    break
            shim.close()
            honest = SocketShim(path)
            await honest.hello("honest")
            honest.send(abi.ConnDown(99, 1, 0))
            await until(lambda: abi.ConnDown(99, 1, 0) in owner.frames)
            honest.close()

    asyncio.run(run())
