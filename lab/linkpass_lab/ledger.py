"""What a lab has made, written down at once, so that it can all be taken away again, also by another process.

A run folder holds `ledger.jsonl`: one JSON object a line, appended before or right after each thing is made, never
rewritten. Undoing goes through the lines backwards and appends `{"undone": N}` for each, so it may be broken off and
started again. Nothing is ever found by its name alone: a process is its pid *and* its start time (field 22 of
/proc/PID/stat, in clock ticks since boot), so a pid that the kernel has given to someone else is left alone.

Kinds: `process` (pid, start), `node` (the same, but kept until the processes before it are gone: the shell or guest
that holds a host), `owner` (who made the lab),
`fault` (in force), `folder`, `link` (a root-namespace interface, by name and index), `netns` (a named one), `mount`.
"""

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from linkpass.errors import LinkPassError, NotFoundError

ROOT = Path("/run/linkpass-lab")  # short: a socket's path in it must fit in 108 bytes (sun_path)
ROOT_VARIABLE = "LINKPASS_LAB_ROOT"  # another place for run folders
RUN_VARIABLE = "LINKPASS_LAB_RUN"  # in the environment of everything that a lab starts: its run folder
GRACE = 3.0  # s from SIGTERM to SIGKILL; an agent needs some 0.1 s to undo its routes


class LedgerError(LinkPassError):
    """Something that was made could not be taken away; the message lists what."""


@dataclass(frozen=True, slots=True)
class Made:
    """One thing: a number of its own, its kind, a name for people, and what is needed to undo it."""

    seq: int
    kind: str
    name: str
    data: dict[str, str | int] = field(default_factory=dict)


def root() -> Path:
    """The folder that run folders are made in."""
    return Path(os.environ.get(ROOT_VARIABLE) or ROOT)


