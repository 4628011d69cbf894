"""linkpassctl migrate: move one queue pair, or all that use a port, to another port."""

import argparse

from linkpass.ctl.show import YELLOW, painter, plain
from linkpass.ctl.verb import FAILED, OK, Context, Verb


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="QP|PORT", help="a queue pair as 'linkpassctl qps' shows it, or a port's name"
    )
    parser.add_argument("--to", required=True, metavar="PORT", help="the port of this host to move to")


def run(context: Context) -> int:
    args = context.args
    answer = context.ask("POST", "/v1/migrate", {"what": args.what, "to": args.to})
    if not args.json:
        context.say(plain(answer["text"]))
        for qp, why in answer["refused"].items():
            context.say(f"{painter(context.out)('stays:', YELLOW)} {plain(qp)}: {plain(why)}")
    return FAILED if answer["refused"] else OK


VERB = Verb(
    "migrate",
    "move running queue pairs to another port",
    """  linkpassctl migrate 3.17 --to eth2     one queue pair; from now on it belongs there
  linkpassctl migrate eth1 --to eth2     all that use eth1
What was ordered takes a few milliseconds; 'linkpassctl qps' and 'linkpassctl events' show what became of it.""",
    run,
    options,
)
