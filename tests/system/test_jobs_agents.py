"""Two real agents in namespaces, a Python shim at each: pairing, orders on real carrier loss, drain, kill -9.

There are no RDMA devices here, so the config names devices that can't be read; GIDs follow from the rails' addresses.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from linkpass.shim import abi
from linkpass_agent.jobs.outlook import gid_of
from linkpass_lab.agents import Agents
from linkpass_lab.fault import parse
from linkpass_lab.namespaces import NamespaceLab
from linkpass_topology.fabric import grid
from tests.fakes.joined import EchoShim, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
COUNT = 16


class RdmaAgents(Agents):
    """Every rail's port has an RDMA device, if the config is to be believed."""

    def configuration(self, name: str) -> dict[str, Any]:
        made = super().configuration(name)
        for n, port in enumerate(made["port"]):
            port["rdma"] = f"rxe{n}"
        return made


class World:
    """What an EchoShim needs of one."""

    qpns = 5000


@pytest.fixture
def agents(lab_root: Path) -> Iterator[Agents]:
    lab = NamespaceLab.up(grid(2, 2), label="jobs")
    made = RdmaAgents(lab)
    try:
        made.start_all()
        made.wait_until_connected()
        yield made
    finally:
        made.stop_all()
        lab.close()


def identity(agents: Agents, n: int) -> abi.Identity:
    one, other = (gid_of(agents.lab.fabric.host(h).on_rail(0)) for h in "ab")
    assert one is not None and other is not None
    return abi.Identity(one, other, 100 + n, 1100 + n, 5, 6)


async def attached(agents: Agents) -> tuple[EchoShim, EchoShim]:
    world: Any = World()
    shims = [await arriving(agents, h, world) for h in "ab"]
    for shim, mirrored in zip(shims, (False, True), strict=True):
        shim.send(abi.Hello(0, "test", "train"))
        for n in range(1, COUNT + 1):
            who = identity(agents, n)
            shim.up(n, who.mirror if mirrored else who)
    await until(lambda: all([j["protected"] for j in agents.ask(h, "jobs")] == [COUNT] for h in "ab"))
    return shims[0], shims[1]


async def arriving(agents: Agents, host: str, world: Any) -> EchoShim:
    """A shim tries until the agent lets it in; it answers on its control socket a moment earlier."""
    async with asyncio.timeout(20):
        while True:
            try:
                return EchoShim(agents.socket(host).with_name("jobs.sock"), host, world)
            except OSError:
                await asyncio.sleep(0.05)


def moved(shim: EchoShim) -> None:
    """The shim has done what it was ordered."""
    for order in [m for m in shim.got if isinstance(m, abi.Order)]:
        shim.send(abi.ConnState(order.conn, abi.ACTIVE, 1, 1, order.spare, 1_000_000, 0, 0, 0, 0, 64, 1, 0))


async def test_carrier_lost_at_one_end_orders_the_jobs_of_both_ends_away(agents: Agents) -> None:
    shims = await attached(agents)
    for host in "ab":
        (job,) = agents.ask(host, "jobs")
        assert (job["name"], job["queue_pairs"], job["protected"], job["peers"]) == (
            "train", COUNT, COUNT, ["b" if host == "a" else "a"],
        )  # fmt: skip
        assert any(p["rail"] == "rail0" for p in agents.paths(host))
    fault = parse({"kind": "carrier", "host": "b", "rail": "rail0"})
    agents.lab.inject(fault)
    await until(lambda: all(s.count(abi.Order) == COUNT for s in shims))
    assert shims[1].nics()["rxe0"] == abi.C.LP_NIC_DOWN
    for shim in shims:
        moved(shim)
    await until(lambda: all(j["rails"] == {"rail1": COUNT} for h in "ab" for j in agents.ask(h, "jobs")))
    agents.lab.repair(fault)
    await until(lambda: any(m.why == abi.C.LP_WHY_FAIL_BACK for m in shims[0].got if isinstance(m, abi.Order)), 40.0)
    texts = [e["text"] for e in agents.events("a") if e["subject"].startswith("job train/")]
    assert f"{COUNT} queue pairs ordered off a dead path: rail0 -> rail1" in texts
    assert any(t.startswith(f"{COUNT} queue pairs moved: rail0 -> rail1, gap 1.0 ms") for t in texts)


async def test_drain_waits_for_running_jobs(agents: Agents) -> None:
    shims = await attached(agents)
    port = agents.lab.port("a", "rail0")
    command = agents.command("a", ["drain", port, "--reason", "optic", "--wait", "20"])
    drain = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    await until(lambda: all(s.count(abi.Order) == COUNT for s in shims))
    assert {m.why for m in shims[0].got if isinstance(m, abi.Order)} == {abi.C.LP_WHY_DRAIN}
    assert drain.returncode is None
    for shim in shims:
        moved(shim)
    out, _ = await asyncio.wait_for(drain.communicate(), 40)
    lines = out.decode().splitlines()
    assert lines[0] == f"{port} is drained; {COUNT} queue pairs are moving"
    assert lines[-1] == f"{port} is drained and quiet: safe to pull"
    assert drain.returncode == 0


@pytest.mark.parametrize("host", ["a", "b"])
async def test_killed_agent_s_jobs_are_protected_again_once_it_is_back(agents: Agents, host: str) -> None:
    shims = await attached(agents)
    made = {h: dict(s.halves) for h, s in zip("ab", shims, strict=True)}
    agents.kill(host)
    await asyncio.to_thread(agents.start, host)
    index = "ab".index(host)
    again = await arriving(agents, host, shims[index].world)
    again.halves = made[host]
    again.send(abi.Hello(0, "test", "train"))
    for n, who in shims[index].ids.items():
        again.up(n, who)
    await until(lambda: all(j["protected"] == COUNT for h in "ab" for j in agents.ask(h, "jobs")), 40.0)
    both = (again, shims[1 - index])
    agents.lab.inject(parse({"kind": "carrier", "host": host, "rail": "rail0"}))
    await until(lambda: all(s.count(abi.Order) == COUNT for s in both))


async def test_run_says_that_a_job_will_be_protected(agents: Agents, tmp_path: Path) -> None:
    for name in ("libibverbs.so.1", "libibverbs.so"):
        (tmp_path / name).touch()
    socket = agents.socket("a").with_name("jobs.sock")
    env = {"LINKPASS_SHIM": str(tmp_path), "LINKPASS_SOCKET": str(socket), "PYTHONPATH": ":".join(sys.path)}
    ask: Callable[[], str] = lambda: subprocess.run(  # noqa: E731
        [sys.executable, "-m", "linkpass.run", "run", "--", "/bin/true"],
        env=env, capture_output=True, text=True, check=False,
    ).stderr.splitlines()[0]  # fmt: skip
    assert await asyncio.to_thread(ask) == "linkpass: protected"
    agents.lab.inject(parse({"kind": "carrier", "host": "a", "rail": "rail1"}))
    await until(lambda: agents.ask("a", "status")["ports_up"] == 1)
    assert "nowhere to move to" in await asyncio.to_thread(ask)
