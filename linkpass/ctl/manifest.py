"""linkpassctl manifest capture: write down what this host has, as what it should have."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linkpass import durable
from linkpass.ctl.show import plain
from linkpass.ctl.verb import FAILED, OK, Context, Verb
from linkpass.errors import LinkPassError

if TYPE_CHECKING:
    from linkpass.manifest import PresentPort

HEALTHY = "up"


def present(answer: dict[str, Any]) -> list["PresentPort"]:
    """The ports of the agent's answer."""
    from linkpass.manifest import PresentPort  # here: what it needs would make every other verb slow to start

    return [PresentPort(**{**p, "addresses": tuple(p["addresses"])}) for p in answer["ports"]]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("act", choices=["capture"])
    parser.add_argument("--output", "-o", metavar="FILE", default="-", help="where to write it (default: stdout)")
    parser.add_argument("--anyway", action="store_true", help="even if a port isn't up, or not all can be observed")


def run(context: Context) -> int:
    from linkpass.manifest import capture

    args = context.args
    answer = context.client.get("/v1/manifest")
    ports = present(answer)
    wrong = [f"{p.name} is {p.state}: {p.cause}" for p in ports if p.state != HEALTHY]
    if wrong and not args.anyway:
        for line in wrong:
            print(f"linkpassctl: {plain(line)}", file=sys.stderr)
        print("linkpassctl: a manifest is made from a healthy host; --anyway takes what is there", file=sys.stderr)
        return FAILED
    text = capture(answer["host"], ports)
    if args.output == "-":
        context.out.write(text)
        return OK
    try:
        durable.replace(Path(args.output), text.encode())
    except OSError as e:
        raise LinkPassError(f"{args.output}: can't be written: {e.strerror}") from e
    if not args.json:
        context.say(f"{args.output}: {len(ports)} ports; name it in the agent's config: manifest = ...")
    return OK


VERB = Verb(
    "manifest",
    "write down what this host has, as what it should have",
    """  linkpassctl manifest capture                                  to look at it
  linkpassctl manifest capture -o /etc/linkpass/manifest.toml   then name it in the agent's config""",
    run,
    options,
)
