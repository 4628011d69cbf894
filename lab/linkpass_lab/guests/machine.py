"""One guest as the supervisor has it: the QEMU process, its exec channel, its monitor."""

import asyncio
import ctypes
import fcntl
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from linkpass_lab.guests import qemu
from linkpass_lab.guests.frames import Decoder, Kind, frame, frame_json
from linkpass_lab.guests.plan import GuestPlan
from linkpass_lab.guests.prepare import Prepared
from linkpass_lab.lab import LabError

TUNSETIFF = 0x400454CA  # linux/if_tun.h
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
PR_SET_PDEATHSIG = 1  # linux/prctl.h
BOOT = 90.0  # s; an emulated guest takes 5 to 10 s alone, several times that on a crowded machine
MONITOR = 10.0  # s for an answer of the monitor

Receiver = Callable[[int, Kind, bytes], None]
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with(parent: int) -> Callable[[], None]:
    """For the child between fork and exec: be killed when `parent` ends, whatever ends it; yield to others."""

    def arrange() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setpriority(os.PRIO_PROCESS, 0, max(qemu.NICE, os.getpriority(os.PRIO_PROCESS, 0)))

    return arrange


def open_tap(name: str) -> int:
    """A tap in the caller's network namespace; it goes when the descriptor is closed everywhere."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    return fd


class Machine:
    """A guest. After `start` it runs until QEMU ends; then `start` may be called again."""

    def __init__(self, plan: GuestPlan, made: Prepared, run: Path, memory: int) -> None:
        self.plan, self.made, self.run, self.memory = plan, made, run, memory
        self.log = run / "guests" / f"{plan.name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.hello: dict[str, Any] | None = None
        self.frozen = False
        self.receivers: dict[int, Receiver] = {}
        self.channels = itertools.count(1)
        self.ended = asyncio.Event()
        self._up = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._monitor: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._asking = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> str:
        if self.process is None or self.ended.is_set():
            return "dead"
        if self.frozen:
            return "frozen"
        return "up" if self.hello is not None else "booting"

    async def start(self, wire: Callable[[], None]) -> int:
        """Start QEMU; `wire` is called when the taps exist. Returns its pid; `up` waits until the guest answers."""
        taps = [open_tap(n.name) for n in self.plan.nics]
        channel, theirs = socket.socketpair()
        monitor, its = socket.socketpair()
        try:
            wire()
            fds = qemu.Descriptors(tuple(taps), theirs.fileno(), its.fileno())
            command = qemu.command(self.plan, self.made, fds, self.run, self.log, self.memory)
            with self.log.with_suffix(".qemu").open("wb") as complaints:
                # Blocking for the length of a fork; asyncio's own way would run no preexec_fn that can be relied on.
                self.process = subprocess.Popen(  # noqa: ASYNC220
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=complaints,
                    stderr=complaints,
                    pass_fds=(*taps, fds.channel, fds.monitor),
                    preexec_fn=_die_with(os.getpid()),
                    start_new_session=True,
                )
        finally:
            theirs.close()
            its.close()
            for fd in taps:
                os.close(fd)
        self.ended, self._up = asyncio.Event(), asyncio.Event()
        self.hello, self.frozen = None, False
        reader, self._writer = await asyncio.open_connection(sock=channel)
        self._monitor = await asyncio.open_connection(sock=monitor)
        self._keep(self._listen(reader))
        return self.process.pid

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def up(self) -> None:
        """Wait until the guest has set itself up. LabError with its last words when it ends or takes too long."""
        waits = [asyncio.ensure_future(e.wait()) for e in (self._up, self.ended)]
        await asyncio.wait(waits, timeout=BOOT, return_when=asyncio.FIRST_COMPLETED)
        for w in waits:
            w.cancel()
        if self.ended.is_set() or not self._up.is_set():
            how = "ended while it started" if self.ended.is_set() else f"isn't up after {BOOT:.0f} s"
            raise LabError(f"guest {self.plan.name} {how}: {self.last_words()}")
        await self.ask("query-status")

    def last_words(self) -> str:
        """The end of what QEMU and the guest's console said."""
        said = []
        for file in (self.log.with_suffix(".qemu"), self.log):
            with suppress(OSError):
                text = file.read_text(errors="replace")
                said += text.partition("Kernel panic")[0].splitlines()[-6:]
        return " | ".join(s.strip() for s in said if s.strip()) or "it said nothing"

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        decoder = Decoder()
        try:
            while data := await reader.read(65_536):
                for channel, kind, payload in decoder.feed(data):
                    if kind is Kind.HELLO:
                        self.hello = json.loads(payload)
                        self._up.set()
                    elif (receiver := self.receivers.get(channel)) is not None:
                        receiver(channel, kind, payload)
        except OSError:
            pass  # a QEMU that is killed with something unread in its socket resets it
        finally:
            self._gone()

    def _gone(self) -> None:
        """QEMU closed the channel: it has ended, or is about to."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
        self.ended.set()
        for writer in (self._writer, self._monitor[1] if self._monitor else None):
            if writer is not None:
                writer.close()
        for channel, receiver in list(self.receivers.items()):
            receiver(channel, Kind.FAILED, json.dumps(f"guest {self.plan.name} is gone").encode())

    # -- commands in it

    def open(self, order: dict[str, Any], receiver: Receiver) -> int:
        """Have a command run; what comes back goes to `receiver`. Returns its channel."""
        if self.state in ("dead", "booting"):
            raise LabError(f"guest {self.plan.name} is {self.state}")
        channel = next(self.channels)
        self.receivers[channel] = receiver
        self.send(frame_json(channel, Kind.OPEN, order))
        return channel

    def send(self, data: bytes) -> None:
        if self._writer is not None and not self.ended.is_set():
            self._writer.write(data)

    def close(self, channel: int) -> None:
        """Nobody listens to this channel any more."""
        if self.receivers.pop(channel, None) is not None:
            self.send(frame(channel, Kind.CLOSE))

    # -- the machine itself

    async def ask(self, execute: str, arguments: dict[str, Any] | None = None) -> Any:
        """One QMP command; returns its answer. LabError when QEMU refuses or doesn't answer."""
        if self._monitor is None or self.ended.is_set():
            raise LabError(f"guest {self.plan.name} is dead")
        async with self._asking:
            try:
                return await asyncio.wait_for(self._ask(execute, arguments), MONITOR)
            except (TimeoutError, OSError) as e:
                why = "it is frozen" if self.frozen else (str(e) or f"no answer in {MONITOR:.0f} s")
                raise LabError(f"monitor of guest {self.plan.name}: {execute}: {why}") from e

    async def _ask(self, execute: str, arguments: dict[str, Any] | None) -> Any:
        assert self._monitor is not None
        reader, writer = self._monitor
        orders = [(execute, arguments)]
        if execute == "query-status":  # the first thing that is ever asked
            orders.insert(0, ("qmp_capabilities", None))
        answer: Any = None
        for name, more in orders:
            order = {"execute": name, **({"arguments": more} if more else {})}
            writer.write(json.dumps(order).encode() + b"\n")
            while True:
                line = await reader.readline()
                if not line:
                    raise OSError("closed")
                answer = json.loads(line)
                if "return" in answer or "error" in answer:
                    break
            if "error" in answer and name != "qmp_capabilities":
                raise LabError(f"monitor of guest {self.plan.name}: {name}: {answer['error'].get('desc')}")
        return answer.get("return")

    def signal(self, number: int) -> None:
        """A signal to QEMU itself: SIGSTOP freezes the guest, SIGCONT thaws it, SIGKILL is a host that died."""
        if self.process is None or self.ended.is_set():
            raise LabError(f"guest {self.plan.name} is dead")
        self.process.send_signal(number)
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self.frozen = number == signal.SIGSTOP

    async def gone(self) -> None:
        """Wait until QEMU has ended; LabError when it doesn't."""
        try:
            await asyncio.wait_for(self.ended.wait(), MONITOR)
        except TimeoutError as e:
            raise LabError(f"guest {self.plan.name} is still there {MONITOR:.0f} s after SIGKILL") from e

    def kill(self) -> None:
        """End it now."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()
