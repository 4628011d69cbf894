"""PID 1 of a guest: sets it up as told, then runs commands for whoever asks over the exec channel.

It serves the virtio-serial port that the supervisor holds, and, on the management network, TCP connections that speak
the same frames (`gx`): that is how one guest starts something on another, as mpirun does.

Runs as root inside a guest and nowhere else. Standard library only and few imports: each costs emulated time.
"""

import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from linkpass_lab.guests.frames import (
    WINDOW,
    BrokenStreamError,
    Decoder,
    Kind,
    count_of,
    frame,
    frame_count,
    frame_json,
)

PORT = 7499  # TCP, on the management address only
CHUNK = 65_536
CARRIER = 10.0  # s that a bond may take
KILL_AFTER = 2.0  # s from SIGTERM to SIGKILL for a command that nobody listens to any more


class Link:
    """One byte stream that carries frames: the virtio port or a TCP connection. Writes never block."""

    def __init__(self, daemon: "Daemon", fd: int) -> None:
        os.set_blocking(fd, False)
        self.daemon, self.fd = daemon, fd
        self.decoder = Decoder()
        self.out = bytearray()
        self.jobs: dict[int, Job] = {}
        daemon.watch(fd, select.EPOLLIN, self.ready)

    def send(self, data: bytes) -> None:
        self.out += data
        self.flush()

    def flush(self) -> None:
        while self.out:
            try:
                done = os.write(self.fd, self.out[:CHUNK])
            except BlockingIOError:
                break
            except OSError:
                self.out.clear()
                break
            del self.out[:done]
        self.daemon.watch(self.fd, select.EPOLLIN | (select.EPOLLOUT if self.out else 0), self.ready)

    def ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self.flush()
        if not events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.ended()
            return
        try:
            for channel, kind, payload in self.decoder.feed(data):
                self.got(channel, kind, payload)
        except (BrokenStreamError, ValueError, KeyError, struct.error) as e:
            print(f"guestd: {e}", file=sys.stderr)
            self.ended()

    def got(self, channel: int, kind: Kind, payload: bytes) -> None:
        if kind is Kind.OPEN:
            start(self.daemon, self, channel, json.loads(payload))
            return
        job = self.jobs.get(channel)
        if job is not None:
            job.got(kind, payload)

    def ended(self) -> None:
        """A TCP peer is gone: so are its commands. (The virtio port ends only with the guest.)"""
        for job in list(self.jobs.values()):
            job.abandon()
        self.jobs.clear()
        self.daemon.unwatch(self.fd)
        os.close(self.fd)


