"""The doers over the fake verbs library: promises one by one, then the project's clients through seeded failures.

A sanitizer's library has to be loaded before the shim, so it stands first in LD_PRELOAD.
"""

import sys
from pathlib import Path

import pytest

from tests.native.building import BUILD_SECONDS, KINDS, built, run, run_checks

TARGETS = (
    "linkpass_shim", "fakeverbs", "engine_engine", "engine_calls", "engine_srq", "engine_twoends", "engine_rcflow",
    "engine_ncclflow",
)  # fmt: skip
LIBRARY = {"asan": "libasan.so", "tsan": "libtsan.so"}
SOAK = Path(__file__).with_name("engine") / "soak.py"
RUNS = {"plain": 16, "asan": 6, "tsan": 6}


def first_library(kind: str) -> str:
    return run(["gcc", f"-print-file-name={LIBRARY[kind]}"]).stdout.strip() if kind in LIBRARY else ""


@pytest.mark.timeout(BUILD_SECONDS)
@pytest.mark.parametrize(
    ("kind", "part"), [("plain", "engine"), *((kind, part) for part in ("calls", "srq") for kind in KINDS)]
)
def test_promises_hold(kind: str, part: str) -> None:
    folder = built(kind, TARGETS)
    shim, fake = folder / "liblinkpass_shim.so", folder / "fakeverbs" / "lib" / "libfakeverbs.so.1"
    environment = {
        "LD_PRELOAD": f"{first_library(kind)}:{shim}",
        "LINKPASS_REAL_IBVERBS": str(fake),
        "LINKPASS_PSN": "trust",
        "ASAN_OPTIONS": "detect_leaks=0",  # spare NICs stay open for the life of a process
    }
    run_checks(folder / "engine" / f"engine_{part}", environment)


@pytest.mark.timeout(BUILD_SECONDS)
@pytest.mark.parametrize("kind", KINDS)
def test_clients_survive_seeded_failures_with_every_byte_right(kind: str) -> None:
    folder = built(kind, TARGETS)
    options = ["--runs", str(RUNS[kind]), "--seconds", "0.7", "--preload", first_library(kind)]
    done = run([sys.executable, SOAK, folder, *options])
    migrations, result = done.stdout.strip().splitlines()[-2:]
    assert (done.returncode, result) == (0, f"{RUNS[kind]} passed, 0 failed"), done.stdout
    assert int(migrations.split()[0]) > 0


@pytest.mark.timeout(BUILD_SECONDS)
@pytest.mark.parametrize("kind", ["asan"])
def test_frames_of_any_bytes_are_refused_or_understood(kind: str) -> None:
    done = run([built(kind, ("engine_fuzz",)) / "engine" / "engine_fuzz"])
    assert done.returncode == 0, done.stdout + done.stderr
