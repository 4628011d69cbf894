"""What should be done for one connection: which spares to have, when to leave a path, when to go back. Pure.

`ways` are the rails that lead to the connection's peer, as both ends' ports and the probes between them stand.

A way is a target if it is UP. Without one, a SUSPECT way over which probes are answered will do: its ports' counters
are in doubt, and a fleet whose rules are too strict must not lose its protection. Only a connection that is off its
path and has no such way may take one that is HELD: better than nothing. Other SUSPECT and UNKNOWN ways are stayed on
and never gone to; DOWN, ABSENT and DRAINED ones are left, but only for a spare that both ends have.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from linkpass.model import PortState
from linkpass.shim import abi

from .outlook import Way
from .registry import ORIGINAL, Connection, Pair

S = PortState
DEAD = (S.DOWN, S.ABSENT)
STUCK_FIRST, STUCK_MOST = 2.0, 16.0  # s a connection may be off its path, with spares at hand, until they are remade
AGAIN = 0.5  # s from one try to make a pair over a rail to the next
UNFINISHED = 10.0  # s after which a pair that isn't proven is taken for dead
FLED_SOON = 300.0  # s from one such flight to the next, for the second to count as one more of the same
FLED_MOST = 7  # the wait before a return doubles so often: 2 s become 256 s
CANT_AGAIN = 10.0  # s until a half that the peer couldn't have made is asked for again


@dataclass(frozen=True, slots=True)
class Rule:
    """What the settings say of jobs; seconds."""

    spares: int = 2
    fail_back: bool = True
    fail_back_wait: float = 2.0


@dataclass(frozen=True, slots=True)
class Leave:
    """Order the connection away. `spare` is preferred; any will do."""

    why: int
    spare: int
    rail: str
    reason: str


def rail_ids(leader_qpn: int, rails: Iterable[str]) -> dict[str, list[int]]:
    """The spare ids of each rail: two where there is room, so that a new pair needn't wait for the one in use to go.

    They follow from the connection and the rails alone: an agent that was restarted names them the same. Connections
    start at different rails, so that they spread.
    """
    ordered = sorted(rails)
    if not ordered:
        return {}
    turn = leader_qpn % len(ordered)
    found: dict[str, list[int]] = {}
    for number, rail in enumerate(2 * (ordered[turn:] + ordered[:turn])):
        if number < ORIGINAL:
            found.setdefault(rail, []).append(number)
    return found


def rank(
    rails: Iterable[str], distance: Callable[[str], int], load: Callable[[str], int], ids: Mapping[str, list[int]]
) -> list[str]:
    """Rails to put a spare on, best first: near the connection's own NIC, then little used, then by id.

    Distance: 0 (same PCIe switch) and 1 (same NUMA node) count alike at first, or one neighbour would get all the
    queue pairs of a failed NIC; among equally used ones the nearer wins.
    """
    return sorted(rails, key=lambda r: (distance(r) > 1, load(r), distance(r), ids[r]))


def current(c: Connection, ways: Mapping[str, Way], across: Way | None) -> Way | None:
    """The way that its traffic takes; `across` is that of a home connection between different rails."""
    if c.use == ORIGINAL and across is not None:
        return across
    return ways.get(c.rail) if c.rail is not None else None


def lacks(
    c: Connection, ways: Mapping[str, Way], rule: Rule, distance: Callable[[str], int], load: Callable[[str], int]
) -> list[str]:
    """Leader only: the rails over which it should have a pair, and hasn't."""
    if not c.leads or not c.paired or c.ended:
        return []
    ids = rail_ids(c.who.local_qpn, ways)
    allowed = [r for r in ids if c.process.rails is None or r in c.process.rails or r == c.home_rail]
    good = _targets(allowed, ways, c.rail)
    if not good and c.stuck:
        good = [r for r in allowed if ways[r].state is S.HELD]
    # The rail that it is on needs no spare, unless its queue pair there is finished or there is no other rail.
    if not c.stuck and len(allowed) > 1:
        good = [r for r in good if r != c.rail]
    have = {p.rail for p in c.pairs.values() if p.live and not c.uses(p) and p.rail in allowed}
    useful = [r for r in have if ways[r].state in (S.UP, S.SUSPECT, S.UNKNOWN) or r in good]
    lacking = [r for r in rank(good, distance, load, ids) if r not in have]
    chosen = lacking[: max(0, rule.spares - len(useful))]
    if c.target in lacking and c.target not in chosen and c.target != c.rail:
        chosen.append(c.target)
    return chosen


def free_id(c: Connection, ways: Iterable[str], rail: str, now: float) -> int | None:
    """An id to make a pair under: the oldest of the rail's that isn't in use; None while the last try is too young.
    A pair that had the id goes. One that the peer refused (it may be on that pair still) rests longer."""
    ids = rail_ids(c.who.local_qpn, ways)[rail]
    known = {n: p for n in ids if (p := c.pairs.get(n)) is not None}
    tries = [p.made for p in known.values() if not c.uses(p) and not p.refused]
    if tries and now < max(tries) + AGAIN:
        return None
    free = [
        n for n in ids
        if (n != c.use or c.stuck) and not (n in known and known[n].refused and now < known[n].made + CANT_AGAIN)
    ]  # fmt: skip
    return min(free, key=lambda n: (n == c.use, known[n].made if n in known else -1.0), default=None)