class Job:
    """One command that runs for a channel of a link."""

    def __init__(self, link: Link, channel: int, pid: int, outputs: dict[int, Kind], stdin: int | None) -> None:
        self.link, self.channel, self.pid = link, channel, pid
        self.outputs = outputs  # our ends of its stdout and stderr
        self.stdin, self.pending, self.stdin_ends = stdin, bytearray(), False
        self.terminal = stdin is not None and stdin in outputs
        self.credit = WINDOW
        self.status: int | None = None
        link.jobs[channel] = self
        for fd in {*outputs, *([stdin] if stdin is not None else [])}:
            os.set_blocking(fd, False)
        self.rewatch()

    def rewatch(self) -> None:
        """Listen only for what can be dealt with now."""
        daemon = self.link.daemon
        for fd in {*self.outputs, *([self.stdin] if self.stdin is not None else [])}:
            events = select.EPOLLIN if fd in self.outputs and self.credit > 0 else 0
            if fd == self.stdin and self.pending:
                events |= select.EPOLLOUT
            if events:
                daemon.watch(fd, events, lambda got, fd=fd: self.ready(fd, got))
            else:
                daemon.unwatch(fd)

    def got(self, kind: Kind, payload: bytes) -> None:
        match kind:
            case Kind.STDIN if self.stdin is not None and not self.stdin_ends:
                self.pending += payload
                self.feed()
            case Kind.STDIN_END:
                self.stdin_ends = True
                self.feed()
            case Kind.SIGNAL:
                self.kill(count_of(payload))
            case Kind.RESIZE if self.terminal and self.stdin is not None:
                resize(self.stdin, json.loads(payload))
            case Kind.CREDIT:
                self.credit += count_of(payload)
                self.rewatch()
                self.finish()
            case Kind.CLOSE:
                self.link.jobs.pop(self.channel, None)
                self.abandon()

    def feed(self) -> None:
        """Hand the command as much of its input as it takes now."""
        while self.pending and self.stdin is not None:
            try:
                done = os.write(self.stdin, self.pending[:CHUNK])
            except BlockingIOError:
                break
            except OSError:  # it closed its end: the rest is lost, as with any pipe
                done = len(self.pending)
            del self.pending[:done]
            self.link.send(frame_count(self.channel, Kind.CREDIT, done))
        if self.stdin_ends and not self.pending and self.stdin is not None and not self.terminal:
            self.link.daemon.unwatch(self.stdin)
            os.close(self.stdin)
            self.stdin = None
        self.rewatch()

    def ready(self, fd: int, events: int) -> None:
        if fd == self.stdin and self.pending:
            self.feed()
        if fd in self.outputs and events & ~select.EPOLLOUT:
            self.pump(fd)
            self.rewatch()
            self.finish()

    def pump(self, fd: int) -> bool:
        """Pass on one chunk; False when there is nothing more for now or ever."""
        if self.credit <= 0:
            return False
        try:
            data = os.read(fd, min(CHUNK, self.credit))
        except BlockingIOError:
            return False
        except OSError:  # a terminal says EIO when its last user is gone
            data = b""
        if not data:
            kind = self.outputs.pop(fd)
            self.link.daemon.unwatch(fd)
            if fd != self.stdin:
                os.close(fd)
            del kind
            return False
        self.credit -= len(data)
        self.link.send(frame(self.channel, self.outputs[fd], data))
        return True

    def exited(self, status: int) -> None:
        self.status = status
        self.finish()

    def finish(self) -> None:
        """Say EXIT once the command has ended and all that it had written is passed on."""
        if self.status is None or self.channel not in self.link.jobs:
            return
        for fd in list(self.outputs):
            while self.pump(fd):
                pass
        if self.outputs and self.credit <= 0:
            return  # more may be there; goes on with the next CREDIT
        del self.link.jobs[self.channel]
        self.close()
        self.link.send(frame_json(self.channel, Kind.EXIT, self.status))

    def kill(self, number: int) -> None:
        if self.status is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def abandon(self) -> None:
        """Nobody listens: end the command, and soon by force."""
        self.close()
        self.kill(signal.SIGHUP if self.terminal else signal.SIGTERM)
        self.link.daemon.later(KILL_AFTER, lambda: self.kill(signal.SIGKILL))

    def close(self) -> None:
        for fd in {*self.outputs, *([self.stdin] if self.stdin is not None else [])}:
            self.link.daemon.unwatch(fd)
            os.close(fd)
        self.outputs, self.stdin = {}, None


