"""linkpassctl plan: what the agent would do now, and why. Looking does nothing."""

from typing import Any

from linkpass.ctl.show import YELLOW, joined, painter, plain, table
from linkpass.ctl.verb import OK, Context, Verb


def run(context: Context) -> int:
    plan = context.ask("GET", "/v1/plan")
    if not context.args.json:
        tell(context, plan)
    return OK


def tell(context: Context, plan: dict[str, Any]) -> None:
    """A plan for people; drain and undrain show theirs by it too."""
    if plan["steps"]:
        headers = ["DESTINATION", "PEER", "NOW OVER", "THEN OVER", "CAUSE"]
        rows = [
            [s["destination"], s["peer"], joined(s["before"]), joined(s["after"]), s["cause"]] for s in plan["steps"]
        ]
        table(context.out, headers, rows)
    elif not plan["refused"]:
        context.say("no route to change")
    for refusal in plan["refused"]:
        context.say(f"{painter(context.out)('refused:', YELLOW)} {plain(refusal)}")


VERB = Verb("plan", "what would be done now, and why", "  linkpassctl plan", run)
