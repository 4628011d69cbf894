"""Whole fleets on virtual time: everything holds with the agents as they are, and not with agents that are broken."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from linkpass_agent.simulate.broken import VARIANTS
from linkpass_agent.simulate.faults import Fault, Kind
from linkpass_agent.simulate.run import BOOT, Shape, run
from linkpass_lab import __main__ as lab

ROOT = Path(__file__).parents[2]
SMALL = Shape(hosts=6, rails=3, storm=8.0, quiet=10.0)


def simulate(*words: str, hashes: str = "0") -> subprocess.CompletedProcess[str]:
    folders = os.pathsep.join(str(ROOT / f) for f in (".", "agent", "topology"))
    return subprocess.run(
        [sys.executable, "-m", "linkpass_agent.simulate", *words],
        env={"PYTHONPATH": folders, "PYTHONHASHSEED": hashes, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("seed", range(1, 13))
def test_fleet_under_heavy_faults_keeps_what_must_hold(seed: int) -> None:
    result = run(seed, SMALL)
    assert result.broken is None, f"{result.broken}; replay with: linkpass-lab simulate --seed {seed}"
    assert result.counts.acts > 0 and result.counts.checks > 0


def test_seed_replays_exactly_whatever_the_hashes_are() -> None:
    words = ("--seed", "4", "--hosts", "5", "--storm", "4", "--quiet", "8", "--json")
    one, other = (json.loads(simulate(*words, hashes=h).stdout) for h in ("1", "2"))
    del one["seconds"], other["seconds"]
    assert one == other
    assert one["steps"] > 1000


# A fault schedule for each variant under which the simulator must notice; the name of what it says is broken.
FLAPS = tuple(Fault(BOOT + 0.5 + 1.6 * n, Kind.FLAP, "b", "rail1", 0.3) for n in range(5))
CAUGHT = {
    "tiers-ignored": (FLAPS, "use"),
    "hold-down-off": (FLAPS, "damping"),
    "hold-down-flat": (FLAPS, "damping"),
    "no-proof-needed": ((Fault(BOOT + 1.0, Kind.FREEZE, "b", lasts=2.0),), "false-path"),
    "last-path-goes": (
        tuple(Fault(BOOT + 1.0 + n, Kind.FLAP, "b", f"rail{n}", 5.0) for n in range(3)),
        "last",
    ),
    "no-repair": (
        (
            Fault(BOOT + 0.9, Kind.STORM, lasts=2.5, amount=0.5),
            Fault(BOOT + 1.0, Kind.FLAP, "b", "rail1", 0.5),
        ),
        "converged",
    ),
}

# Membership takes its time: these faults need a longer run.
CUT_OFF = Fault(BOOT + 6.0, Kind.ISLAND, "b", lasts=24.0)
LONG = Shape(hosts=6, rails=3, storm=30.0, quiet=10.0)


def test_host_without_management_network_is_not_called_dead_while_a_rail_joins_it() -> None:
    assert run(3, LONG, [CUT_OFF]).broken is None


def test_agents_that_look_for_each_other_on_one_road_are_caught() -> None:
    broken = run(3, LONG, [CUT_OFF], variant=VARIANTS["one-road"]).broken
    assert broken is not None and broken.what == "road", str(broken)


@pytest.mark.parametrize("variant", sorted(CAUGHT))
def test_broken_agents_are_caught(variant: str) -> None:
    faults, what = CAUGHT[variant]
    result = run(3, SMALL, faults, variant=VARIANTS[variant])
    assert result.broken is not None and result.broken.what == what, str(result.broken)


def test_agents_that_let_older_records_overwrite_are_caught_by_one_of_some_seeds() -> None:
    # Needs an old datagram that arrives late: rough networks, every third seed, have them.
    broken = (run(seed, SMALL, variant=VARIANTS["anybody-overwrites"]).broken for seed in range(3, 40, 3))
    assert any(found is not None and found.what == "older" for found in broken)


@pytest.mark.parametrize("variant", sorted(CAUGHT))
def test_same_faults_break_nothing_of_agents_that_are_whole(variant: str) -> None:
    assert run(3, SMALL, CAUGHT[variant][0]).broken is None


def test_breach_is_told_with_the_faults_that_are_enough_and_a_trace() -> None:
    told = simulate("--seed", "2", "--hosts", "4", "--storm", "6", "--broken", "tiers-ignored")
    assert told.returncode == 1, told.stderr
    assert "seed 2: DOES NOT HOLD" in told.stdout
    assert "faults are enough:" in told.stdout
    assert "BROKEN use" in told.stdout


def test_lab_starts_the_simulator_with_the_words_that_it_was_given(capfd: pytest.CaptureFixture[str]) -> None:
    assert lab.main(["simulate", "--seed", "7", "--hosts", "3", "--storm", "1", "--quiet", "5", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["seed"], found["ok"]) == (7, True)


def test_fault_file_that_is_none_is_an_error_with_its_name(tmp_path: Path) -> None:
    bad = tmp_path / "faults.json"
    bad.write_text("[3]")
    told = simulate("--faults", str(bad))
    assert (told.returncode, "faults.json" in told.stderr) == (3, True)
