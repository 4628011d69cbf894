"""Plans: tiers, guards, address families."""

from collections.abc import Sequence

import pytest

from linkpass.model import Hop, HostRecord, PathId, PathVerdict, Plan, PortRecord, PortState, Verdict
from linkpass_agent.decide.planner import PeerPaths, plan_peer, refuse_drain

S = PortState
OURS = ("10.255.0.1", "fd00::1")
TO = "10.255.0.2"
H0, H1 = Hop("a-rail0", "10.10.0.2"), Hop("a-rail1", "10.11.0.2")


def verdict(rail: int, state: PortState, local: PortState = S.UP) -> PathVerdict:
    path = PathId("b", f"rail{rail}", f"a-rail{rail}")
    return PathVerdict(path, Verdict(state, 0.0, "BECAUSE"), local, S.UP, S.UP)


def peer(
    states: Sequence[PortState | tuple[PortState, PortState]],
    addresses: tuple[str, ...] = (TO,),
    rail_addresses: Sequence[tuple[str, ...]] = (("10.10.0.2",), ("10.11.0.2",), ("10.12.0.2",)),
) -> PeerPaths:
    """Path states by rail; a pair is (path, local port)."""
    pairs = [s if isinstance(s, tuple) else (s, S.UP) for s in states]
    ports = tuple(
        PortRecord(f"b-rail{n}", f"rail{n}", S.UP, "", rail_addresses[n]) for n in range(len(rail_addresses))
    )
    return PeerPaths(
        HostRecord("b", 1, 1, addresses, ports),
        tuple(verdict(n, state, local) for n, (state, local) in enumerate(pairs)),
    )


def hops(plan: Plan) -> dict[str, tuple[Hop, ...]]:
    return {s.route.destination: s.after for s in plan.steps}


@pytest.mark.parametrize("best", [S.UP, S.SUSPECT, S.UNKNOWN])
@pytest.mark.parametrize("worse", [S.HELD, S.DRAINED, S.DOWN, S.ABSENT])
def test_route_leaves_out_what_is_of_a_worse_tier(best: PortState, worse: PortState) -> None:
    assert hops(plan_peer(peer([best, worse]), OURS, {}, {})) == {TO: (H0,)}
    assert hops(plan_peer(peer([worse, best]), OURS, {}, {})) == {TO: (H1,)}


@pytest.mark.parametrize("a", [S.UP, S.SUSPECT, S.UNKNOWN])
@pytest.mark.parametrize("b", [S.UP, S.SUSPECT, S.UNKNOWN])
def test_doubt_and_blindness_move_nothing(a: PortState, b: PortState) -> None:
    assert hops(plan_peer(peer([a, b]), OURS, {}, {})) == {TO: (H0, H1)}
    assert plan_peer(peer([a, b]), OURS, {}, {TO: (H0, H1)}) == Plan()


def test_held_is_better_than_drained_and_drained_better_than_nothing() -> None:
    assert hops(plan_peer(peer([S.HELD, S.DRAINED]), OURS, {}, {})) == {TO: (H0,)}
    assert hops(plan_peer(peer([S.DOWN, S.DRAINED]), OURS, {}, {})) == {TO: (H1,)}
    assert hops(plan_peer(peer([S.HELD, S.HELD]), OURS, {}, {})) == {TO: (H0, H1)}


@pytest.mark.parametrize("bad", [S.DOWN, S.ABSENT])
def test_route_stays_as_it_is_when_nothing_is_believed_to_work(bad: PortState) -> None:
    plan = plan_peer(peer([bad, bad]), OURS, {}, {TO: (H0, H1)})
    assert plan.steps == ()
    assert plan.refused == (f"no usable path to b: the route to {TO} stays as it is",)


def test_route_that_does_not_exist_is_made_even_without_hope() -> None:
    assert hops(plan_peer(peer([S.DOWN, S.DOWN]), OURS, {}, {})) == {TO: (H0, H1)}


def test_local_port_without_carrier_is_no_next_hop() -> None:
    plan = plan_peer(peer([(S.DOWN, S.DOWN), S.DOWN]), OURS, {}, {})
    assert hops(plan) == {TO: (H1,)}


def test_route_with_only_dead_local_ports_is_moved_to_what_may_still_work() -> None:
    # The kernel has dropped rail0's hop, or will: staying there helps nobody. What the peer said of rail1 may be old.
    plan = plan_peer(peer([(S.DOWN, S.DOWN), S.DOWN]), OURS, {}, {TO: (H0,)})
    assert hops(plan) == {TO: (H1,)}


def test_route_whose_hops_live_stays_although_others_might_too() -> None:
    assert plan_peer(peer([S.DOWN, S.DOWN]), OURS, {}, {TO: (H0,)}).steps == ()


def test_route_without_any_working_local_port_is_left_to_the_kernel() -> None:
    plan = plan_peer(peer([(S.DOWN, S.DOWN), (S.ABSENT, S.ABSENT)]), OURS, {}, {TO: (H0, H1)})
    assert (plan.steps, len(plan.refused)) == ((), 1)


