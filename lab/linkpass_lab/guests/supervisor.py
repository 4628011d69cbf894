"""The process that owns the guests of one lab: `python -m linkpass_lab.guests.supervisor FOLDER [--attached]`.

It lives in a network namespace of its own without a name, which holds every bridge and tap: when it and its QEMUs are
gone, so is all of that. QEMUs are killed by the kernel when it ends (PR_SET_PDEATHSIG), however it ends. With
`--attached` it ends when its standard input does, so that a lab made by a test ends with the test.

Others talk to it over `guests/guests.sock` in the run folder: one JSON line, then an answer of one line; after "exec"
the connection carries frames (see `frames`) with channel 0.
"""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from linkpass_lab.guests import orders
from linkpass_lab.guests.channel import SOCKET
from linkpass_lab.guests.frames import Decoder, Kind, frame
from linkpass_lab.guests.machine import Machine
from linkpass_lab.guests.plan import LabPlan, setup, wiring
from linkpass_lab.guests.prepare import Prepared
from linkpass_lab.lab import LabError
from linkpass_lab.ledger import Ledger

CLONE_NEWNET = 0x40000000  # linux/sched.h
HOST_COMMAND = 20.0  # s that an `ip` or `tc` in the lab's namespace may take

START = """#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount --bind {modules} /lib/modules
ulimit -l unlimited
exec {python} -E -s -S -c '
import sys
sys.path.insert(0, "{code}")
from linkpass_lab.guests import guestd
guestd.main()
'
"""


def batch(lines: list[str], command: str = "ip") -> None:
    """Run `ip -batch`; LabError in its own words."""
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run([command, "-batch", "-"], input=text, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"{command}: {done.stderr.strip()}")


def say(**what: Any) -> None:
    """One line of progress for whoever started us; they may have stopped listening."""
    with suppress(OSError, ValueError):
        print(json.dumps(what), flush=True)


