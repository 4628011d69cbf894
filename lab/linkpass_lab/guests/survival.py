"""`linkpass-lab matrix`: every workload x every fault class x both ends, under LinkPass. What docs/matrix.md shows.

As the baseline, it notes each result as it comes and goes on where it was broken off. A cell's verdict is made by
the program: `survived` means that both ends ended with exit code 0 after the fault, each by its own checks of bytes
and completions, and that both agents had called the job protected before it.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from linkpass_lab.fault import parse
from linkpass_lab.guests import stages, workloads
from linkpass_lab.guests.baseline import Book
from linkpass_lab.guests.matrix import LEAF, RAIL, Cell
from linkpass_lab.guests.page import put
from linkpass_lab.guests.protected import CLIENT, SERVER, Protected, Result
from linkpass_lab.lab import LabError
from linkpass_lab.scenario import TREE

RESULTS = TREE / "docs" / "matrix.json"
PAGE = TREE / "docs" / "matrix.md"
VARIANT = "linkpass"
BASELINE = "one rail"

Say = Callable[[str], None]


def _both(name: str, **what: Any) -> dict[str, dict[str, Any]]:
    return {
        f"{side} {name}": {"host": host, "rail": RAIL, **what} for side, host in (("own", CLIENT), ("far", SERVER))
    }


# "Own" is the client's end, "far" the server's. Each strikes once and is repaired after `protected.LASTS`.
FAULTS: dict[str, dict[str, Any] | None] = {
    "none": None,
    **_both("carrier", kind="carrier"),
    **_both("admin-down", kind="admin-down"),
    **_both("silent port", kind="silent"),
    **_both("port, sends lost", kind="silent", way="from"),
    **_both("port, receives lost", kind="silent", way="to"),
    **_both("acks lost", kind="acks"),
    **_both("loss 5 %", kind="loss", percent=5),
    **_both("GID moves", kind="gid"),
    **_both("MTU 1280", kind="mtu"),
    **_both("flaps", kind="flap", count=5, down=0.2, up=0.3),
    "whole leaf": {"kind": "leaf", "leaf": LEAF},
    "own all rails": {"kind": "rails", "host": CLIENT},
    "far all rails": {"kind": "rails", "host": SERVER},
    "far host frozen": {"kind": "freeze", "host": SERVER},
    "own host frozen": {"kind": "freeze", "host": CLIENT},
}
# The baseline's name of the same fault, where it differs; where the baseline struck the far end only, that one.
SAME = {
    "far silent port": "silent port", "own silent port": "silent port",
    "far port, receives lost": "requests lost", "own port, sends lost": "requests lost",
    "far acks lost": "acks lost", "own acks lost": "acks lost",
    "far loss 5 %": "loss 5 %", "own loss 5 %": "loss 5 %",
    "own MTU 1280": "far MTU 1280", "far flaps": "flaps", "own flaps": "flaps", "own all rails": "all rails",
    "far all rails": "all rails", "own host frozen": "far host frozen",
}  # fmt: skip


def cells(names: Iterable[str], faults: Iterable[str]) -> list[Cell]:
    """The cells, workload by workload."""
    faults = list(faults)
    return [Cell(VARIANT, w, f) for w in names for f in faults]


def short(cell: dict[str, Any] | None) -> str:
    """A cell's text in the table."""
    if cell is None:
        return ""
    if cell["verdict"] == "not run":
        return "?"
    gap = cell["gap"] if cell["gap"] is not None else cell["outcome"].get("gap")
    text = f" {gap:.2f} s" if gap else ""
    status = f" {cell['outcome']['status']}" if cell["outcome"].get("status") else ""
    return f"ok{text}" if cell["verdict"] == "survived" else f"**{cell['verdict']}**{status}"