class Daemon:
    """The event loop: descriptors, timers and ended children."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.watched: dict[int, tuple[int, Any]] = {}
        self.timers: list[tuple[float, Any]] = []
        self.pids: dict[int, Job | None] = {}
        self.wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.watch(self.wake, select.EPOLLIN, self.reap)

    def watch(self, fd: int, events: int, ready: Any) -> None:
        had = self.watched.get(fd)
        if had is None:
            self.epoll.register(fd, events)
        elif had[0] != events:
            self.epoll.modify(fd, events)
        self.watched[fd] = (events, ready)

    def unwatch(self, fd: int) -> None:
        if self.watched.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def later(self, seconds: float, act: Any) -> None:
        self.timers.append((time.monotonic() + seconds, act))

    def reap(self, _events: int) -> None:
        with suppress(BlockingIOError):
            os.read(self.wake, 512)
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                job = self.pids.pop(pid, None)
                if job is not None:
                    job.exited(os.waitstatus_to_exitcode(status))

    def run(self) -> None:
        while True:
            wait = max(0.0, min(t for t, _ in self.timers) - time.monotonic()) if self.timers else -1
            for fd, events in self.epoll.poll(wait):
                entry = self.watched.get(fd)  # an earlier event of this round may have closed it
                if entry is not None:
                    entry[1](events)
            now = time.monotonic()
            due = [act for at, act in self.timers if at <= now]
            self.timers = [t for t in self.timers if t[0] > now]
            for act in due:
                act()


def start(daemon: Daemon, link: Link, channel: int, asked: dict[str, Any]) -> None:
    """Start a command. FAILED says why it couldn't be."""
    argv: list[str] = asked["argv"]
    env = {**os.environ, **(asked.get("env") or {})}
    stdin: int | None = None
    ours: dict[int, Kind] = {}
    theirs: list[int] = []
    actions: list[Any] = []
    try:
        os.chdir(asked.get("cwd") or "/")
        if asked.get("tty"):
            stdin, slave = os.openpty()
            theirs.append(slave)
            resize(stdin, asked["tty"])
            ours[stdin] = Kind.STDOUT
            # A session leader's first terminal becomes its controlling one; the session is made before these actions.
            actions.append((os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0))
            actions += [(os.POSIX_SPAWN_DUP2, 0, fd) for fd in (1, 2)]
        elif asked.get("log"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            actions.append((os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0))
            actions.append((os.POSIX_SPAWN_OPEN, 1, asked["log"], flags, 0o644))
            actions.append((os.POSIX_SPAWN_DUP2, 1, 2))
        else:
            read, stdin = os.pipe()
            theirs.append(read)
            actions.append((os.POSIX_SPAWN_DUP2, read, 0))
            for fd, kind in ((1, Kind.STDOUT), (2, Kind.STDERR)):
                mine, its = os.pipe()
                ours[mine] = kind
                theirs.append(its)
                actions.append((os.POSIX_SPAWN_DUP2, its, fd))
        pid = os.posix_spawn(
            found(argv[0], env),
            argv,
            env,
            file_actions=actions,
            setsid=True,
            setsigdef=(signal.SIGPIPE, signal.SIGCHLD),
        )
    except (OSError, ValueError, IndexError) as e:
        for fd in {*ours, *([stdin] if stdin is not None else [])}:
            os.close(fd)
        where = f" (in {asked['cwd']})" if asked.get("cwd") else ""
        why = e.strerror if isinstance(e, OSError) else str(e)
        link.send(frame_json(channel, Kind.FAILED, f"{argv[0] if argv else 'nothing'}{where}: {why}"))
        return
    finally:
        os.chdir("/")
        for fd in theirs:
            os.close(fd)
    link.send(frame_count(channel, Kind.STARTED, pid))
    if asked.get("log") and not asked.get("tty"):  # detached: the caller has the pid, and the file
        daemon.pids[pid] = None
        link.send(frame_json(channel, Kind.EXIT, 0))
        return
    daemon.pids[pid] = Job(link, channel, pid, ours, stdin)


def found(name: str, env: dict[str, str]) -> str:
    """Where the command is, by the PATH that it will have itself (posix_spawnp goes by ours)."""
    if "/" in name:
        return name
    for folder in env.get("PATH", os.defpath).split(":"):
        path = os.path.join(folder or ".", name)  # noqa: PTH118 - pathlib would cost time at every start
        if os.access(path, os.X_OK) and not os.path.isdir(path):  # noqa: PTH112
            return path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def resize(terminal: int, size: list[int]) -> None:
    with suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[0], size[1], 0, 0))


