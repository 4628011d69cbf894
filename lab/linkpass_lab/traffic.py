"""Workloads between two hosts' rail-independent addresses, each with a result that a program can read."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import Popen
from typing import Protocol

from linkpass_lab import udpstream
from linkpass_lab.lab import Lab, LabError
from linkpass_lab.scenario import Traffic

READY = 10.0  # s that a receiver may take until it listens (Python's start on a busy machine)
SAMPLE = 0.1  # s between two looks at the counters
MOST = 0.6  # share of the packets that makes a rail the one in use


class Workload(Protocol):
    """Something that runs until it is stopped."""

    traffic: Traffic

    def start(self) -> None:
        """Start it; returns when it sends."""
        ...

    def stop(self) -> dict[str, object]:
        """End it and return its result. May be repeated."""
        ...


class UdpStream:
    """`udpstream`, with rate (packets/s), port, realtime, report_ms (gaps to tell of at once).

    The result is `udpstream.Result` as a table.
    """

    def __init__(self, lab: Lab, traffic: Traffic) -> None:
        self.traffic = traffic
        self.lab = lab
        self.folder = lab.folder / f"traffic-{traffic.name}"
        self._running: list[Popen[bytes]] = []
        self._result: udpstream.Result | None = None

    @property
    def live(self) -> Path:
        """The receiver's own words, a JSON line for each gap that ended."""
        return self.folder / "receiver.out"

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        p = self.traffic.parameters
        source, target = (self.lab.fabric.host(h).service for h in (self.traffic.source, self.traffic.target))
        port = int(p.get("port", 5201))
        realtime = ["--realtime"] if p.get("realtime", False) else []
        ends = (
            (
                self.traffic.target,
                "receive",
                [
                    *("--bind", f"{target}:{port}", "--log", str(self.folder / "received")),
                    *("--report", str(p.get("report_ms", 20))),
                ],
            ),
            (
                self.traffic.source,
                "send",
                [
                    *("--bind", f"{source}:0", "--to", f"{target}:{port}", "--rate", str(p.get("rate", 1000))),
                    *("--log", str(self.folder / "sent")),
                ],
            ),
        )
        for host, role, options in ends:
            out = self.folder / f"{role}{'r' if role.endswith('e') else 'er'}.out"
            argv = [sys.executable, "-m", "linkpass_lab.udpstream", role, *options, *realtime]
            with out.open("wb") as f:
                process = self.lab.popen(host, argv, name=f"udpstream {role}", stdout=f, stderr=subprocess.STDOUT)
            self._running.append(process)
            _wait_for(out, process, f"udpstream {role} on {host}")

    def stop(self) -> dict[str, object]:
        for process in self._running[::-1]:  # the sender first; what is under way still arrives
            _finish(process, signal.SIGTERM)
            time.sleep(0.02)
        self._running.clear()
        if self._result is None:
            self._result = udpstream.read(self.folder)
        return self._result.json()

    def gaps(self) -> list[dict[str, float]]:
        """The gaps that ended so far, while it runs: gap (ms), start and end (monotonic s)."""
        lines = self.live.read_text().splitlines()
        return [told for text in lines if "gap" in (told := json.loads(text))]

    def result(self, after: int = 0) -> udpstream.Result:
        """The result, once stopped; only gaps that end after that time (monotonic ns) count."""
        return udpstream.read(self.folder, after=after)


