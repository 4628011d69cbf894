"""An agent on each host: its configuration, its life, and what it says through `linkpassctl --json`.

The lab drives agents as an operator would, by command line and signals; it imports nothing of theirs.
"""

import json
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess, Popen
from typing import Any

from linkpass.client import Client
from linkpass.errors import LinkPassError
from linkpass_lab.lab import Lab, LabError

READY = 20.0  # s until an agent must answer; Python's start takes 0.5 s here, several times that on a busy machine
LISTENING = "listening on"  # in a guest, whose every `linkpassctl` takes seconds, it isn't asked before it says so
READY_GUEST = 120.0  # s, the same under emulation, where a start takes some ten times as long
CTL, CTL_GUEST = 30.0, 120.0  # s for one `linkpassctl`; beside a job that spins an emulated one takes 20 s to start
STOP = 5.0  # s from SIGTERM until the agent must have ended
SHARE_PORT = 7471
PROBE_PORT = 7472
# In a lab of a few hosts each peer is in use, whether or not traffic flows at the moment.
LAB_DEFAULTS: Mapping[str, Any] = {"mode": "act", "probe": {"port": PROBE_PORT, "peers_in_use": ["*"]}}


def laid_over(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`more` over `base`, table by table."""
    made = dict(base)
    for key, value in more.items():
        old = made.get(key)
        made[key] = laid_over(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return made


def toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """A table as TOML text: values first, then its tables, then its arrays of tables."""
    values, tables = [], []
    for key, value in table.items():
        if isinstance(value, Mapping):
            tables.append(f"[{prefix}{key}]\n{toml(value, f'{prefix}{key}.')}")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            tables += [f"[[{prefix}{key}]]\n{toml(t, f'{prefix}{key}.')}" for t in value]
        else:
            values.append(
                f"{key} = {json.dumps(value)}\n"
            )  # strings, numbers, booleans and lists: as JSON writes them
    return "".join(values) + "".join(tables)


class Agents:
    """The agents of a lab. `config` is laid over every agent's configuration."""

    def __init__(self, lab: Lab, config: Mapping[str, Any] | None = None) -> None:
        self.lab = lab
        self.config = config or {}
        self._running: dict[str, Popen[bytes]] = {}

    # -- places

    def folder(self, host: str) -> Path:
        """The host's own folder: configuration, state, socket, log."""
        return self.lab.folder / host

    def socket(self, host: str) -> Path:
        return self.lab.local(host) / "agent.sock"

    def log(self, host: str) -> Path:
        return self.folder(host) / "agent.log"

    # -- configuration

    def configuration(self, name: str) -> dict[str, Any]:
        """The configuration of a host's agent, as tables."""
        fabric = self.lab.fabric
        host = fabric.host(name)
        peers = [h for h in fabric.hosts if h.name != name]
        own: dict[str, Any] = {
            "host": name,
            "paths": {
                "run": str(self.lab.local(name)),
                "state": str(self.lab.local(name) / "state"),
                "socket": str(self.socket(name)),
            },
            "port": [{"name": self.lab.port(name, rail), "rail": rail} for rail in fabric.rails],
            "share": {
                "listen": f"{host.management}:{SHARE_PORT}",
                "seeds": [f"{p.management}:{SHARE_PORT}" for p in peers],
                "keyring": str(self.lab.folder / "fleet.keys"),
            },
            "routes": {"addresses": [host.service]},
        }
        return laid_over(laid_over(own, LAB_DEFAULTS), self.config)

    def write(self) -> None:
        """Write every host's configuration, and the fleet's key."""
        keys = self.lab.folder / "fleet.keys"
        if not keys.exists():
            keys.touch(mode=0o600)
            keys.write_text(f"lab {secrets.token_hex(32)}\n")
        for host in self.lab.fabric.hosts:
            (self.folder(host.name) / "state").mkdir(parents=True, exist_ok=True)
            (self.folder(host.name) / "linkpass.toml").write_text(toml(self.configuration(host.name)))

    # -- life

    def start_all(self) -> None:
        """Start every agent and wait until each answers."""
        self.write()
        for host in self.lab.fabric.hosts:
            self.launch(host.name)
        for host in self.lab.fabric.hosts:
            self.wait(host.name)

    def start(self, host: str) -> None:
        """Start one agent and wait until it answers."""
        self.launch(host)
        self.wait(host)

    def launch(self, host: str) -> None:
        """Start one agent without waiting."""
        argv = [sys.executable, "-m", "linkpass_agent", "--config", str(self.folder(host) / "linkpass.toml")]
        with self.log(host).open("ab") as log:
            self._running[host] = self.lab.popen(host, argv, name="linkpassd", stdout=log, stderr=log)

    def wait(self, host: str) -> None:
        """Until the agent answers; LabError with its last words if it doesn't."""
        patience = READY_GUEST if self.lab.kind == "guests" else READY
        deadline = time.monotonic() + patience
        process = self._running[host]
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise LabError(f"the agent of {host} ended with {process.returncode}: {self.last_words(host)}")
            if self.lab.kind == "namespaces" or LISTENING in self.last_words(host, 50):
                with suppress(LabError):
                    self.ask(host, "status")
                    return
            time.sleep(0.02)
        raise LabError(f"the agent of {host} did not answer within {patience:g} s: {self.last_words(host)}")

    def wait_until_connected(self, seconds: float = 20.0) -> None:
        """Until every agent hears every peer and uses every path; LabError with what is missing."""
        deadline = time.monotonic() + seconds
        while missing := [h.name for h in self.lab.fabric.hosts if not self.whole(h.name)]:
            if time.monotonic() > deadline:
                paths = {h: [(p["peer"], p["rail"], p["state"], p["cause"]) for p in self.paths(h)] for h in missing}
                raise LabError(f"after {seconds:g} s not every path is up and in use: {paths}")
            time.sleep(0.1)

    def whole(self, host: str) -> bool:
        """Every path from this host to every peer is up and in use."""
        fabric = self.lab.fabric
        paths = self.paths(host)
        wanted = (len(fabric.hosts) - 1) * len(fabric.rails)
        return len(paths) == wanted and all(p["state"] == "up" and p["in_use"] for p in paths)

    def stop(self, host: str) -> int:
        """SIGTERM, and the exit code; LabError if it doesn't end in time."""
        process = self._running.pop(host)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(STOP)
        except subprocess.TimeoutExpired as e:
            process.kill()
            raise LabError(f"the agent of {host} did not end within {STOP:g} s of SIGTERM") from e

    def stop_all(self) -> dict[str, int]:
        """SIGTERM to all; exit codes by host."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        return {host: self.stop(host) for host in list(self._running)}

    def kill(self, host: str) -> None:
        """SIGKILL: no tidying up."""
        process = self._running.pop(host)
        process.kill()
        process.wait(STOP)

    def pid(self, host: str) -> int:
        return self._running[host].pid

    def running(self) -> list[str]:
        return sorted(self._running)

    def last_words(self, host: str, lines: int = 5) -> str:
        """The end of the agent's log."""
        try:
            return " | ".join(self.log(host).read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "no log"

    # -- what it says

    def command(self, host: str, words: Iterable[str]) -> list[str]:
        """The command line of linkpassctl for a host's agent."""
        return [sys.executable, "-m", "linkpass.ctl", "--socket", str(self.socket(host)), *words]

    def ctl(self, host: str, *words: str) -> CompletedProcess[str]:
        """Run `linkpassctl WORDS`; any exit code."""
        patience = CTL_GUEST if self.lab.kind == "guests" else CTL
        return self.lab.run(host, self.command(host, words), timeout=patience, check=False)

    def ask(self, host: str, *words: str) -> Any:
        """What `linkpassctl --json WORDS` prints; LabError if it can't be had.

        Where the socket can be reached from here it is asked directly: a program's start costs the time of 20 polls.
        """
        if self.lab.kind == "namespaces":
            try:
                return Client(self.socket(host)).get(f"/v1/{words[0]}{'?limit=1000' if words[0] == 'events' else ''}")
            except LinkPassError as e:
                raise LabError(f"the agent of {host}: {e}") from e
        done = self.ctl(host, "--json", *words)
        if done.returncode in (0, 1):
            with suppress(ValueError):
                return json.loads(done.stdout)
        raise LabError(f"linkpassctl {' '.join(words)} on {host}: exit {done.returncode}: {done.stderr.strip()}")

    def ports(self, host: str) -> list[dict[str, Any]]:
        return _rows(self.ask(host, "ports"))

    def paths(self, host: str) -> list[dict[str, Any]]:
        return _rows(self.ask(host, "paths"))

    def events(self, host: str) -> list[dict[str, Any]]:
        """All events the agent still remembers; those of a killed agent are gone with it."""
        return _rows(self.ask(host, "events"))

    def status(self, host: str) -> dict[str, Any]:
        said = self.ask(host, "status")
        if not isinstance(said, dict):
            raise LabError(f"linkpassctl status on {host}: not an object: {said!r}")
        return said


def _rows(said: Any) -> list[dict[str, Any]]:
    if not isinstance(said, list) or not all(isinstance(row, dict) for row in said):
        raise LabError(f"linkpassctl: not a list of objects: {said!r}")
    return said


def kernel_hops(lab: Lab, host: str, destination: str) -> list[str]:
    """The devices over which the kernel sends to `destination` now: those of its best route, sorted."""
    said = lab.run(host, ["ip", "-j", "route", "show", destination], check=False).stdout
    routes: Sequence[dict[str, Any]] = json.loads(said or "[]")
    if not routes:
        return []
    best = min(routes, key=lambda r: int(r.get("metric", 0)))
    hops = best.get("nexthops", [best])
    return sorted(str(h["dev"]) for h in hops if "dev" in h and not {"dead", "linkdown"} & set(h.get("flags", [])))


def kernel_routes(lab: Lab, host: str) -> str:
    """All routes and next-hop objects of the host, for comparing before and after."""
    routes = lab.run(host, ["ip", "-N", "route", "show", "table", "all"]).stdout
    objects = lab.run(host, ["ip", "-N", "nexthop", "show"]).stdout
    return "\n".join(sorted((routes + objects).split("\n"))).strip()