def table(done: dict[str, dict[str, Any]], names: Iterable[str]) -> list[str]:
    """Markdown lines: a row for each fault class, a column for each workload that has been run."""
    names = [w for w in names if any(Cell(VARIANT, w, f).key in done for f in FAULTS)]
    if not names:
        return ["Nothing run yet."]
    lines = [f"| fault | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    for fault in FAULTS:
        lines.append(f"| {fault} | {' | '.join(short(done.get(Cell(VARIANT, w, fault).key)) for w in names)} |")
    return lines


def tally(done: dict[str, dict[str, Any]], baseline: dict[str, dict[str, Any]]) -> list[str]:
    """How many ended how; and of those that died or hung without LinkPass, how many."""
    mine = {k: c for k, c in done.items() if k.startswith(f"{VARIANT}|") and not k.endswith("|none")}
    ends = Counter(c["verdict"] for c in mine.values())
    words = ", ".join(f"{n} {e}" for e, n in ends.most_common())
    lines = [f"{len(mine)} runs with a fault: {words or 'none yet'}.", ""]
    before: Counter[str] = Counter()
    for key, cell in mine.items():
        _, workload, fault = key.split("|")
        same = baseline.get(Cell(BASELINE, workload, SAME.get(fault, fault)).key)
        if same is not None and same["ended"] in ("died", "hangs"):
            before[cell["verdict"]] += 1
    text = ", ".join(f"{n} {e}" for e, n in before.most_common())
    return [*lines, f"{before.total()} of them died or hung without LinkPass; with it: {text or 'none yet'}."]


def told(done: dict[str, dict[str, Any]]) -> list[str]:
    """The steps of each fault class that strikes a port for good, as the agents told them."""
    runs = [
        (fault, str(raw["host"]), cell)
        for fault, raw in FAULTS.items()
        if raw and raw["kind"] in ("carrier", "admin-down", "silent") and "host" in raw
        for key, cell in done.items()
        if key.split("|")[2] == fault
    ]
    lines = stages.table(runs)
    words = (
        "When each step was first told, in ms from the order to strike: median (maximum) of the runs that survived. "
        "`there` is the struck end, `here` the other; `moved` is the client's. A word in a guest takes its time too."
    )
    return [words, "", *lines] if lines else []


def render(book: Book, page: Path, baseline: Path) -> None:
    """Put tables and counts between the marks of the page."""
    before = json.loads(baseline.read_text())["cells"] if baseline.exists() else {}
    about = "; ".join(f"{k} {v}" for k, v in sorted(book.raw["about"].items()))
    names = list(workloads.every())
    text = "\n".join(
        [
            *table(book.cells, names),
            "",
            *tally(book.cells, before),
            "",
            *told(book.cells),
            "",
            f"Made with {about or 'nothing yet'}.",
        ]
    )
    put(page, "The matrix: every workload x every fault, under LinkPass", text)


def run(book: Book, todo: Sequence[Cell], say: Say, *, page: Path, baseline: Path) -> int:
    """Run the cells that the book hasn't. Returns how many didn't survive, those that couldn't be run included."""
    todo = [c for c in todo if book.cells.get(c.key, {"verdict": "not run"})["verdict"] == "not run"]
    say(f"{len(todo)} cells to run, {len(book.cells)} done before")
    bench: Protected | None = None
    failed, began = 0, time.monotonic()
    try:
        for n, cell in enumerate(todo, 1):
            found: dict[str, Any] = {}
            for again in (True, False):
                try:
                    if bench is None:
                        bench = Protected.up(label="matrix", say=say)
                    found = _cell(bench, cell).json()
                    break
                except LabError as e:
                    found = Result(
                        cell.workload, cell.fault, "not run", {"status": "", "words": str(e)[-600:]}
                    ).json()
                    say(f"{cell.key}: {e}")
                    bench = _fit(bench, again, say)
            about = {"guests under": "KVM" if bench.lab.made.accel.kvm else "TCG emulation"} if bench else {}
            book.add(cell, found, about)
            failed += found["verdict"] != "survived"
            left = (time.monotonic() - began) / n * (len(todo) - n) / 60
            say(f"[{n}/{len(todo)}, {left:.0f} min left] {cell.key}: {short(found)}")
            render(book, page, baseline)
    finally:
        if bench is not None:
            bench.close()
    render(book, page, baseline)
    return failed


def _fit(bench: Protected | None, again: bool, say: Say) -> Protected | None:
    """The lab for the next try: this one if it heals and the cell hasn't failed twice, as booting takes minutes.

    Otherwise it is closed, and None says that the next try needs a new one.
    """
    if bench is None:
        return None
    if again:
        try:
            bench.heal()
            return bench
        except LabError as e:
            say(f"the lab doesn't heal: {e}")
    say("making the lab anew")
    bench.close()
    return None


def _cell(bench: Protected, cell: Cell) -> Result:
    raw = FAULTS[cell.fault]
    return bench.run(cell.workload, None if raw is None else parse(raw))
