"""linkpassctl drain: take a port out of service, for good reason and only while another carries the traffic."""

import argparse
import time
from collections.abc import Callable
from typing import Any

from linkpass.client import port_target
from linkpass.ctl.plan import tell
from linkpass.ctl.show import YELLOW, painter, plain
from linkpass.ctl.verb import FAILED, OK, Context, Verb

WAIT = 60.0  # s, as long as the agent's default for giving up a migration
LOOK = 0.2  # s


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time from 0 to 86400 seconds")
    return value


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("port", metavar="PORT", help="the port's name, as 'linkpassctl ports' shows it")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why; shown to whoever looks")
    parser.add_argument("--dry-run", action="store_true", help="tell what would be done, and do nothing")
    parser.add_argument(
        "--wait", nargs="?", type=seconds, const=WAIT, metavar="SECONDS",
        help=f"until nothing uses the port, at most so long (default: {WAIT:g})",
    )  # fmt: skip


def run(context: Context) -> int:
    args = context.args
    body = {"reason": args.reason, "dry_run": args.dry_run}
    answer = context.ask("POST", port_target(args.port, "drain"), body)
    if not args.json:
        context.say(plain(answer["text"]))
        tell(context, answer["plan"])
    if args.dry_run or not answer["done"]:
        return OK if args.dry_run else FAILED
    return OK if args.wait is None else wait(context, args.wait)


def wait(
    context: Context,
    patience: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Look until the port is quiet; FAILED if it still isn't after `patience` seconds."""
    end = now() + patience
    target = port_target(context.args.port, "quiet")
    while True:
        view: dict[str, Any] = context.client.get(target)
        if view["quiet"] or now() >= end:
            break
        sleep(LOOK)
    if context.args.json:
        context.ask("GET", target)
    else:
        context.say(plain(view["text"]))
        for line in () if view["quiet"] else view["stay"]:
            context.say(f"{painter(context.out)('stays:', YELLOW)} {plain(line)}")
    return OK if view["quiet"] else FAILED


VERB = Verb(
    "drain",
    "take a port out of service",
    """  linkpassctl drain eth1 --reason "new optic" --dry-run    what would be done
  linkpassctl drain eth1 --reason "new optic" --wait       do it, and say when it is safe to pull the cable
  linkpassctl undrain eth1                                 afterwards
The last usable path to a peer is never taken away: the agent refuses and says so (exit code 1).""",
    run,
    options,
)
