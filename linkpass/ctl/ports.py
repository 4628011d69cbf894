"""linkpassctl ports: this host's fabric ports."""

from linkpass.ctl.show import duration, joined, state, table
from linkpass.ctl.verb import OK, Context, Verb


def run(context: Context) -> int:
    ports = context.ask("GET", "/v1/ports")
    if context.args.json:
        return OK
    headers = ["PORT", "RAIL", "STATE", "FOR", "CARRIER", "MTU", "FLAPS", "LAST FLAP", "ADDRESSES", "CAUSE"]
    rows = [
        [
            p["name"],
            p["rail"],
            state(p["state"]),
            duration(p["since"]),
            {True: "yes", False: "no", None: "?"}[p["carrier"]],
            "?" if p["mtu"] is None else str(p["mtu"]),
            str(p["flaps"]),
            "-" if p["last_flap"] is None else f"{duration(p['last_flap'])} ago",
            joined(p["addresses"]),
            cause(p),
        ]
        for p in ports
    ]
    table(context.out, headers, rows)
    return OK


def cause(port: dict[str, object]) -> str:
    """Why the port is in its state, with the operator's reason and the hold-down's end."""
    text = str(port["cause"])
    if port["drained"] is not None and str(port["drained"]) not in text:
        text += f" (drained: {port['drained']})"
    if isinstance(port["held_for"], int | float):
        text += f" (held for another {duration(port['held_for'])})"
    return text


VERB = Verb("ports", "this host's fabric ports", "  linkpassctl ports\n  linkpassctl ports --json", run)
