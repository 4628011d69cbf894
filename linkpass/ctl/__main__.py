"""linkpassctl: puts the verbs together and turns errors into exit codes.

Exit codes: 0 ok; 1 degraded, refused or failed; 2 usage; 3 the agent can't be reached; 130 after Ctrl-C.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence

from linkpass import __version__
from linkpass.client import DEFAULT_SOCKET, BadRequestError, Client
from linkpass.ctl import (
    alarms,
    check,
    completion,
    drain,
    events,
    explain,
    jobs,
    keys,
    manifest,
    migrate,
    paths,
    peers,
    plan,
    ports,
    qps,
    show,
    status,
    undrain,
)
from linkpass.ctl.verb import FAILED, UNREACHABLE, USAGE, Context, Verb
from linkpass.errors import LinkPassError, UnreachableError

VERBS: tuple[Verb, ...] = (
    status.VERB,
    ports.VERB,
    alarms.VERB,
    explain.VERB,
    check.VERB,
    manifest.VERB,
    paths.VERB,
    peers.VERB,
    events.VERB,
    plan.VERB,
    jobs.VERB,
    qps.VERB,
    migrate.VERB,
    keys.VERB,
    drain.VERB,
    undrain.VERB,
    completion.VERB,
)
INTERRUPTED = 130
CODES = "exit codes: 0 ok, 1 degraded or refused, 2 wrong usage, 3 the agent can't be reached"


def parser() -> argparse.ArgumentParser:
    """The whole command line. --json and --socket are taken before and after the verb."""
    whole = argparse.ArgumentParser(
        prog="linkpassctl",
        description="Look at and steer the LinkPass agent of this host.",
        epilog=f"examples:\n  linkpassctl status\n  linkpassctl events --follow\n{CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    whole.add_argument("--version", action="version", version=f"linkpassctl {__version__}")
    _everywhere(whole, socket=None, json=False)
    verbs = whole.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        own = verbs.add_parser(
            verb.name,
            help=verb.help,
            description=verb.help[0].upper() + verb.help[1:] + ".",
            epilog=f"examples:\n{verb.examples}\n{CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        _everywhere(own, socket=argparse.SUPPRESS, json=argparse.SUPPRESS)
        verb.options(own)
        own.set_defaults(run=verb.run)
    return whole


def _everywhere(one: argparse.ArgumentParser, socket: object, json: object) -> None:
    where = f"the agent's socket (default: $LINKPASS_SOCKET or {DEFAULT_SOCKET})"
    one.add_argument("--socket", metavar="PATH", default=socket, help=where)
    one.add_argument("--json", action="store_true", default=json, help="print the agent's JSON, for programs")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # for terminals that don't know every character
        whole = parser()
        args = whole.parse_args(argv)
        code = _run(args, whole)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has enough. Python would complain again when it flushes at exit, so give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as e:  # a full disk behind a redirection
        print(f"linkpassctl: can't write the answer: {e.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _run(args: argparse.Namespace, whole: argparse.ArgumentParser) -> int:
    try:
        code: int = args.run(Context(args, Client(args.socket), sys.stdout, whole))
        return code
    except UnreachableError as e:
        return _complain(e, UNREACHABLE)
    except BadRequestError as e:
        return _complain(e, USAGE)
    except LinkPassError as e:
        return _complain(e, FAILED)


def _complain(error: LinkPassError, code: int) -> int:
    sys.stdout.flush()
    print(f"linkpassctl: {show.plain(error)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
