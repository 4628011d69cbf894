"""linkpassctl check: compare this host with its manifest; exit code 1 if they differ."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from linkpass.ctl.manifest import present
from linkpass.ctl.show import RED, plain, table
from linkpass.ctl.verb import FAILED, OK, USAGE, Context, Verb
from linkpass.errors import ConfigError

NO_FAULT = ("unexpected",)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--manifest", metavar="FILE", type=Path, help="default: the one in the agent's config")


def run(context: Context) -> int:
    from linkpass.manifest import differences, load  # here: it would make every other verb slow to start

    args = context.args
    answer = context.client.get("/v1/manifest")
    path = args.manifest or (Path(answer["manifest"]) if answer["manifest"] else None)
    if path is None:
        context.parser.error("this agent has no manifest: name one by --manifest, or in its config (manifest = ...)")
    try:
        manifest = load(path)
    except ConfigError as e:
        print(f"linkpassctl: {e}", file=sys.stderr)
        return USAGE
    found = differences(manifest, present(answer))
    faults = [d for d in found if d.kind not in NO_FAULT]
    code = FAILED if faults else OK
    if args.json:
        same = {"manifest": str(path), "same": not faults}
        context.say(json.dumps({**same, "differences": [{**asdict(d), "text": d.text} for d in found]}))
        return code
    if found:
        rows: list[list[str | tuple[str, str]]] = [
            [d.port, (d.kind, RED) if d in faults else d.kind, plain(d.text.removeprefix(f"{d.port}: "))]
            for d in found
        ]
        table(context.out, ["PORT", "", "WHAT"], rows)
    if not faults:
        context.say(f"as in {path}")
    return code


VERB = Verb(
    "check",
    "compare this host with its manifest",
    """  linkpassctl check                          exit code 0: as expected; 1: not
  linkpassctl check --manifest healthy.toml  with another file
  linkpassctl check --json                   for programs""",
    run,
    options,
)
