"""linkpassctl qps: the queue pairs of attached jobs, one a line."""

import argparse

from linkpass.ctl.events import natural
from linkpass.ctl.jobs import gap, size
from linkpass.ctl.show import GREEN, YELLOW, joined, table
from linkpass.ctl.verb import OK, Context, Verb


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", type=natural, help="the job's number; default: all jobs")


def run(context: Context) -> int:
    job = context.args.job
    qps = context.ask("GET", "/v1/qps" if job is None else f"/v1/qps?job={job}")
    if context.args.json:
        return OK
    headers = [
        "QP", "QPN", "PEER", "ADDRESS", "PORT", "RAIL", "HOME", "STATE", "PROTECTED", "SPARES", "MOVES", "LAST GAP",
        "REPLAYED",
    ]  # fmt: skip
    rows = [
        [
            q["qp"],
            f"{q['number']:#08x}",
            q["peer"] or "?",
            q["address"],
            q["port"] or q["device"],
            q["rail"] or "?",
            q["home"] or "?",
            q["state"],
            ("yes", GREEN) if q["protected"] else (f"no: {q['why_not']}", YELLOW),
            joined([f"{rail} {state}" for rail, state in q["spares"].items()]),
            str(q["migrations"]),
            gap(q["last_gap"]),
            size(q["replayed_bytes"]),
        ]
        for q in qps
    ]
    table(context.out, headers, rows)
    return OK


VERB = Verb(
    "qps",
    "the queue pairs of attached jobs",
    "  linkpassctl qps\n  linkpassctl qps 3       only of job 3",
    run,
    options,
)
