"""Real agents in namespaces and jobs over the fake verbs library, whose two ends have a shim each. No emulation.

A job is a process of `tests/native/engine/flow.c`: it holds both of its ends, and attaches to both hosts' agents. Its
fake NICs bear the addresses of the lab's ports, so that the agents take them for those ports' RDMA devices; what a
fault does to the wire (`cut`) is told to the job, what it does to the port is a real loss of carrier.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from linkpass_lab.agents import Agents
from linkpass_lab.lab import Lab

TARGETS = ("linkpass_shim", "fakeverbs", "engine_flow")
# Many faults on one port within a minute are a flap train to a hold-down, and a reason to stay away.
CONFIG: dict[str, Any] = {
    "hold_down": {"first": 0.2, "max": 0.2},
    "jobs": {"fail_back_wait": 0.1, "fail_back_rate": 1e5},
}
QPNS_APART = 1000  # queue pair numbers of one process; agents take one that two processes claim for a lie
ANSWER = 30.0  # s for a job's answer on a busy machine


class NativeAgents(Agents):
    """Every port has one of the fake NICs, as its configuration says."""

    def __init__(self, lab: Lab, config: dict[str, Any] | None = None) -> None:
        super().__init__(lab, config or CONFIG)

    def configuration(self, name: str) -> dict[str, Any]:
        made = super().configuration(name)
        index = [h.name for h in self.lab.fabric.hosts].index(name)
        for n, port in enumerate(made["port"]):
            port["rdma"] = f"fake_h{index}r{n}"
        return made


class Flow:
    """One job of `pairs` queue pairs a host. RuntimeError when it ends by itself: at the first wrong thing."""

    def __init__(
        self, agents: Agents, build: Path, number: int = 0, *, pairs: int = 64, depth: int = 4, pause: int = 10
    ) -> None:
        """`build` holds TARGETS; `number` tells a lab's jobs apart; `pause` (ms) is between bursts of requests."""
        folder = agents.lab.folder
        words: list[str] = []
        for host in "ab":
            shim = folder / f"shim_{host}.so"  # two files: the loader would take one for the other's
            if not shim.exists():
                shutil.copy(build / "liblinkpass_shim.so", shim)
            words += [str(shim), str(agents.socket(host).with_name("jobs.sock"))]
        env = {
            "LINKPASS_REAL_IBVERBS": str(build / "fakeverbs" / "lib" / "libfakeverbs.so.1"),
            "LINKPASS_PSN": "trust",
            "LINKPASS_JOB": f"flow{number}",
        }
        self._errors = (folder / f"flow{number}.log").open("w+")
        self.process = subprocess.Popen(
            [build / "engine" / "engine_flow", *words, *map(str, (pairs, depth, pause, number * QPNS_APART))],
            env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip

    def do(self, command: str) -> dict[str, int]:
        """A command of flow.c and its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(f"{command}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"the job ended with {self.process.wait(ANSWER)}: {self.words()}")
        said: dict[str, int] = json.loads(line)
        return said

    def words(self) -> str:
        """What it has said on standard error."""
        self._errors.seek(0)
        return self._errors.read().strip()

    def stop(self) -> None:
        """Let it end what is under way; RuntimeError if anything was wrong."""
        self.do("stop")
        if code := self.process.wait(120):
            raise RuntimeError(f"the job ended with {code}: {self.words()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(ANSWER)
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                stream.close()


def until(holds: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Wait until something holds; RuntimeError if it doesn't come to."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"after {seconds:g} s still not so: {what}")
        time.sleep(0.01)


def protected(agents: Agents, jobs: int, pairs: int) -> bool:
    """Every queue pair of every job is protected and at home, at both hosts."""
    said = [agents.ask(host, "jobs") for host in "ab"]
    return all(
        len(s) == jobs and all(j["protected"] == pairs and j["rails"] == {"rail0": pairs} for j in s) for s in said
    )
