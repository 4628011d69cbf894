"""The control socket: whose it is, who is on the other end, and what one of them may use up."""

import asyncio
import grp
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from linkpass.errors import LinkPassError
from linkpass.settings import Settings
from linkpass_agent.api import serve
from linkpass_agent.api_socket import Limits, Peer, claim, group_id, peer_of
from tests.fakes.facade import FakeFacade
from tests.unit.control.conftest import Ask, exchange

NOBODY = 65534
# Run by a child that has given up root: asks by raw HTTP, so that nothing of ours is on its side.
ASK = """
import os, socket, sys
path, uid, gid, groups, raw = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
os.setgroups([int(g) for g in groups.split(",") if g]); os.setgid(gid); os.setuid(uid)
s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect(path)
s.sendall(raw.encode().decode("unicode_escape").encode())
answer = b""
while part := s.recv(65536):
    answer += part
sys.stdout.buffer.write(answer)
"""


@pytest.fixture
def open_settings(settings: Settings, tmp_path: Path) -> Settings:
    """The same, in a place that every user can reach (pytest's own folders are closed to others)."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() != "root" or folder == Path("/tmp"):
            break
        folder.chmod(folder.stat().st_mode | 0o011)
    return settings


async def as_user(
    path: Path, method: str, target: str, body: str = "", gid: int = NOBODY, groups: str = ""
) -> tuple[int, Any]:
    head = (
        f"{method} {target} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
    )
    child = await asyncio.create_subprocess_exec(
        "/usr/bin/env",
        "-i",
        sys.executable,
        "-ISc",
        ASK,
        str(path),
        str(NOBODY),
        str(gid),
        groups,
        head + body,
        stdout=subprocess.PIPE,
        cwd="/",
    )
    answer, _ = await asyncio.wait_for(child.communicate(), 60)
    return int(answer.split()[1]), json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_other_user_may_read_but_not_change(open_settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    facade = FakeFacade()
    path = open_settings.paths.socket
    async with serve(facade, open_settings):
        status, answer = await as_user(path, "GET", "/v1/status")
        assert (status, answer["host"]) == (200, "a")
        for verb, body in (("drain", '{"reason": "x"}'), ("undrain", "")):
            status, answer = await as_user(path, "POST", f"/v1/ports/a-rail0/{verb}", body)
            assert status == 403
            assert answer["error"] == "uid 65534 may not change anything: only root may"
        for _ in range(5):
            await as_user(path, "POST", "/v1/ports/a-rail0/undrain")
    assert facade.changes == []
    assert caplog.text.count("refused a change") == 3  # of 7: nobody fills the journal


async def test_member_of_the_group_may_change_and_a_stranger_may_not(open_settings: Settings) -> None:
    group = next(g for g in grp.getgrall() if g.gr_gid not in (0, NOBODY))
    settings = open_settings.model_copy(
        update={"control": open_settings.control.model_copy(update={"group": group.gr_name})}
    )
    facade = FakeFacade()
    path = settings.paths.socket
    target = "/v1/ports/a-rail0/undrain"
    async with serve(facade, settings):
        by_supplementary = await as_user(path, "POST", target, groups=f"12345,{group.gr_gid}")
        by_primary = await as_user(path, "POST", target, gid=group.gr_gid)
        stranger = await as_user(path, "POST", target, groups="12345")
    assert (by_supplementary[0], by_primary[0], stranger[0]) == (200, 200, 403)
    assert f"members of group {group.gr_name!r}" in stranger[1]["error"]
    assert facade.changes == [("undrain", "a-rail0", "uid 65534")] * 2


async def test_keys_are_for_root_alone_even_where_a_group_may_change_ports(open_settings: Settings) -> None:
    group = next(g for g in grp.getgrall() if g.gr_gid not in (0, NOBODY))
    settings = open_settings.model_copy(
        update={"control": open_settings.control.model_copy(update={"group": group.gr_name})}
    )
    facade, path, secret = FakeFacade(), settings.paths.socket, "0123456789abcdef" * 4
    async with serve(facade, settings):
        for method, target, body in (
            ("GET", "/v1/keys", ""),
            ("POST", "/v1/keys/k/install", f'{{"secret": "{secret}"}}'),
            ("POST", "/v1/keys/2026a/use", "{}"),
            ("POST", "/v1/keys/2026a/remove", "{}"),
        ):
            status, answer = await as_user(path, method, target, body, gid=group.gr_gid)
            assert (status, answer["error"]) == (403, "uid 65534 may not look at or change keys: only root may")
    assert facade.changes == []


def test_peer_is_told_by_the_kernel() -> None:
    left, right = socket.socketpair()
    with left, right:
        peer = peer_of(left)
    assert (peer.uid, peer.gid, peer.pid) == (os.getuid(), os.getgid(), os.getpid())
    assert peer.groups == frozenset(os.getgroups())


@pytest.mark.parametrize(
    ("uid", "gid", "groups", "group", "may"),
    [
        (0, 0, (), None, True),
        (0, 5, (), 7, True),
        (1000, 0, (), None, False),  # group root alone is no right
        (1000, 0, (0,), None, False),
        (1000, 5, (6,), 7, False),
        (1000, 7, (), 7, True),
        (1000, 5, (6, 7), 7, True),
        (2**32 - 2, 5, (), 7, False),
    ],
)
def test_right_to_change(uid: int, gid: int, groups: tuple[int, ...], group: int | None, may: bool) -> None:
    assert Peer(uid, gid, 1, frozenset(groups)).may_change(group) is may


def test_missing_group_leaves_only_root_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert group_id("no-such-group-here") is None
    assert "no group 'no-such-group-here'" in caplog.text
    assert group_id(None) is None


async def test_socket_is_open_to_all_whatever_the_umask(settings: Settings) -> None:
    before = os.umask(0o077)
    try:
        async with serve(FakeFacade(), settings):
            assert settings.paths.socket.stat().st_mode & 0o777 == 0o666
        assert os.umask(0o077) == 0o077  # left as it was
    finally:
        os.umask(before)


async def test_socket_of_a_dead_agent_is_replaced(settings: Settings, ask: Ask) -> None:
    settings.paths.run.mkdir()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(settings.paths.socket))
    dead.listen()
    dead.close()  # as after kill -9: the file stays
    Path(f"{settings.paths.socket}.lock").touch()
    async with serve(FakeFacade(), settings):
        status, _ = await ask("GET", "/v1/status")
    assert status == 200


def test_socket_that_anything_listens_on_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(0)
        for _ in range(2):  # the second finds the other's queue full
            with pytest.raises(LinkPassError, match="another agent answers"):
                claim(path)
        assert path.is_socket()


def test_lock_of_a_living_agent_holds_before_it_listens(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = claim(path)
    path.unlink()
    with pytest.raises(LinkPassError, match="another agent answers"):
        claim(path)
    first.release()
    claim(path).release()
    assert list(tmp_path.iterdir()) == []


async def test_who_asks_between_claim_and_serving_is_answered_later(settings: Settings, ask: Ask) -> None:
    claimed = claim(settings.paths.socket)
    asked = asyncio.create_task(ask("GET", "/v1/status"))
    await asyncio.sleep(0)
    async with serve(FakeFacade(), settings, claimed=claimed):
        status, _ = await asked
    assert status == 200
    assert list(settings.paths.run.iterdir()) == []


def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(LinkPassError, match="is no socket; remove it"):
        claim(path)
    assert path.read_text() == "precious"


def test_path_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LinkPassError, match=r"can't listen on .*/file/x/s"):
        claim(tmp_path / "file" / "x" / "s")
    long = tmp_path / ("x" * 120)
    with pytest.raises(LinkPassError, match="can't listen on"):
        claim(long)


async def test_socket_that_another_took_over_is_not_removed(settings: Settings) -> None:
    async with serve(FakeFacade(), settings):
        settings.paths.socket.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(settings.paths.socket))
    assert settings.paths.socket.is_socket()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def test_one_uid_has_only_so_many_connections(settings: Settings) -> None:
    path = str(settings.paths.socket)
    async with serve(FakeFacade(), settings, Limits(connections=2)) as listener:
        held = [await asyncio.open_unix_connection(path) for _ in range(2)]
        await until(lambda: listener.connected[0] == 2)
        reader, writer = await asyncio.open_unix_connection(path)
        assert await asyncio.wait_for(reader.read(), 60) == b""  # hung up on
        writer.close()
        held[0][1].close()
        await until(lambda: listener.connected[0] == 1)
        answer = await exchange(settings.paths.socket, b"GET /v1/status HTTP/1.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        held[1][1].close()


@pytest.mark.parametrize("first", [b"", b"GET /v1/sta", b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_idle_or_trickling_connection_is_closed(settings: Settings, first: bytes) -> None:
    async with serve(FakeFacade(), settings, Limits(patience=0.02)) as listener:
        _, writer = await asyncio.open_unix_connection(str(settings.paths.socket))
        writer.write(first)
        await until(lambda: listener.connected)
        async with asyncio.timeout(60):
            while listener.connected:
                if first:
                    writer.write(b"X")
                await asyncio.sleep(0.005)
        assert not listener.connected
        writer.close()


async def test_body_that_never_comes_is_given_up(settings: Settings) -> None:
    facade = FakeFacade()
    raw = b"POST /v1/ports/a-rail0/drain HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 20\r\n\r\n{"
    async with serve(facade, settings, Limits(patience=0.02)):
        answer = await exchange(settings.paths.socket, raw)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert facade.changes == []


async def test_stopping_does_not_wait_for_a_stuck_client(settings: Settings) -> None:
    async with serve(FakeFacade(), settings, Limits(grace=0.01)):
        reader, writer = await asyncio.open_unix_connection(str(settings.paths.socket))
        writer.write(b"POST /v1/ports/a-rail0/drain HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{")
        _, idle = await asyncio.open_unix_connection(str(settings.paths.socket))
        await asyncio.sleep(0)
    assert b"200" not in await asyncio.wait_for(reader.read(), 60)
    writer.close()
    idle.close()


async def test_serving_leaves_signals_and_logging_alone(settings: Settings) -> None:
    import logging
    import signal

    before = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), list(logging.root.handlers))
    async with serve(FakeFacade(), settings):
        during = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), list(logging.root.handlers))
        assert not logging.getLogger("uvicorn").handlers
    assert during == before
