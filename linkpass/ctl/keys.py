"""linkpassctl keys: rotate the fleet's keys on this host; see docs/sharing.md for the order."""

import argparse
import sys
from pathlib import Path
from urllib.parse import quote

from linkpass.ctl.show import plain, table
from linkpass.ctl.verb import OK, Context, Verb
from linkpass.errors import LinkPassError

MOST = 4096  # bytes of a file that holds one key


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("act", choices=["list", "install", "use", "remove"])
    parser.add_argument("key", metavar="KEY", nargs="?", help="the key's name")
    parser.add_argument(
        "--file", metavar="PATH", default="-", help="install: where KEYID HEX or HEX is read from (default: stdin)"
    )
    parser.add_argument("--force", action="store_true", help="use, remove: even if members are cut off by that")


def run(context: Context) -> int:
    args = context.args
    if args.act == "list":
        keys = context.ask("GET", "/v1/keys")
    else:
        if args.key is None:
            context.parser.error(f"keys {args.act} needs the key's name")
        body = {"secret": _secret(args.file, args.key)} if args.act == "install" else {"force": args.force}
        answer = context.ask("POST", f"/v1/keys/{quote(args.key, safe='')}/{args.act}", body)
        keys = answer["keys"]
        if not args.json:
            context.say(plain(answer["text"]))
    if not args.json:
        rows = [
            [
                k["key"],
                k["mark"],
                "sends" if k["sends"] else "accepted" if k["here"] else "no",
                f"{k['accepted_by']} of {k['members']}",
                f"{k['sent_by']} of {k['members']}",
            ]
            for k in keys
        ]
        table(context.out, ["KEY", "MARK", "HERE", "ACCEPTED BY", "SENT BY"], rows)
    return OK


def _secret(path: str, key: str) -> str:
    """The key's hexadecimal digits; never on the command line, where every user could read them."""
    try:
        text = sys.stdin.read(MOST) if path == "-" else Path(path).read_text()[:MOST]
    except (OSError, UnicodeDecodeError) as e:
        raise LinkPassError(f"{path}: can't be read: {getattr(e, 'strerror', None) or e}") from e
    words = text.split()
    if len(words) == 2 and words[0] == key:
        return words[1]
    if len(words) == 1:
        return words[0]
    raise LinkPassError(f"{path}: should hold '{plain(key)} HEX' or HEX, with HEX from 'openssl rand -hex 32'")


VERB = Verb(
    "keys",
    "rotate the fleet's keys on this host (root only)",
    """  linkpassctl keys list                                  who accepts and sends with which key
  linkpassctl keys install 2026b --file /root/2026b      first on every host
  linkpassctl keys use 2026b                             then on every host
  linkpassctl keys remove 2026a                          at last on every host
Each acts on this host alone; the agent refuses a step that would cut off a member that isn't ready for it.""",
    run,
    options,
)
