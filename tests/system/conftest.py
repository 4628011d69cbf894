"""System tests make real namespaces, links and processes, and look for leavings of their own."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linkpass_lab import ledger as ledgers

Command = Callable[..., subprocess.CompletedProcess[str]]


def namespaces() -> set[int]:
    """The network namespaces that any process is in."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add((entry / "ns/net").stat().st_ino)
            except OSError:
                continue
    return found


def carrying(root: Path) -> list[str]:
    """Processes whose environment names a run folder under `root`."""
    mark = f"{ledgers.RUN_VARIABLE}={root}/".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes():
                    found.append(f"{entry.name} {(entry / 'cmdline').read_bytes()!r}")
            except OSError:
                continue
    return found


def root_links() -> set[str]:
    """Links in the namespace that the tests run in with names as a lab's have (other links may come and go)."""
    names = {p.name for p in Path("/sys/class/net").iterdir()}
    return {n for n in names if re.search(r"-rail|mgmt|^[ls][01]", n)}


@pytest.fixture
def lab_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root folder for run folders, and the proof that nothing of a lab is left at the end.

    Short, because a socket's path must fit in 108 bytes. All links of a lab live in namespaces, so the root namespace
    must have the same ones before and after.
    """
    root = Path(f"/run/lpt-{os.getpid()}")
    monkeypatch.setenv(ledgers.ROOT_VARIABLE, str(root))
    links = root_links()
    yield root
    left = carrying(root)
    folders = [p.name for p in root.iterdir()] if root.exists() else []
    for pid in (int(line.split()[0]) for line in left):  # leave the machine clean even when the test has failed
        os.kill(pid, 9)
    subprocess.run(["rm", "-rf", str(root)], check=True)
    assert left == []
    assert folders == []
    assert root_links() == links


@pytest.fixture
def command(lab_root: Path) -> Command:
    """Runs `linkpass-lab` as a user would; keyword arguments go to subprocess.run."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        more = {"capture_output": True, "text": True, "timeout": 60, **options}
        return subprocess.run([sys.executable, "-m", "linkpass_lab", *words], env=environment(), **more)  # type: ignore[call-overload, no-any-return]

    return run


def environment() -> dict[str, str]:
    """The environment in which `python -m linkpass_lab` finds the packages that these tests use."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
