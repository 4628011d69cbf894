"""The guided tour: a flow survives the loss of the far host's switch port, and the same fault without LinkPass."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from linkpass.client import Client
from linkpass.errors import LinkPassError
from linkpass_lab import realisations, traffic
from linkpass_lab import story as stories
from linkpass_lab.agents import Agents, kernel_hops
from linkpass_lab.breaking import mend, strike
from linkpass_lab.fault import Fault, FaultKind
from linkpass_lab.lab import Lab, LabError
from linkpass_lab.scenario import Traffic
from linkpass_lab.story import Line
from linkpass_topology.fabric import Fabric

SURVIVED_MS = 1000.0  # a flow that stood still for longer than this did not survive
REPORT_MS = 3.0  # gaps shorter than this are the machine's own noise
SETTLE = 1.0  # s that the cut stays visible before it is repaired
WITHOUT = 3.0  # s that the same fault lasts without LinkPass
RETURN = 20.0  # s within which both rails must be in use again
Say = Callable[[str], None]


@dataclass
class Figures:
    """What the tour measured; times in ms, None where nothing was seen."""

    outage_ms: float = 0.0
    lost: int = 0
    sent: int = 0
    without_ms: float = 0.0
    without_lost: int = 0
    returned_s: float | None = None
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def survived(self) -> bool:
        return self.outage_ms < SURVIVED_MS and self.returned_s is not None


class Listener:
    """Follows an agent's events in a thread, as they happen."""

    def __init__(self, host: str, agents: Agents, tell: Callable[[str, dict[str, Any]], None]) -> None:
        self.host = host
        self._client = Client(agents.socket(host))
        self._tell = tell
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with suppress(LinkPassError):  # the agent's end is the end of its events
            for event in self._client.follow():
                self._tell(self.host, event)


class Tour:
    """One run of the demonstration on a lab that is up."""

    def __init__(self, lab: Lab, say: Say) -> None:
        self.lab = lab
        self.say = say
        self.agents = Agents(lab)
        self.near, self.far = lab.fabric.hosts[0].name, lab.fabric.hosts[-1].name
        self.figures = Figures()
        self._lines: list[Line] = []
        self._lock = threading.Lock()

    def run(self) -> Figures:
        """The whole tour."""
        self.say(stories.picture(self.lab.fabric, self.near, self.far))
        self.agents.start_all()
        self.agents.wait_until_connected()
        listeners = [Listener(h.name, self.agents, self._hear) for h in self.lab.fabric.hosts]
        self.say(f"An agent runs on each of {len(listeners)} hosts; they hear each other and use every rail.")
        self.protected()
        self.agents.stop_all()
        self.unprotected()
        return self.figures

    def protected(self) -> None:
        """Cut, watch, repair, watch."""
        stream = self.stream("with")
        rail = traffic.rail_in_use(self.lab, self.near)
        target = self.lab.fabric.host(self.far).service
        self.say(f"A stream of 1,000 packets a second runs from {self.near} to {target}, over {rail}.\n")
        cut = Fault(FaultKind.CARRIER, host=self.far, rail=rail)
        zero = time.monotonic()
        self.say(
            f"CUT: the switch port of {self.far} on {rail}. {self.near}'s own port stays up: its kernel sees nothing."
        )
        strike(self.lab, cut)
        time.sleep(SETTLE)
        self.note_gap(stream, zero)
        told = self.take(zero)
        self.figures.stages = stories.stages(told, zero, self.near, self.far)
        self.tell(told, zero)
        self.say(f"       {self.near} now sends to {target} over {self.rails(target)}.\n")

        again = time.monotonic()
        self.say(f"REPAIR: the switch port of {self.far} on {rail}. It must prove itself before it is used again.")
        mend(self.lab, cut)
        self.wait_for_return(target, again)
        self.tell(self.take(again), again)
        self.say(f"       {self.near} now sends to {target} over {self.rails(target)}.\n")
        time.sleep(0.3)
        stream.stop()
        result = stream.result(after=int(zero * 1e9))
        self.figures.outage_ms, self.figures.lost, self.figures.sent = result.longest_ms, result.lost, result.sent

    def unprotected(self) -> None:
        """The same fault, with the agents gone."""
        stream = self.stream("without")
        rail = traffic.rail_in_use(self.lab, self.near)
        self.say(f"WITHOUT LinkPass: the agents have stopped, the same cut on {rail}, repaired after {WITHOUT:g} s.")
        cut = Fault(FaultKind.CARRIER, host=self.far, rail=rail)
        zero = time.monotonic()
        strike(self.lab, cut)
        time.sleep(WITHOUT)
        mend(self.lab, cut)
        time.sleep(0.5)
        stream.stop()
        result = stream.result(after=int(zero * 1e9))
        self.figures.without_ms, self.figures.without_lost = result.longest_ms, result.lost
        self.say("")

    # -- helpers

    def stream(self, name: str) -> traffic.UdpStream:
        stream = traffic.UdpStream(
            self.lab, Traffic(name, "udpstream", self.near, self.far, {"report_ms": REPORT_MS})
        )
        stream.start()
        time.sleep(0.3)
        return stream

    def rails(self, target: str) -> str:
        devices = kernel_hops(self.lab, self.near, target)
        return " and ".join(r for r in self.lab.fabric.rails if self.lab.port(self.near, r) in devices) or "nothing"

    def _hear(self, host: str, event: dict[str, Any]) -> None:
        with self._lock:
            self._lines.append(
                Line(event["at"], host, event["kind"], event["subject"], event["text"], event["cause"])
            )

    def take(self, since: float) -> list[Line]:
        """What was heard since then, in order of time."""
        with self._lock:
            taken, self._lines = [line for line in self._lines if line.at >= since], []
        return sorted(taken, key=lambda line: line.at)

    def tell(self, lines: Iterable[Line], zero: float) -> None:
        for text in stories.timeline(lines, zero):
            self.say(text)

    def note_gap(self, stream: traffic.UdpStream, zero: float) -> None:
        """The end of the longest gap since `zero` is a line of the story too."""
        gaps = [g for g in stream.gaps() if g["end"] > zero]
        if gaps:
            gap = max(gaps, key=lambda g: g["gap"])
            text = f"the first packet after {gap['gap']:.1f} ms without"
            with self._lock:
                self._lines.append(Line(gap["end"], self.far, "flowed", "stream", text, ""))

    def wait_for_return(self, target: str, zero: float) -> None:
        while time.monotonic() < zero + RETURN:
            if len(kernel_hops(self.lab, self.near, target)) == len(self.lab.fabric.rails):
                self.figures.returned_s = time.monotonic() - zero
                time.sleep(0.3)  # for the last events to come in
                return
            time.sleep(0.05)


def demonstrate(fabric: Fabric, *, as_json: bool) -> int:
    """Bring the fabric up, give the tour, take all down; 0 if the flow survived."""
    if len(fabric.hosts) < 2 or len(fabric.rails) < 2:
        raise LabError("the demonstration needs a fabric of at least two hosts and two rails")
    begin = time.monotonic()
    out = sys.stderr if as_json else sys.stdout
    say: Say = lambda text: print(text, file=out, flush=True)  # noqa: E731
    lab = realisations.up("namespaces", fabric, label="demo")
    try:
        figures = Tour(lab, say).run()
    finally:
        lab.close()
    seconds = time.monotonic() - begin
    for line in stories.summary(figures, seconds):
        say(line)
    if as_json:
        print(json.dumps({**figures.__dict__, "survived": figures.survived, "seconds": round(seconds, 1)}))
    return 0 if figures.survived else 1
