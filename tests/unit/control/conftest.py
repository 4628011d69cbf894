"""An API on a real Unix socket, beside a raw client that can send anything."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from linkpass.settings import Settings
from linkpass_agent.api import serve
from tests.fakes.ctl import Ctl
from tests.fakes.facade import FakeFacade


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_validate(
        {
            "host": "a",
            "paths": {"run": str(tmp_path / "run"), "state": str(tmp_path / "state")},
            "port": [{"name": "a-rail0", "rail": "rail0"}, {"name": "a-rail1", "rail": "rail1"}],
            "share": {"listen": "127.0.0.1:7471", "keyring": "/etc/linkpass/fleet.keys"},
        }
    )


Ask = Callable[..., Coroutine[Any, Any, tuple[int, Any]]]


async def exchange(path: Path, raw: bytes) -> bytes:
    """Send bytes, give all that comes back until the agent hangs up."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        writer.write(raw)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.fixture
def ask(settings: Settings) -> Ask:
    """One request by hand; gives status and parsed JSON."""

    async def once(method: str, target: str, body: bytes | None = None) -> tuple[int, Any]:
        length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".encode()
        answer = await exchange(settings.paths.socket, head + length + b"\r\n" + (body or b""))
        first, _, rest = answer.partition(b"\r\n")
        return int(first.split()[1]), json.loads(rest.partition(b"\r\n\r\n")[2] or b"null")

    return once


@pytest.fixture
async def facade(settings: Settings) -> AsyncIterator[FakeFacade]:
    """A plain one that answers on the socket."""
    fake = FakeFacade()
    async with serve(fake, settings):
        yield fake


@pytest.fixture
def ctl(settings: Settings) -> Ctl:
    """linkpassctl, asking that socket."""
    return Ctl(settings.paths.socket)
