"""linkpassctl explain: why a port is in its state, from what was seen to what was done."""

import argparse
from typing import Any

from linkpass.client import port_target
from linkpass.ctl.events import MOST, natural, shown
from linkpass.ctl.show import BOLD, RED, STATES, YELLOW, duration, painter, plain, table
from linkpass.ctl.verb import OK, Context, Verb

ACTS = {"down": RED, "suspect": YELLOW, "alarm": YELLOW}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("port", metavar="PORT", help="a fabric port of this host, as 'linkpassctl ports' shows it")
    parser.add_argument(
        "--limit", "-n", type=natural, default=100, metavar="N", help="at most so many events (default: 100)"
    )
    parser.add_argument("--counters", action="store_true", help="show every counter, also those that never grew")


def run(context: Context) -> int:
    args = context.args
    if not 0 < args.limit <= MOST:
        context.parser.error(f"--limit should be from 1 to {MOST}")
    e = context.ask("GET", f"{port_target(args.port, 'explain')}?limit={args.limit}")
    if args.json:
        return OK
    paint = painter(context.out)
    shown_state = paint(plain(e["state"]), STATES.get(e["state"], ""))
    context.say(
        f"{paint(plain(e['port']), BOLD)} on {plain(e['rail'])} is {shown_state} for {duration(e['since'])}: "
        f"{plain(e['cause'])}"
    )
    identity = [("device", e["device"]), ("PCI", e["pci"]), ("RDMA", e["rdma"]), ("GUID", e["guid"])]
    identity += [("driver", e["driver"]), ("FEC", e["fec"]), ("module", e["module"])]
    context.say(", ".join(f"{word} {plain(text)}" for word, text in identity if text))
    _section(context, "seen now")
    table(context.out, ["FACT", "VALUE", "SOURCE", "AGE", "DETAIL"], [_fact(f) for f in e["facts"]])
    for what, why in sorted(e["unseen"].items()):
        context.say(f"can't observe {plain(what)}: {plain(why)}")
    if e["gates"]:
        _section(context, "gates")
        table(context.out, ["GATE", "STATE", "WHY"], [[g["name"], g["state"], g["text"] or "-"] for g in e["gates"]])
    counters = [c for c in e["counters"] if args.counters or c["note"] or c["grew"] is not None]
    if counters:
        _section(context, "counters")
        table(context.out, ["COUNTER", "VALUE", "GREW", "NOTE"], [_counter(c) for c in counters])
    _section(context, "findings")
    for f in e["findings"]:
        act = paint(plain(f["act"]), ACTS.get(f["act"], ""))
        context.say(f"{plain(f['rule'])} ({act}) for {duration(f['since'])}: {plain(f['text'])}")
        for reading in f["evidence"]:
            context.say(f"  {plain(reading['source'])}: {plain(reading['text'])}, {duration(reading['age'])} ago")
    if not e["findings"]:
        context.say("none: no rule holds")
    _section(context, "story")
    for event in e["story"]:
        context.say(shown(context, event))
        evidence = event["data"].get("evidence")
        if evidence:
            context.say(f"    on: {plain(evidence)}")
    return OK


def _section(context: Context, title: str) -> None:
    context.say()
    context.say(painter(context.out)(title, BOLD))


def _fact(f: dict[str, Any]) -> list[str]:
    value = "can't observe" if f["value"] is None else f["value"]
    return [f["signal"], value, f["source"], duration(f["age"]), f["detail"] or "-"]


def _counter(c: dict[str, Any]) -> list[str]:
    value = "-" if c["value"] is None else str(c["value"])
    grew = "never" if c["grew"] is None else f"{duration(c['grew'])} ago"
    return [c["source"], value, grew, c["note"] or "-"]


VERB = Verb(
    "explain",
    "why a port is in its state, from what was seen to what was done",
    """  linkpassctl explain eth1
  linkpassctl explain eth1 --counters    with every counter
  linkpassctl explain eth1 --json        for programs""",
    run,
    options,
)
