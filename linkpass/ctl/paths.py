"""linkpassctl paths: the ways to the peers, and why each is as it is."""

import argparse

from linkpass.ctl.show import duration, state, table
from linkpass.ctl.verb import OK, Context, Verb


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer", metavar="HOST", help="only paths to this host")


def run(context: Context) -> int:
    paths = context.ask("GET", "/v1/paths")
    if context.args.json:
        return OK
    headers = ["PEER", "RAIL", "PORT", "STATE", "FOR", "LOCAL", "REMOTE", "PROBE", "RTT", "IN USE", "FLAPS", "CAUSE"]
    rows = [
        [
            p["peer"],
            p["rail"],
            p["port"],
            state(p["state"]),
            duration(p["since"]),
            state(p["local"]),
            state(p["remote"]),
            state(p["probe"]),
            "-" if p["rtt_ms"] is None else f"{p['rtt_ms']:.2f}ms",
            "yes" if p["in_use"] else "no",
            str(p["flaps"]),
            p["cause"] + (f" (held for another {duration(p['held_for'])})" if p["held_for"] is not None else ""),
        ]
        for p in paths
        if context.args.peer in (None, p["peer"])
    ]
    table(context.out, headers, rows)
    return OK


VERB = Verb(
    "paths",
    "the paths to all peers",
    "  linkpassctl paths\n  linkpassctl paths --peer b       only those to host b",
    run,
    options,
)
