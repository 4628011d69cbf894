"""Builds the clients from the C sources beside this file."""

import os
import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parent


class ClientBuildError(Exception):
    """The clients could not be built; the message says what to do."""


def build_clients(out: Path, target: str = "all", timeout_s: float = 300.0) -> Path:
    """Build `target` of the Makefile (all, asan, tsan, tests) into the folder `out` and return it.

    Raises ClientBuildError when a tool is missing or a compiler complains. Unchanged sources aren't built again.
    """
    for tool in ("make", os.environ.get("CC", "cc")):
        if shutil.which(tool) is None:
            raise ClientBuildError(f"{tool} is missing: install make, gcc and libibverbs-dev")
    out.mkdir(parents=True, exist_ok=True)
    command = ["make", "-s", "-j2", "-C", str(SOURCES), f"OUT={out.resolve()}", target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise ClientBuildError(f"building {target} failed (is libibverbs-dev installed?):\n{done.stderr[-4000:]}")
    return out
