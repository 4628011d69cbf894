"""A fabric as guests: the `Lab` that scenarios, tests and the command line use.

lab = GuestLab.up(grid(2, 2, mtu=9000), say=print)
lab.run("a", ["rdma", "link"])
lab.close()
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linkpass_lab.fault import Fault, FaultKind
from linkpass_lab.guests import channel, orders, plan, qemu
from linkpass_lab.guests.channel import GuestProcess
from linkpass_lab.guests.faults import GuestFaults
from linkpass_lab.guests.prepare import prepare
from linkpass_lab.lab import LabError, Output
from linkpass_lab.ledger import RUN_VARIABLE, Ledger
from linkpass_topology.fabric import Fabric

LONGEST_NODE = 8  # of a guest's name; see linkpass_topology.fabric.NAME


class GuestLab:
    """A running lab of guests. `up` makes one, `found` finds one that another process made."""

    kind = "guests"

    def __init__(self, ledger: Ledger, lab: plan.LabPlan) -> None:
        self.ledger, self.plan, self.fabric = ledger, lab, lab.fabric
        self._faults = GuestFaults(ledger.folder, lab)
        self._life: int | None = None  # while this end of a pipe is open, an attached supervisor lives

    @classmethod
    def up(
        cls,
        fabric: Fabric,
        *,
        bond: bool = False,
        memory: int = qemu.MEMORY,
        attached: bool = True,
        label: str = "rdma",
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
            orders.write(ledger.folder / "guests" / "orders.json", lab, made, memory)
            self = cls(ledger, lab)
            self._start(attached, say)
        except BaseException:
            ledger.undo(grace=1.0)
            raise
        return self

    @classmethod
    def found(cls, ledger: Ledger) -> "GuestLab":
        """The lab of a run folder. LabError when that holds no guests."""
        file = ledger.folder / "guests" / "orders.json"
        if not file.exists():
            raise LabError(f"lab {ledger.folder.name} has no guests; it was made without --rdma")
        return cls(ledger, orders.read(file)[0])

    def _start(self, attached: bool, say: Callable[[str], None]) -> None:
        folder = self.ledger.folder
        command = [sys.executable, "-m", "linkpass_lab.guests.supervisor", str(folder)]
        here = Path(__file__).resolve()
        paths = [str(p) for p in (here.parents[2], *_code_paths()) if p]
        env = {**os.environ, "PYTHONPATH": ":".join(dict.fromkeys(paths)), RUN_VARIABLE: str(folder)}
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
        return self._faults.kinds

    def inject(self, fault: Fault) -> None:
        self._faults.inject(fault)

    def repair(self, fault: Fault) -> None:
        self._faults.repair(fault)

    def port(self, host: str, rail: str) -> str:
        return self.plan.guest(host).nic(rail).name

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
        """A local process that stands for the one in the guest (see `proxy`). `env` is added to the guest's own."""
        self.plan.guest(host)
        told = json.dumps({RUN_VARIABLE: str(self.folder), **(env or {})})
        local = {**os.environ, "LINKPASS_GUEST_ENV": told, RUN_VARIABLE: str(self.folder)}
        local["PYTHONPATH"] = ":".join(dict.fromkeys(_code_paths()))
        process = subprocess.Popen(
            [sys.executable, "-m", "linkpass_lab.guests.proxy", str(self.folder), host, *argv],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=local,
        )
        self.ledger.process(process.pid, name or f"{argv[0]} on {host}")
        return process

    def run(
        self, host: str, argv: Sequence[str], *, timeout: float = 30.0, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        self.plan.guest(host)
        try:
            done = channel.run(self.folder, host, argv, timeout=timeout)
        except subprocess.TimeoutExpired as e:
            raise LabError(f"{host}: {' '.join(argv)}: not done after {timeout:g} s") from e
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip()[-600:]
            raise LabError(f"{host}: {' '.join(argv)}: exit {done.returncode}: {said}")
        return done

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
        return GuestProcess(self.folder, host, argv, input=input, env=env, cwd=cwd)

    def detach(self, host: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> int:
        """Start a command that outlives this process; `log` is best in the run folder. Returns its pid there."""
        self.plan.guest(host)
        return channel.detach(self.folder, host, argv, log, env)

    def status(self) -> dict[str, dict[str, Any]]:
        """Of each guest: state (booting, up, frozen, dead), pid of its QEMU."""
        found: dict[str, dict[str, Any]] = channel.order(self.folder, "status")
        return found

    def in_lab(self, argv: Sequence[str]) -> str:
        """Run `ip`, `tc` or `bridge` where the bridges and taps are."""
        return channel.in_lab(self.folder, argv)


def _code_paths() -> list[str]:
    """Where this process finds the project's packages, so that those it starts do too."""
    names = ("linkpass", "linkpass_topology", "linkpass_lab")
    files = (getattr(sys.modules.get(n), "__file__", None) for n in names)
    return [str(Path(f).resolve().parents[1]) for f in files if f]
