"""linkpassctl undrain: put a drained port back into service."""

import argparse

from linkpass.client import port_target
from linkpass.ctl.plan import tell
from linkpass.ctl.show import plain
from linkpass.ctl.verb import FAILED, OK, Context, Verb


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("port", metavar="PORT", help="the port's name, as 'linkpassctl ports' shows it")


def run(context: Context) -> int:
    answer = context.ask("POST", port_target(context.args.port, "undrain"))
    if not context.args.json:
        context.say(plain(answer["text"]))
        tell(context, answer["plan"])
    return OK if answer["done"] else FAILED


VERB = Verb("undrain", "put a drained port back into service", "  linkpassctl undrain eth1", run, options)
