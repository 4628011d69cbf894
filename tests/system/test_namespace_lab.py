"""The namespace lab: what it makes, whether each fault bites, and that nothing is left, however it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from linkpass_lab import realisations, traffic
from linkpass_lab.breaking import broken, mend, strike
from linkpass_lab.fault import Fault, FaultError, parse
from linkpass_lab.lab import LabError
from linkpass_lab.ledger import Ledger, runs
from linkpass_lab.namespaces import NamespaceLab
from linkpass_lab.netns import identity
from linkpass_lab.scenario import Traffic
from linkpass_topology.fabric import grid

from .conftest import Command, carrying, environment, namespaces

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


@pytest.fixture
def lab(lab_root: Path) -> Iterator[NamespaceLab]:
    made = realisations.up("namespaces", grid(2, 2))
    assert isinstance(made, NamespaceLab)
    yield made
    made.close()


def answered(lab: NamespaceLab, source: str, rail: str, target: str, count: int = 20) -> int:
    """How many of `count` pings over one rail come back."""
    address = lab.fabric.host(target).on_rail(lab.fabric.rails.index(rail))
    argv = ["ping", "-q", "-c", str(count), "-i", "0.01", "-W", "1", "-I", lab.port(source, rail), address]
    found = re.search(r"(\d+) received", lab.run(source, argv, check=False).stdout)
    assert found is not None
    return int(found[1])


def carrier(lab: NamespaceLab, host: str, rail: str) -> bool:
    said = lab.run(host, ["ip", "-j", "link", "show", lab.port(host, rail)]).stdout
    return "LOWER_UP" in json.loads(said)[0]["flags"]


def test_hosts_reach_each_other_on_every_network(lab: NamespaceLab) -> None:
    host = lab.fabric.host("b")
    for address in (host.management, host.on_rail(0), host.on_rail(1), host.service):
        lab.run("a", ["ping", "-q", "-c", "1", "-W", "3", address])


def test_rails_are_apart(lab: NamespaceLab) -> None:
    argv = ["ping", "-q", "-c", "1", "-W", "1", "-I", "a-rail0", lab.fabric.host("b").on_rail(1)]
    assert lab.run("a", argv, check=False).returncode != 0


def test_ends_of_links_have_indexes_of_their_own_unless_asked_otherwise(lab_root: Path) -> None:
    for equal in (False, True):
        lab = realisations.up("namespaces", grid(2, 2), equal_ifindex=equal)
        try:
            for name in ("ifindex", "iflink"):
                assert lab.run("a", ["cat", f"/sys/class/net/a-rail0/{name}"]).stdout.strip().isdigit()
            index, link = (
                lab.run("a", ["cat", f"/sys/class/net/a-rail0/{n}"]).stdout.strip() for n in ("ifindex", "iflink")
            )
            assert (index == link) is equal
        finally:
            lab.close()


FAULTS = [
    ({"kind": "carrier", "host": "b", "rail": "rail0"}, 0, 0, False),
    ({"kind": "admin-down", "host": "b", "rail": "rail0"}, 0, 0, False),
    ({"kind": "silent", "host": "b", "rail": "rail0"}, 0, 0, True),
    ({"kind": "silent", "host": "b", "rail": "rail0", "way": "from"}, 0, 0, True),
    ({"kind": "silent", "host": "b", "rail": "rail0", "way": "to"}, 0, 0, True),
    ({"kind": "loss", "host": "b", "rail": "rail0", "percent": 50.0, "way": "to"}, 1, 19, True),
    ({"kind": "leaf", "leaf": "l0"}, 0, 0, False),
    ({"kind": "rails", "host": "b"}, 0, 0, False),
]


@pytest.mark.parametrize(("table", "least", "most", "has_carrier"), FAULTS, ids=lambda v: str(v)[:60])
def test_fault_bites_and_its_repair_heals(
    lab: NamespaceLab, table: dict[str, Any], least: int, most: int, has_carrier: bool
) -> None:
    assert answered(lab, "a", "rail0", "b") == 20
    routes = lab.run("b", ["ip", "route"]).stdout
    fault = parse(table)
    strike(lab, fault)
    assert carrier(lab, "b", "rail0") is has_carrier
    assert least <= answered(lab, "a", "rail0", "b") <= most
    if fault.kind != "rails":
        assert answered(lab, "a", "rail1", "b") == 20
    mend(lab, fault)
    assert carrier(lab, "b", "rail0")
    assert answered(lab, "a", "rail0", "b") >= 19  # the first may still wait for the neighbour's address
    assert sorted(lab.run("b", ["ip", "route"]).stdout.split("\n")) == sorted(routes.split("\n"))
    mend(lab, fault)  # what isn't broken can be repaired


@pytest.mark.parametrize("way", ["from", "to"])
def test_one_way_silence_lets_the_other_way_pass(lab: NamespaceLab, way: str) -> None:
    answered(lab, "a", "rail0", "b")  # neighbours are known, so only the one way is in question
    lab.inject(parse({"kind": "silent", "host": "b", "rail": "rail0", "way": way}))
    counter = ["cat", "/sys/class/net/b-rail0/statistics/rx_packets"]
    before = int(lab.run("b", counter).stdout)
    answered(lab, "a", "rail0", "b")
    came = int(lab.run("b", counter).stdout) - before
    assert came >= 20 if way == "from" else came == 0


def test_rate_limit_holds_towards_the_host(lab: NamespaceLab) -> None:
    faults = [parse({"kind": "rate", "host": "b", "rail": rail, "mbit": 10}) for rail in lab.fabric.rails]
    for fault in faults:
        lab.inject(fault)
    transfer = traffic.make(lab, Traffic("bulk", "iperf3", "a", "b", {"seconds": 3}))
    transfer.start()
    result = transfer.stop()
    assert result["error"] == ""
    # A flow takes one rail. Above the rate only by what the bucket and the queue hold; far below if much is dropped.
    assert 1 < float(str(result["mbit"])) < 12
    for fault in faults:
        lab.repair(fault)
    for leaf in ("l0", "l1"):
        said = subprocess.run(lab.command(leaf, ["tc", "qdisc"]), capture_output=True, text=True, check=True).stdout
        assert "clsact" in said
        assert "tbf" not in said


def test_flap_train_counts_and_ends_with_carrier(lab: NamespaceLab) -> None:
    changes = ["cat", "/sys/class/net/b-rail0/carrier_down_count"]
    before = int(lab.run("b", changes).stdout)
    fault = parse({"kind": "flap", "host": "b", "rail": "rail0", "count": 4, "down": 0.05, "up": 0.05})
    lab.inject(fault)
    deadline = time.monotonic() + 10
    while int(lab.run("b", changes).stdout) - before < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    lab.repair(fault)
    assert int(lab.run("b", changes).stdout) - before == 4
    assert carrier(lab, "b", "rail0")


def test_flap_train_is_ended_by_another_process(lab: NamespaceLab) -> None:
    fault = parse({"kind": "flap", "host": "b", "rail": "rail0", "count": 1000, "down": 0.1, "up": 0.05})
    strike(lab, fault)
    other = realisations.attach(Ledger(lab.folder))
    assert broken(other.ledger) == [fault]
    mend(other, fault)
    assert broken(other.ledger) == []
    for _ in range(20):
        assert carrier(lab, "b", "rail0")
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"kind": "carrier", "host": "z", "rail": "rail0"}, "no host 'z'"),
        ({"kind": "carrier", "host": "a", "rail": "rail9"}, "no rail 'rail9'"),
        ({"kind": "leaf", "leaf": "l9"}, "no leaf 'l9'"),
        ({"kind": "rails", "host": "z"}, "no host 'z'"),
        ({"kind": "acks", "host": "a", "rail": "rail0"}, "can't do 'acks'"),
    ],
)
def test_fault_that_cannot_be_is_refused_and_not_listed(
    lab: NamespaceLab, table: dict[str, Any], problem: str
) -> None:
    fault: Fault = parse(table)
    with pytest.raises(FaultError, match=problem):
        strike(lab, fault)
    assert broken(lab.ledger) == []


def test_program_that_fails_is_told_in_its_own_words(lab: NamespaceLab) -> None:
    with pytest.raises(LabError, match=r"a: cat /no/such: exit 1: .*No such file"):
        lab.run("a", ["cat", "/no/such"])
    with pytest.raises(LabError, match=r"no end after 0\.1 s"):
        lab.run("a", ["sleep", "5"], timeout=0.1)


def test_two_labs_of_one_fabric_do_not_meet(lab: NamespaceLab) -> None:
    other = realisations.up("namespaces", grid(2, 2))
    try:
        strike(other, parse({"kind": "rails", "host": "b"}))
        assert answered(lab, "a", "rail0", "b") == 20
        assert lab.folder != other.folder
    finally:
        other.close()
    assert answered(lab, "a", "rail0", "b") == 20


def test_close_leaves_no_namespace_process_or_folder(lab_root: Path) -> None:
    lab = realisations.up("namespaces", grid(4, 2, leaves=2))
    assert isinstance(lab, NamespaceLab)
    own = {identity(pid) for pid in lab.pids.values()}
    assert len(own) == 4 + 4 + 2 + 1  # hosts, leaves, spines, management
    assert own <= namespaces()
    sleeper = lab.popen("a", ["sh", "-c", "sleep 100 & sleep 100"])
    lab.close()
    lab.close()
    assert sleeper.wait(5) is not None
    assert not own & namespaces()
    assert runs() == []


def test_up_that_fails_half_way_leaves_nothing(lab_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object) -> str:
        raise LabError("half-way")

    monkeypatch.setattr("linkpass_lab.mininet_fabric.addresses", no)
    with pytest.raises(LabError, match="half-way"):
        realisations.up("namespaces", grid(2, 2))
    assert runs() == []
    assert carrying(lab_root) == []


# -- as a user has it


def held(lab_root: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
    """`linkpass-lab up` in the foreground, and the name of its lab, once it is up."""
    argv = [sys.executable, "-m", "linkpass_lab", "up", "2x2", *words]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True)
    assert process.stdout is not None
    found = re.match(r"lab (\S+) is up", process.stdout.readline())
    assert found is not None
    return process, found[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_ended_by_a_signal_leaves_nothing(lab_root: Path, number: int) -> None:
    process, _ = held(lab_root)
    assert len(carrying(lab_root)) >= 5 + 2  # shells and agents
    process.send_signal(number)
    assert process.wait(20) == 0
    assert carrying(lab_root) == []
    assert runs() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_up_ended_while_it_comes_up_leaves_nothing(lab_root: Path, command: Command, number: int) -> None:
    for delay in (0.0, 0.1, 0.3, 0.6):  # s after the run folder is there: among shells, links, addresses, agents
        argv = [sys.executable, "-m", "linkpass_lab", "up", "4x2"]
        process = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(), start_new_session=True
        )
        deadline = time.monotonic() + 20
        while not runs() and time.monotonic() < deadline:
            time.sleep(0.005)
        assert runs() != []
        time.sleep(delay)
        process.send_signal(number)
        process.wait(20)
        if number == signal.SIGKILL:
            assert command("down").returncode == 0
        assert carrying(lab_root) == []
        assert runs() == []


def test_up_killed_is_taken_down_by_another_command(lab_root: Path, command: Command) -> None:
    process, name = held(lab_root)
    process.kill()
    process.wait(10)
    assert runs() != []
    assert f"{name}  left behind" in command("labs").stdout
    done = command("down")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{name} is down\n"
    assert carrying(lab_root) == []
    assert command("down").returncode == 3


def test_commands_in_a_row_break_and_mend_a_detached_lab(lab_root: Path, command: Command) -> None:
    up = command("up", "2x2", "--no-agents", "--detach")
    assert up.returncode == 0, up.stderr
    try:
        assert command("exec", "a", "--", "sh", "-c", "exit 7").returncode == 7
        assert command("exec", "a", "--", "sh", "-c", "kill -9 $$").returncode == 128 + 9
        assert "10.255.0.1" in command("exec", "a", "--", "ip", "addr").stdout
        assert "a-rail0" in command("shell", "a", input="ip link\n").stdout
        assert command("fault", "carrier", "b", "rail0").stdout == "in force: carrier b/rail0\n"
        assert "faults: carrier b/rail0" in command("labs").stdout
        assert "NO-CARRIER" in command("exec", "b", "--", "ip", "link", "show", "b-rail0").stdout
        assert command("repair").stdout == "repaired: carrier b/rail0\n"
        assert "NO-CARRIER" not in command("exec", "b", "--", "ip", "link", "show", "b-rail0").stdout
        assert command("repair").stdout == "nothing is broken\n"
        assert command("fault", "carrier", "b").returncode == 3
        assert "no host 'z'" in command("exec", "z", "--", "true").stderr
    finally:
        down = command("down")
    assert down.returncode == 0, down.stderr
    assert runs() == []


def test_detached_lab_of_a_bad_fabric_says_why(lab_root: Path, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('rails = ["mgmt"]\n[[leaf]]\nname = "l0"\nrail = "mgmt"\n[[host]]\nname = "a"\nleaves = ["l0"]\n')
    done = command("up", str(file), "--detach")
    assert done.returncode == 3
    assert "'mgmt' is the lab's own switch" in done.stderr
    assert command("up", "7x7").returncode == 3
    assert runs() == []


def test_run_of_a_scenario_prints_its_verdicts_as_json(lab_root: Path, command: Command) -> None:
    done = command("run", "no-linkpass", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report[0]["ok"] is True
    assert report[0]["traffic"]["stream"]["lost"] > 2900
    assert {v["what"].split()[0] for v in report[0]["verdicts"]} >= {"gap", "restored", "nothing"}


def test_run_broken_off_leaves_nothing(lab_root: Path) -> None:
    argv = [sys.executable, "-m", "linkpass_lab", "run", "far-carrier"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True)
    assert process.stdout is not None
    for line in process.stdout:
        if " cut: " in line:
            break
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert carrying(lab_root) == []
    assert runs() == []


def test_demo_survives_and_gives_its_figures(lab_root: Path, command: Command) -> None:
    done = command("demo", "--json", timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    figures = json.loads(done.stdout)
    assert figures["survived"] is True
    assert figures["without_ms"] > 2900
    assert figures["outage_ms"] < 1000
    assert list(figures["stages"])[:5] == ["seen", "shared", "learned", "decided", "acted"]


def test_lab_without_root_says_so(command: Command, lab_root: Path) -> None:
    drop = ["setpriv", "--reuid=65534", "--clear-groups"]
    argv = [*drop, sys.executable, "-m", "linkpass_lab", "up", "2x2"]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment(), check=False, timeout=60)
    assert done.returncode == 3
    assert "needs root" in done.stderr
    assert os.geteuid() == 0
