"""The verbs of `linkpass-lab` that only guests have: `prepare`, `workloads`, `job`, `baseline`, `matrix`, `trial`."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from linkpass_lab import realisations
from linkpass_lab.lab import LabError
from linkpass_lab.ledger import Ledger

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


def add_verbs(verbs: "Verbs") -> None:
    """Add them to the command line."""
    prepare_ = verbs.add_parser("prepare", help="bring what RDMA guests need: packages, kernel, initramfs")
    prepare_.add_argument("--install", action="store_true", help="install missing packages with apt-get")
    prepare_.set_defaults(do=prepare)

    listing = verbs.add_parser("workloads", help="list the verbs clients that `job` and `baseline` run")
    listing.set_defaults(do=workloads)

    one = verbs.add_parser("job", help="run a workload between two guests of a lab, and print its result as JSON")
    one.add_argument("workload", metavar="WORKLOAD", help="a name from `workloads`")
    one.add_argument("--lab", metavar="NAME", help="which lab; needed only when several are up")
    one.add_argument("--from", dest="client", metavar="HOST", help="default: the fabric's first host")
    one.add_argument("--to", dest="server", metavar="HOST", help="default: the fabric's second host")
    one.add_argument("--size", type=float, default=1.0, metavar="X", help="times the usual amount of work")
    one.add_argument("--limit", type=float, default=120.0, metavar="S", help="seconds that it may take")
    one.set_defaults(do=job)

    base = verbs.add_parser(
        "baseline", help="every workload x every fault without LinkPass; goes on where it stopped"
    )
    base.add_argument("--variant", action="append", metavar="NAME", help="one rail, or bond; default: both")
    base.add_argument("--workload", action="append", metavar="NAME", help="only these")
    base.add_argument("--fault", action="append", metavar="NAME", help="only these fault classes")
    base.add_argument("--labs", type=int, default=1, metavar="N", help="labs at the same time, 1 or 2")
    base.add_argument("--again", action="store_true", help="run the chosen cells even if they have a result")
    base.add_argument("--results", type=Path, metavar="FILE", help="default: docs/baselines.json")
    base.add_argument("--page", type=Path, metavar="FILE", help="default: docs/baselines.md")
    base.add_argument("--render", action="store_true", help="only make the page from the results again")
    base.set_defaults(do=baseline)
    _add_matrix(verbs)
    _add_trial(verbs)


def _add_matrix(verbs: "Verbs") -> None:
    mat = verbs.add_parser("matrix", help="every workload x every fault x both ends under LinkPass; goes on likewise")
    mat.add_argument("--workload", action="append", metavar="NAME", help="only these")
    mat.add_argument("--fault", action="append", metavar="NAME", help="only these fault classes")
    mat.add_argument("--again", action="store_true", help="run the chosen cells even if they have a result")
    mat.add_argument("--failed", action="store_true", help="run those again that didn't survive")
    mat.add_argument("--results", type=Path, metavar="FILE", help="default: docs/matrix.json")
    mat.add_argument("--page", type=Path, metavar="FILE", help="default: docs/matrix.md")
    mat.add_argument("--render", action="store_true", help="only make the page from the results again")
    mat.set_defaults(do=matrix_)


def _add_trial(verbs: "Verbs") -> None:
    one = verbs.add_parser(
        "trial", help="what must hold beyond single faults: repeated faults, drain, killed agents, ..."
    )
    one.add_argument("names", nargs="+", metavar="NAME", help="as in guests/trials.py, or `all`")
    one.add_argument("--repeat", type=int, default=1, metavar="N", help="times each")
    one.add_argument("--count", type=int, metavar="N", help="faults in a row, or queue pairs a process")
    one.add_argument("--seed", type=int, default=1, metavar="N", help="of the first; each further one has the next")
    one.add_argument("--results", type=Path, metavar="FILE", help="a JSON line for each is added to it")
    one.set_defaults(do=trial)


def trial(options: argparse.Namespace) -> int:
    """Run trials in one lab; 1 if one doesn't hold."""
    import random

    from linkpass_lab.guests import trials
    from linkpass_lab.guests.protected import Protected

    known = list(trials.TRIALS)
    names = known if options.names == ["all"] else chosen(options.names, known, "trial")
    failed = 0
    with Protected.up(label="trial", say=_stamped) as bench:
        for seed in range(options.seed, options.seed + options.repeat):
            for name in names:
                do, count = trials.TRIALS[name]
                try:
                    found = do(bench, random.Random(f"{name} {seed}"), options.count or count)
                except LabError as e:
                    found = trials.Outcome(name, f"not run: {e}")
                failed += not found.holds
                row = {"trial": name, "seed": seed, "problem": found.problem, **found.figures}
                _stamped(json.dumps(row))
                if options.results is not None:
                    with options.results.open("a") as file:
                        file.write(json.dumps({**row, "results": found.results}) + "\n")
    return 1 if failed else 0


