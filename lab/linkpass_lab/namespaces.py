"""A fabric in namespaces: runs programs on its hosts and carries faults out, also if another process made it."""

import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess, Popen

from linkpass_lab import fault as faults
from linkpass_lab import mininet_fabric as made
from linkpass_lab.fault import Fault, FaultError, FaultKind
from linkpass_lab.lab import LabError, Output
from linkpass_lab.ledger import RUN_VARIABLE, Ledger, end, started
from linkpass_lab.netns import Links
from linkpass_lab.scenario import TREE
from linkpass_topology.fabric import Fabric, dump, load

# Filters of tc's ingress and egress hooks are known by their preference; each kind of fault has its own.
FABRIC_FILE = "fabric.toml"
BIN = "bin"
SILENT_PREFERENCE = 10
LOSS_PREFERENCE = 20
HOOKS = {"from": ("ingress",), "to": ("egress",), "both": ("ingress", "egress")}  # of the switch port
FAULTS = frozenset(
    {
        FaultKind.CARRIER,
        FaultKind.ADMIN_DOWN,
        FaultKind.SILENT,
        FaultKind.LOSS,
        FaultKind.RATE,
        FaultKind.FLAP,
        FaultKind.LEAF,
        FaultKind.RAILS,
    }
)
DROP = "1,6 0 0 2,"  # classic BPF: return TC_ACT_SHOT


def lossy(percent: float) -> str:
    """Classic BPF that drops this share: load a random word (SKF_AD_OFF + SKF_AD_RANDOM), drop if below the share."""
    share = min(int(percent / 100 * 2**32), 2**32 - 1)
    return f"4,32 0 0 4294963256,53 1 0 {share},6 0 0 2,6 0 0 4294967295,"