def started(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if there is none (or only a zombie is left)."""
    try:
        # The command (field 2) is in brackets and may hold anything; fields 3.. follow the last bracket.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def marked(folder: Path) -> list[int]:
    """Processes that carry this run folder in their environment: all that the lab started, grandchildren too."""
    mark = f"{RUN_VARIABLE}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return sorted(found)


def end(processes: Iterable[tuple[int, int]], grace: float = GRACE) -> list[int]:
    """End processes, given as (pid, start): SIGTERM, then SIGKILL after `grace` s. Returns those still there."""
    handles: dict[int, int] = {}
    for pid, start in processes:
        with suppress(OSError):
            handle = os.pidfd_open(pid)  # taken first, then compared: what it names can't change any more
            if started(pid) == start:
                handles[handle] = pid
            else:
                os.close(handle)
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 2.0)):
        for handle in handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
        until = time.monotonic() + seconds
        while handles and (left := until - time.monotonic()) > 0:
            for handle in select.select(list(handles), [], [], left)[0]:  # a pidfd reads as ready when it has ended
                with suppress(ChildProcessError):
                    os.waitpid(handles.pop(handle), os.WNOHANG)
                os.close(handle)
    for handle in handles:
        os.close(handle)
    return sorted(handles.values())


class Ledger:
    """The ledger of one run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "ledger.jsonl"

    @classmethod
    def create(cls, label: str) -> "Ledger":
        """A fresh run folder, `<root>/<label>-<4 hex digits>`."""
        root().mkdir(parents=True, exist_ok=True)
        while True:
            folder = root() / f"{label}-{secrets.token_hex(2)}"
            try:
                folder.mkdir(mode=0o755)
            except FileExistsError:
                continue
            made = cls(folder)
            made.add("folder", "run folder", path=str(folder))
            made.process(os.getpid(), "the lab itself", kind="owner")
            return made

    @classmethod
    def find(cls, name: str | None = None) -> "Ledger":
        """The ledger of the lab called `name` (its run folder's name); without a name, of the only one there is."""
        names = [f.name for f in runs()]
        if name is None and len(names) == 1:
            name = names[0]
        if name is None:
            there = f"there are several: {', '.join(names)}; name one" if names else "none is up; `linkpass-lab up`"
            raise NotFoundError(f"which lab? {there}")
        if name not in names:
            raise NotFoundError(f"no lab {name!r} in {root()}; there are: {', '.join(names) or 'none'}")
        return cls(root() / name)

    # -- writing down

    def add(self, kind: str, name: str, **data: str | int) -> Made:
        """Write one thing down."""
        made = Made(time.monotonic_ns(), kind, name, data)  # several processes may write: a counter would clash
        self._append({"seq": made.seq, "kind": kind, "name": name, **data})
        return made

    def process(self, pid: int, name: str, *, kind: str = "process") -> Made | None:
        """Write a process down; None if it has ended already."""
        start = started(pid)
        return None if start is None else self.add(kind, name, pid=pid, start=start)

    def _append(self, line: dict[str, object]) -> None:
        with self.file.open("ab") as f:  # O_APPEND: short lines of several processes don't mix
            f.write(json.dumps(line).encode() + b"\n")

    # -- reading

    def _lines(self) -> tuple[list[Made], set[int]]:
        made, undone = [], set()
        with suppress(FileNotFoundError):
            for text in self.file.read_text().splitlines():
                try:
                    line = json.loads(text)
                except ValueError:
                    continue  # the last line of a killed writer
                if "undone" in line:
                    undone.add(line["undone"])
                else:
                    made.append(Made(line.pop("seq"), line.pop("kind"), line.pop("name"), line))
        return made, undone

    def standing(self, kind: str | None = None) -> list[Made]:
        """What was made and not yet undone, oldest first."""
        made, undone = self._lines()
        return [m for m in made if m.seq not in undone and kind in (None, m.kind)]

    def alive(self) -> bool:
        """Does the process that made the lab still run?"""
        return any(started(int(m.data["pid"])) == m.data["start"] for m in self.standing("owner"))

    # -- undoing

    def take_over(self, wait: float = 10.0) -> None:
        """Ask the process that made the lab to take it down, and wait (s) for its end; LedgerError if it stays."""
        for owner in self.standing("owner"):
            pid, start = int(owner.data["pid"]), int(owner.data["start"])
            if pid != os.getpid() and end([(pid, start)], wait):
                raise LedgerError(f"{self.folder.name}: process {pid}, which holds it, does not end")

    def undone(self, made: Made) -> None:
        """Write down that this thing is gone."""
        if self.folder.exists():
            self._append({"undone": made.seq})

    def undo(self, *, grace: float = GRACE) -> None:
        """Take away everything, newest first; LedgerError lists what would not go. May be repeated."""
        problems: list[str] = []
        todo = self.standing()[::-1]
        self._end([m for m in todo if m.kind == "process"], grace, problems)
        nodes = {m.data["pid"] for m in todo if m.kind == "node"}
        strays = [(p, s) for p in marked(self.folder) if p not in nodes and (s := started(p)) is not None]
        if left := end(strays, grace):
            problems += [f"process {p} is still there" for p in left]
        self._end([m for m in todo if m.kind == "node"], 0.0, problems)  # an interactive shell ignores SIGTERM
        for made in todo:
            if made.kind in ("process", "node", "folder"):
                continue
            if problem := _undo(made):
                problems.append(problem)
            else:
                self.undone(made)
        if problems:
            raise LedgerError(f"{self.folder.name}: {'; '.join(problems)}; the ledger is {self.file}")
        for made in todo:
            if made.kind == "folder":
                shutil.rmtree(str(made.data["path"]), ignore_errors=True)

    def _end(self, made: list[Made], grace: float, problems: list[str]) -> None:
        left = end(((int(m.data["pid"]), int(m.data["start"])) for m in made), grace)
        for m in made:
            if m.data["pid"] in left:
                problems.append(f"{m.name} (process {m.data['pid']}) is still there")
            else:
                self.undone(m)


def _undo(made: Made) -> str | None:
    """Take away a link, netns or mount; what is gone already is fine. Returns what went wrong."""
    match made.kind:
        case "link":
            index = Path(f"/sys/class/net/{made.data['link']}/ifindex")
            with suppress(OSError):
                if int(index.read_text()) == made.data["index"]:
                    return _ip("link", "del", str(made.data["link"]))
        case "netns":
            if Path(f"/run/netns/{made.data['netns']}").exists():
                return _ip("netns", "del", str(made.data["netns"]))
        case "mount":
            if os.path.ismount(str(made.data["path"])):
                return _call("umount", str(made.data["path"]))
        case "owner" | "fault":
            pass
        case _:
            return f"don't know how to undo a {made.kind} ({made.name})"
    return None


def _ip(*words: str) -> str | None:
    return _call("ip", *words)


def _call(*argv: str) -> str | None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"{' '.join(argv)}: {done.stderr.strip()}"


def runs() -> list[Path]:
    """The run folders that exist, by name."""
    if not root().is_dir():
        return []
    return sorted(f for f in root().iterdir() if (f / "ledger.jsonl").exists())