def test_route_that_is_right_already_needs_no_step_in_whatever_order() -> None:
    assert plan_peer(peer([S.UP, S.UP]), OURS, {}, {TO: (H1, H0)}) == Plan()


def test_step_tells_before_after_source_and_cause() -> None:
    (step,) = plan_peer(peer([S.DOWN, S.UP]), OURS, {}, {TO: (H0, H1)}).steps
    assert (step.before, step.after) == ((H0, H1), (H1,))
    assert (step.route.peer, step.route.destination, step.route.source) == ("b", TO, "10.255.0.1")
    assert step.cause == "rail0 is down (BECAUSE)"


def test_step_with_all_paths_says_so() -> None:
    (step,) = plan_peer(peer([S.UP, S.UP]), OURS, {}, {TO: (H0,)}).steps
    assert step.cause == "all paths are usable"


# -- addresses ---------------------------------------------------------------------------------------------------


def test_each_family_gets_its_own_source_and_gateways() -> None:
    both = peer([S.UP], (TO, "fd00::2"), [("10.10.0.2", "fd10::2")])
    steps = plan_peer(both, OURS, {}, {}).steps
    assert [(s.route.destination, s.route.source, s.after) for s in steps] == [
        (TO, "10.255.0.1", (Hop("a-rail0", "10.10.0.2"),)),
        ("fd00::2", "fd00::1", (Hop("a-rail0", "fd10::2"),)),
    ]


def test_ipv4_goes_by_way_of_an_ipv6_neighbour_where_there_is_no_other() -> None:
    assert hops(plan_peer(peer([S.UP], (TO,), [("fd10::2",)]), OURS, {}, {})) == {TO: (Hop("a-rail0", "fd10::2"),)}


def test_ipv6_never_goes_by_way_of_an_ipv4_neighbour() -> None:
    plan = plan_peer(peer([S.UP], ("fd00::2",), [("10.10.0.2",)]), OURS, {}, {})
    assert (plan.steps, len(plan.refused)) == ((), 1)


def test_family_that_we_have_no_address_of_gets_no_route_and_no_complaint() -> None:
    assert plan_peer(peer([S.UP, S.UP], ("fd00::2",)), ("10.255.0.1",), {}, {}) == Plan()


def test_rail_whose_address_the_peer_does_not_tell_is_left_out() -> None:
    assert hops(plan_peer(peer([S.UP, S.UP], (TO,), [(), ("10.11.0.2",)]), OURS, {}, {})) == {TO: (H1,)}


def test_peer_without_addresses_gets_nothing() -> None:
    assert plan_peer(peer([S.UP, S.UP], ()), OURS, {}, {}) == Plan()


def test_peer_without_a_common_rail_gets_nothing_and_no_complaint() -> None:
    assert plan_peer(PeerPaths(HostRecord("b", 1, 1, (TO,)), ()), OURS, {}, {}) == Plan()


def test_peer_that_claims_our_own_address_is_refused() -> None:
    plan = plan_peer(peer([S.UP, S.UP], ("10.255.0.1", TO)), OURS, {}, {})
    assert list(hops(plan)) == [TO]
    assert plan.refused == ("b claims 10.255.0.1, which is our own address: no route to it",)


def test_address_that_belongs_to_another_peer_is_refused() -> None:
    plan = plan_peer(peer([S.UP, S.UP]), OURS, {TO: "c"}, {TO: (H0,)})
    assert (plan.steps, plan.refused) == ((), (f"b claims {TO}, which is c's: the route there stays",))


# -- drains ------------------------------------------------------------------------------------------------------


def test_drain_is_allowed_while_every_peer_has_another_way() -> None:
    assert refuse_drain("a-rail0", [peer([S.UP, S.UP])], True) is None


@pytest.mark.parametrize("other", [S.HELD, S.DRAINED, S.DOWN, S.ABSENT])
def test_drain_of_the_last_usable_path_is_refused_and_names_the_peer(other: PortState) -> None:
    assert refuse_drain("a-rail0", [peer([S.UP, other])], True) == "a-rail0 carries the last usable path to b"


@pytest.mark.parametrize("own", [S.DOWN, S.ABSENT])
def test_drain_of_a_port_that_carries_nothing_strands_nobody(own: PortState) -> None:
    assert refuse_drain("a-rail0", [peer([own, S.DOWN])], True) is None


def test_drain_of_the_last_port_is_refused_without_any_peer() -> None:
    assert refuse_drain("a-rail0", [], False) == "a-rail0 is the last usable port of this host"


def test_drain_refusal_names_five_peers_and_counts_the_rest() -> None:
    peers = [
        PeerPaths(HostRecord(f"h{n}", 1, 1), (verdict(0, S.UP),)) for n in range(7)
    ]  # fmt: skip
    assert refuse_drain("a-rail0", peers, True) == (
        "a-rail0 carries the last usable path to h0, h1, h2, h3, h4 and 2 more"
    )
