"""Guests end with whoever made them, whatever ends that; and nothing stays."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from linkpass_lab.fault import parse
from linkpass_lab.ledger import Ledger, root, started

MAKER = """
import json, sys, time
from linkpass_lab.guests.lab import GuestLab
from linkpass_topology.fabric import grid
lab = GuestLab.up(grid(1, 1), label="life", memory=256)
pids = [int(m.data["pid"]) for m in lab.ledger.standing("node")]
print(json.dumps([lab.folder.name, pids]), flush=True)
time.sleep(600)
"""


@pytest.fixture
def made():
    env = {**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p)}
    maker = subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE, env=env)
    name, pids = json.loads(maker.stdout.readline())
    yield maker, pids
    maker.kill()
    maker.wait()
    maker.stdout.close()
    Ledger(root() / name).undo()


def gone(pids, seconds=15.0):
    deadline = time.monotonic() + seconds
    while left := [p for p in pids if started(p) is not None]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.05)
    return []


def test_guests_end_with_a_killed_parent(made):
    maker, pids = made
    assert len(pids) == 2  # the supervisor and one QEMU
    maker.send_signal(signal.SIGKILL)
    assert gone(pids) == []


def test_guests_end_with_a_killed_supervisor(made):
    _, pids = made
    os.kill(min(pids), signal.SIGKILL)
    assert gone(pids) == []


def test_killed_guest_is_seen_dead_and_boots_again(lab):
    before = lab.run("b", ["cat", "/proc/sys/kernel/random/boot_id"]).stdout
    kill = parse({"kind": "kill", "host": "b"})
    with lab.start("b", ["sleep", "600"]) as process:
        lab.inject(kill)
        with suppress(Exception):
            process.wait(20)
        assert process.failure == "guest b: guest b is gone"
    assert lab.status()["b"]["state"] == "dead"
    lab.repair(kill)
    assert lab.status()["b"]["state"] == "up"
    assert lab.run("b", ["cat", "/proc/sys/kernel/random/boot_id"]).stdout != before
    assert lab.run("a", ["ping", "-c", "1", "-W", "5", "10.10.0.2"]).returncode == 0


def test_frozen_guest_stands_still_and_goes_on_with_its_work(lab):
    before = lab.run("b", ["cat", "/proc/sys/kernel/random/boot_id"]).stdout
    freeze = parse({"kind": "freeze", "host": "b"})
    lab.inject(freeze)
    assert lab.status()["b"]["state"] == "frozen"
    assert lab.run("a", ["ping", "-c", "2", "-i", "0.2", "-W", "1", "10.10.0.2"], check=False).returncode == 1
    lab.repair(freeze)
    assert lab.run("b", ["cat", "/proc/sys/kernel/random/boot_id"]).stdout == before
