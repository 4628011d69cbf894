"""`linkpass-lab baseline`: what happens today, without LinkPass. This is the bar that LinkPass has to clear.

Results go to a JSON file after every cell, so that a run may be broken off and goes on where it stopped; the tables
in docs/baselines.md are made from that file, between two marks, and the reading around them is left alone.
"""

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from linkpass_lab.guests import jobs, matrix, workloads
from linkpass_lab.guests.jobs import Blow, Outcome, TooShortError
from linkpass_lab.guests.lab import GuestLab
from linkpass_lab.guests.matrix import CLIENT, LASTS, PATIENCE, SERVER, VARIANTS, Cell
from linkpass_lab.guests.page import put
from linkpass_lab.guests.plan import bond_name
from linkpass_lab.lab import LabError
from linkpass_lab.scenario import TREE
from linkpass_topology.fabric import grid

RESULTS = TREE / "docs" / "baselines.json"
PAGE = TREE / "docs" / "baselines.md"
SETTLE = 10.0  # s until a repaired lab must be whole again; else it is made anew
CLEAN = 60.0  # s that a run without a fault may take
TRIES = 4  # a job that ends before the fault strikes is run again, twice as long

Say = Callable[[str], None]


class Book:
    """The results so far, and the file that holds them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        self.raw: dict[str, Any] = {"schema": 1, "lasts": LASTS, "patience": PATIENCE, "about": {}, "cells": {}}
        if file.exists():
            self.raw |= json.loads(file.read_text())

    @property
    def cells(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.raw["cells"]
        return found

    def add(self, cell: Cell, outcome: dict[str, Any], about: dict[str, str]) -> None:
        with self._lock:
            self.cells[cell.key] = outcome
            self.raw["about"] |= about
            part = self.file.with_suffix(".part")
            part.write_text(json.dumps(self.raw, indent=1, sort_keys=True) + "\n")
            part.rename(self.file)


def render(book: Book, page: Path) -> None:
    """Put the tables between the marks of the page; a page without them gets them at its end."""
    names = list(workloads.every())
    lines: list[str] = []
    for variant in VARIANTS:
        title = "One rail" if variant == "one rail" else "Active-backup bond over two rails (miimon 100)"
        lines += [
            f"### {title}",
            "",
            *matrix.table(book.cells, variant, names),
            "",
            matrix.tally(book.cells, variant),
            "",
        ]
    about = "; ".join(f"{k} {v}" for k, v in sorted(book.raw["about"].items()))
    text = "\n".join([*lines, f"Made with {about or 'nothing yet'}."])
    put(page, "Baselines: what happens without LinkPass", text)


class Bench:
    """A lab that runs cells of one variant, made anew when it doesn't come right after a fault."""

    def __init__(self, variant: str, say: Say) -> None:
        self.variant, self.say = variant, say
        self.lab: GuestLab | None = None

    def run(self, cell: Cell) -> tuple[dict[str, Any], dict[str, str]]:
        """Run a cell; a lab that fails is replaced and the cell tried again. Returns outcome and circumstances."""
        problem = ""
        for _ in range(2):
            try:
                lab = self._whole()
                return self._try(lab, cell).json(), self._about(lab)
            except LabError as e:
                problem = str(e)
                self.close()
        empty = Outcome("not run", "", {}, 0.0, None, None, 0, 0, problem[-jobs.LAST_WORDS :])
        return empty.json(), {}

    def _try(self, lab: GuestLab, cell: Cell) -> Outcome:
        workload, fault = workloads.every()[cell.workload], cell.strike()
        blow = None if fault is None else Blow(fault, LASTS, PATIENCE)
        size = 1.0
        for _ in range(TRIES):
            try:
                return jobs.run(lab, workload, jobs.place(lab, CLIENT, SERVER, workload, size=size), blow, CLEAN)
            except TooShortError:
                size *= 2
        raise LabError(f"{cell.key}: even {size:g} times the job is too short")

    def _whole(self) -> GuestLab:
        if self.lab is not None:
            try:
                self._heal(self.lab)
                return self.lab
            except LabError as e:
                self.say(f"{self.variant}: making the lab anew: {e}")
                self.close()
        self.lab = GuestLab.up(grid(2, 2, mtu=9000), bond=self.variant == "bond", label="base", say=self.say)
        self._heal(self.lab)
        return self.lab

    def _heal(self, lab: GuestLab) -> None:
        """Repair what is broken; LabError if the first rail doesn't carry traffic again in time."""
        for fault in lab.broken():
            lab.repair(fault)
        rail = lab.fabric.rails[0]
        peer = lab.plan.holder(SERVER, rail)[2].partition("/")[0]
        device = lab.plan.holder(CLIENT, rail)[0]
        test = [f"grep -q ACTIVE /sys/class/infiniband/{device}/ports/1/state"]
        until = time.monotonic() + SETTLE
        while True:
            failed = []
            for host in (CLIENT, SERVER):
                # A bond takes a port as the active one only after its next look at it (miimon).
                choose = f"ip link set {bond_name(host)} type bond active_slave {lab.plan.guest(host).nic(rail).name}"
                words = " && ".join([*([choose] if lab.plan.bond else []), *test])
                failed += [host] if lab.run(host, ["sh", "-c", words], check=False).returncode else []
            ping = ["ping", "-q", "-c", "2", "-i", "0.1", "-W", "1", peer]
            if not failed and not lab.run(CLIENT, ping, check=False).returncode:
                return
            if time.monotonic() > until:
                raise LabError(f"{rail} isn't whole {SETTLE:g} s after the repair")

    def _about(self, lab: GuestLab) -> dict[str, str]:
        made = lab.made
        how = "KVM" if made.accel.kvm else "TCG emulation"
        return {"guests under": how, "guest kernel": made.kernel.release}

    def close(self) -> None:
        if self.lab is not None:
            self.lab.close()
            self.lab = None


def run(book: Book, todo: Sequence[Cell], say: Say, *, page: Path, labs: int = 1) -> int:
    """Run the cells that the book hasn't; `labs` variants at a time. Returns how many could not be run."""
    todo = [c for c in todo if book.cells.get(c.key, {"ended": "not run"})["ended"] == "not run"]
    say(f"{len(todo)} cells to run, {len(book.cells)} done before")
    work: dict[str, list[Cell]] = {v: [c for c in todo if c.variant == v] for v in VARIANTS}
    variants: queue.Queue[str] = queue.Queue()
    for variant, mine in work.items():
        if mine:
            variants.put(variant)
    began, done, failed = time.monotonic(), 0, 0
    lock, stop = threading.Lock(), threading.Event()

    def serve() -> None:
        nonlocal done, failed
        while not stop.is_set():
            try:
                variant = variants.get_nowait()
            except queue.Empty:
                return
            bench = Bench(variant, say)
            try:
                for cell in work[variant]:
                    if stop.is_set():
                        return
                    outcome, about = bench.run(cell)
                    book.add(cell, outcome, about)
                    with lock:
                        done += 1
                        failed += outcome["ended"] == "not run"
                        left = (time.monotonic() - began) / done * (len(todo) - done) / 60
                        say(f"[{done}/{len(todo)}, {left:.0f} min left] {cell.key}: {matrix.short(outcome)}")
                        render(book, page)
            finally:
                bench.close()

    threads = [threading.Thread(target=serve, name=f"baseline {n}") for n in range(labs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    render(book, page)
    return failed