class Supervisor:
    """All guests of a lab, and the socket over which they are used."""

    def __init__(self, folder: Path, lab: LabPlan, made: Prepared, memory: int) -> None:
        self.folder, self.lab = folder, lab
        self.ledger = Ledger(folder)
        self.machines = {g.name: Machine(g, made, folder, memory) for g in lab.guests}
        self.made = made
        self.ending = asyncio.Event()
        self.trains: dict[tuple[str, str], asyncio.Task[None]] = {}

    def make_network(self) -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            raise LabError(f"no network namespace: {os.strerror(ctypes.get_errno())}; guests need root")
        # Bridges and taps only pass packets on; addresses of their own would put noise on the rails.
        for which in ("all", "default"):
            with suppress(OSError):
                Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6").write_text("1")
        batch(wiring(self.lab))

    def write_setups(self) -> None:
        code = Path(__file__).resolve().parents[2]
        start = START.format(modules=self.made.kernel.modules, python=os.path.realpath(sys.executable), code=code)
        (self.folder / "guests" / "start").write_text(start)
        for guest in self.lab.guests:
            (self.folder / "guests" / f"{guest.name}.json").write_text(json.dumps(setup(self.lab, guest)))

    async def boot(self, machine: Machine) -> float:
        """Start a guest and wait until it answers; returns the seconds."""
        began = time.monotonic()
        nics = machine.plan.nics
        pid = await machine.start(
            lambda: batch([f"link set {n.name} mtu {n.mtu} master {n.bridge} up" for n in nics])
        )
        self.ledger.process(pid, f"guest {machine.plan.name}", kind="node")
        await machine.up()
        took = time.monotonic() - began
        say(say=f"guest {machine.plan.name} is up", seconds=round(took, 1))
        return took

    async def run(self, attached: bool) -> int:
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self.ending.set)
        if attached:
            loop.add_reader(0, self._stdin)
        try:
            self.make_network()
            self.write_setups()
            server = await asyncio.start_unix_server(self.serve, self.folder / "guests" / SOCKET)
            say(say=f"starting {len(self.machines)} guests")
            boots = asyncio.gather(*(self.boot(m) for m in self.machines.values()))
            over = asyncio.ensure_future(self.ending.wait())
            waits: list[asyncio.Future[Any]] = [boots, over]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if boots.done():
                boots.result()
                say(ready=round(time.monotonic() - began, 1))
                await over
            server.close()
            return 0
        except (LabError, OSError) as e:
            say(failed=str(e))
            return 1
        finally:
            for machine in self.machines.values():
                machine.kill()
            for machine in self.machines.values():
                if machine.process is not None:
                    machine.process.wait()

    def _stdin(self) -> None:
        if not os.read(0, 4096):
            asyncio.get_running_loop().remove_reader(0)
            self.ending.set()

    # -- the socket

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            order = json.loads(await reader.readline())
            if order["op"] == "exec":
                await self.execute(order, reader, writer)
                return
            try:
                answer = {"ok": await self.carry_out(order)}
            except (LabError, OSError) as e:
                answer = {"error": str(e)}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (ValueError, KeyError, OSError) as e:
            print(f"supervisor: {e!r}", file=sys.stderr, flush=True)
        finally:
            writer.close()

    def machine(self, name: str) -> Machine:
        if name not in self.machines:
            raise LabError(f"no guest {name!r}; there are {', '.join(self.machines)}")
        return self.machines[name]

    async def carry_out(self, order: dict[str, Any]) -> Any:
        match order["op"]:
            case "status":
                return {
                    n: {"state": m.state, "pid": m.process.pid if m.process else None, "hello": m.hello}
                    for n, m in self.machines.items()
                }
            case "host":
                return await self.host(order["argv"])
            case "monitor":
                return await self.machine(order["guest"]).ask(order["execute"], order.get("arguments"))
            case "signal":
                self.machine(order["guest"]).signal(order["signal"])
                if order["signal"] == signal.SIGKILL:
                    await self.machine(order["guest"]).gone()
                return None
            case "flap":
                await self.flap(order["guest"], order["nic"], int(order["count"]), order["down"], order["up"])
                return None
            case "steady":
                await self.steady(order["guest"], order["nic"])
                return None
            case "start":
                machine = self.machine(order["guest"])
                if machine.state != "dead":
                    raise LabError(f"guest {order['guest']} is {machine.state} already")
                return await self.boot(machine)
            case _:
                raise LabError(f"unknown order {order['op']!r}")

    async def flap(self, guest: str, nic: str, count: int, down: float, up: float) -> None:
        """Pull the cable and put it back, `count` times (times in s). Returns when it is out for the first time."""
        await self.steady(guest, nic)
        machine, out = self.machine(guest), asyncio.Event()

        async def train() -> None:
            due = asyncio.get_running_loop().time()  # absolute, so that a busy machine doesn't stretch the train
            for _ in range(count):
                for state, seconds in ((False, down), (True, up)):
                    await machine.ask("set_link", {"name": nic, "up": state})
                    out.set()
                    due += seconds
                    await asyncio.sleep(due - asyncio.get_running_loop().time())

        task = self.trains[guest, nic] = asyncio.ensure_future(train())
        first = asyncio.ensure_future(out.wait())
        await asyncio.wait([task, first], return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        if task.done():
            task.result()

    async def steady(self, guest: str, nic: str) -> None:
        """End a train; the cable is in."""
        task = self.trains.pop((guest, nic), None)
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError, LabError):
                await task
        await self.machine(guest).ask("set_link", {"name": nic, "up": True})

    async def host(self, argv: list[str]) -> Any:
        """Run a command in the lab's namespace, where bridges and taps are."""
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), HOST_COMMAND)
        except TimeoutError:
            process.kill()
            raise LabError(f"{' '.join(argv)}: not done after {HOST_COMMAND:.0f} s") from None
        return {"code": process.returncode, "out": out.decode(errors="replace"), "err": err.decode(errors="replace")}

    async def execute(
        self, order: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        over = asyncio.Event()

        def receive(_channel: int, kind: Kind, payload: bytes) -> None:
            writer.write(frame(0, kind, payload))
            if kind in (Kind.EXIT, Kind.FAILED):
                over.set()

        try:
            machine = self.machine(order["guest"])
            channel = machine.open(order["open"], receive)
        except LabError as e:
            receive(0, Kind.FAILED, json.dumps(str(e)).encode())
            await writer.drain()
            return
        relay = asyncio.ensure_future(self._relay(machine, channel, reader))
        finish = asyncio.ensure_future(over.wait())
        await asyncio.wait([relay, finish], return_when=asyncio.FIRST_COMPLETED)
        if over.is_set():
            machine.receivers.pop(channel, None)
        else:
            machine.close(channel)
        relay.cancel()
        finish.cancel()
        await writer.drain()

    @staticmethod
    async def _relay(machine: Machine, channel: int, reader: asyncio.StreamReader) -> None:
        decoder = Decoder()
        with suppress(OSError):
            while data := await reader.read(65_536):
                for _, kind, payload in decoder.feed(data):
                    machine.send(frame(channel, kind, payload))


def main() -> None:
    folder = Path(sys.argv[1])
    lab, made, memory = orders.read(folder / "guests")

    async def go() -> int:
        return await Supervisor(folder, lab, made, memory).run("--attached" in sys.argv[2:])

    sys.exit(asyncio.run(go()))


if __name__ == "__main__":
    main()
