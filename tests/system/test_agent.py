"""Real agents on real links: drains, restarts, refusals, leavings, hostile datagrams, bad configuration."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linkpass_lab.agents import Agents, kernel_hops, kernel_routes
from linkpass_lab.fault import parse
from linkpass_lab.namespaces import NamespaceLab
from linkpass_topology.fabric import grid

pytestmark = pytest.mark.system
QUICK = {"hold_down": {"first": 0.3, "max": 5.0}}
TO_B = "10.255.0.2"


@pytest.fixture(scope="module")
def lab() -> Iterator[NamespaceLab]:
    made = NamespaceLab.up(grid(2, 2), label="agent")
    yield made
    made.close()


@pytest.fixture
def agents(lab: NamespaceLab) -> Iterator[Agents]:
    """Both agents, connected, all paths in use."""
    running = Agents(lab, QUICK)
    running.start_all()
    running.wait_until_connected()
    yield running
    for host in running.running():
        running.kill(host)
    for host in ("a", "b"):
        subprocess.run([*undo(running, host)], check=True, capture_output=True)
        for left in (running.folder(host) / "state").iterdir():
            left.unlink()


def undo(agents: Agents, host: str) -> list[str]:
    inside = ["nsenter", "-t", str(agents.lab.pids[host]), "-n", "-m"]  # type: ignore[attr-defined]
    return [*inside, sys.executable, "-m", "linkpass_agent", "--config", str(config(agents, host)), "--undo"]


def config(agents: Agents, host: str) -> Path:
    return agents.folder(host) / "linkpass.toml"


def eventually(true: Callable[[], object], seconds: float = 10.0) -> object:
    deadline = time.monotonic() + seconds
    while not (value := true()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return value


def state(agents: Agents, port: str) -> str:
    return next(str(p["state"]) for p in agents.ports("a") if p["name"] == port)


def test_drain_moves_traffic_and_survives_restart_and_kill(agents: Agents) -> None:
    assert agents.ctl("a", "drain", "a-rail0", "--reason", "new optics").returncode == 0
    assert kernel_hops(agents.lab, "a", TO_B) == ["a-rail1"]
    assert eventually(lambda: kernel_hops(agents.lab, "b", "10.255.0.1") == ["b-rail1"])
    for end in (agents.stop, agents.kill):
        end("a")
        agents.start("a")
        assert state(agents, "a-rail0") == "drained"
        assert eventually(lambda: kernel_hops(agents.lab, "a", TO_B) == ["a-rail1"])
    assert agents.ctl("a", "undrain", "a-rail0").returncode == 0
    assert eventually(lambda: kernel_hops(agents.lab, "a", TO_B) == ["a-rail0", "a-rail1"])


def test_hold_down_goes_on_after_a_restart_and_after_a_kill(lab: NamespaceLab, agents: Agents) -> None:
    agents.stop("a")
    patient = Agents(lab, {"hold_down": {"first": 8.0, "max": 20.0}})
    patient.write()
    patient.start("a")
    try:
        pulled = parse({"kind": "carrier", "host": "a", "rail": "rail0"})
        assert eventually(lambda: state(patient, "a-rail0") == "up")
        lab.inject(pulled)
        assert eventually(lambda: state(patient, "a-rail0") == "down")
        lab.repair(pulled)
        for end in (patient.stop, patient.kill):
            assert eventually(lambda: state(patient, "a-rail0") == "held")
            end("a")
            patient.start("a")
            assert eventually(lambda: kernel_hops(lab, "a", TO_B) == ["a-rail1"])
            port = next(p for p in patient.ports("a") if p["name"] == "a-rail0")
            assert port["state"] == "held" and port["flaps"] >= 1 and "before the agent's restart" in port["cause"]
        assert eventually(lambda: state(patient, "a-rail0") == "up", 20)
    finally:
        patient.kill("a")


def test_cable_mended_after_the_peers_agent_died_is_used_again(lab: NamespaceLab, agents: Agents) -> None:
    pulled = parse({"kind": "carrier", "host": "b", "rail": "rail0"})
    lab.inject(pulled)
    assert eventually(lambda: kernel_hops(lab, "a", TO_B) == ["a-rail1"])
    agents.kill("b")
    lab.repair(pulled)
    assert eventually(lambda: kernel_hops(lab, "a", TO_B) == ["a-rail0", "a-rail1"], 60)
    assert {p["rail"]: p["remote"] for p in agents.paths("a")} == {"rail0": "unknown", "rail1": "up"}
    lab.inject(pulled)
    assert eventually(lambda: kernel_hops(lab, "a", TO_B) == ["a-rail1"])
    lab.repair(pulled)


def test_drain_that_is_only_tried_out_changes_nothing(agents: Agents) -> None:
    said = agents.ctl("a", "drain", "a-rail0", "--reason", "try", "--dry-run", "--json")
    assert said.returncode == 0
    plan = json.loads(said.stdout)["plan"]
    assert [(s["destination"], s["after"]) for s in plan["steps"]] == [(TO_B, ["a-rail1 via 10.11.0.2"])]
    assert state(agents, "a-rail0") == "up"
    assert kernel_hops(agents.lab, "a", TO_B) == ["a-rail0", "a-rail1"]


def test_last_usable_path_is_not_drained(agents: Agents) -> None:
    assert agents.ctl("a", "drain", "a-rail0", "--reason", "one").returncode == 0
    refused = agents.ctl("a", "drain", "a-rail1", "--reason", "two")
    assert refused.returncode == 1
    assert "a-rail1 carries the last usable path to b" in refused.stderr
    assert state(agents, "a-rail1") == "up"
    assert kernel_hops(agents.lab, "a", TO_B) == ["a-rail1"]


def test_stopped_agents_leave_the_routes_as_they_were(lab: NamespaceLab) -> None:
    before = kernel_routes(lab, "a")
    running = Agents(lab, QUICK)
    running.start_all()
    running.wait_until_connected()
    assert kernel_routes(lab, "a") != before
    assert running.stop_all() == {"a": 0, "b": 0}
    assert kernel_routes(lab, "a") == before


def test_stop_keeps_the_only_route_and_undo_removes_it(agents: Agents) -> None:
    baseline = agents.lab.run("a", ["ip", "route", "show", TO_B, "metric", "1024"]).stdout.split("\n", 1)
    agents.lab.run("a", ["ip", "route", "del", TO_B, "metric", "1024"])
    try:
        assert agents.stop("a") == 0
        assert kernel_hops(agents.lab, "a", TO_B) == ["a-rail0", "a-rail1"]
        assert f"kept the only route to {TO_B}" in agents.log("a").read_text()
        subprocess.run(undo(agents, "a"), check=True, capture_output=True)
        assert kernel_hops(agents.lab, "a", TO_B) == []
    finally:
        hops = [w for n in ("0", "1") for w in ("nexthop", "via", f"10.1{n}.0.2", "dev", f"a-rail{n}")]
        agents.lab.run("a", ["ip", "route", "add", TO_B, "metric", "1024", "src", "10.255.0.1", *hops])
    assert agents.lab.run("a", ["ip", "route", "show", TO_B, "metric", "1024"]).stdout.split("\n", 1) == baseline


def test_killed_agents_leavings_are_taken_over_and_mended(agents: Agents) -> None:
    agents.kill("a")
    assert kernel_hops(agents.lab, "a", TO_B) == ["a-rail0", "a-rail1"]  # jobs run on
    stray = ["ip", "nexthop", "add", "id", "1280311999", "via", "10.10.0.77", "dev", "a-rail0", "protocol", "76"]
    agents.lab.run("a", stray)
    agents.start("a")
    assert "1280311999" not in agents.lab.run("a", ["ip", "nexthop", "show"]).stdout
    said = [e["text"] for e in agents.events("a") if e["kind"] == "agent"]
    assert any("took over 1 route" in text for text in said), said
    assert any("removed 1 next-hop object" in text for text in said), said
    assert kernel_hops(agents.lab, "a", TO_B) == ["a-rail0", "a-rail1"]


def test_route_that_somebody_deletes_comes_back(agents: Agents) -> None:
    agents.lab.run("a", ["ip", "route", "del", TO_B, "metric", "50"])
    assert eventually(lambda: "metric 50" in agents.lab.run("a", ["ip", "route", "show", TO_B]).stdout), (
        "the sweep mends what others broke"
    )


def test_second_agent_of_the_same_configuration_is_refused_and_harms_nothing(agents: Agents) -> None:
    argv = [sys.executable, "-m", "linkpass_agent", "--config", str(config(agents, "a"))]
    second = agents.lab.run("a", argv, check=False)
    assert second.returncode == 1
    assert "another agent answers on" in second.stderr
    assert kernel_hops(agents.lab, "a", TO_B) == ["a-rail0", "a-rail1"]
    assert agents.ctl("a", "status").returncode == 0


def test_bad_configuration_stops_the_daemon_naming_file_line_and_key(agents: Agents, tmp_path: Path) -> None:
    text = config(agents, "a").read_text()
    bad = tmp_path / "bad.toml"
    bad.write_text(text + "\n[probe2]\nperiode = 1\n")
    line = bad.read_text().splitlines().index("[probe2]") + 1
    done = agents.lab.run("a", [sys.executable, "-m", "linkpass_agent", "--config", str(bad)], check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{bad}:{line}: probe2: unknown key")


def test_garbage_and_foreign_keys_change_nothing(agents: Agents) -> None:
    before = (agents.ports("a"), kernel_hops(agents.lab, "a", TO_B))
    version = next(p["version"] for p in agents.ask("a", "peers"))
    flood = (
        "import os, socket\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "for i in range(400):\n"
        "    s.sendto(os.urandom(i % 1500 + 1), ('10.99.0.1', 7471))\n"
        "    s.sendto(b'LPP1' + os.urandom(45), ('10.10.0.1', 7472))\n"
    )
    agents.lab.run("b", [sys.executable, "-c", flood])
    stranger = Agents(agents.lab, {**QUICK, "mode": "shadow"})
    keys = agents.folder("b") / "foreign.keys"
    keys.touch(mode=0o600)
    keys.write_text(f"lab {'0123456789abcdef' * 4}\n")
    agents.stop("b")
    agents.config = {**QUICK, "share": {"keyring": str(keys)}}
    config(agents, "b").write_text(config(stranger, "b").read_text().replace("fleet.keys", "b/foreign.keys"))
    agents.start("b")
    assert eventually(lambda: agents.status("a")["dropped"].get("bad-tag", 0) > 0)
    dropped = agents.status("a")["dropped"]
    assert dropped["garbage"] >= 300
    assert dropped["probe-garbage"] >= 300
    after = (agents.ports("a"), kernel_hops(agents.lab, "a", TO_B))
    assert [(p["name"], p["state"], p["flaps"]) for p in after[0]] == [
        (p["name"], p["state"], p["flaps"]) for p in before[0]
    ]
    assert after[1] == before[1]
    assert next(p["version"] for p in agents.ask("a", "peers") if p["host"] == "b") >= version
    assert agents.status("b")["peers_connected"] == 0


def test_shadow_mode_touches_no_route(lab: NamespaceLab) -> None:
    before = kernel_routes(lab, "a")
    running = Agents(lab, {**QUICK, "mode": "shadow"})
    running.start_all()
    try:
        assert eventually(lambda: running.ask("a", "plan")["steps"])
        decided = [e for e in running.events("a") if e["kind"] == "decided"]
        assert decided
        assert all("shadow" in e["text"] for e in decided)
        assert kernel_routes(lab, "a") == before
    finally:
        assert running.stop_all() == {"a": 0, "b": 0}


def test_status_tells_by_its_exit_code(agents: Agents) -> None:
    assert agents.ctl("a", "status").returncode == 0
    agents.lab.run("b", ["ip", "link", "set", "b-rail1", "down"])
    try:
        assert eventually(lambda: agents.ctl("a", "status").returncode == 1)
        assert "b/rail1" in agents.ctl("a", "status").stdout
    finally:
        agents.lab.run("b", ["ip", "link", "set", "b-rail1", "up"])
    agents.stop("a")
    assert agents.ctl("a", "status").returncode == 3


def test_port_that_returns_with_a_smaller_mtu_is_held_by_that_gate_until_it_is_mended(
    lab: NamespaceLab, agents: Agents
) -> None:
    port, fault = lab.port("a", "rail0"), parse({"kind": "carrier", "host": "a", "rail": "rail0"})
    lab.inject(fault)
    assert eventually(lambda: state(agents, port) == "down")
    lab.run("a", ["ip", "link", "set", port, "mtu", "1400"])
    lab.repair(fault)
    shut = "gate: mtu is 1400 bytes, expected 1500 bytes"
    try:
        assert eventually(lambda: shut in cause(agents, port)), cause(agents, port)
        time.sleep(1.0)  # the hold-down is long over
        assert state(agents, port) == "held"
    finally:
        lab.run("a", ["ip", "link", "set", port, "mtu", "1500"])
    assert eventually(lambda: state(agents, port) == "up"), cause(agents, port)


def cause(agents: Agents, port: str) -> str:
    return next(str(p["cause"]) for p in agents.ask("a", "ports") if p["name"] == port)


def test_expected_port_that_isnt_configured_is_absent_until_a_new_manifest_is_read(
    lab: NamespaceLab, tmp_path: Path
) -> None:
    manifest = tmp_path / "manifest.toml"
    ports = [f'[[port]]\nname = "a-rail{n}"\nrail = "rail{n}"\n' for n in range(3)]
    manifest.write_text("".join(ports))
    running = Agents(lab, {**QUICK, "manifest": str(manifest)})
    running.write()
    running.start("a")
    try:
        assert state(running, "a-rail2") == "absent"
        assert cause(running, "a-rail2") == "it is in the manifest (rail2) and isn't configured: add a [[port]]"
        assert any("a-rail2 is absent" in p for p in running.status("a")["problems"])
        manifest.write_text('[[port]]\nrail = "rail0"\nname = 3\n')
        os.kill(running.pid("a"), signal.SIGHUP)
        bad = f"the manifest stays as it was: {manifest}:3"
        assert eventually(lambda: any(e["text"].startswith(bad) for e in running.events("a"))), [
            e["text"] for e in running.events("a")
        ]
        assert state(running, "a-rail2") == "absent"
        manifest.write_text("".join(ports[:2]))
        os.kill(running.pid("a"), signal.SIGHUP)
        assert eventually(lambda: len(running.ports("a")) == 2)
    finally:
        running.stop_all()
