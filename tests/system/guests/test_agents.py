"""Agents in guests: they see their RDMA ports through verbs, and one guest's fault reaches the other's agent."""

import json
import threading
import time
from pathlib import Path

import pytest

from linkpass_lab.agents import Agents, toml
from linkpass_lab.fault import parse
from linkpass_topology.fabric import dump

CUT = parse({"kind": "carrier", "host": "b", "rail": "rail0"})


@pytest.fixture(scope="module")
def agents(shared_lab):
    """One agent in each guest; that of b reads its ports, address and seeds off the fabric's file."""
    running = Agents(shared_lab)
    running.write()
    fabric = shared_lab.folder / "fabric.toml"
    if not fabric.exists():
        fabric.write_text(dump(shared_lab.fabric))
    own = running.configuration("b")
    short = {"fabric": str(fabric), **{k: own[k] for k in ("host", "mode", "paths", "probe")}}
    short["share"] = {"keyring": own["share"]["keyring"]}
    (running.folder("b") / "linkpass.toml").write_text(toml(short))
    for host in ("a", "b"):
        running.launch(host)
    for host in ("a", "b"):
        running.wait(host)
    running.wait_until_connected(60.0)
    yield running
    assert running.stop_all() == {"a": 0, "b": 0}


class Follower:
    """Follows an agent's events; notes when each line reached us here (no guest's clock is needed)."""

    def __init__(self, agents: Agents, host: str, log: Path) -> None:
        self.lines: list[tuple[float, dict]] = []
        self._log = log.open("wb")
        self._process = agents.lab.popen(
            host, agents.command(host, ["--json", "events", "--follow"]), stdout=-1, stderr=self._log
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout:
            if line.strip():
                self.lines.append((time.monotonic(), json.loads(line)))

    def first(self, seconds: float, **like: str) -> tuple[float, dict]:
        """The first event whose fields hold these words, as soon as it is there."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for when, event in list(self.lines):
                if all(words in str(event[field]) for field, words in like.items()):
                    return when, event
            time.sleep(0.002)
        raise AssertionError(f"no event like {like} within {seconds:g} s; {[e for _, e in self.lines]}")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._log.close()


def test_ports_show_their_rdma_state_and_gids(agents):
    for host in ("a", "b"):
        for index, port in enumerate(agents.ports(host)):
            assert (port["state"], port["rdma"]) == ("up", "active")
            address = agents.lab.fabric.host(host).on_rail(index)
            assert any("RoCEv2" in gid and gid.endswith(f"::ffff:{address}") for gid in port["gids"]), port["gids"]


def test_carrier_fault_in_one_guest_reaches_the_other_agent(agents, lab, tmp_path, record_property):
    near, far = Follower(agents, "a", tmp_path / "a"), Follower(agents, "b", tmp_path / "b")
    try:
        time.sleep(3.0)
        cut = time.monotonic()
        lab.inject(CUT)
        seen, _ = far.first(60, kind="seen", subject="b-rail0", text="carrier true -> false")
        verbs, event = far.first(60, kind="seen", subject="b-rail0", text="rdma active -> down")
        assert event["data"]["source"] == "verbs"
        learned, _ = near.first(60, kind="learned", subject="b", text="b-rail0 up -> down")
        acted, _ = near.first(60, kind="acted", subject=agents.lab.fabric.host("b").service)
        figures = {"seen": seen, "verbs event": verbs, "learned by a": learned, "acted by a": acted}
        told = ", ".join(f"{name} {1000 * (when - cut):.0f} ms" for name, when in figures.items())
        print(f"\nafter the cut, as read here (so at most): {told}")
        for name, when in figures.items():
            record_property(name, when - cut)
        assert {p["name"]: p["state"] for p in agents.ports("a")} == {"a-rail0": "up", "a-rail1": "up"}
        lab.repair(CUT)
        far.first(60, kind="seen", subject="b-rail0", text="rdma down -> active")
        near.first(60, kind="learned", subject="b", text="b-rail0 held -> up")
    finally:
        near.close()
        far.close()


def test_gid_that_moves_is_seen_and_shared(agents, lab, tmp_path):
    far = Follower(agents, "b", tmp_path / "b")
    try:
        time.sleep(3.0)
        before = next(p for p in agents.ports("b") if p["name"] == "b-rail1")["gids"]
        fault = parse({"kind": "gid", "host": "b", "rail": "rail1"})
        lab.inject(fault)
        far.first(60, kind="seen", subject="b-rail1", text="gids ")
        after = next(p for p in agents.ports("b") if p["name"] == "b-rail1")["gids"]
        assert after != before
        lab.repair(fault)
    finally:
        far.close()
