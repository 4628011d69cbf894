"""linkpassctl status: the host at a glance; exit code 1 while anything is wrong."""

from linkpass.ctl.show import RED, STATES, duration, painter, plain
from linkpass.ctl.verb import FAILED, OK, Context, Verb


def run(context: Context) -> int:
    s = context.ask("GET", "/v1/status")
    code = OK if s["health"] == "ok" else FAILED
    if context.args.json:
        return code
    paint = painter(context.out)
    mode = f"{s['mode']} mode" + (" (decides and reports, changes nothing)" if s["mode"] == "shadow" else "")
    context.say(
        f"host {plain(s['host'])}, {mode}, linkpass {plain(s['version'])}, running for {duration(s['uptime'])}"
    )
    context.say(f"health: {paint(plain(s['health']), STATES.get(s['health'], ''))}")
    for problem in s["problems"]:
        context.say(f"  {paint('!', RED)} {plain(problem)}")
    for alarm in s.get("alarms", []):
        context.say(f"  {paint('alarm', RED)} {plain(alarm)}")
    for incident in s.get("incidents", []):
        context.say(f"  {paint('switch', RED)} {plain(incident)}")
    context.say(
        f"ports up: {s['ports_up']} of {s['ports']}, paths up: {s['paths_up']} of {s['paths']}, "
        f"peers connected: {s['peers_connected']} of {s['peers']}"
    )
    dropped = {reason: n for reason, n in s["dropped"].items() if n}
    if dropped:
        context.say("input refused: " + ", ".join(f"{plain(reason)} {n}" for reason, n in sorted(dropped.items())))
    return code


VERB = Verb(
    "status",
    "the host at a glance, and what is wrong",
    """  linkpassctl status            exit code 0: all well; 1: degraded
  linkpassctl status --json     for programs""",
    run,
)
