"""Agents in guests, asked without starting a program for each question."""

import itertools
import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linkpass_lab.agents import Agents
from linkpass_lab.guests.channel import GuestProcess
from linkpass_lab.guests.frames import Kind
from linkpass_lab.guests.lab import GuestLab
from linkpass_lab.lab import LabError

ANSWER = 15.0  # s until an answer; a little more than the guest's own patience with its agent
ROUNDS = 5  # of asking for the clock; the quickest counts


class Asker:
    """A process in one guest that asks its agent; started with the first question, and again when it has ended."""

    def __init__(self, lab: GuestLab, host: str, socket: Path) -> None:
        self._lab, self._host, self._socket = lab, host, socket
        self._process: GuestProcess | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._came = threading.Condition()
        self._rest = b""

    def ask(self, what: str, patience: float = ANSWER) -> Any:
        """The agent's answer to a path, or the guest's `clock`. LabError when there is none in time."""
        number = next(self._numbers)
        if self._process is None or not self._process.running:
            argv = ["/usr/bin/python3", "-I", "-S", str(Path(__file__).with_name("asker.py")), str(self._socket)]
            self._rest = b""
            self._process = GuestProcess(
                self._lab.folder, self._host, argv, input=None, listen=self._hear,
                env=self._lab.environment(self._host),
            )  # fmt: skip
        self._process.write(f"{number} {what}\n".encode())
        with self._came:
            if not self._came.wait_for(lambda: number in self._answers, patience):
                raise LabError(f"{self._host}: no answer to {what} in {patience:g} s")
            answer = self._answers.pop(number)
        if "error" in answer:
            raise LabError(f"the agent of {self._host}: {answer['error']}")
        return answer["ok"]

    def offset(self) -> float:
        """The guest's monotonic clock less ours, in s; off by half a round trip at most, about 1 ms."""
        found = []
        for _ in range(ROUNDS):
            asked = time.monotonic()
            there = float(self.ask("clock"))
            now = time.monotonic()
            found.append((now - asked, there - (asked + now) / 2))
        return min(found)[1]

    def _hear(self, kind: Kind, data: bytes) -> None:
        if kind is not Kind.STDOUT:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        with self._came:
            for line in lines:
                answer = json.loads(line)
                self._answers[int(answer["n"])] = answer
            self._came.notify_all()

    def close(self) -> None:
        """Let the process end."""
        if self._process is not None:
            self._process.close()
            self._process = None


class GuestAgents(Agents):
    """As `Agents`, with an `Asker` in each guest."""

    def __init__(self, lab: GuestLab, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(lab, config)
        self.guests = lab
        self._askers: dict[str, Asker] = {}

    def asker(self, host: str) -> Asker:
        """The guest's."""
        if host not in self._askers:
            self._askers[host] = Asker(self.guests, host, self.socket(host))
        return self._askers[host]

    def ask(self, host: str, *words: str) -> Any:
        """GET /v1/WORD; `events` are those of the last few minutes."""
        return self.asker(host).ask(f"/v1/{words[0]}{'?limit=1000' if words[0] == 'events' else ''}")

    def since(self, host: str, number: int) -> list[dict[str, Any]]:
        """Events with a number above that one."""
        found: list[dict[str, Any]] = self.asker(host).ask(f"/v1/events?since={number}&limit=1000")
        return found

    def signal(self, host: str, number: int) -> None:
        """Send the agent itself a signal, in its guest."""
        self.guests.run(host, ["pkill", f"-{number}", "-f", "--", f"{sys.executable} -m linkpass_agent"])

    def end(self, host: str) -> None:
        """SIGKILL to the agent itself: nothing of it is left to tidy up."""
        self.signal(host, 9)
        self._running.pop(host).wait(10.0)

    def close(self) -> None:
        """Stop agents and askers."""
        for asker in self._askers.values():
            asker.close()
        self._askers.clear()
        self.stop_all()