def prepare(options: argparse.Namespace) -> int:
    """Bring what guests need, and say whether they run with KVM."""
    from linkpass_lab.guests.prepare import cache_folder
    from linkpass_lab.guests.prepare import prepare as bring

    bring(lambda text: print(text, flush=True), install=options.install)
    print(f"ready; the cache is {cache_folder()}")
    return 0


def workloads(_: argparse.Namespace) -> int:
    """Names and what they do."""
    from linkpass_lab.guests import workloads as known

    every = known.every()
    for name, workload in every.items():
        print(f"{name:<{max(map(len, every))}}  {workload.text}")
    return 0


def job(options: argparse.Namespace) -> int:
    """Run one workload."""
    from linkpass_lab.guests import jobs
    from linkpass_lab.guests import workloads as known
    from linkpass_lab.guests.lab import GuestLab

    lab = realisations.attach(Ledger.find(options.lab))
    if not isinstance(lab, GuestLab):
        raise LabError(f"lab {lab.folder.name} has no guests; it was made without --rdma")
    workload = chosen([options.workload], list(known.every()), "workload")[0]
    names = [h.name for h in lab.fabric.hosts]
    if len(names) < 2:
        raise LabError("a workload needs two hosts; this fabric has one")
    where = jobs.place(
        lab, options.client or names[0], options.server or names[1], known.every()[workload], size=options.size
    )
    outcome = jobs.run(lab, known.every()[workload], where, limit=options.limit)
    print(json.dumps({"workload": workload, **outcome.json()}, indent=2))
    return 0 if outcome.ended == "finished" else 1


def baseline(options: argparse.Namespace) -> int:
    """Run the matrix, or a part of it."""
    from linkpass_lab.guests import baseline as runs
    from linkpass_lab.guests import matrix
    from linkpass_lab.guests import workloads as known

    book = runs.Book(options.results or runs.RESULTS)
    page = options.page or runs.PAGE
    if options.render:
        runs.render(book, page)
        return 0
    cells = matrix.cells(
        chosen(options.variant, matrix.VARIANTS, "variant"),
        chosen(options.workload, list(known.every()), "workload"),
        chosen(options.fault, list(matrix.FAULTS), "fault"),
    )
    if options.again:
        for cell in cells:
            book.cells.pop(cell.key, None)
    failed = runs.run(book, cells, _stamped, page=page, labs=options.labs)
    print(f"results in {book.file}, tables in {page}")
    return 1 if failed else 0


def matrix_(options: argparse.Namespace) -> int:
    """Run the matrix under LinkPass, or a part of it; 1 if a job didn't survive."""
    from linkpass_lab.guests import baseline as runs
    from linkpass_lab.guests import survival
    from linkpass_lab.guests import workloads as known

    book = runs.Book(options.results or survival.RESULTS)
    page = options.page or survival.PAGE
    if options.render:
        survival.render(book, page, runs.RESULTS)
        return 0
    cells = survival.cells(
        chosen(options.workload, list(known.every()), "workload"),
        chosen(options.fault, list(survival.FAULTS), "fault"),
    )
    for cell in cells:
        there = book.cells.get(cell.key)
        if there and (options.again or (options.failed and there["verdict"] != "survived")):
            del book.cells[cell.key]
    failed = survival.run(book, cells, _stamped, page=page, baseline=runs.RESULTS)
    print(f"results in {book.file}, tables in {page}")
    return 1 if failed else 0


def _stamped(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def chosen(names: list[str] | None, known: "list[str] | tuple[str, ...]", what: str) -> list[str]:
    """The names asked for, or all; LabError for one that there isn't."""
    if unknown := [n for n in names or [] if n not in known]:
        raise LabError(f"no {what} {unknown[0]!r}; there are {', '.join(known)}")
    return list(names or known)
