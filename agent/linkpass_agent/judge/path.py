"""A path's state: the worst of the port here, the port there, and what probes between them say."""

from linkpass.model import PathId, PathVerdict, PortState, Verdict

S = PortState

# From best to worst. SUSPECT before HELD: a path in doubt is still in use, a held one isn't yet.
ORDER = (S.UP, S.UNKNOWN, S.SUSPECT, S.HELD, S.DRAINED, S.DOWN, S.ABSENT)
RANK = {state: rank for rank, state in enumerate(ORDER)}


def judge(
    path: PathId, local: Verdict, remote: PortState, remote_cause: str, probe: Verdict, rtt: float | None
) -> PathVerdict:
    """Combine the three; the cause names the end that is to blame, the local one first on a tie."""
    worst, since, cause = local.state, local.since, f"{path.port}: {local.cause}"
    if RANK[remote] > RANK[worst]:
        worst, cause = remote, f"{path.peer}'s port on {path.rail}: {remote_cause}"
        since = 0.0
    if RANK[probe.state] > RANK[worst]:
        worst, since, cause = probe.state, probe.since, f"path: {probe.cause}"
    if worst is S.UP:
        cause = "both ports are up and probes are answered"
    held = max((v.held_until for v in (local, probe) if v.held_until is not None), default=None)
    verdict = Verdict(
        worst,
        since,
        cause,
        local.flaps + probe.flaps,
        max((t for t in (local.last_flap, probe.last_flap) if t is not None), default=None),
        held if worst == S.HELD else None,
    )
    return PathVerdict(path, verdict, local.state, remote, probe.state, rtt)
