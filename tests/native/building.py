"""Builds the native tests out of tree, once per kind and test run, and runs what was built."""

import fcntl
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "native"
KINDS = {"plain": [], "asan": ["-DLINKPASS_ASAN=ON"], "tsan": ["-DLINKPASS_TSAN=ON"]}
BUILD_SECONDS = 900  # three trees on two busy cores
RUN_SECONDS = 300  # ThreadSanitizer on a busy machine


def need_tool(name: str) -> str:
    """The tool's path; the test fails, and says what to install, when it isn't there."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} isn't installed: apt-get install cmake ninja-build gcc binutils")
    return path


def run(command: list[str | Path], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program with these variables added; output as text, never raises on its exit code."""
    return subprocess.run(
        [str(part) for part in command],
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


@cache
def built(kind: str, targets: tuple[str, ...]) -> Path:
    """The build folder of that kind ("plain", "asan", "tsan") with these targets up to date."""
    cmake, ninja = need_tool("cmake"), need_tool("ninja")
    need_tool("gcc")
    folder = BUILD / kind
    folder.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        source = str(ROOT / "linkpass" / "shim")
        configure = [cmake, "-S", source, "-B", str(folder), "-G", "Ninja", "-DLINKPASS_TESTS=ON", *KINDS[kind]]
        for command in (configure, [ninja, "-C", str(folder), *targets]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
            if done.returncode:
                pytest.fail(f"{kind} build failed:\n{done.stdout[-6000:]}{done.stderr[-2000:]}")
    return folder


def run_checks(program: Path, env: dict[str, str] | None = None) -> None:
    """Run a test program of ours: exit code 0, at least one test passed, none failed."""
    done = run([program], env)
    last = done.stdout.strip().splitlines()[-1:] or [""]
    passed, _, failed = last[0].partition(" passed, ")
    assert done.returncode == 0, f"{program.name}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert failed == "0 failed" and int(passed) > 0, done.stdout
