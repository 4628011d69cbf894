"""Agents in guests: they see their RDMA ports through verbs, and one guest's fault reaches the other's agent."""

import time

import pytest

from linkpass_lab.agents import Agents, toml
from linkpass_lab.fault import parse
from linkpass_topology.fabric import dump

CUT = parse({"kind": "carrier", "host": "b", "rail": "rail0"})


@pytest.fixture(scope="module")
def agents(shared_lab):
    """One agent in each guest; that of b reads its ports, address and seeds off the fabric's file."""
    running = Agents(shared_lab, {"log": {"level": "debug"}})
    running.write()
    fabric = shared_lab.folder / "fabric.toml"
    if not fabric.exists():
        fabric.write_text(dump(shared_lab.fabric))
    own = running.configuration("b")
    short = {"fabric": str(fabric), **{k: own[k] for k in ("host", "mode", "paths", "probe", "log")}}
    short["share"] = {"keyring": own["share"]["keyring"]}
    (running.folder("b") / "linkpass.toml").write_text(toml(short))
    for host in ("a", "b"):
        running.launch(host)
    for host in ("a", "b"):
        running.wait(host)
    running.wait_until_connected(60.0)
    yield running
    assert running.stop_all() == {"a": 0, "b": 0}


class Log:
    """An agent's log, which lies in the folder that guests share with us: no guest's clock or program is needed."""

    def __init__(self, agents: Agents, host: str) -> None:
        self._path = agents.log(host)
        self._from = self._path.stat().st_size

    def first(self, *words: str, seconds: float = 60.0) -> float:
        """When a new line with all these words stood here first (monotonic seconds of this machine)."""
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline:
            with self._path.open("rb") as file:
                file.seek(self._from)
                lines = file.read().decode(errors="replace").splitlines()
            if any(all(w in line for w in words) for line in lines):
                return now
            time.sleep(0.002)
        raise AssertionError(f"no line with {words} within {seconds:g} s; there are {lines}")


def test_ports_show_their_rdma_state_and_gids(agents):
    for host in ("a", "b"):
        for index, port in enumerate(agents.ports(host)):
            assert (port["state"], port["rdma"]) == ("up", "active")
            address = agents.lab.fabric.host(host).on_rail(index)
            assert any("RoCEv2" in gid and gid.endswith(f"::ffff:{address}") for gid in port["gids"]), port["gids"]


def test_carrier_fault_in_one_guest_reaches_the_other_agent(agents, lab, record_property):
    near, far = Log(agents, "a"), Log(agents, "b")
    cut = time.monotonic()
    lab.inject(CUT)
    figures = {
        "b saw it by verbs": far.first("kind=seen subject=b-rail0", "rdma active -> down", "source=verbs"),
        "b's verdict": far.first("kind=verdict subject=b-rail0", "up -> down"),
        "a learned it": near.first("kind=learned subject=b", "b-rail0 up -> down"),
        "a's routes are changed": near.first("kind=acted subject=10.255.0.2", "a-rail1 via 10.11.0.2"),
    }
    print("\nafter the cut: " + ", ".join(f"{what} {1000 * (at - cut):.0f} ms" for what, at in figures.items()))
    for what, at in figures.items():
        record_property(what, at - cut)
    assert {p["name"]: p["state"] for p in agents.ports("a")} == {"a-rail0": "up", "a-rail1": "up"}
    lab.repair(CUT)
    far.first("kind=seen subject=b-rail0", "rdma down -> active")
    near.first("kind=learned subject=b", "b-rail0 held -> up")


def test_gid_that_moves_is_seen(agents, lab):
    far = Log(agents, "b")
    fault = parse({"kind": "gid", "host": "b", "rail": "rail1"})
    lab.inject(fault)
    far.first("kind=seen subject=b-rail1", "gids ", "source=verbs")
    lab.repair(fault)
