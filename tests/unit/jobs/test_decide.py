"""Deciders alone: ids of spares, spreading, nearness."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from linkpass.model import PortState
from linkpass_agent.jobs import decide
from linkpass_agent.jobs.outlook import Way
from tests.fakes.desks import World

RAILS = st.sets(st.sampled_from([f"rail{n}" for n in range(12)]), min_size=1)


@given(st.integers(0, 2**24 - 1), RAILS)
def test_spare_ids_are_distinct_and_within_bounds_and_the_same_for_both_ends(qpn: int, rails: set[str]) -> None:
    ids = decide.rail_ids(qpn, rails)
    numbers = [n for row in ids.values() for n in row]
    assert len(numbers) == len(set(numbers)) == min(8, 2 * len(rails))
    assert set(numbers) <= set(range(8))
    assert ids == decide.rail_ids(qpn, sorted(rails, reverse=True))
    if len(rails) <= 8:
        assert set(ids) == rails


def test_connections_one_after_the_other_start_at_other_rails() -> None:
    rails = ["rail0", "rail1", "rail2"]
    first = [min(rails, key=lambda r: decide.rail_ids(q, rails)[r]) for q in range(30)]
    assert Counter(first) == {"rail0": 10, "rail1": 10, "rail2": 10}


def test_rank_prefers_near_rails_then_unused_ones_then_the_same_switch() -> None:
    ids = decide.rail_ids(0, ["switch", "node", "far", "other"])
    distance = {"switch": 0, "node": 1, "far": 2, "other": 1}.__getitem__
    load: Counter[str] = Counter()
    taken = []
    for _ in range(9):
        best = decide.rank(ids, distance, load.__getitem__, ids)[0]
        taken.append(best)
        load[best] += 1
    assert taken[0] == "switch"
    assert Counter(taken) == {"switch": 3, "node": 3, "other": 3}  # evenly, and none beyond the node
    assert decide.rank(ids, distance, load.__getitem__, ids)[-1] == "far"


def test_spares_go_to_the_same_numa_node_while_it_has_a_healthy_rail() -> None:
    world = World(rails=4)
    world.distance = lambda here, there: 1 if there.endswith(("0", "1")) == here.endswith(("0", "1")) else 2
    world.rule = decide.Rule(spares=1)
    world.start("a")
    one, _ = world.job(count=10)
    assert {w.device for w in one.wants()} == {"rxe1"}
    assert len(one.wants()) == 10


def way(state: PortState, tried: bool) -> Way:
    return Way("p", state, "", 0.0, tried)


def test_targets_are_up_rails_and_only_without_one_those_in_doubt_for_their_counters() -> None:
    ways = {
        "up": way(PortState.UP, True),
        "doubt": way(PortState.SUSPECT, True),
        "lost": way(PortState.SUSPECT, False),
        "down": way(PortState.DOWN, False),
    }
    assert decide._targets(ways, ways, "down") == ["up"]
    assert decide._targets(ways, ways, "up") == ["up", "doubt"]  # staying on the only UP rail is no protection
    assert decide._targets(["doubt", "lost", "down"], ways, "down") == ["doubt"]
