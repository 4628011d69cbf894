"""What any realisation of a fabric can do. Scenarios, traffic and agents speak to this and nothing below it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess, Popen
from typing import IO, Protocol

from linkpass.errors import LinkPassError
from linkpass_lab.fault import Fault, FaultKind
from linkpass_lab.ledger import Ledger
from linkpass_topology.fabric import Fabric

Output = int | IO[bytes] | None


class LabError(LinkPassError):
    """The lab can't be made, or something in it went wrong; the message names the thing and the remedy."""


class Lab(Protocol):
    """A fabric that runs. `folder` is its run folder: the same path on every host, writable there."""

    fabric: Fabric
    ledger: Ledger
    kind: str  # "namespaces" or "guests"

    @property
    def folder(self) -> Path: ...

    @property
    def faults(self) -> frozenset[FaultKind]:
        """The kinds that this realisation can do."""
        ...

    def inject(self, fault: Fault) -> None:
        """Strike. Returns when the fault is in force; a flap train runs on by itself. FaultError if it can't be."""
        ...

    def repair(self, fault: Fault) -> None:
        """Take a fault back, and end a flap train. Repairing what isn't broken is fine."""
        ...

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
        """Start a program on a host, written down in the ledger as `name`. Signals to it reach the program."""
        ...

    def run(
        self, host: str, argv: Sequence[str], *, timeout: float = 30.0, check: bool = True
    ) -> CompletedProcess[str]:
        """Run a program on a host to its end (s). With `check`, failure is a LabError in the program's own words."""
        ...

    def interact(self, host: str, argv: Sequence[str]) -> int:
        """Run a program on a host with this process's own terminal and streams; returns its exit code."""
        ...

    def port(self, host: str, rail: str) -> str:
        """The name of the host's interface on that rail."""
        ...

    def local(self, host: str) -> Path:
        """A folder of the host's own, where sockets can be made (a guest can't have them in the shared folder)."""
        ...

    def close(self) -> None:
        """Take everything away. May be repeated."""
        ...
