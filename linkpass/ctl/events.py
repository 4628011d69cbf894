"""linkpassctl events: the host's story, past and, with --follow, as it goes on."""

import argparse
import json
from typing import Any

from linkpass.ctl.show import BLUE, DIM, GREEN, RED, YELLOW, clock, painter, plain
from linkpass.ctl.verb import OK, Context, Verb

# linkpass.model.EventKind, spelled out so that the command starts without it.
KINDS = {
    "seen": "",
    "hint": "",
    "finding": YELLOW,
    "alarm": RED,
    "verdict": YELLOW,
    "shared": "",
    "learned": "",
    "decided": BLUE,
    "refused": RED,
    "acted": GREEN,
    "failed": RED,
    "operator": BLUE,
    "agent": "",
    "incident": RED,
}
WIDTH = max(map(len, KINDS))
MOST = 1000  # what the agent gives in one answer


def natural(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--follow", "-f", action="store_true", help="go on as events happen, until Ctrl-C")
    parser.add_argument("--since", type=natural, metavar="SEQ", help="only events after this number")
    parser.add_argument(
        "--kind", choices=list(KINDS), action="append", help="only events of this kind; may be repeated"
    )
    parser.add_argument("--limit", "-n", type=natural, metavar="N", help="at most so many (default: 100)")


def run(context: Context) -> int:
    args = context.args
    if args.follow:
        if args.limit is not None:
            context.parser.error("--limit and --follow don't go together")
        for line in context.client.follow_lines(args.since):
            event = json.loads(line)
            if not args.kind or event["kind"] in args.kind:
                print(line if args.json else shown(context, event), file=context.out, flush=True)
        return OK
    limit = 100 if args.limit is None else args.limit
    if not 0 < limit <= MOST:
        context.parser.error(f"--limit should be from 1 to {MOST}")
    events = context.client.events(args.since, MOST if args.kind else limit)
    events = [e for e in events if not args.kind or e["kind"] in args.kind]
    events = events[-limit:] if args.since is None else events[:limit]
    if args.json:
        context.say(json.dumps(events))
        return OK
    for event in events:
        context.say(shown(context, event))
    return OK


def shown(context: Context, event: dict[str, Any]) -> str:
    """One event as a line."""
    paint = painter(context.out)
    kind = plain(event["kind"])
    cause = f"  ({plain(event['cause'])})" if event["cause"] else ""
    head = f"{paint(clock(event['time']), DIM)} {event['seq']:>5} {paint(kind, KINDS.get(kind, ''))}"
    return f"{head}{' ' * (WIDTH - len(kind))} {plain(event['subject'])}: {plain(event['text'])}{cause}"


VERB = Verb(
    "events",
    "what happened, oldest first",
    """  linkpassctl events                          the newest 100
  linkpassctl events --follow                 as they happen
  linkpassctl events --follow --since 0       from the beginning, then as they happen
  linkpassctl events --kind acted --kind failed
  linkpassctl events --since 1200 --json      after number 1200, for programs""",
    run,
    options,
)
