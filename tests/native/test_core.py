"""Builds the shim's verbs-free core out of tree and runs its own test programs. Without a compiler these fail."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = sorted((ROOT / "tests/native/core/seeds").glob("*.seed"))
UNITS = ("test_watermark", "test_ring", "test_migrate", "test_fuzz", "test_threads", "test_lock")


def run(*command: str | Path, timeout: float = 900) -> str:
    """The program's output; a test failure with that output if it says no."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def build(folder: str, targets: tuple[str, ...], *options: str) -> Path:
    """Configures and builds the core's programs under build/native; returns where they lie."""
    where = ROOT / "build" / "native" / folder
    run("cmake", "-S", ROOT / "linkpass/shim", "-B", where, "-DLINKPASS_TESTS=ON", *options)
    run("cmake", "--build", where, "--parallel", str(os.cpu_count() or 1), "--target", *targets)
    return where / "core"


@pytest.fixture(scope="session")
def fast() -> Path:
    # Assertions stay on: an impossible step of the state machine must abort, not fail closed.
    return build("core-fast", ("explore", "explore_mutants"), "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-O2")


@pytest.fixture(scope="session")
def checked() -> Path:
    return build(
        "core-asan", (*UNITS, "explore"), "-DCMAKE_BUILD_TYPE=Debug", "-DLINKPASS_ASAN=ON", "-DCMAKE_C_FLAGS=-O1"
    )


@pytest.fixture(scope="session")
def release() -> Path:
    return build("core-release", UNITS, "-DCMAKE_BUILD_TYPE=Release")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", UNITS)
def test_core_unit_program_passes_under_sanitizers(checked: Path, program: str) -> None:
    assert ", 0 failed" in run(checked / program)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", UNITS)
def test_core_unit_program_passes_as_released(release: Path, program: str) -> None:
    assert ", 0 failed" in run(release / program)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", ["test_threads", "test_lock"])
def test_rings_and_lock_have_no_data_race(program: str) -> None:
    folder = build("core-tsan", ("test_threads", "test_lock"), "-DCMAKE_BUILD_TYPE=Debug", "-DLINKPASS_TSAN=ON")
    assert ", 0 failed" in run(folder / program)


@pytest.mark.timeout(600)
def test_seeds_of_found_bugs_stay_fixed(fast: Path) -> None:
    assert run(fast / "explore", "replay", *SEEDS).count(": fine") == len(SEEDS)
    assert len(SEEDS) >= 8


@pytest.mark.timeout(600)
def test_random_long_runs_are_exact_under_sanitizers(checked: Path) -> None:
    assert "5000 programs" in run(checked / "explore", "random", "1", "5000")


@pytest.mark.timeout(600)
def test_random_long_runs_are_exact(fast: Path) -> None:
    assert "200000 programs" in run(fast / "explore", "random", "1000000", "200000")


@pytest.mark.timeout(900)
def test_every_order_of_steps_is_exact(fast: Path) -> None:
    last = run(fast / "explore", "suite", "ci").splitlines()[-1]
    assert last.startswith("all "), last


@pytest.mark.timeout(900)
def test_every_deliberate_defect_is_caught(fast: Path) -> None:
    assert "17 passed, 0 failed" in run(fast / "explore_mutants", "mutants")
