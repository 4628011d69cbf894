"""The control socket itself: who owns the path, who is on the other end, and how much anybody may ask at once.

uvicorn's HTTP protocol is used without its server, so that the agent's own loop, signals and logging stay its own.
"""

import asyncio
import errno
import fcntl
import grp
import logging
import os
import socket
import stat
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from linkpass.api import Problem
from linkpass.errors import LinkPassError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

# include/uapi/asm-generic/socket.h; the supplementary groups that the peer had when it connected.
SO_PEERGROUPS = 59
# NGROUPS_MAX of include/uapi/linux/limits.h is 65536 groups of 4 bytes.
MAX_GROUPS = 65536 * 4

log = logging.getLogger("linkpass.api")
# uvicorn's own remarks (bad requests, upgrades) can be provoked by anybody, so only errors of ours pass.
http_log = logging.getLogger("linkpass.http")
http_log.setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may cost. Sizes in bytes, times in seconds."""

    header: int = 16 * 1024  # request line and headers; what `linkpassctl` sends is under 300 bytes
    body: int = 8 * 1024  # a reason of 500 characters, escaped, is under 4 KiB
    connections: int = 64  # of one uid
    follows: int = 8  # of one uid
    patience: float = 5.0  # to send a request, or to read an answer
    heartbeat: float = 5.0  # an empty line to followers
    grace: float = 1.0  # for answers under way when the agent stops


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is on the other end, as the kernel knows them; taken when they connected."""

    uid: int
    gid: int
    pid: int
    groups: frozenset[int]

    def may_change(self, group: int | None) -> bool:
        """Root may, and members of the configured group."""
        return self.uid == 0 or (group is not None and (group == self.gid or group in self.groups))

    def __str__(self) -> str:
        return "root" if self.uid == 0 else f"uid {self.uid}"


def peer_of(sock: Any) -> Peer:
    """Credentials of the process that connected `sock` (SO_PEERCRED, SO_PEERGROUPS; unix(7))."""
    pid, uid, gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    size = 256
    while True:
        try:
            raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, size)
        except OSError as e:
            if e.errno != errno.ERANGE or size >= MAX_GROUPS:
                raise
            size *= 4
        else:
            return Peer(uid, gid, pid, frozenset(struct.unpack(f"{len(raw) // 4}I", raw)))


def group_id(name: str | None) -> int | None:
    """The group's number; without such a group only root may change things, and the log says so."""
    if name is None:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        log.warning(
            "there is no group %r: only root may change things until it is made and the agent restarted", name
        )
        return None


class Listener:
    """What the connections of one socket share."""

    def __init__(self, app: "ASGIApp", limits: Limits) -> None:
        self.config = Config(
            cast(Any, app),
            http=ControlProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=limits.header,
        )
        self.config.load()
        self.state = ServerState()
        self.limits = limits
        self.connected: Counter[int] = Counter()  # by uid

    def __call__(self) -> "ControlProtocol":
        return ControlProtocol(self)

    async def stop(self) -> None:
        """Let answers under way end, then end what is left."""
        for connection in list(self.state.connections):
            with suppress(h11.LocalProtocolError):
                connection.shutdown()
        if self.state.tasks:
            await asyncio.wait(set(self.state.tasks), timeout=self.limits.grace)
        for task in list(self.state.tasks):
            task.cancel()
        for connection in list(self.state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.gather(*self.state.tasks, return_exceptions=True)


class ControlProtocol(H11Protocol):
    """HTTP/1.1 that knows its peer (`scope["state"]["peer"]`), bounds each uid and doesn't wait for ever."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener.config, listener.state, {})
        self.logger = http_log
        self.access_log = False
        self.listener = listener
        self.peer: Peer | None = None
        self.seen: object = None
        self.check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        try:
            peer = peer_of(transport.get_extra_info("socket"))
        except OSError:
            transport.abort()  # unknown peers get nothing
            return
        if self.listener.connected[peer.uid] >= self.listener.limits.connections:
            transport.abort()
            return
        self.peer = peer
        self.listener.connected[peer.uid] += 1
        self.app_state = {"peer": peer, "abort": transport.abort}
        self.check = self.loop.call_later(self.listener.limits.patience, self._check_progress)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.check:
            self.check.cancel()
        if self.peer:
            self.listener.connected[self.peer.uid] -= 1
            if not self.listener.connected[self.peer.uid]:
                del self.listener.connected[self.peer.uid]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.peer:
            super().data_received(data)

    def _check_progress(self) -> None:
        """Close a connection on which no request has come since the last check, however it trickles."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is self.seen:
            self.transport.abort()
            return
        self.seen = self.cycle
        self.check = self.loop.call_later(self.listener.limits.patience, self._check_progress)

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # The request's head was fine, its body isn't. Its handler may not have run yet: it must neither answer
            # as well nor take the request as whole.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # in the middle of an answer: nothing more can be said
            return
        body = Problem(error="this is no HTTP request that the agent understands").model_dump_json().encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


@dataclass(frozen=True, slots=True)
class Claim:
    """A path that is ours: the listening socket, its inode, and the lock that tells other agents so.

    Who connects before it is served waits."""

    path: Path
    sock: socket.socket
    inode: int
    lock: int

    def release(self) -> None:
        self.sock.close()
        with suppress(FileNotFoundError):
            if self.path.stat().st_ino == self.inode:
                self.path.unlink()
            Path(f"{self.path}.lock").unlink()
        os.close(self.lock)


def claim(path: Path) -> Claim:
    """Listen at `path`, mode 0666, in place of what a dead agent left. LinkPassError when it isn't to be had."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
            raise LinkPassError(f"{path} is there and is no socket; remove it or give another paths.socket")
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise LinkPassError(f"can't listen on {path}: {e.strerror}") from e
    try:
        return _listen(path, lock)
    except OSError as e:
        os.close(lock)
        raise LinkPassError(f"can't listen on {path}: {e.strerror or e}") from e
    except LinkPassError:
        os.close(lock)
        raise


def _listen(path: Path, lock: int) -> Claim:
    if not _locked(path, lock) or _answers(path):
        raise LinkPassError(f"another agent answers on {path}; stop it first, or give this one another paths.socket")
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        before = os.umask(0o111)  # everybody may ask; who may change things is decided by uid
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        sock.listen(128)
        return Claim(path, sock, path.stat().st_ino, lock)
    except OSError:
        sock.close()
        raise


def _locked(path: Path, lock: int) -> bool:
    """Whether the lock is ours now, and is still the file that others would open."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Path(f"{path}.lock").stat().st_ino == os.fstat(lock).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            sock.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:  # its queue is full: it lives
            return True
        return True


@asynccontextmanager
async def listening(app: "ASGIApp", claimed: Claim, limits: Limits) -> AsyncIterator[Listener]:
    """Serve `app` on the running loop; gives the path back at the end."""
    try:
        listener = Listener(app, limits)
        server = await asyncio.get_running_loop().create_unix_server(listener, sock=claimed.sock)
        try:
            yield listener
        finally:
            server.close()
            await listener.stop()
    finally:
        claimed.release()