class NamespaceLab:
    """See `lab.Lab`."""

    kind = "namespaces"

    def __init__(self, fabric: Fabric, ledger: Ledger, pids: Mapping[str, int]) -> None:
        self.fabric = fabric
        self.ledger = ledger
        self.pids = dict(pids)
        self._links: dict[str, Links] = {}
        self._trains: dict[Fault, Popen[bytes]] = {}

    # -- life

    @classmethod
    def up(cls, fabric: Fabric, *, label: str = "", equal_ifindex: bool = False) -> "NamespaceLab":
        """Make a lab. What fails half-way is taken away again."""
        made.require()
        ledger = Ledger.create(label or _label(fabric))
        try:
            pids = made.realise(fabric, ledger, equal_ifindex=equal_ifindex)
            (ledger.folder / FABRIC_FILE).write_text(dump(fabric))
            _tools(ledger.folder / BIN)
            return cls(fabric, ledger, pids)
        except BaseException:
            ledger.undo()
            raise

    @classmethod
    def attach(cls, ledger: Ledger) -> "NamespaceLab":
        """A lab that is up, made by whichever process."""
        nodes = {m.name.split()[1]: m for m in ledger.standing("node")}
        if not nodes or any(started(int(m.data["pid"])) != m.data["start"] for m in nodes.values()):
            raise LabError(f"lab {ledger.folder.name} is not up any more; `linkpass-lab down {ledger.folder.name}`")
        return cls(load(ledger.folder / FABRIC_FILE), ledger, {name: int(m.data["pid"]) for name, m in nodes.items()})

    def local(self, host: str) -> Path:
        return self.folder / host

    def close(self) -> None:
        for links in self._links.values():
            links.close()  # an open socket would keep the namespace
        self._links.clear()
        self.ledger.undo()

    @property
    def folder(self) -> Path:
        return self.ledger.folder

    # -- programs

    def pid(self, node: str) -> int:
        """The process that holds a host or switch."""
        if node not in self.pids:
            raise LabError(f"no host {node!r}; there are {', '.join(h.name for h in self.fabric.hosts)}")
        return self.pids[node]

    def environment(self, host: str = "", more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What programs on a host find: the lab's mark, the project's packages and tools, the host's own agent."""
        path = f"{self.folder}/{BIN}:{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        packages = ":".join(str(TREE / p) for p in ("", "agent", "topology", "lab"))
        own = {RUN_VARIABLE: str(self.folder), "PATH": path, "PYTHONPATH": packages}
        if host:
            own["LINKPASS_SOCKET"] = str(self.folder / host / "agent.sock")
        return {**os.environ, **own, **(more or {})}

    def command(self, node: str, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on a node; it becomes that program, so its pid is the program's."""
        return ["mnexec", "-a", str(self.pid(node)), *argv]

    def popen(
        self,
        host: str,
        argv: Sequence[str],
        *,
        name: str = "",
        stdin: Output = None,
        stdout: Output = None,
        stderr: Output = None,
        env: Mapping[str, str] | None = None,
    ) -> Popen[bytes]:
        process = Popen(
            self.command(host, argv),
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=stdout,
            stderr=stderr,
            env=self.environment(host, env),
            start_new_session=True,  # Ctrl-C is for the lab, which then ends its programs in order
        )
        self.ledger.process(process.pid, f"{host}: {name or argv[0]}")
        return process

    def run(
        self, host: str, argv: Sequence[str], *, timeout: float = 30.0, check: bool = True
    ) -> CompletedProcess[str]:
        try:
            done = subprocess.run(
                self.command(host, argv),
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
                env=self.environment(host),
            )
        except subprocess.TimeoutExpired as e:
            raise LabError(f"{host}: {shlex.join(argv)}: no end after {timeout:g} s") from e
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise LabError(f"{host}: {shlex.join(argv)}: exit {done.returncode}: {said}")
        return done

    def interact(self, host: str, argv: Sequence[str]) -> int:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program
        try:
            default = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
            program = Popen(self.command(host, argv), env=self.environment(host), preexec_fn=default)
            self.ledger.process(program.pid, f"{host}: {argv[0]}")
            return program.wait()
        finally:
            signal.signal(signal.SIGINT, before)

    def port(self, host: str, rail: str) -> str:
        self._rail(host, rail)
        return made.port_name(host, rail)

    # -- faults

    @property
    def faults(self) -> frozenset[FaultKind]:
        return FAULTS

    def inject(self, fault: Fault) -> None:
        self._check(fault)
        self._apply(fault, broken=True)

    def repair(self, fault: Fault) -> None:
        self._check(fault)
        self._apply(fault, broken=False)

    def _check(self, fault: Fault) -> None:
        """FaultError unless this fault can be injected here."""
        if fault.kind not in FAULTS:
            raise faults.unsupported(fault.kind, self.kind)
        if fault.rail:
            self._rail(fault.host, fault.rail)

    def _apply(self, fault: Fault, *, broken: bool) -> None:
        match fault.kind:
            case FaultKind.CARRIER:
                self._carrier(fault, up=not broken)
            case FaultKind.ADMIN_DOWN:
                self._admin(fault, up=not broken)
            case FaultKind.SILENT:
                self._filter(fault, SILENT_PREFERENCE, DROP if broken else None)
            case FaultKind.LOSS:
                self._filter(fault, LOSS_PREFERENCE, lossy(fault.number("percent")) if broken else None)
            case FaultKind.RATE:
                self._slow(fault) if broken else self._fast(fault)
            case FaultKind.FLAP:
                self._flap(fault) if broken else self._steady(fault)
            case FaultKind.LEAF:
                self._leaf(fault, up=not broken)
            case FaultKind.RAILS:
                self._rails(fault, up=not broken)

    def links(self, node: str) -> Links:
        """The node's links, to set up and down."""
        if node not in self._links:
            self._links[node] = Links(self.pid(node))
        return self._links[node]

    def _rail(self, host: str, rail: str) -> str:
        """The leaf that the host's port on `rail` is plugged into."""
        try:
            leaves = self.fabric.host(host).leaves
        except KeyError as e:
            raise FaultError(str(e.args[0])) from e
        if rail not in leaves:
            raise FaultError(f"host {host} has no rail {rail!r}; it has {', '.join(leaves)}")
        return leaves[rail]

    def _carrier(self, fault: Fault, *, up: bool) -> None:
        leaf = self._rail(fault.host, fault.rail)
        self.links(leaf).set(made.switch_port(leaf, fault.host), up=up)

    def _admin(self, fault: Fault, *, up: bool) -> None:
        self.links(fault.host).set(self.port(fault.host, fault.rail), up=up)
        if up:  # the kernel deletes routes that lost all their hops, and doesn't bring them back
            made.configure(self.pid(fault.host), ip=made.baseline(self.fabric, self.fabric.host(fault.host)))

    def _rails(self, fault: Fault, *, up: bool) -> None:
        for rail in self.fabric.rails:
            leaf = self._rail(fault.host, rail)
            self.links(leaf).set(made.switch_port(leaf, fault.host), up=up)

    def _leaf(self, fault: Fault, *, up: bool) -> None:
        if fault.leaf not in {s.name for s in self.fabric.leaves}:
            raise FaultError(f"no leaf {fault.leaf!r}; there are {', '.join(s.name for s in self.fabric.leaves)}")
        links = self.links(fault.leaf)
        rail = next(s.rail for s in self.fabric.leaves if s.name == fault.leaf)
        neighbours = [h.name for h in self.fabric.hosts if h.leaves.get(rail) == fault.leaf]
        if spine := self.fabric.spine_of(rail):
            neighbours.append(spine.name)
        for neighbour in neighbours:
            links.set(made.switch_port(fault.leaf, neighbour), up=up)

    def _filter(self, fault: Fault, preference: int, program: str | None) -> None:
        """Put a BPF filter on the switch port (None: take it away)."""
        leaf = self._rail(fault.host, fault.rail)
        port = made.switch_port(leaf, fault.host)
        lines = []
        for hook in HOOKS[fault.text("way")]:
            where = f"filter {{}} dev {port} {hook} pref {preference}"
            if program is None:
                self._tc(leaf, where.format("del") + "\n", check=False)  # gone already is fine
            else:
                lines.append(f"{where.format('replace')} protocol all handle 1 bpf da bytecode '{program}'\n")
        self._tc(leaf, "".join(lines))

    def _slow(self, fault: Fault) -> None:
        leaf = self._rail(fault.host, fault.rail)
        port = made.switch_port(leaf, fault.host)
        shape = f"rate {int(fault.number('mbit') * 1e6)}bit burst 32kb latency 20ms"
        self._tc(leaf, f"qdisc replace dev {port} root handle 1: tbf {shape}\n")

    def _fast(self, fault: Fault) -> None:
        leaf = self._rail(fault.host, fault.rail)
        self._tc(leaf, f"qdisc del dev {made.switch_port(leaf, fault.host)} root\n", check=False)

    def _tc(self, node: str, lines: str, *, check: bool = True) -> None:
        if lines:
            made.configure(self.pid(node), tc=lines, check=check)

    def _flap(self, fault: Fault) -> None:
        leaf = self._rail(fault.host, fault.rail)
        timing = [str(int(fault.number("count"))), *(str(fault.number(n)) for n in ("down", "up"))]
        argv = [sys.executable, "-m", "linkpass_lab.flap", str(self.pid(leaf)), made.switch_port(leaf, fault.host)]
        train = Popen([*argv, *timing], env=self.environment(), start_new_session=True, stdin=subprocess.DEVNULL)
        self.ledger.process(train.pid, str(fault))
        self._trains[fault] = train
        links, port = self.links(leaf), made.switch_port(leaf, fault.host)
        deadline = time.monotonic() + 10
        while links.flags(port) & 1 and train.poll() is None:  # in force once the link has gone
            if time.monotonic() > deadline:
                raise FaultError(f"{fault}: the train did not start within 10 s")
            time.sleep(0.002)

    def _steady(self, fault: Fault) -> None:
        if train := self._trains.pop(fault, None):
            if train.poll() is None:
                train.terminate()
            train.wait(10)
        for noted in self.ledger.standing("process"):
            if noted.name == str(fault):  # started by another process
                end([(int(noted.data["pid"]), int(noted.data["start"]))])
                self.ledger.undone(noted)
        self._carrier(fault, up=True)


def _tools(folder: Path) -> None:
    """`linkpassctl` for use on hosts, whether or not the distribution is installed."""
    folder.mkdir()
    tool = folder / "linkpassctl"
    tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m linkpass.ctl "$@"\n')
    tool.chmod(0o755)


def _label(fabric: Fabric) -> str:
    return re.sub(r"[^a-z0-9]+", "-", fabric.name.lower())[:12].strip("-") or "lab"
