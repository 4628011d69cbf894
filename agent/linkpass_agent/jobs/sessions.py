"""The shims' socket: SOCK_SEQPACKET, one frame a datagram, everybody may connect, the kernel says who it is.

A frame that breaks a rule of abi.h ends its session; the shim goes on as a pass-through. A session ends with its
process: by its socket, or by its pidfd when a child keeps the socket open.
"""

import asyncio
import errno
import logging
import os
import socket
import stat
import struct
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from linkpass.clock import Clock
from linkpass.errors import LinkPassError, WireError
from linkpass.shim import abi
from linkpass_agent.log import Held
from linkpass_topology.gossip.limits import TokenBucket

from .registry import Line

log = logging.getLogger("linkpass.jobs")

SO_PEERPIDFD = 77  # asm-generic/socket.h, Linux 6.5


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one user: `sessions`. Of one session: `rate` frames a second, `waiting` frames that it doesn't take,
    `patience` (s) for the first frame. `at_once`: frames read before others get their turn."""

    sessions: int = 256
    rate: float = 50_000.0
    waiting: int = 16_384
    patience: float = 5.0
    at_once: int = 64


class Owner(Protocol):
    """Who makes sense of the frames; `desk.Desk` is one."""

    def arrived(self, line: Line, hello: abi.Hello) -> abi.Welcome: ...
    def frame(self, line: Line, message: abi.Message) -> None: ...
    def left(self, line: Line) -> None: ...


class Session:
    """One connected process. `number` is ours, never used again."""

    def __init__(self, server: "Sessions", number: int, sock: socket.socket) -> None:
        self.number = number
        self.pid, self.uid, self.gid = struct.unpack(
            "iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        self._server, self._sock = server, sock
        self._waiting: deque[bytes] = deque()
        self._seq = 0
        self._bucket = TokenBucket(server.limits.rate, server.limits.rate)
        self._closed = False
        self.greeted = False
        self._loop = asyncio.get_running_loop()
        self._pidfd = _pidfd(sock, self.pid)
        self._loop.add_reader(sock, self._readable)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self.close)
        self._late = self._loop.call_later(server.limits.patience, self._too_late)

    def send(self, message: abi.Message) -> None:
        """Write a frame, or let it wait for room."""
        self._seq += 1
        self._write(abi.pack(message, self._seq))

    def refuse(self, reason: str) -> None:
        """Tell the shim to go on without us, and end the session."""
        if not self._closed:
            self.send(abi.Refused(reason))
            self.close()

    def close(self) -> None:
        """End the session. The owner hears of it a moment later, never in the middle of its own call."""
        if self._closed:
            return
        self._closed = True
        self._late.cancel()
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._sock.close()
        self._server.closed(self)

    def _write(self, frame: bytes) -> None:
        if self._closed:
            return
        if not self._waiting:
            try:
                self._sock.send(frame)
                return
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._writable)
            except OSError:
                self.close()
                return
        self._waiting.append(frame)
        if len(self._waiting) > self._server.limits.waiting:
            self._server.dropped["job-not-reading"] += 1
            self.close()

    def _writable(self) -> None:
        try:
            while self._waiting:
                self._sock.send(self._waiting[0])
                self._waiting.popleft()
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        for _ in range(self._server.limits.at_once):
            if self._closed:
                return
            try:
                data = self._sock.recv(abi.C.LP_FRAME_MAX + 1)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        server = self._server
        try:
            if not self._bucket.allow(server.clock.now()):
                raise WireError(f"more than {server.limits.rate:.0f} frames a second")
            message = abi.read(data)
            if self.greeted:
                server.owner.frame(self, message)
            elif isinstance(message, abi.Hello):
                self.greeted = True
                self._late.cancel()
                self._welcome(server.owner.arrived(self, message))
            else:
                raise WireError(f"{type(message).__name__} before any Hello")
        except WireError as e:
            server.dropped["job-bad-frame"] += 1
            server.held.say(log, logging.WARNING, f"refused a job: {e}", key="frame", pid=self.pid, uid=self.uid)
            self.refuse(str(e))

    def _welcome(self, welcome: abi.Welcome) -> None:
        self._seq += 1
        try:
            socket.send_fds(self._sock, [abi.pack(welcome, self._seq)], [self._server.page])
        except OSError:
            self.close()

    def _too_late(self) -> None:
        self.close()  # `linkpass run` looks in like this, without a word


class Sessions:
    """All sessions. `page` is the descriptor that shims are given."""

    def __init__(self, path: Path, owner: Owner, page: int, clock: Clock, limits: Limits | None = None) -> None:
        self.path, self.owner, self.page, self.clock = path, owner, page, clock
        self.limits = limits or Limits()
        self.dropped: Counter[str] = Counter()
        self.held = Held(clock)
        self._sessions: set[Session] = set()
        self._of_uid: Counter[int] = Counter()
        self._count = 0
        self._sock: socket.socket | None = None
        self._inode = 0

    def open(self) -> None:
        """Listen, in place of what a dead agent left. LinkPassError when the path isn't to be had."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and not stat.S_ISSOCK(self.path.stat().st_mode):
                raise LinkPassError(f"{self.path} is there and is no socket; remove it or name another jobs_socket")
            if _answers(self.path):
                raise LinkPassError(f"another agent answers on {self.path}; give this one another paths.jobs_socket")
            self.path.unlink(missing_ok=True)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            before = os.umask(0o111)
            try:
                sock.bind(str(self.path))
            finally:
                os.umask(before)
            sock.listen(1024)
        except OSError as e:
            raise LinkPassError(f"can't listen on {self.path}: {e.strerror or e}") from e
        self._sock, self._inode = sock, self.path.stat().st_ino
        asyncio.get_running_loop().add_reader(sock, self._accept)

    def close(self) -> None:
        """End all sessions; the jobs run on without us."""
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None
            with suppress(FileNotFoundError):
                if self.path.stat().st_ino == self._inode:
                    self.path.unlink()
        for session in list(self._sessions):
            session.close()

    def closed(self, session: Session) -> None:
        """Called by a session at its end."""
        self._sessions.discard(session)
        self._of_uid[session.uid] -= 1
        if not self._of_uid[session.uid]:
            del self._of_uid[session.uid]
        if session.greeted:
            asyncio.get_running_loop().call_soon(self.owner.left, session)

    def _accept(self) -> None:
        for _ in range(self.limits.at_once):
            if self._sock is None:
                return
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as e:
                if e.errno in (errno.EMFILE, errno.ENFILE):
                    self.held.say(log, logging.ERROR, "out of file descriptors: a job can't attach", key="files")
                    return
                continue
            sock.setblocking(False)
            self._count += 1
            try:
                session = Session(self, self._count, sock)
            except OSError:
                sock.close()
                continue
            self._sessions.add(session)
            self._of_uid[session.uid] += 1
            if self._of_uid[session.uid] > self.limits.sessions:
                self.dropped["job-sessions"] += 1
                session.refuse(f"uid {session.uid} has {self.limits.sessions} attached processes already")


def _pidfd(sock: socket.socket, pid: int) -> int | None:
    """Who connected, as a descriptor that becomes readable when they are gone; None where the kernel can't."""
    with suppress(OSError):
        return int(struct.unpack("i", sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4))[0])
    with suppress(OSError):
        return os.pidfd_open(pid) if pid > 0 else None  # before Linux 6.5; the pid is fresh
    return None


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.setblocking(False)
        try:
            sock.connect(str(path))
        except BlockingIOError:
            return True
        except OSError as e:
            return e.errno == errno.EPROTOTYPE
        return True
