"""A fabric as guests: the `Lab` that scenarios, tests and the command line use.

lab = GuestLab.up(grid(2, 2, mtu=9000), say=print)
lab.run("a", ["rdma", "link"])
lab.close()
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linkpass_lab.fault import Fault, FaultKind, parse
from linkpass_lab.guests import channel, orders, plan, qemu
from linkpass_lab.guests.channel import SOCKET, GuestProcess
from linkpass_lab.guests.faults import KINDS, GuestFaults
from linkpass_lab.guests.prepare import Prepared, prepare
from linkpass_lab.guests.proxy import GUEST_ENVIRONMENT
from linkpass_lab.lab import LabError, Output
from linkpass_lab.ledger import RUN_VARIABLE, Ledger
from linkpass_lab.scenario import TREE
from linkpass_topology.fabric import Fabric

HOME = {"HOME": "/root", "LANG": "C.UTF-8"}
PACKAGES = ":".join(str(TREE / p) for p in ("", "agent", "topology", "lab"))
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BIN = "bin"  # in the run folder
LOCAL = Path("/run/linkpass")  # in each guest


class GuestLab:
    """A running lab of guests. `up` makes one, `found` finds one that another process made."""

    kind = "guests"

    def __init__(self, ledger: Ledger, lab: plan.LabPlan, made: Prepared) -> None:
        self.ledger, self.plan, self.fabric, self.made = ledger, lab, lab.fabric, made
        self._faults = GuestFaults(ledger.folder, lab)
        self._life: int | None = None  # while this end of a pipe is open, an attached supervisor lives

    @classmethod
    def up(
        cls,
        fabric: Fabric,
        *,
        label: str = "rdma",
        bond: bool = False,
        memory: int = qemu.MEMORY,
        attached: bool = True,
        say: Callable[[str], None] = lambda _: None,
    ) -> "GuestLab":
        """Prepare, start the guests, return when all answer. `attached`: they end when this process does.

        LabError (or an error of `prepare`) says why it can't be; nothing is left then.
        """
        if os.geteuid() != 0:
            raise LabError("guests need root: for taps and a network namespace")
        made = prepare(say)
        lab = plan.plan(fabric, bond=bond)
        ledger = Ledger.create(label)
        try:
            (ledger.folder / "guests").mkdir()
            _tools(ledger.folder / BIN)
            orders.write(ledger.folder / "guests", lab, made, memory)
            self = cls(ledger, lab, made)
            self._start(attached, say)
        except BaseException:
            ledger.undo(grace=1.0)
            raise
        return self

    @classmethod
    def attach(cls, ledger: Ledger) -> "GuestLab":
        """A lab that is up, made by whichever process. LabError when it isn't, or has no guests."""
        if not (ledger.folder / "guests" / SOCKET).exists():
            raise LabError(f"lab {ledger.folder.name} has no guests; it was made without --rdma")
        lab, made, _ = orders.read(ledger.folder / "guests")
        self = cls(ledger, lab, made)
        self.status()
        return self

    def _start(self, attached: bool, say: Callable[[str], None]) -> None:
        folder = self.ledger.folder
        command = [sys.executable, "-m", "linkpass_lab.guests.supervisor", str(folder)]
        env = {**os.environ, "PYTHONPATH": PACKAGES, RUN_VARIABLE: str(folder)}
        read, write = os.pipe()
        with (folder / "guests" / "supervisor.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *(["--attached"] if attached else [])],
                stdin=read if attached else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        os.close(read)
        if attached:
            self._life = write
        else:
            os.close(write)
        self.ledger.process(process.pid, "guests' supervisor", kind="node")
        assert process.stdout is not None
        for line in process.stdout:
            word: dict[str, Any] = json.loads(line)
            if "failed" in word:
                raise LabError(word["failed"])
            if "ready" in word:
                say(f"{len(self.plan.guests)} guests up in {word['ready']} s")
                return
            say(word["say"] + (f" ({word['seconds']} s)" if "seconds" in word else ""))
        last = (folder / "guests" / "supervisor.log").read_text().strip().splitlines()
        raise LabError(f"the guests' supervisor ended: {last[-1] if last else 'it said nothing'}")

    # -- what every lab can do

    @property
    def folder(self) -> Path:
        return self.ledger.folder

    @property
    def faults(self) -> frozenset[FaultKind]:
        return KINDS

    def inject(self, fault: Fault) -> None:
        noted = self.ledger.add("fault", str(fault), **_table(fault))
        try:
            self._faults.inject(fault)
        except BaseException:
            self.ledger.undone(noted)
            raise

    def repair(self, fault: Fault) -> None:
        self._faults.repair(fault)
        for noted in self.ledger.standing("fault"):
            if noted.data == _table(fault):
                self.ledger.undone(noted)

    def broken(self) -> list[Fault]:
        return [
            parse({"kind": m.data["verb"], **{k: v for k, v in m.data.items() if k != "verb"}})
            for m in self.ledger.standing("fault")
        ]

    def port(self, host: str, rail: str) -> str:
        return self.plan.guest(host).nic(rail).name

    def environment(self, host: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What programs in a guest find: the lab's mark, the project's packages, this Python's tools first."""
        path = f"{self.folder}/{BIN}:{Path(sys.executable).parent}:{SYSTEM_PATH}"
        own = {RUN_VARIABLE: str(self.folder), "PATH": path, "PYTHONPATH": PACKAGES}
        return {**HOME, **own, "LINKPASS_SOCKET": str(LOCAL / "agent.sock"), **(more or {})}

    def _stand_in(
        self, host: str, argv: Sequence[str], env: Mapping[str, str] | None, *options: str
    ) -> tuple[list[str], dict[str, str]]:
        """Command line and environment of the local process that stands for one in the guest (see `proxy`)."""
        self.plan.guest(host)
        told = json.dumps(self.environment(host, env))
        local = {**os.environ, "PYTHONPATH": PACKAGES, RUN_VARIABLE: str(self.folder), GUEST_ENVIRONMENT: told}
        module = [sys.executable, "-m", "linkpass_lab.guests.proxy"]
        return [*module, *options, str(self.folder), host, *argv], local

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
    ) -> "subprocess.Popen[bytes]":
        """A local process stands for the one in the guest. `env` is added to what the guest's programs find."""
        command, local = self._stand_in(host, argv, env)
        stdin = subprocess.DEVNULL if stdin is None else stdin
        process = subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, env=local, start_new_session=True
        )
        self.ledger.process(process.pid, f"{host}: {name or argv[0]}")
        return process

    def interact(self, host: str, argv: Sequence[str]) -> int:
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        command, local = self._stand_in(host, argv, None, *(["--tty"] if terminal else []))
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program
        try:
            return subprocess.run(command, env=local, check=False).returncode
        finally:
            signal.signal(signal.SIGINT, before)

    def run(
        self, host: str, argv: Sequence[str], *, timeout: float = 30.0, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        self.plan.guest(host)
        try:
            done = channel.run(self.folder, host, argv, timeout=timeout, env=self.environment(host))
        except subprocess.TimeoutExpired as e:
            raise LabError(f"{host}: {' '.join(argv)}: not done after {timeout:g} s") from e
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip()[-600:]
            raise LabError(f"{host}: {' '.join(argv)}: exit {done.returncode}: {said}")
        return done

    def local(self, host: str) -> Path:
        return LOCAL

    def close(self) -> None:
        if self._life is not None:
            os.close(self._life)
            self._life = None
        self.ledger.undo()

    def __enter__(self) -> "GuestLab":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what only guests can do

    def start(
        self,
        host: str,
        argv: Sequence[str],
        *,
        input: bytes | None = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> GuestProcess:
        """Start a command without a local process for it: quicker, and its output is collected."""
        self.plan.guest(host)
        return GuestProcess(self.folder, host, argv, input=input, env=self.environment(host, env), cwd=cwd)

    def detach(self, host: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> int:
        """Start a command that outlives this process; `log` is best in the run folder. Returns its pid there."""
        self.plan.guest(host)
        return channel.detach(self.folder, host, argv, log, self.environment(host, env))

    def status(self) -> dict[str, dict[str, Any]]:
        """Of each guest: state (booting, up, frozen, dead), pid of its QEMU."""
        found: dict[str, dict[str, Any]] = channel.order(self.folder, "status")
        return found

    def gids(self, host: str, device: str) -> dict[str, int]:
        """The GIDs of an RDMA device's port, as sysfs spells them, and their indexes."""
        return self._faults.gids(host, device)

    @property
    def tools(self) -> Path:
        """Small commands for use in guests; first on their PATH."""
        return self.folder / BIN

    def in_lab(self, argv: Sequence[str]) -> str:
        """Run `ip`, `tc` or `bridge` where the bridges and taps are."""
        return channel.in_lab(self.folder, argv)


def _tools(folder: Path) -> None:
    """Tools for use in guests, whether or not the distribution is installed."""
    folder.mkdir()
    tool = folder / "linkpassctl"
    tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m linkpass.ctl "$@"\n')
    tool.chmod(0o755)
    # Starts a command on another guest, as a remote shell does; mpirun's plm_rsh_agent.
    code = f'import sys; sys.path.insert(0, "{TREE / "lab"}"); from linkpass_lab.guests import gx; gx.main()'
    tool = folder / "gx"
    tool.write_text(f"#!/bin/sh\nexec {os.path.realpath(sys.executable)} -E -s -S -c '{code}' \"$@\"\n")
    tool.chmod(0o755)


def _table(fault: Fault) -> dict[str, str | int]:
    """A fault as the ledger holds it: numbers as words, which `fault.parse` reads as well."""
    target = {k: v for k in ("host", "rail", "leaf") if (v := getattr(fault, k))}
    return {"verb": str(fault.kind), **target, **{k: str(v) for k, v in fault.parameters}}
