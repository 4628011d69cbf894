"""The client against the real API on a real socket, and against everything else that may answer there."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import linkpass.client
import linkpass.settings
from linkpass.client import BadRequestError, Client
from linkpass.errors import LinkPassError, NotFoundError, RefusedError, UnreachableError
from linkpass.model import Event, EventKind
from linkpass.settings import Settings
from linkpass_agent.api import serve
from linkpass_agent.api_socket import Limits
from tests.fakes.facade import FakeFacade


def event(seq: int) -> Event:
    return Event(seq, seq / 10, 1.0e9 + seq, EventKind.ACTED, "10.255.0.2", "routes changed")


def test_default_socket_is_the_agents_default() -> None:
    default = linkpass.settings.PathsSettings.model_fields["socket"].default
    assert Path(linkpass.client.DEFAULT_SOCKET) == default


def test_socket_is_named_by_argument_then_environment_then_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINKPASS_SOCKET", "/env")
    assert Client("/arg").path == "/arg"
    assert Client().path == "/env"
    monkeypatch.delenv("LINKPASS_SOCKET")
    assert Client().path == "/run/linkpass/agent.sock"


async def test_views_arrive_as_parsed_json(settings: Settings) -> None:
    facade = FakeFacade()
    for n in (1, 2, 3):
        facade.story.tell(event(n))
    client = Client(settings.paths.socket)
    async with serve(facade, settings):
        status = await asyncio.to_thread(client.status)
        ports = await asyncio.to_thread(client.ports)
        paths = await asyncio.to_thread(client.paths)
        peers = await asyncio.to_thread(client.peers)
        plan = await asyncio.to_thread(client.plan)
        events = await asyncio.to_thread(client.events, 1, 1)
    assert status["host"] == "a"
    assert [p["name"] for p in ports] == ["a-rail0", "a-rail1"]
    assert [p["rtt_ms"] for p in paths] == [0.123]
    assert [p["host"] for p in peers] == ["b"]
    assert plan == {"steps": [], "refused": []}
    assert [e["seq"] for e in events] == [2]


async def test_drain_and_undrain_arrive_and_refusals_come_back_as_errors(settings: Settings) -> None:
    facade = FakeFacade(last_usable="a-rail1")
    client = Client(settings.paths.socket)
    async with serve(facade, settings):
        assert (await asyncio.to_thread(client.drain, "a-rail0", "naïve \N{SNOWMAN}"))["done"] is True
        assert (await asyncio.to_thread(client.drain, "a-rail0", "x", True))["done"] is False
        assert (await asyncio.to_thread(client.undrain, "a-rail0"))["done"] is True
        with pytest.raises(RefusedError, match="last usable port"):
            await asyncio.to_thread(client.drain, "a-rail1", "x")
        with pytest.raises(BadRequestError, match="reason"):
            await asyncio.to_thread(client.drain, "a-rail0", "")
        for odd in ("nope", "a b", "a?b", "ä", "a\udcff", "%2e", "a\nb"):
            with pytest.raises(NotFoundError, match="no port"):
                await asyncio.to_thread(client.undrain, odd)
    assert facade.changes == [
        ("drain", "a-rail0", "naïve \N{SNOWMAN}", "root"),
        ("undrain", "a-rail0", "root"),
    ]


async def test_follow_gives_events_and_ends_when_the_agent_goes(settings: Settings) -> None:
    facade = FakeFacade()
    facade.story.tell(event(1))
    seen: list[int] = []
    ended: list[str] = []

    def follow() -> None:
        try:
            for e in Client(settings.paths.socket).follow(since=0):
                seen.append(e["seq"])
        except UnreachableError as e:
            ended.append(str(e))

    async with serve(facade, settings, Limits(heartbeat=0.01)):
        following = asyncio.create_task(asyncio.to_thread(follow))
        async with asyncio.timeout(60):
            while seen != [1]:
                await asyncio.sleep(0.001)
            facade.story.tell(event(2))
            while seen != [1, 2]:
                await asyncio.sleep(0.001)
    await asyncio.wait_for(following, 10)
    assert ended == [f"the agent at {settings.paths.socket} went away"]


async def test_refused_follower_gets_the_reason(settings: Settings) -> None:
    async with serve(FakeFacade(), settings, Limits(follows=0)):
        with pytest.raises(RefusedError, match="0 followers already"):
            await asyncio.to_thread(lambda: next(Client(settings.paths.socket).follow()))


def test_absent_agent_is_told_with_socket_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with pytest.raises(UnreachableError) as e:
        Client(path).status()
    assert str(path) in str(e.value)
    assert "systemctl start linkpassd" in str(e.value)


def test_dead_agents_socket_is_told_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(UnreachableError, match=r"no agent at .*Connection refused"):
        Client(path).status()


def test_overlong_path_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="can't talk to the agent"):
        Client(tmp_path / ("x" * 120)).status()


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[None]:
    """Something at the socket that reads a request and answers with given bytes, then hangs up."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        try:
            yield
        finally:
            thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\x01garbage\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",  # broken off
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<ok/>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_whatever_else_answers_is_unreachable_not_a_crash(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "s"
    with answering(path, answer), pytest.raises(UnreachableError):
        Client(path).status()


def test_failure_inside_the_agent_is_a_plain_error(tmp_path: Path) -> None:
    body = b'{"error": "its log says why"}'
    answer = b"HTTP/1.1 500 Oops\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with answering(tmp_path / "s", answer), pytest.raises(LinkPassError, match="its log says why") as e:
        Client(tmp_path / "s").status()
    assert type(e.value) is LinkPassError


def test_silent_agent_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        with pytest.raises(UnreachableError, match=r"does not answer within 0\.01 s"):
            Client(path, timeout=0.01).status()
