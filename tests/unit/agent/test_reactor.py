"""The loop's middle against fakes: what each order of news leads to."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from linkpass.errors import NotFoundError, RefusedError
from linkpass.model import EventKind, PathId, PortState
from tests.fakes.agent import FakeAgent, record, service, without_rail_addresses

S, K = PortState, EventKind
BOTH = {"a-rail0", "a-rail1"}


@pytest.fixture
def agent(tmp_path: Path) -> FakeAgent:
    return FakeAgent(tmp_path).start("b")


# -- the loop in order -------------------------------------------------------------------------------------------


def test_peer_learned_gets_a_route_over_all_rails(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path).start()
    agent.reactor.learned(record("b", [S.UP, S.UP]))
    assert agent.devices("b") == BOTH
    assert agent.kinds() == [K.LEARNED, K.VERDICT, K.VERDICT, K.DECIDED, K.ACTED]


def test_own_carrier_lost_moves_the_route_within_the_call_and_tells_the_story_in_order(agent: FakeAgent) -> None:
    agent.carrier("a-rail0", False, noticed=False)
    assert agent.devices("b") == {"a-rail1"}
    assert agent.kinds() == [K.SEEN, K.VERDICT, K.SHARED, K.VERDICT, K.DECIDED, K.ACTED]
    assert agent.published[-1].port_on("rail0").state == S.DOWN  # type: ignore[union-attr]


def test_share_goes_out_before_the_routes_are_touched(agent: FakeAgent) -> None:
    order: list[str] = []
    agent.reactor._publish = lambda r: order.append("share")
    agent.kernel.refuse = lambda m: order.append("act") or 0  # type: ignore[func-returns-value]
    agent.carrier("a-rail0", False)
    assert order[0] == "share"
    assert "act" in order


def test_far_carrier_lost_is_learned_and_moves_the_route(agent: FakeAgent) -> None:
    agent.reactor.learned(record("b", [S.DOWN, S.UP], 2, cause="carrier lost"))
    assert agent.devices("b") == {"a-rail1"}
    (decided,) = agent.told(K.DECIDED)
    assert "b's port on rail0: carrier lost" in decided.cause


def test_probes_that_find_a_path_dead_move_the_route(agent: FakeAgent) -> None:
    agent.probe("b", 1, S.SUSPECT)
    assert agent.devices("b") == BOTH
    agent.probe("b", 1, S.DOWN)
    assert agent.devices("b") == {"a-rail0"}


def test_link_that_returns_carries_traffic_only_after_its_hold_down(agent: FakeAgent) -> None:
    agent.carrier("a-rail0", False)
    agent.carrier("a-rail0", True)
    agent.wait(0.99)
    assert agent.devices("b") == {"a-rail1"}
    agent.wait(0.02)
    assert agent.devices("b") == BOTH


def test_own_link_lost_while_a_peers_record_of_the_other_arrives_keeps_what_may_work(agent: FakeAgent) -> None:
    # Ours on rail0 and the peer's on rail1 fail at once: rail1 may be hopeless, but rail0 surely is.
    agent.carrier("a-rail0", False)
    agent.reactor.learned(record("b", [S.UP, S.DOWN], 2))
    assert agent.devices("b") == {"a-rail1"}
    assert len(agent.told(K.REFUSED)) == 1


def test_same_two_failures_in_the_other_order_end_alike(agent: FakeAgent) -> None:
    agent.reactor.learned(record("b", [S.UP, S.DOWN], 2))
    assert agent.devices("b") == {"a-rail0"}
    agent.carrier("a-rail0", False)
    assert agent.devices("b") == {"a-rail1"}


def test_all_paths_down_leave_the_route_and_are_refused_once(agent: FakeAgent) -> None:
    agent.probe("b", 0, S.DOWN)
    agent.probe("b", 1, S.DOWN)
    assert agent.devices("b") == {"a-rail1"}
    for _ in range(10):
        agent.sweep()
    assert len(agent.told(K.REFUSED)) == 1


def test_both_rails_down_and_one_back_is_used_at_once_though_held(agent: FakeAgent) -> None:
    agent.carrier("a-rail0", False)
    agent.carrier("a-rail1", False)
    assert agent.devices("b") == set()  # the kernel's doing: no device has carrier
    agent.carrier("a-rail0", True)
    assert agent.reactor.ports["a-rail0"].state == S.HELD
    assert agent.devices("b") == {"a-rail0"}
    agent.wait(1.0)
    agent.carrier("a-rail1", True)
    agent.wait(1.0)
    assert agent.devices("b") == BOTH


def test_last_rail_that_blinks_is_back_within_the_call(agent: FakeAgent) -> None:
    agent.carrier("a-rail0", False)
    for _ in range(3):
        agent.carrier("a-rail1", False)
        agent.carrier("a-rail1", True)
        assert agent.devices("b") == {"a-rail1"}
    assert len([e for e in agent.told(K.ACTED) if e.text == "a-rail1 via 10.11.0.2"]) == 4  # each time is told


def test_last_rail_whose_loss_the_kernel_notices_late_is_not_lost_to_it(agent: FakeAgent) -> None:
    agent.carrier("a-rail0", False)
    agent.carrier("a-rail1", False, noticed=False)
    agent.carrier("a-rail1", True)
    assert agent.devices("b") == {"a-rail1"}


def test_blindness_moves_nothing_and_tells_the_peers(agent: FakeAgent) -> None:
    agent.see("a-rail0", carrier=None)
    agent.see("a-rail1", carrier=None)
    assert agent.devices("b") == BOTH
    assert agent.told(K.DECIDED) == []
    assert [p.state for p in agent.published[-1].ports] == [S.UNKNOWN, S.UNKNOWN]


def test_addresses_that_can_not_be_read_stay_as_they_are_for_the_peers(agent: FakeAgent) -> None:
    for _ in range(5):
        agent.see("a-rail0", addresses=None, operstate=None, mtu=None)
    assert (agent.published, agent.events) == ([], [])


def test_flap_train_ends_in_held_with_a_growing_price(agent: FakeAgent) -> None:
    for _ in range(6):
        agent.carrier("a-rail0", False)
        agent.clock.advance(0.1)
        agent.carrier("a-rail0", True)
        agent.clock.advance(0.1)
    assert agent.reactor.ports["a-rail0"].state == S.HELD
    assert agent.devices("b") == {"a-rail1"}
    assert len(agent.told(K.ACTED)) == 1  # one move away, no ping-pong
    agent.wait(31.7)
    assert agent.devices("b") == {"a-rail1"}
    agent.wait(0.3)
    assert agent.devices("b") == BOTH


def test_observation_of_a_port_that_is_not_ours_is_ignored(agent: FakeAgent) -> None:
    agent.see("eth0", carrier=False)
    assert (agent.events, agent.published) == ([], [])


def test_same_observation_again_is_silent(agent: FakeAgent) -> None:
    for _ in range(100):
        agent.see("a-rail0", carrier=True, mtu=9000, addresses=("10.10.0.1",))
    assert (agent.events, agent.published, agent.kernel.sent) == ([], [], [])


def test_moved_address_or_mtu_is_shared_without_a_verdict(agent: FakeAgent) -> None:
    agent.see("a-rail0", mtu=1500)
    agent.see("a-rail0", addresses=("10.10.0.9",))
    assert [(r.ports[0].mtu, r.ports[0].addresses) for r in agent.published] == [
        (1500, ("10.10.0.1",)),
        (1500, ("10.10.0.9",)),
    ]
    assert agent.kinds() == [K.SEEN, K.SEEN]


# -- records -----------------------------------------------------------------------------------------------------


def test_versions_of_our_record_grow_by_one_with_each_change(agent: FakeAgent) -> None:
    first = agent.reactor.record.version
    agent.carrier("a-rail0", False)
    agent.carrier("a-rail0", True)
    assert [r.version for r in agent.published] == [first + 1, first + 2]
    assert {r.incarnation for r in agent.published} == {5}


def test_our_own_record_from_the_network_is_ignored(agent: FakeAgent) -> None:
    agent.reactor.learned(record("a", [S.DOWN, S.DOWN]))
    assert (agent.events, list(agent.reactor.peers)) == ([], ["b"])


def test_record_that_outranks_ours_is_outranked_and_published_at_once(agent: FakeAgent) -> None:
    agent.reactor.outrank(9)
    assert [(r.incarnation, r.ports == agent.reactor.record.ports) for r in agent.published] == [(10, True)]
    assert agent.published[-1].age_key > (9, 10**9)
    agent.reactor.outrank(9)
    assert len(agent.published) == 1


def test_rebooted_peer_is_believed_afresh(agent: FakeAgent) -> None:
    agent.reactor.learned(record("b", [S.DOWN, S.UP], 7))
    assert agent.devices("b") == {"a-rail1"}
    rebooted = record("b", [S.UNKNOWN, S.UNKNOWN], 1, incarnation=2)
    agent.reactor.learned(without_rail_addresses(rebooted))  # its first words: it knows nothing yet
    assert agent.devices("b") == {"a-rail1"}
    agent.reactor.learned(record("b", [S.UP, S.UP], 2, incarnation=2))
    assert agent.devices("b") == BOTH


def test_peer_with_one_common_rail_is_reached_over_it(agent: FakeAgent) -> None:
    agent.reactor.learned(record("c", [None, S.UP, S.UP]))
    assert agent.devices("c") == {"a-rail1"}


def test_peer_without_a_common_rail_is_left_alone(agent: FakeAgent) -> None:
    agent.reactor.learned(record("c", [None, None, S.UP]))
    agent.reactor.learned(record("d", []))
    assert (agent.devices("c"), agent.devices("d")) == (set(), set())
    assert set(agent.kinds()) == {K.LEARNED}
    assert agent.reactor.plan().refused == ()
    agent.carrier("a-rail0", False)
    assert agent.told(K.REFUSED) == []


def test_peer_that_moves_to_another_rail_address_is_followed(agent: FakeAgent) -> None:
    new = record("b", [S.UP, S.UP], 2)
    new = replace(new, ports=(replace(new.ports[0], addresses=("10.10.7.7",)), new.ports[1]))
    agent.reactor.learned(new)
    assert ("a-rail0", "10.10.7.7") in agent.kernel.hops_of(service("b"))
    assert agent.targets[-1][PathId("b", "rail0", "a-rail0")] == "10.10.7.7"


def test_targets_are_told_only_when_they_change(agent: FakeAgent) -> None:
    agent.reactor.learned(record("b", [S.DOWN, S.UP], 2))
    agent.carrier("a-rail0", False)
    assert agent.targets == []
    agent.reactor.learned(record("c", [S.UP]))
    assert [sorted(map(str, t)) for t in agent.targets] == [["b/rail0", "b/rail1", "c/rail0"]]


def test_address_that_two_peers_claim_stays_with_the_first_and_is_refused_to_the_other(agent: FakeAgent) -> None:
    before = agent.kernel.hops_of(service("b"))
    agent.reactor.learned(record("c", [S.UP, S.UP], addresses=(service("b"), service("c"))))
    assert agent.kernel.hops_of(service("b")) == before
    assert agent.devices("c") == BOTH
    (refused,) = agent.told(K.REFUSED)
    assert "b" in refused.text
    assert service("b") in refused.text
    for _ in range(5):
        agent.sweep()
        agent.carrier("a-rail0", False)
        agent.carrier("a-rail0", True)
    assert agent.kernel.hops_of(service("b")) == {("a-rail1", "10.11.0.2")}
    assert len(agent.told(K.REFUSED)) == 1


def test_address_that_its_owner_gives_up_goes_to_the_next(agent: FakeAgent) -> None:
    agent.reactor.learned(record("c", [S.UP, S.UP], addresses=(service("b"),)))
    agent.reactor.learned(record("b", [S.UP, S.UP], 2, addresses=()))
    agent.reactor.learned(record("c", [S.UP, S.UP], 2, addresses=(service("b"),)))
    assert agent.kernel.hops_of(service("b")) == {("a-rail0", "10.10.0.3"), ("a-rail1", "10.11.0.3")}


# -- drains ------------------------------------------------------------------------------------------------------


def test_drain_moves_traffic_and_tells_the_peers_why(agent: FakeAgent) -> None:
    plan = agent.reactor.drain("a-rail0", "optic", dry_run=False)
    assert [s.after[0].device for s in plan.steps] == ["a-rail1"]
    assert agent.devices("b") == {"a-rail1"}
    assert (agent.published[-1].ports[0].state, agent.published[-1].ports[0].cause) == (S.DRAINED, "drained: optic")
    assert agent.kinds()[0] == K.OPERATOR


def test_dry_drain_plans_and_does_nothing(agent: FakeAgent) -> None:
    plan = agent.reactor.drain("a-rail0", "optic", dry_run=True)
    assert len(plan.steps) == 1
    assert (agent.events, agent.published, agent.kernel.sent) == ([], [], [])
    assert agent.devices("b") == BOTH
    assert agent.reactor.ports["a-rail0"].drained is None


def test_undrain_returns_the_port_after_the_first_price(agent: FakeAgent) -> None:
    agent.reactor.drain("a-rail0", "optic", dry_run=False)
    assert agent.reactor.undrain("a-rail0").steps == ()
    agent.wait(0.99)
    assert agent.devices("b") == {"a-rail1"}
    agent.wait(0.01)
    assert agent.devices("b") == BOTH


def test_drain_of_the_last_usable_path_is_refused_and_changes_nothing(agent: FakeAgent) -> None:
    agent.probe("b", 1, S.DOWN)
    agent.forget()
    with pytest.raises(RefusedError, match="last usable path to b"):
        agent.reactor.drain("a-rail0", "optic", dry_run=False)
    assert agent.devices("b") == {"a-rail0"}
    assert agent.kinds() == [K.REFUSED]


def test_second_drain_that_would_take_the_last_port_is_refused(agent: FakeAgent) -> None:
    agent.reactor.drain("a-rail0", "one", dry_run=False)
    with pytest.raises(RefusedError, match="a-rail1"):
        agent.reactor.drain("a-rail1", "two", dry_run=False)


def test_failure_of_the_last_undrained_path_falls_back_on_the_drained_one(agent: FakeAgent) -> None:
    agent.reactor.drain("a-rail0", "optic", dry_run=False)
    agent.carrier("a-rail1", False)
    assert agent.devices("b") == {"a-rail0"}


def test_drain_again_with_another_reason_is_taken_and_shared(agent: FakeAgent) -> None:
    agent.reactor.drain("a-rail0", "one", dry_run=False)
    agent.reactor.drain("a-rail0", "two", dry_run=False)
    assert agent.published[-1].ports[0].cause == "drained: two"


@pytest.mark.parametrize("verb", ["drain", "undrain"])
def test_drain_of_an_unknown_port_names_those_that_exist(agent: FakeAgent, verb: str) -> None:
    with pytest.raises(NotFoundError, match=r"'eth9'.*a-rail0, a-rail1"):
        agent.reactor.drain("eth9", "x", dry_run=False) if verb == "drain" else agent.reactor.undrain("eth9")


def test_undrain_of_a_port_that_is_not_drained_is_refused(agent: FakeAgent) -> None:
    with pytest.raises(RefusedError, match="not drained"):
        agent.reactor.undrain("a-rail0")


def test_drain_remembered_from_an_earlier_run_holds_from_the_start(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path, drains={"a-rail0": "optic", "gone0": "x"}).start("b")
    assert agent.devices("b") == {"a-rail1"}
    assert agent.reactor.record.ports[0].cause == "drained: optic"


# -- shadow ------------------------------------------------------------------------------------------------------


def test_shadow_decides_and_touches_nothing(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path, shadow=True).start("b")
    agent.carrier("a-rail0", False)
    assert agent.kernel.sent == []
    (decided,) = agent.told(K.DECIDED)
    assert "a-rail1 via 10.11.0.2" in decided.text
    assert "a-rail0" not in decided.text
    assert "shadow: not done" in decided.text
    assert agent.told(K.ACTED) == []


def test_shadow_drain_is_judged_and_shared_like_any_other(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path, shadow=True).start("b")
    agent.reactor.drain("a-rail0", "optic", dry_run=False)
    assert agent.published[-1].ports[0].state == S.DRAINED
    assert agent.kernel.sent == []
    with pytest.raises(RefusedError):
        agent.reactor.drain("a-rail1", "optic", dry_run=False)
    agent.reactor.undrain("a-rail0")
    agent.wait(1.0)
    assert agent.kernel.sent == []
    assert agent.published[-1].ports[0].state == S.UP


def test_shadow_does_not_repeat_itself(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path, shadow=True).start("b")
    for version in range(2, 30):
        agent.reactor.learned(record("b", [S.UP, S.UP], version))
        agent.reactor.tick(retry=True)
    assert agent.events == []


# -- what fails, and what drifts ---------------------------------------------------------------------------------


def test_failed_act_is_told_once_retried_and_its_success_told(agent: FakeAgent) -> None:
    agent.kernel.refuse = lambda m: errno.ENOBUFS
    agent.probe("b", 0, S.DOWN)
    assert agent.kinds() == [K.VERDICT, K.DECIDED, K.FAILED]
    for _ in range(20):
        agent.sweep()
    assert agent.kinds() == [K.VERDICT, K.DECIDED, K.FAILED]
    agent.kernel.refuse = lambda m: 0
    agent.sweep()
    assert agent.devices("b") == {"a-rail1"}
    assert agent.kinds()[3:] == [K.ACTED]


def test_failed_act_is_not_retried_by_a_mere_tick(agent: FakeAgent) -> None:
    agent.kernel.refuse = lambda m: errno.ENOBUFS
    agent.probe("b", 0, S.DOWN)
    agent.kernel.sent.clear()
    agent.reactor.tick(retry=False)
    assert agent.kernel.sent == []


def test_hop_that_the_kernel_does_not_take_yet_is_tried_again(agent: FakeAgent) -> None:
    agent.carrier("a-rail0", False)
    agent.see("a-rail0", carrier=True)  # we see it before routing does
    agent.wait(1.0)
    assert agent.devices("b") == {"a-rail1"}
    agent.forget()
    for _ in range(10):
        agent.sweep()
    assert len(agent.events) <= 2
    agent.kernel.carrier("a-rail0", True)
    agent.sweep()
    assert agent.devices("b") == BOTH


def test_route_that_somebody_removes_is_put_back_and_told_each_time(agent: FakeAgent) -> None:
    for time in range(1, 4):
        del agent.kernel.table[service("b"), 254, 50]
        agent.sweep()
        assert agent.devices("b") == BOTH
        assert len(agent.told(K.ACTED)) == time
        agent.sweep()
        assert len(agent.told(K.ACTED)) == time


def test_drift_of_a_destination_that_no_peer_claims_is_ignored(agent: FakeAgent) -> None:
    agent.reactor.drifted(["10.255.0.99"])
    assert (agent.events, agent.kernel.sent) == ([], [])


def test_probe_verdict_of_a_peer_that_is_not_known_is_ignored(agent: FakeAgent) -> None:
    agent.reactor.probed([PathId("z", "rail0", "a-rail0")])
    assert agent.events == []


def test_routes_of_an_earlier_agent_are_kept_until_their_peer_is_heard_of(tmp_path: Path) -> None:
    first = FakeAgent(tmp_path).start("b", "c")
    first.carrier("a-rail0", False)
    again = FakeAgent(tmp_path, kernel=first.kernel)
    assert again.devices("b") == {"a-rail1"}
    again.kernel.carrier("a-rail0", True)
    again.start("b")
    assert (again.devices("b"), again.devices("c")) == (BOTH, {"a-rail1"})


def test_device_deleted_and_made_anew_comes_back_into_the_route(agent: FakeAgent) -> None:
    agent.kernel.delete_device("a-rail0")
    agent.see("a-rail0", present=False)
    assert agent.devices("b") == {"a-rail1"}
    assert agent.published[-1].ports[0].addresses == ()
    agent.kernel.add_device("a-rail0", 33)
    agent.see("a-rail0", present=True, admin=True, carrier=True, addresses=("10.10.0.1",))
    assert agent.reactor.ports["a-rail0"].flaps == 1
    agent.wait(1.0)
    assert agent.devices("b") == BOTH