def call(*argv: str, text: str = "") -> None:
    """Run a set-up command; what it complains about goes to the console, and the guest doesn't come up."""
    read, write = os.pipe()
    os.write(write, text.encode())
    os.close(write)
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, read, 0)])
    os.close(read)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise SystemExit(f"guestd: {' '.join(argv)}: exit {status}\n{text}")


def put(path: str, text: str) -> None:
    Path(path).write_text(text)


def await_carrier(device: str) -> None:
    """A bond takes a look at its ports (miimon) before it says that it has carrier; a device made earlier is down."""
    until = time.monotonic() + CARRIER
    while Path(f"/sys/class/net/{device}/operstate").read_text().strip() != "up":
        if time.monotonic() > until:
            raise SystemExit(f"guestd: {device} has no carrier after {CARRIER:g} s")
        select.select([], [], [], 0.02)


def set_up(told: dict[str, Any]) -> None:
    """Make the guest what `plan.setup` says."""
    put("/proc/sys/kernel/hostname", told["name"])
    for key, value in (
        # A host answers ARP only on the port that has the address, so that rails don't answer for each other.
        ("ipv4/conf/all/arp_ignore", "1"),
        ("ipv4/conf/all/arp_announce", "2"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        # Link-local addresses are unique here; without this a GID is unusable for a second or two.
        ("ipv6/conf/all/accept_dad", "0"),
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/conf/default/router_solicitations", "0"),
    ):
        put(f"/proc/sys/net/{key}", value)
    put("/etc/hosts", "127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for n, a in told["hosts"].items()))
    by_mac = {(net / "address").read_text().strip(): net.name for net in Path("/sys/class/net").iterdir()}
    lines = ["link set lo up", f"addr add {told['service']} dev lo"]
    for nic in told["nics"]:
        lines.append(f"link set {by_mac[nic['mac']]} name {nic['name']} mtu {nic['mtu']}")
    bond = told["bond"]
    if bond:
        call("modprobe", "bonding", "max_bonds=0")
        lines.append(f"link add {bond['name']} type bond mode active-backup miimon {bond['miimon']}")
        lines += [f"link set {port} master {bond['name']}" for port in bond["ports"]]
        lines += [f"link set {bond['name']} mtu {bond['mtu']} up", f"addr add {bond['address']} dev {bond['name']}"]
    for nic in told["nics"]:
        if nic["address"]:
            lines += [f"link set {nic['name']} up", f"addr add {nic['address']} dev {nic['name']}"]
    lines += [f"route replace {route}" for route in told["routes"]]
    call("ip", "-batch", "-", text="".join(f"{line}\n" for line in lines))
    if bond:
        await_carrier(bond["name"])
    rdma = "".join(f"link add {name} type rxe netdev {device}\n" for name, device in told["rdma"])
    call("rdma", "-b", "-", text=rdma)


def serve(told: dict[str, Any], address: str) -> None:
    daemon = Daemon()
    listener = socket.create_server((address, PORT), backlog=16)
    listener.setblocking(False)

    def accept(_events: int) -> None:
        with suppress(OSError):
            Link(daemon, listener.accept()[0].detach())

    daemon.watch(listener.fileno(), select.EPOLLIN, accept)
    port = next(
        p for p in Path("/sys/class/virtio-ports").iterdir() if (p / "name").read_text().strip() == "linkpass"
    )
    fd = os.open(f"/dev/{port.name}", os.O_RDWR | os.O_CLOEXEC)
    Link(daemon, fd).send(frame_json(0, Kind.HELLO, {"name": told["name"], "uptime": round(time.monotonic(), 2)}))
    daemon.run()


def main() -> None:
    with suppress(OSError):
        os.setsid()
    told = json.loads(
        Path(os.environ["LINKPASS_LAB_RUN"], "guests", f"{os.environ['LINKPASS_NODE']}.json").read_text()
    )
    try:
        set_up(told)
    except OSError as e:
        if e.errno == errno.EROFS:
            raise SystemExit(f"guestd: {e}: the overlay isn't writable") from e
        raise
    serve(told, told["hosts"][told["name"]])