class Iperf3:
    """Unmodified iperf3 over TCP: seconds (most it may run), port, mbit (bandwidth limit; 0 is none), reverse.

    The result has `bytes` (received), `seconds`, `mbit`, `retransmits`, `error`.
    """

    def __init__(self, lab: Lab, traffic: Traffic) -> None:
        self.traffic = traffic
        self.lab = lab
        self.folder = lab.folder / f"traffic-{traffic.name}"
        self._server: Popen[bytes] | None = None
        self._client: Popen[bytes] | None = None
        self._result: dict[str, object] | None = None

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        p = self.traffic.parameters
        source, target = (self.lab.fabric.host(h).service for h in (self.traffic.source, self.traffic.target))
        port, seconds = str(p.get("port", 5202)), str(p.get("seconds", 10))
        with (self.folder / "server.out").open("wb") as f:
            server = ["iperf3", "-s", "-1", "-B", target, "-p", port, "--forceflush"]
            self._server = self.lab.popen(self.traffic.target, server, name="iperf3 -s", stdout=f, stderr=f)
        _wait_for(self.folder / "server.out", self._server, f"iperf3 -s on {self.traffic.target}")
        argv = ["iperf3", "-c", target, "-B", source, "-p", port, "-t", seconds, "-J", "--connect-timeout", "5000"]
        if p.get("mbit", 0):
            argv += ["-b", f"{p['mbit']}M"]
        if p.get("reverse", False):
            argv += ["-R"]
        with (self.folder / "client.json").open("wb") as out, (self.folder / "client.err").open("wb") as err:
            self._client = self.lab.popen(self.traffic.source, argv, name="iperf3 -c", stdout=out, stderr=err)

    def stop(self) -> dict[str, object]:
        """Waits for the client's own end, at most its time and 10 s more."""
        if self._result is not None or self._client is None or self._server is None:
            return self._result or {}
        finished = True
        try:
            self._client.wait(float(self.traffic.parameters.get("seconds", 10)) + 10)
        except subprocess.TimeoutExpired:
            finished = False
            _finish(self._client, signal.SIGKILL)
        _finish(self._server, signal.SIGTERM)
        self._result = iperf3_result((self.folder / "client.json").read_text(), finished=finished)
        return self._result


def iperf3_result(text: str, *, finished: bool) -> dict[str, object]:
    """What matters of iperf3's JSON."""
    if not finished:
        return {"bytes": 0, "error": "did not end in its time"}
    try:
        report = json.loads(text)
    except ValueError:
        return {"bytes": 0, "error": f"no JSON: {text[:200]!r}"}
    end = report.get("end", {})
    received = end.get("sum_received", {})
    return {
        "bytes": int(received.get("bytes", 0)),
        "seconds": float(received.get("seconds", 0.0)),
        "mbit": round(float(received.get("bits_per_second", 0.0)) / 1e6, 1),
        "retransmits": int(end.get("sum_sent", {}).get("retransmits", 0)),
        "error": str(report.get("error", "")),
    }


KINDS: Mapping[str, Callable[[Lab, Traffic], Workload]] = {"udpstream": UdpStream, "iperf3": Iperf3}


def make(lab: Lab, traffic: Traffic) -> Workload:
    """The workload of that kind."""
    if traffic.kind not in KINDS:
        raise LabError(f"traffic {traffic.name}: no kind {traffic.kind!r}; there are {', '.join(KINDS)}")
    return KINDS[traffic.kind](lab, traffic)


def sent_packets(lab: Lab, host: str) -> dict[str, int]:
    """Packets that each of the host's rails has sent, by rail."""
    rails = lab.fabric.rails
    files = [f"/sys/class/net/{lab.port(host, rail)}/statistics/tx_packets" for rail in rails]
    return dict(zip(rails, (int(n) for n in lab.run(host, ["cat", *files]).stdout.split()), strict=True))


def rail_in_use(lab: Lab, host: str) -> str:
    """The rail over which the host sends most packets now. Counters don't lie, where a route look-up may."""
    for _ in range(20):
        before = sent_packets(lab, host)
        time.sleep(SAMPLE)
        more = {rail: n - before[rail] for rail, n in sent_packets(lab, host).items()}
        busiest = max(more, key=lambda rail: more[rail])
        if more[busiest] > SAMPLE * 200 and more[busiest] >= MOST * sum(more.values()):
            return busiest
    raise LabError(f"{host} sends over no rail more than over the others: {more}")


def _wait_for(file: Path, process: Popen[bytes], what: str) -> None:
    """Until the program has said its first words."""
    deadline = time.monotonic() + READY
    while not file.stat().st_size:
        if process.poll() is not None or time.monotonic() > deadline:
            raise LabError(f"{what} did not start (exit {process.poll()}): {file.read_text().strip()}")
        time.sleep(0.005)


def _finish(process: Popen[bytes], number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)
