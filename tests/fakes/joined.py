"""Two agents' jobs joined as the daemon joins them: real sessions, pages and gossip on loopback UDP, one process.

What needs a kernel (verdicts, RDMA devices) is a `World`'s. Used by tests and by bench/jobs.py.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast

from linkpass.clock import SystemClock
from linkpass.model import Event, PortState
from linkpass.settings import Settings
from linkpass.shim import abi
from linkpass_agent.events import EventLog
from linkpass_agent.jobs.locality import UNKNOWN
from linkpass_agent.jobs.views import JobsFacade
from linkpass_agent.jobs.wired import Jobs
from linkpass_agent.reactor import Reactor
from linkpass_agent.see.rdma_devices import RdmaPort
from linkpass_topology.gossip import Gossip, GossipUdp, Output, PeerUp, Relayed, RelayReset
from linkpass_topology.gossip.outputs import Address
from tests.fakes.desks import Verdicts, World
from tests.fakes.mesh import KEYRING, record
from tests.fakes.shim_socket import SocketShim


class Host:
    """The parts that `wiring.Agent` joins, without those that need a kernel."""

    def __init__(self, world: World, name: str, folder: Path, seeds: list[Address]) -> None:
        self.name, self.path, self.world = name, folder / f"{name}.sock", world
        self.verdicts, self.clock = Verdicts(world, name), SystemClock()
        self.verdicts.record = record(name)  # type: ignore[attr-defined]
        self.events: list[Event] = []
        settings = Settings.model_validate(
            {
                "mode": "act",
                "host": name,
                "paths": {"run": str(folder), "jobs_socket": str(self.path)},
                "port": [{"name": p, "rail": r} for p, r in self.verdicts.rails.items()],
                "share": {"listen": "127.0.0.1:7471", "keyring": "/etc/linkpass/fleet.keys"},
            }
        )
        rng = Random(name)
        core = Gossip(name, KEYRING, seeds, rng=rng, entropy=rng.randbytes)
        self.gossip = GossipUdp(core, self.clock, self._told)
        nics = {p: RdmaPort(f"rxe{n}", 1) for n, p in enumerate(self.verdicts.rails)}
        self.jobs = Jobs(
            settings, cast(Reactor, self.verdicts), lambda: nics, self.gossip.post, lambda: None,
            EventLog(self.clock, self.events.append), self.clock, dict.fromkeys(nics, UNKNOWN),
        )  # fmt: skip
        for host in world.hosts:
            self.jobs.desk.learned(world.record(host))
            if host != name:
                self.verdicts.peers[host] = world.record(host)
        self.facade = JobsFacade(self.jobs.desk, self.clock)

    def port(self, rail: int, state: PortState) -> None:
        """A verdict on a port of ours, as the reactor would bring it."""
        self.world.states[self.name, rail] = state
        self.world.since[self.name, rail] = self.clock.now()
        self.jobs.desk.ports_moved()
        self.jobs.desk.moved([h for h in self.world.hosts if h != self.name])

    def _told(self, output: Output) -> None:
        match output:
            case Relayed(host=host, payload=payload):
                self.jobs.desk.letter(host, payload)
            case RelayReset(host=host):
                self.jobs.desk.reset(host)
            case PeerUp(host=host):
                self.jobs.desk.reached(host)


@asynccontextmanager
async def two(folder: Path, rails: int = 2) -> AsyncIterator[tuple[Host, Host]]:
    """Hosts a and b, up and listening."""
    world, hosts, beats = World(rails=rails), list[Host](), list[asyncio.Task[None]]()
    try:
        seeds: list[Address] = []
        for name in "ab":
            host = Host(world, name, folder, seeds)
            hosts.append(host)
            seeds = [await host.gossip.open(("127.0.0.1", 0))]
            host.jobs.open()
            beats.append(asyncio.create_task(host.jobs.beats()))
        yield hosts[0], hosts[1]
    finally:
        for task in beats:
            task.cancel()
        for host in hosts:
            host.jobs.close()
            host.gossip.close()


class EchoShim(SocketShim):
    """Makes every spare that it is asked for, and keeps what it got."""

    def __init__(self, path: Path, host: str, world: World) -> None:
        super().__init__(path)
        self.host, self.world, self.ids = host, world, dict[int, abi.Identity]()
        self.got: list[abi.Message] = []
        self.halves: dict[tuple[int, int], abi.Spare] = {}  # by connection and id, as a real shim keeps them
        self.sock.setblocking(False)
        asyncio.get_running_loop().add_reader(self.sock, self._readable)

    def up(self, conn: int, who: abi.Identity) -> None:
        self.ids[conn] = who
        self.send(abi.ConnUp(conn, who, "rxe0", 1, 3, 0, 128, 128))

    def count(self, kind: type[object]) -> int:
        return sum(isinstance(m, kind) for m in self.got)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.sock)
        super().close()

    def _readable(self) -> None:
        while True:
            try:
                message = self._get()
            except BlockingIOError:
                return
            if message is None:
                asyncio.get_running_loop().remove_reader(self.sock)
                return
            self.got.append(message)
            if isinstance(message, abi.SpareWant):
                half = self.halves.get((message.conn, message.id))
                if half is None or half.round != message.round:
                    self.world.qpns += 1
                    gid = self.ids[message.conn].local_gid
                    rail = int(message.device.removeprefix("rxe"))
                    gid = (
                        gid[:13] + bytes((10 + rail,)) + gid[14:]
                    )  # as tests.fakes.desks has them: 10.(10+RAIL).0.HOST
                    half = abi.Spare(gid, 1, 2, 3, 4, self.world.qpns, 7, 3, message.id, 0, message.round)
                self.halves[message.conn, message.id] = half
                self.send(abi.SpareHere(message.conn, self.ids[message.conn], half))
            elif isinstance(message, abi.SparePeer):
                half = self.halves.get((message.conn, message.spare.id))
                if half is not None and half.round == message.spare.round:
                    half = replace(half, flags=abi.C.LP_SPARE_PROVEN)
                    self.halves[message.conn, half.id] = half
                    self.send(abi.SpareHere(message.conn, self.ids[message.conn], half))


async def until(done: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something to become true; TimeoutError when it doesn't."""
    async with asyncio.timeout(seconds):
        while not done():
            await asyncio.sleep(0.001)
