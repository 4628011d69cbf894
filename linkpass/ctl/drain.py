"""linkpassctl drain: take a port out of service, for good reason and only while another carries the traffic."""

import argparse

from linkpass.client import port_target
from linkpass.ctl.plan import tell
from linkpass.ctl.show import plain
from linkpass.ctl.verb import FAILED, OK, Context, Verb


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("port", metavar="PORT", help="the port's name, as 'linkpassctl ports' shows it")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why; shown to whoever looks")
    parser.add_argument("--dry-run", action="store_true", help="tell what would be done, and do nothing")


def run(context: Context) -> int:
    args = context.args
    body = {"reason": args.reason, "dry_run": args.dry_run}
    answer = context.ask("POST", port_target(args.port, "drain"), body)
    if not args.json:
        context.say(plain(answer["text"]))
        tell(context, answer["plan"])
    return OK if answer["done"] or args.dry_run else FAILED


VERB = Verb(
    "drain",
    "take a port out of service",
    """  linkpassctl drain eth1 --reason "new optic" --dry-run    what would be done
  linkpassctl drain eth1 --reason "new optic"              do it; it stays so over restarts
  linkpassctl undrain eth1                                 afterwards
The last usable path to a peer is never taken away: the agent refuses and says so (exit code 1).""",
    run,
    options,
)