def remakes(c: Connection, now: float) -> bool:
    """Leader: it is off its path for so long, with spares at hand, that they must be taken for dead."""
    if not c.leads or not c.stuck or not any(p.live for p in c.pairs.values()):
        return False
    wait = min(STUCK_FIRST * 2.0**c.remade, STUCK_MOST)
    return now >= max(c.state_at, c.remade_at) + wait


def leave(c: Connection, here: Way | None, ways: Mapping[str, Way]) -> Leave | None:
    """Whether it must leave the way that it is on, and for which spare. None also if there is nowhere to go."""
    if here is None or c.ended or here.state not in (*DEAD, S.DRAINED):
        return None
    best = _best(c, ways)
    if best is None:
        return None
    why = abi.C.LP_WHY_DRAIN if here.state is S.DRAINED else abi.C.LP_WHY_DOWN
    return Leave(why, best.id, best.rail, here.cause)


def would_leave(c: Connection, here: Way | None, ways: Mapping[str, Way]) -> Leave | None:
    """As `leave`, in shadow mode, where no spares are made: where it would go."""
    if here is None or c.ended or here.state not in (*DEAD, S.DRAINED):
        return None
    ids = rail_ids(c.who.local_qpn if c.leads else c.who.remote_qpn, ways)
    up = [r for r in _targets(ids, ways, c.rail) if r != c.rail]
    why = abi.C.LP_WHY_DRAIN if here.state is S.DRAINED else abi.C.LP_WHY_DOWN
    return Leave(why, ORIGINAL, min(up, key=ids.__getitem__), here.cause) if up else None


def go_back(c: Connection, here: Way | None, ways: Mapping[str, Way], rule: Rule, now: float) -> Leave | None:
    """Leader: whether it should return to the rail that it belongs on."""
    if not (rule.fail_back and c.leads and c.paired and c.target and c.rail and c.rail != c.target):
        return None
    if c.state != abi.ACTIVE or here is None or here.state in (*DEAD, S.DRAINED):
        return None
    way = ways.get(c.target)
    if way is None or way.state is not S.UP:
        return None
    # It left for a reason that nobody else has seen: it may well be there still.
    doubled = c.fled if way.since <= c.fled_at else 0
    if now < max(way.since, c.state_at) + rule.fail_back_wait * 2.0 ** min(doubled, FLED_MOST):
        return None
    pair = next((p for p in c.pairs.values() if p.rail == c.target and p.ready), None)
    if pair is None or c.uses(pair):
        return None
    return Leave(abi.C.LP_WHY_FAIL_BACK, pair.id, pair.rail, f"{way.port} carries again")


def fled(c: Connection, epoch: int, now: float) -> None:
    """Note that it leaves the rail that it belongs on, in `epoch`'s place, without an order to do so."""
    ordered = c.ordered is not None and c.ordered[:2] == (c.use, c.epoch) and c.ordered[2] != abi.C.LP_WHY_FAIL_BACK
    if epoch > c.epoch and c.rail == c.target and not ordered:
        c.fled = c.fled + 1 if now < c.fled_at + FLED_SOON else 1
        c.fled_at = now


def move_to(c: Connection, rail: str, ways: Mapping[str, Way]) -> Leave | str:
    """An operator's wish; a text says why not."""
    if c.ended:
        return "it has failed"
    if c.rail == rail:
        return f"it is on {rail} already"
    way = ways.get(rail)
    if way is None:
        return f"{rail} doesn't lead to {c.peer or 'its peer'}"
    if not _usable(way):
        return f"the path over {rail} is {way.state} ({way.cause})"
    pair = next((p for p in c.pairs.values() if p.rail == rail and not c.uses(p) and p.ready), None)
    if pair is None:
        return f"it has no spare on {rail} yet"
    return Leave(abi.C.LP_WHY_DRAIN, pair.id, rail, f"an operator wants it on {rail}")


def _best(c: Connection, ways: Mapping[str, Way]) -> Pair | None:
    """The spare to go to: over an UP way if it can be, the target's rail first, then as ids go (they are rotated)."""
    ready = [p for p in c.pairs.values() if not c.uses(p) and p.ready and (w := ways.get(p.rail)) and _usable(w)]
    return min(ready, key=lambda p: (ways[p.rail].state is not S.UP, p.rail != c.target, p.id), default=None)


def _usable(way: Way) -> bool:
    """UP, or in doubt for its counters alone."""
    return way.state is S.UP or (way.state is S.SUSPECT and way.tried)


def _targets(rails: Iterable[str], ways: Mapping[str, Way], current: str | None) -> list[str]:
    """The rails to have spares on: the UP ones, and those in doubt where no other than the current one is UP."""
    usable = [r for r in rails if _usable(ways[r])]
    up = [r for r in usable if ways[r].state is S.UP]
    return up if any(r != current for r in up) else usable


def protection(c: Connection, ways: Mapping[str, Way]) -> str:
    """Why it isn't protected at this moment; '' if it is."""
    if c.ended:
        return "it has failed: its job got the error"
    if c.hindrance or c.missing:
        return c.hindrance or c.missing
    if not c.paired:
        return f"no word yet of its other end on {c.peer}"
    if _best(c, ways) is not None:
        return ""
    if any(p.live and not c.uses(p) for p in c.pairs.values()):
        return "its spare isn't usable now" if any(p.proven for p in c.pairs.values()) else "its spare is being made"
    others = [r for r, w in ways.items() if r != c.rail and _usable(w)]
    if not others:
        return f"no other path to {c.peer} is up"
    refused = next((p.refused for p in c.pairs.values() if p.refused), "")
    return f"{c.peer} can't make its half of a spare: {refused}" if refused else "it has no spare yet"
