"""Two network namespaces of a test's own, with this thread inside the first: links, sysfs and netlink are real.

Made by name (`ip netns`), so that anyone can see whose they are, and removed by the same names.
"""

import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000  # linux/sched.h
_libc = ctypes.CDLL(None, use_errno=True)
_made = 0


def run(*command: str) -> str:
    """Run a command to its end; its output. CalledProcessError carries stderr."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _enter(fd: int) -> None:
    if _libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until something holds; AssertionError if it doesn't come to."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"still not so after {seconds} s"
        time.sleep(0.002)


class Sandbox:
    """`near` is where the test runs, `far` the other end of its cables; `sysfs` shows the near side's devices."""

    def __init__(self, near: str, far: str, sysfs: Path) -> None:
        self.near, self.far, self.sysfs = near, far, sysfs
        self.made = 0  # cables

    def ip(self, *words: str) -> str:
        """`ip` on the near side."""
        return run("ip", "-n", self.near, *words)

    def ip_far(self, *words: str) -> str:
        """`ip` on the far side."""
        return run("ip", "-n", self.far, *words)

    def cable(self, rail: int, *, index: int | None = None) -> str:
        """A cable from `a-railN` (10.(10+N).0.1/24) to `f-railN` on the far side, up. Returns the near end's name.

        `index`: the interface index of both ends; the kernel then holds link events back. Otherwise they differ.
        """
        name, far = f"a-rail{rail}", f"f-rail{rail}"
        self.made += 1
        here, there = (10 + self.made, 1000 + self.made) if index is None else (index, index)
        self.ip(
            "link", "add", name, "index", str(here), "type", "veth",
            "peer", "name", far, "index", str(there), "netns", self.far,
        )  # fmt: skip
        self.ip("addr", "add", f"10.{10 + rail}.0.1/24", "dev", name)
        self.ip("link", "set", name, "up")
        self.far_end(rail, up=True)
        return name

    @contextmanager
    def inside_far(self) -> Iterator[None]:
        """This thread on the far side: sockets made meanwhile live there."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        there = os.open(f"/run/netns/{self.far}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there)
            yield
        finally:
            _enter(home)
            os.close(home)
            os.close(there)

    def far_end(self, rail: int, *, up: bool) -> None:
        """Plug the far end in or out: the near end's carrier follows."""
        self.ip_far("link", "set", f"f-rail{rail}", "up" if up else "down")


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """Two empty namespaces, lo up; everything is gone afterwards."""
    global _made
    _made += 1
    near, far = (f"lpt{os.getpid()}-{_made}{side}" for side in "nf")
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in (near, far):
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "set", "lo", "up")
            there = os.open(f"/run/netns/{near}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _enter(there)
            finally:
                os.close(there)
            run("mount", "-t", "sysfs", "sysfs", folder)
            try:
                yield Sandbox(near, far, Path(folder) / "class" / "net")
            finally:
                run("umount", folder)
        finally:
            _enter(home)
            os.close(home)
            for name in (near, far):
                subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
