"""linkpassctl alarms: what needs somebody's hands; exit code 1 while an alarm is active."""

import argparse

from linkpass.ctl.show import RED, clock, plain, table
from linkpass.ctl.verb import FAILED, OK, Context, Verb


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--history", action="store_true", help="also those that are over")


def run(context: Context) -> int:
    args = context.args
    alarms = context.ask("GET", "/v1/alarms?history=1" if args.history else "/v1/alarms")
    code = FAILED if any(a["cleared"] is None for a in alarms) else OK
    if args.json:
        return code
    if not alarms:
        context.say("no alarms" if args.history else "no active alarms")
        return code
    headers = ["SINCE", "UNTIL", "PORT", "RAIL", "RULE", "WHAT", "EVIDENCE"]
    rows = [
        [
            clock(a["raised"]),
            ("active", RED) if a["cleared"] is None else f"{clock(a['cleared'])} ({plain(a['over'])})",
            a["port"],
            a["rail"],
            a["rule"],
            a["text"],
            a["evidence"] or "-",
        ]
        for a in alarms
    ]
    table(context.out, headers, rows)
    return code


VERB = Verb(
    "alarms",
    "what needs somebody's hands",
    """  linkpassctl alarms              exit code 0: none is active; 1: some are
  linkpassctl alarms --history    also those that are over, and why
  linkpassctl alarms --json       for programs""",
    run,
    options,
)
