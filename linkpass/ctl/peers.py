"""linkpassctl peers: the other hosts, as their own records tell."""

from linkpass.ctl.show import duration, joined, state, table
from linkpass.ctl.verb import OK, Context, Verb


def run(context: Context) -> int:
    peers = context.ask("GET", "/v1/peers")
    if context.args.json:
        return OK
    headers = ["HOST", "STATE", "HEARD", "AT", "PORTS", "ADDRESSES", "RECORD"]
    rows = [
        [
            p["host"],
            state(p["state"]),
            "never" if p["heard"] is None else f"{duration(p['heard'])} ago",
            p["address"] or "?",
            joined([f"{rail} {s}" for rail, s in sorted(p["ports"].items())]),
            joined(p["addresses"]),
            f"{p['incarnation']}.{p['version']}",
        ]
        for p in peers
    ]
    table(context.out, headers, rows)
    return OK


VERB = Verb("peers", "the other hosts, as their own records tell", "  linkpassctl peers", run)
