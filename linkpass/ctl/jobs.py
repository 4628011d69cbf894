"""linkpassctl jobs: the RDMA jobs that run under `linkpass run`, and whether they would survive."""

from typing import Any

from linkpass.ctl.show import GREEN, YELLOW, Cell, duration, joined, table
from linkpass.ctl.verb import OK, Context, Verb

UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def run(context: Context) -> int:
    jobs = context.ask("GET", "/v1/jobs")
    if context.args.json:
        return OK
    if not jobs:
        context.say("no job is attached; start one with 'linkpass run -- COMMAND'")
        return OK
    headers = [
        "JOB",
        "NAME",
        "PID",
        "UID",
        "FOR",
        "QPS",
        "PROTECTED",
        "ON",
        "PEERS",
        "MOVES",
        "LAST GAP",
        "REPLAYED",
        "WHY NOT",
    ]
    rows = [
        [
            str(j["job"]),
            j["name"],
            str(j["pid"]),
            str(j["uid"]),
            duration(j["since"]),
            str(j["queue_pairs"]),
            protected(j["protected"], j["queue_pairs"]),
            joined([f"{rail} {n}" for rail, n in sorted(j["rails"].items())]),
            joined(j["peers"]),
            str(j["migrations"]),
            gap(j["last_gap"]),
            size(j["replayed_bytes"]),
            why_not(j),
        ]
        for j in jobs
    ]
    table(context.out, headers, rows)
    return OK


def protected(count: int, of: int) -> Cell:
    """How many are protected, in the colour of how well that is."""
    text = "all" if count == of else f"{count} of {of}"
    return (text if of else "-"), (GREEN if count == of else YELLOW)


def why_not(job: dict[str, Any]) -> str:
    """The reasons, the most frequent first."""
    reasons = sorted(job["why_not"].items(), key=lambda r: (-r[1], r[0]))
    return "; ".join(text if len(reasons) == 1 else f"{n}: {text}" for text, n in reasons) or "-"


def gap(seconds: float | None) -> str:
    """A gap to a tenth of a millisecond while it is short."""
    return f"{1000 * seconds:.1f}ms" if seconds is not None and seconds < 1 else duration(seconds)


def size(count: int) -> str:
    """Bytes, with a unit of powers of ten."""
    if not count:
        return "-"
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {UNITS[unit]}"


VERB = Verb(
    "jobs",
    "the RDMA jobs that are attached, and whether they are protected",
    "  linkpassctl jobs\n  linkpassctl jobs --json",
    run,
)
