"""FRR on the hosts of a lab, for comparison: OSPF with BFD over equal-cost paths, as a routed network would run it.

Needs Debian's package frr (8.4 was tried). Each host has its own zebra, ospfd and bfdd, started in the foreground so
that the ledger knows them, with their own sockets; the installed service and its configuration aren't touched.
"""

import json
import os
import pwd
import shutil
import subprocess
import time
from pathlib import Path

from linkpass_lab.agents import kernel_hops
from linkpass_lab.lab import Lab, LabError

DAEMONS = Path("/usr/lib/frr")
USER = "frr"
READY = 10.0  # s until zebra must listen


def require() -> None:
    """LabError unless FRR is installed."""
    if not (DAEMONS / "ospfd").exists() or shutil.which("vtysh") is None:
        raise LabError("FRR is missing on this machine: apt-get install frr")


def configuration(lab: Lab, host: str, *, multiplier: int, interval_ms: int) -> dict[str, str]:
    """A host's configuration for each daemon (one file for all would end at the first `exit` that one doesn't know).

    Hello 1 s and dead 3 s: BFD is what notices, these only bring a path back. SPF runs without delay.
    """
    bfd = ["bfd", "profile lab", f"detect-multiplier {multiplier}"]
    bfd += [f"receive-interval {interval_ms}", f"transmit-interval {interval_ms}"]
    ospf = []
    for device in (lab.port(host, rail) for rail in lab.fabric.rails):
        ospf += [f"interface {device}", "ip ospf area 0", "ip ospf bfd", "ip ospf bfd profile lab"]
        ospf += ["ip ospf hello-interval 1", "ip ospf dead-interval 3"]
        if len(lab.fabric.hosts) == 2:
            ospf.append("ip ospf network point-to-point")  # no election, so adjacencies come back sooner
    ospf += ["interface lo", "ip ospf area 0", "router ospf"]
    ospf += [f"ospf router-id {lab.fabric.host(host).service}", "timers throttle spf 0 0 0", "maximum-paths 16"]
    return {d: "\n".join(lines) + "\n" for d, lines in (("zebra", []), ("ospfd", ospf), ("bfdd", bfd))}


class Frr:
    """FRR on every host of a lab."""

    def __init__(self, lab: Lab, *, multiplier: int = 3, interval_ms: int = 50) -> None:
        require()
        self.lab = lab
        self.multiplier = multiplier
        self.interval_ms = interval_ms

    def folder(self, host: str) -> Path:
        return self.lab.folder / host / "frr"

    def start(self) -> None:
        """Start it on all hosts; `whole` says when the paths are there."""
        user = pwd.getpwnam(USER)
        for host in (h.name for h in self.lab.fabric.hosts):
            for (
                peer
            ) in self.lab.fabric.hosts:  # zebra would take a route that it finds in the kernel for the best one
                self.lab.run(host, ["ip", "route", "del", peer.service], check=False)
            folder = self.folder(host)
            folder.mkdir(parents=True)
            os.chown(folder, user.pw_uid, user.pw_gid)
            texts = configuration(self.lab, host, multiplier=self.multiplier, interval_ms=self.interval_ms)
            for daemon, text in texts.items():
                file = folder / f"{daemon}.conf"
                file.write_text(text)
                os.chown(file, user.pw_uid, user.pw_gid)
                argv = [str(DAEMONS / daemon), "-f", str(file), "-i", str(folder / f"{daemon}.pid")]
                argv += ["-z", str(folder / "zserv"), "--vty_socket", str(folder), "-P", "0", "-u", USER, "-g", USER]
                if daemon == "bfdd":
                    argv += ["--bfdctl", str(folder / "bfdctl")]
                with (folder / f"{daemon}.log").open("wb") as log:
                    self.lab.popen(host, argv, name=daemon, stdout=log, stderr=subprocess.STDOUT)
                self._wait(folder / ("zserv" if daemon == "zebra" else f"{daemon}.vty"), f"{daemon} on {host}")

    def _wait(self, path: Path, what: str) -> None:
        deadline = time.monotonic() + READY
        while not path.exists():
            if time.monotonic() > deadline:
                raise LabError(f"{what} did not start: {(path.parent / (what.split()[0] + '.log')).read_text()}")
            time.sleep(0.01)

    def ask(self, host: str, command: str) -> str:
        """One vtysh command."""
        return self.lab.run(host, ["vtysh", "--vty_socket", str(self.folder(host)), "-c", command]).stdout

    def whole(self) -> bool:
        """All BFD sessions are up and every host uses all rails to every other."""
        return self.sessions() and not self.short()

    def sessions(self) -> bool:
        """All BFD sessions are up, and OSPF knows all ways to every host."""
        fabric = self.lab.fabric
        for host in fabric.hosts:
            peers = [p for p in fabric.hosts if p is not host]
            sessions = json.loads(self.ask(host.name, "show bfd peers json"))
            if sum(s.get("status") == "up" for s in sessions) < len(peers) * len(fabric.rails):
                return False
            routes = json.loads(self.ask(host.name, "show ip ospf route json"))
            for peer in peers:
                if len(routes.get(f"{peer.service}/32", {}).get("nexthops", [])) < len(fabric.rails):
                    return False
        return True

    def short(self) -> list[str]:
        """Hosts that don't use all rails to every other."""
        fabric = self.lab.fabric
        return [
            host.name
            for host in fabric.hosts
            if any(
                len(kernel_hops(self.lab, host.name, peer.service)) < len(fabric.rails)
                for peer in fabric.hosts
                if peer is not host
            )
        ]

    def remind(self, host: str) -> None:
        """Put back the members that the kernel dropped from next-hop groups when carrier went.

        FRR 8.4 makes the members again but never the group, which it still takes for whole, and so goes on with one
        path for good. Works where a group holds all ways, as between two hosts.
        """
        objects = json.loads(self.lab.run(host, ["ip", "-j", "nexthop", "show"]).stdout)
        members = "/".join(str(o["id"]) for o in objects if "gateway" in o)
        for group in (o["id"] for o in objects if "group" in o):
            self.lab.run(host, ["ip", "nexthop", "replace", "id", str(group), "group", members])
