"""Two hosts' desks and their jobs: pairing, spares, orders, fail-back, restarts, and what strangers may not do."""

import pytest

from linkpass.errors import WireError
from linkpass.model import EventKind, PortState
from linkpass.shim import abi
from linkpass_agent.jobs import talk
from linkpass_agent.jobs.decide import Rule
from linkpass_agent.jobs.registry import ORIGINAL
from tests.fakes.desks import World, gid

S = PortState


def spare_on(world: World, shim: object, rail: str, conn: int = 1) -> int:
    pairs = world.connection(shim, conn).pairs.values()  # type: ignore[arg-type]
    return next(p.id for p in pairs if p.rail == rail and p.live)


# -- pairing -------------------------------------------------------------------------------------------------------


def test_connection_of_two_attached_ends_gets_a_spare_on_the_other_rail() -> None:
    world = World()
    one, other = world.job()
    assert [(w.device, w.port) for w in one.wants()] == [("rxe1", 1)]
    assert [(w.device, w.id, w.round) for w in other.wants()] == [(w.device, w.id, w.round) for w in one.wants()]
    spare = one.wants()[0].id
    assert one.peers[1, spare].qpn == other.spares[1, spare].qpn
    assert other.peers[1, spare].qpn == one.spares[1, spare].qpn
    assert world.desks["a"].why_unprotected(world.connection(one)) == ""
    assert world.desks["b"].why_unprotected(world.connection(other)) == ""


def test_spare_counts_only_once_both_shims_have_tried_it_out() -> None:
    world = World()
    one, other = world.shim("a"), world.shim("b")
    other.proves = False
    one.up(1, world.identity(7))
    other.up(1, world.identity(7).mirror)
    world.settle()
    for shim in (one, other):
        assert world.desks[shim.host].why_unprotected(world.connection(shim)) == "its spare is being made"
    world.port("a", 0, S.DOWN)
    assert one.orders() == other.orders() == []  # the shim that knows nothing of it would give its job the error
    other.prove(abi.SparePeer(1, one.ids[1], one.spares[1, one.wants()[0].id]))
    world.settle()
    assert [o.why for o in one.orders()] == [o.why for o in other.orders()] == [abi.C.LP_WHY_DOWN]


def test_spare_that_is_never_proven_is_made_anew() -> None:
    world = World()
    one, other = world.shim("a"), world.shim("b")
    one.proves = False
    one.up(1, world.identity(7))
    other.up(1, world.identity(7).mirror)
    world.settle()
    world.wait(12.0)
    assert len({(w.id, w.round) for w in one.wants()}) > 1


@pytest.mark.parametrize("passive", ["a", "b"])
def test_end_that_never_sends_is_known_without_its_first_psn(passive: str) -> None:
    world = World()
    full = {"a": world.identity(7), "b": world.identity(7).mirror}
    shims = {host: world.shim(host) for host in "ab"}
    active = "b" if passive == "a" else "a"
    shims[active].up(1, full[active])
    world.settle()
    shims[passive].up(1, full[passive]._replace(local_psn=0), flags=abi.C.LP_CONN_PASSIVE)
    world.settle()
    for host in "ab":
        assert world.desks[host].why_unprotected(world.connection(shims[host])) == ""
    # Each shim is told of its peer's half by the peer's whole name, as far as the job's two ends told it.
    for host, other in ("ab", "ba"):
        said = {m.who for m in shims[host].got if isinstance(m, abi.SparePeer)}
        assert said == {full[other] if host == passive else full[host].mirror}
    shims[passive].ids[1] = full[passive]  # it knows now
    shims[passive].say(abi.Relay(1, full[passive], abi.Tell(abi.C.LP_TELL_NEED, 0, 1, ORIGINAL)))
    world.settle()
    assert [m.who for m in shims[active].got if isinstance(m, abi.Relay)] == [full[passive]]


def test_end_with_another_first_psn_is_another_connection() -> None:
    world = World()
    one, _ = world.job()
    with pytest.raises(WireError):
        one.say(abi.Relay(1, one.ids[1]._replace(local_psn=77), abi.Tell(abi.C.LP_TELL_NEED, 0, 1, ORIGINAL)))
    world.desks["b"].letter("a", talk.pack(talk.Cant(one.ids[1]._replace(local_psn=77), 0, 1, "no")))
    assert world.desks["b"].dropped["job-letter-stray"] == 1


@pytest.mark.parametrize("first", ["a", "b"])
def test_ends_that_attach_one_long_after_the_other_are_paired(first: str) -> None:
    world = World()
    who = world.identity(7)
    shims = {"a": world.shim("a"), "b": world.shim("b")}
    shims[first].up(1, who if first == "a" else who.mirror)
    world.settle()
    lonely = world.connection(shims[first])
    assert not lonely.paired
    assert world.desks[first].why_unprotected(lonely).endswith("agent knows no such connection: no shim there")
    second = "b" if first == "a" else "a"
    shims[second].up(1, who if second == "a" else who.mirror)
    world.settle()
    assert world.desks[first].why_unprotected(lonely) == ""


def test_connection_to_a_host_without_agent_stays_unprotected_and_says_so() -> None:
    world = World()
    shim = world.shim("a")
    stranger = abi.Identity(gid("a", 0), bytes(10) + b"\xff\xff" + bytes((192, 0, 2, 9)), 7, 8, 1, 2)
    shim.up(1, stranger)
    world.settle()
    why = world.desks["a"].why_unprotected(world.connection(shim))
    assert why.startswith("no host is known at 192.0.2.9")
    assert shim.got == []


def test_connection_is_paired_once_its_peers_record_comes() -> None:
    world = World("abc")
    world.desks["a"].outlook.gids._places.pop(gid("c", 0))
    one, other = world.shim("a"), world.shim("c")
    who = world.identity(7, peer="c")
    one.up(1, who)
    world.settle()
    assert world.connection(one).peer is None
    world.desks["a"].learned(world.record("c"))
    other.up(1, who.mirror)
    world.settle()
    assert world.desks["a"].why_unprotected(world.connection(one)) == ""


def test_connection_within_one_host_is_left_alone() -> None:
    world = World()
    shim = world.shim("a")
    shim.up(1, abi.Identity(gid("a", 0), gid("a", 1), 7, 8, 1, 2))
    assert world.desks["a"].why_unprotected(world.connection(shim)) == "both ends are on this host"


def test_device_that_is_no_fabric_port_is_named() -> None:
    world = World()
    shim = world.shim("a")
    unknown = abi.Identity(bytes(15) + b"\x09", gid("b", 0), 7, 8, 1, 2)
    shim.up(1, unknown, device="mlx5_7")
    why = world.desks["a"].why_unprotected(world.connection(shim))
    assert why == "mlx5_7 port 1 is no fabric port of this agent; see [[port]] in its config"


def test_rails_of_the_command_line_bound_the_spares() -> None:
    world = World(rails=4, rule=Rule(spares=3))
    one, _ = world.job(name="train@rail2")
    assert [w.device for w in one.wants()] == ["rxe2"]
    assert world.desks["a"].registry.processes[one.number].name == "train"


def test_letters_of_one_process_pair_travel_together() -> None:
    world = World()
    one, other = world.job(count=64)
    world.posts.clear()
    world.port("a", 0, S.DOWN)
    assert len(one.orders()) == len(other.orders()) == 64
    for conn in range(1, 65):
        one.say(abi.Relay(conn, one.ids[conn], abi.Tell(abi.C.LP_TELL_NEED, 0, 1, ORIGINAL)))
    lanes = {lane for source, _, lane, _ in world.posts if source == "a"}
    assert lanes == {(one.number, other.number)}


def test_shims_words_reach_the_other_shim_of_the_same_connection_unchanged() -> None:
    world = World()
    one, other = world.job(count=2)
    tell = abi.Tell(abi.C.LP_TELL_PREP, 3, 0, 5)
    one.say(abi.Relay(2, one.ids[2], tell))
    world.settle()
    assert [m for m in other.got if isinstance(m, abi.Relay)] == [abi.Relay(2, one.ids[2], tell)]


# -- orders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["a", "b"])
@pytest.mark.parametrize("state", [S.DOWN, S.ABSENT, S.DRAINED])
def test_port_lost_at_either_end_orders_both_ends_away(host: str, state: PortState) -> None:
    world = World()
    one, other = world.job()
    spare = one.wants()[0].id
    world.port(host, 0, state)
    why = abi.C.LP_WHY_DRAIN if state is S.DRAINED else abi.C.LP_WHY_DOWN
    assert [(o.conn, o.why, o.spare) for o in one.orders()] == [(1, why, spare)]
    assert [(o.conn, o.why, o.spare) for o in other.orders()] == [(1, why, spare)]


def test_silent_path_that_one_end_s_probes_see_orders_that_end_away() -> None:
    world = World()
    one, other = world.job()
    world.probe("b", "a", 0, S.DOWN)
    assert len(other.orders()) == 1
    assert one.orders() == []


@pytest.mark.parametrize("state", [S.UNKNOWN, S.SUSPECT, S.HELD])
def test_doubt_or_blindness_moves_nothing(state: PortState) -> None:
    world = World()
    one, other = world.job()
    world.port("a", 0, state)
    world.wait(1.0)
    assert one.orders() == other.orders() == []


def test_order_is_given_once_for_one_cause() -> None:
    world = World()
    one, _ = world.job()
    world.port("a", 0, S.DOWN)
    for _ in range(5):
        world.desks["a"].moved(["b"])
    assert len(one.orders()) == 1


def test_port_of_other_connections_moves_nothing() -> None:
    world = World()
    one, other = world.job(rail=1)
    world.port("b", 0, S.DOWN)
    assert one.orders() == other.orders() == []


def test_no_order_without_a_usable_spare_then_as_soon_as_there_is_one() -> None:
    world = World(rails=3)
    one, _ = world.job()
    for rail in (1, 2):
        world.port("b", rail, S.DOWN)
    world.port("a", 0, S.DOWN)
    assert one.orders() == []
    assert world.told("a", EventKind.REFUSED) == [
        "1 queue pair on rail0 can't go anywhere: they wait for it to come back"
    ]
    world.wait(1.0)
    world.port("b", 2, S.UP)
    world.settle()
    assert [o.spare for o in one.orders()] == [spare_on(world, one, "rail2")]


def test_spare_whose_way_went_down_is_made_anew_in_a_later_round() -> None:
    world = World()
    one, other = world.job()
    first = one.wants()[0]
    world.port("b", 1, S.DOWN)
    assert world.desks["a"].why_unprotected(world.connection(one)) == "no other path to b is up"
    world.wait(2.0)
    assert len(one.wants()) == 1
    world.port("b", 1, S.UP)
    world.settle()
    second = one.wants()[-1]
    assert second.round > first.round
    assert other.wants()[-1].round == second.round
    assert world.desks["a"].why_unprotected(world.connection(one)) == ""


def test_half_that_a_shim_lost_is_made_anew() -> None:
    world = World()
    one, other = world.job()
    first = one.wants()[0]
    world.wait(1.0)
    gone = abi.Spare(bytes(16), 0, 0, 0, 0, 0, 0, 1, first.id, 0, first.round)
    other.say(abi.SpareHere(1, other.ids[1], gone))
    world.settle()
    world.wait(1.0)
    assert one.wants()[-1].round > first.round
    assert world.desks["b"].why_unprotected(world.connection(other)) == ""


def test_half_that_never_comes_is_asked_for_again() -> None:
    world = World()
    one, other = world.shim("a"), world.shim("b")
    other.makes = False
    who = world.identity(7)
    one.up(1, who)
    other.up(1, who.mirror)
    world.settle()
    assert world.desks["a"].why_unprotected(world.connection(one)) == "its spare is being made"
    world.wait(9.0)
    assert len(one.wants()) == 1
    other.makes = True
    world.wait(2.0)
    assert len(one.wants()) == 2
    assert world.desks["a"].why_unprotected(world.connection(one)) == ""


def test_moved_connection_gets_a_spare_back_on_its_home_rail_and_goes_back() -> None:
    world = World()
    one, other = world.job()
    world.port("a", 0, S.DOWN)
    world.move(one, other)
    assert world.connection(one).rail == "rail1"
    assert world.desks["a"].why_unprotected(world.connection(one)) == "no other path to b is up"
    world.wait(5.0)
    world.port("a", 0, S.HELD)
    world.wait(1.0)
    assert len(one.orders()) == 1
    world.port("a", 0, S.UP)
    world.wait(1.9)
    assert len(one.orders()) == 1  # Rule.fail_back_wait is 2 s
    world.wait(0.3)
    back = one.orders()[-1]
    assert (back.why, back.spare) == (abi.C.LP_WHY_FAIL_BACK, spare_on(world, one, "rail0"))
    assert other.orders()[-1].why == abi.C.LP_WHY_DOWN  # only the leader's agent leads back
    world.move(one, other, spare=back.spare)
    world.wait(1.0)
    assert world.connection(one).rail == world.connection(other).rail == "rail0"
    assert world.desks["a"].why_unprotected(world.connection(one)) == ""
    assert len(one.orders()) == 2


def test_fail_back_is_braked() -> None:
    world = World()
    one, other = world.job(count=200)
    world.port("a", 0, S.DOWN)
    for conn in range(1, 201):
        world.move(one, other, conn)
    world.port("a", 0, S.UP)
    world.wait(2.05)
    backs = [o for o in one.orders() if o.why == abi.C.LP_WHY_FAIL_BACK]
    # 50 a second and a burst of 50: those, and what 0.1 s bring at most
    assert 50 <= len(backs) <= 56
    world.wait(4.0)
    backs = [o for o in one.orders() if o.why == abi.C.LP_WHY_FAIL_BACK]
    assert {o.conn for o in backs} == set(range(1, 201))


def test_return_to_a_rail_that_only_the_job_finds_broken_waits_longer_each_time() -> None:
    world = World()
    one, other = world.job()
    waits = []
    for _ in range(3):
        before = len(one.orders())
        world.move(one, other, spare=spare_on(world, one, "rail1"))  # errors of its own: no verdict says anything
        began = world.clock.now()
        while len(one.orders()) == before:
            world.wait(0.1)
        waits.append(round(world.clock.now() - began))
        assert one.orders()[-1].why == abi.C.LP_WHY_FAIL_BACK
        world.move(one, other)
    assert waits == [4, 8, 16]  # 2 s, doubled once, twice, three times
    # A verdict explains the next flight: the port was seen down, and is seen up.
    world.move(one, other, spare=spare_on(world, one, "rail1"))
    world.port("a", 0, S.DOWN)
    world.port("a", 0, S.UP)
    world.wait(3.0)
    assert one.orders()[-1].why == abi.C.LP_WHY_FAIL_BACK


def test_leader_that_left_alone_gets_a_spare_under_an_id_that_its_peer_isnt_on() -> None:
    world = World()
    one, other = world.job()
    first = world.move(one, other, spare=spare_on(world, one, "rail1"))
    # The leader moves on to rail1's other id, fails there as well; its peer has heard of nothing.
    world.port("a", 0, S.DOWN)
    one.state(1, state=abi.FENCED)
    world.wait(0.6)
    second = next(w.id for w in reversed(one.wants()) if w.device == "rxe1" and w.id != first)
    one.state(1, state=abi.FENCED, spare=second, epoch=2)
    world.wait(2.0)
    ready = [p for p in world.connection(one).pairs.values() if p.ready and p.rail == "rail1"]
    assert [p.id for p in ready] == [second]
    assert ready[0].round > next(w.round for w in one.wants() if w.id == second)


def test_fail_back_can_be_switched_off() -> None:
    world = World(rule=Rule(fail_back=False))
    one, other = world.job()
    world.port("a", 0, S.DOWN)
    world.move(one, other)
    world.port("a", 0, S.UP)
    world.wait(30.0)
    assert [o.why for o in one.orders()] == [abi.C.LP_WHY_DOWN]


def test_single_rail_rides_through_on_a_fresh_pair_of_the_same_nic() -> None:
    world = World(rails=1)
    one, other = world.job()
    assert [w.device for w in one.wants()] == ["rxe0"]
    world.port("a", 0, S.DOWN)
    assert one.orders() == []
    one.state(1, state=abi.FENCED)
    other.state(1, state=abi.FENCED)
    world.wait(3.0)
    assert len(one.wants()) == 1
    world.port("a", 0, S.UP)
    world.settle()
    assert one.wants()[-1].round > one.wants()[0].round
    ready = one.wants()[-1]
    assert one.peers[1, ready.id].qpn == other.spares[1, ready.id].qpn


def test_port_that_is_held_serves_only_who_has_nothing_else() -> None:
    world = World(rails=1)
    one, other = world.job()
    world.port("a", 0, S.DOWN)
    assert world.pages["a"] == {"rxe0": S.DOWN}
    one.state(1, state=abi.FENCED)
    other.state(1, state=abi.FENCED)
    world.wait(1.0)
    world.port("a", 0, S.HELD)
    world.settle()
    assert len(one.wants()) == 2
    assert world.pages["a"] == {"rxe0": S.SUSPECT}  # shims go to no HELD port; this is the last one


def test_page_says_held_while_another_port_carries() -> None:
    world = World()
    world.port("a", 0, S.HELD)
    assert world.pages["a"] == {"rxe0": S.HELD, "rxe1": S.UP}


def test_stuck_connection_gets_other_spares_again_and_again_more_slowly() -> None:
    world = World()
    one, other = world.job()
    world.port("a", 0, S.DOWN)
    one.state(1, state=abi.FENCED)
    other.state(1, state=abi.FENCED)
    start = len(one.wants())
    world.wait(1.9)
    assert len(one.wants()) == start
    world.wait(0.3)
    assert len(one.wants()) == start + 1  # after 2 s
    world.wait(3.5)
    assert len(one.wants()) == start + 1
    world.wait(1.0)
    assert len(one.wants()) == start + 2  # after another 4 s


def test_second_failure_during_a_move_leaves_for_the_next_rail() -> None:
    world = World(rails=3)
    one, other = world.job()
    world.port("a", 0, S.DOWN)
    first = world.move(one, other)
    rail = world.connection(one).rail
    assert rail in ("rail1", "rail2")
    world.port("b", int(rail.removeprefix("rail")), S.DOWN)
    assert one.orders()[-1].spare != first
    second = world.move(one, other)
    assert {rail, world.connection(other).rail} == {"rail1", "rail2"}
    assert second != first


def test_failed_nic_s_connections_spread_over_all_healthy_ones() -> None:
    world = World(rails=4)
    one, _ = world.job(count=60)
    world.port("a", 0, S.DOWN)
    rails = [
        next(p.rail for p in world.connection(one, o.conn).pairs.values() if p.id == o.spare) for o in one.orders()
    ]
    counts = {rail: rails.count(rail) for rail in ("rail1", "rail2", "rail3")}
    assert sum(counts.values()) == 60
    assert max(counts.values()) - min(counts.values()) <= 20  # two of three each: no rail gets more than half
    assert min(counts.values()) >= 10


def test_connection_across_rails_follows_both_ports() -> None:
    world = World()
    one, other = world.shim("a"), world.shim("b")
    who = world.identity(7, rail=0, far=1)
    one.up(1, who, rail=0)
    other.up(1, who.mirror, rail=1)
    world.settle()
    assert world.desks["a"].why_unprotected(world.connection(one)) == ""
    world.port("b", 1, S.DOWN)
    assert len(one.orders()) == len(other.orders()) <= 1
    world.port("b", 1, S.UP)
    world.wait(1.0)
    world.port("a", 0, S.DOWN)
    assert one.orders()[-1].spare == spare_on(world, one, "rail1")


# -- shadow, operators, ends ---------------------------------------------------------------------------------------


def test_shadow_mode_tells_and_does_nothing() -> None:
    world = World(act=False)
    one, other = world.job(count=3)
    assert world.desks["a"].arrived(world.shim("a"), abi.Hello(0, "1", "x")).give_up_ms == 1
    world.port("a", 0, S.DOWN)
    world.settle()
    assert one.got == other.got == []
    assert world.told("a", EventKind.DECIDED) == [
        "3 queue pairs ordered off a dead path: rail0 -> rail1 (shadow: not done)"
    ]
    assert world.pages["a"] == {"rxe0": S.UNKNOWN, "rxe1": S.UNKNOWN}
    assert world.desks["a"].why_unprotected(world.connection(one)) == "the agent is in shadow mode"


@pytest.mark.parametrize("end", [0, 1])
def test_operators_order_moves_and_holds(end: int) -> None:
    world = World()
    shims = world.job()
    chosen = shims[end]
    desk = world.desks[chosen.host]
    assert desk.order(world.connection(chosen), "rail1") == ""
    world.settle()
    assert [(o.why, o.spare) for o in chosen.orders()] == [(abi.C.LP_WHY_DRAIN, spare_on(world, chosen, "rail1"))]
    world.move(*shims, spare=chosen.orders()[-1].spare)
    world.wait(20.0)
    assert all(o.why != abi.C.LP_WHY_FAIL_BACK for o in shims[0].orders())
    assert desk.order(world.connection(chosen), "rail1") == "it is on rail1 already"
    assert desk.order(world.connection(chosen), "rail7") == f"rail7 doesn't lead to {'ba'[end]}"


def test_ended_process_tells_its_peer_and_frees_its_spares() -> None:
    world = World()
    one, other = world.job()
    world.desks["a"].left(one)
    world.settle()
    assert world.desks["a"].registry.all() == []
    assert [m.id for m in other.got if isinstance(m, abi.SpareDrop)] == [other.wants()[0].id]
    assert not world.connection(other).paired


def test_failed_connection_is_told_with_its_status() -> None:
    world = World()
    one, _ = world.job()
    one.say(abi.ConnDown(1, abi.C.LP_DOWN_FAILED, 12))
    assert world.told("a", EventKind.FAILED) == [f"queue pair {one.number}.1 to b failed: its job got status 12"]


def test_moves_are_told_as_one_with_what_they_cost() -> None:
    world = World()
    one, other = world.job(count=3)
    world.port("a", 0, S.DOWN)
    for conn, gap in ((1, 1_000_000), (2, 3_000_000), (3, 8_000_000)):
        world.move(one, other, conn, gap_ns=gap, replayed=5, replayed_bytes=100)
    world.wait(0.2)
    assert world.told("a", EventKind.ACTED) == [
        "3 queue pairs moved: rail0 -> rail1, gap 3.0 ms (longest 8.0 ms), 15 requests replayed"
    ]
    assert world.events["a"][-1].data["replayed_bytes"] == 300


def test_move_is_dated_to_its_last_replay_with_the_stages_of_its_slowest_connections() -> None:
    world = World()
    one, other = world.job(count=2)
    world.port("a", 0, S.DOWN)
    began = round(1e9 * (world.clock.now() - 0.020))
    for conn, late, fence in ((1, 0, 4_000_000), (2, 2_000_000, 1_000_000)):
        world.move(
            one, other, conn, trigger_ns=began + late, fence_ns=fence, settle_ns=5_000_000, gap_ns=6_000_000,
            replay_ns=9_000_000,
        )  # fmt: skip
    world.wait(0.2)
    event = next(e for e in world.events["a"] if e.kind is EventKind.ACTED)
    assert event.text == (
        "2 queue pairs moved: rail0 -> rail1, gap 6.0 ms (longest 6.0 ms), 0 requests replayed;"
        " fenced after 4.0, settled after 7.0, all replayed after 11.0 ms"
    )
    move = world.connection(one, 2).move
    assert move is not None and move.at <= world.clock.now() - move.replayed  # never in the future
    assert event.at == pytest.approx(event.data["began"] + event.data["replay"])


# -- restarts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["a", "b"])
def test_restarted_agent_takes_its_jobs_spares_over(host: str) -> None:
    world = World()
    shims = world.job(count=4)
    before = {c: dict(shims[0].spares) for c in range(1, 5)}
    world.clock.advance(100.0)
    world.restart(host)
    again = shims[0] if host == "a" else shims[1]
    world.desks[host].arrived(again, abi.Hello(0, "1", "train"))
    for conn, who in again.ids.items():
        again.up(conn, who)
        again.state(conn)
    world.settle()
    for shim in shims:
        for conn in range(1, 5):
            assert world.desks[shim.host].why_unprotected(world.connection(shim, conn)) == ""
    assert {c: dict(shims[0].spares) for c in range(1, 5)} == before  # nothing was made anew
    world.port("a", 0, S.DOWN)
    assert len(shims[0].orders()) == len(shims[1].orders()) == 4


@pytest.mark.parametrize("host", ["a", "b"])
def test_restarted_agent_knows_the_rail_of_a_spare_in_use(host: str) -> None:
    world = World(rails=3)
    shims = world.job()
    world.port("a", 0, S.DOWN)
    used = world.move(*shims)
    rail = world.connection(shims[0]).rail
    world.clock.advance(100.0)
    world.restart(host)
    again = shims[0] if host == "a" else shims[1]
    rounds = {used: again.spares[1, used].round}
    again.got.clear()
    world.desks[host].arrived(again, abi.Hello(0, "1", "train"))
    again.up(1, again.ids[1])
    again.state(1)
    world.settle()
    assert world.connection(again).rail == rail
    assert all(w.round == rounds[used] for w in again.wants() if w.id == used)  # told again, not made anew
    world.port("b", int(str(rail).removeprefix("rail")), S.DOWN)
    assert again.orders()[-1].spare not in (used, ORIGINAL)


# -- strangers -----------------------------------------------------------------------------------------------------


def test_process_cant_take_another_ones_queue_pair() -> None:
    world = World()
    one, _ = world.job()
    thief = world.shim("a", uid=2000)
    thief.up(9, one.ids[1])
    world.settle()
    assert thief.wants() == []
    assert "another process has that queue pair" in world.desks["a"].why_unprotected(world.connection(thief, 9))
    world.port("a", 0, S.DOWN)
    assert len(one.orders()) == 1 and thief.orders() == []
    world.desks["a"].left(thief)
    world.port("a", 0, S.UP)
    assert world.connection(one).pairs


def test_process_cant_register_a_queue_pair_that_the_kernel_says_is_another_s() -> None:
    world = World()
    one, thief = world.shim("a"), world.shim("a")
    world.makers[7] = one.pid
    thief.up(1, world.identity(7))
    why = world.desks["a"].why_unprotected(world.connection(thief))
    assert why == f"the kernel says that the queue pair is process {one.pid}'s"
    assert world.desks["a"].dropped["job-foreign"] == 1
    one.up(1, world.identity(7))
    assert world.desks["a"].registry.by_identity == {world.identity(7): world.connection(one)}
    world.desks["a"].left(thief)
    assert world.desks["a"].registry.by_identity == {world.identity(7): world.connection(one)}


def test_process_cant_speak_for_a_connection_under_anothers_name() -> None:
    world = World()
    one, other = world.job()
    thief = world.shim("a")
    thief.up(1, world.identity(900))
    other.got.clear()
    with pytest.raises(WireError, match="isn't who"):
        thief.say(abi.Relay(1, one.ids[1], abi.Tell(abi.C.LP_TELL_ABORT, 0, 0, 0)))
    world.settle()
    assert other.got == []


def test_frame_about_a_connection_that_isn_t_there_is_counted() -> None:
    world = World()
    one, _ = world.job()
    one.say(abi.ConnDown(77, abi.C.LP_DOWN_DESTROYED, 0))
    one.say(abi.Relay(77, one.ids[1], abi.Tell(abi.C.LP_TELL_ABORT, 0, 0, 0)))
    assert world.desks["a"].dropped["job-unknown-connection"] == 2


def test_frame_that_only_agents_send_is_refused() -> None:
    world = World()
    one, _ = world.job()
    with pytest.raises(WireError, match="for shims to get"):
        one.say(abi.Welcome(1, 1))


def test_letter_from_a_host_that_is_not_the_peer_touches_nothing() -> None:
    world = World("abc")
    one, _ = world.job()
    one.got.clear()
    who = one.ids[1].mirror
    for letter in (
        talk.Told(who, abi.Tell(abi.C.LP_TELL_ABORT, 0, 0, 0)),
        talk.Half(who, one.spares[1, next(i for _, i in one.spares)]),
        talk.Unknown(one.ids[1]),
        talk.Want(who, 0, 2**31, "rail1"),
    ):
        world.desks["a"].letter("c", talk.pack(letter))
    assert one.got == []
    assert world.connection(one).paired
    assert world.desks["a"].dropped["job-letter-stray"] == 4


def test_leader_does_not_take_spares_from_the_follower_s_agent() -> None:
    world = World()
    one, _ = world.job()
    one.got.clear()
    world.desks["a"].letter("b", talk.pack(talk.Want(one.ids[1].mirror, 5, 2**31, "rail1")))
    assert one.got == []


def test_peer_without_a_port_on_the_rail_says_so() -> None:
    world = World()
    world.desks["b"].outlook.port_on = lambda rail: None  # type: ignore[method-assign]
    one, other = world.job()
    assert other.wants() == []
    why = world.desks["a"].why_unprotected(world.connection(one))
    assert why == "b can't make its half of a spare: b has no RDMA port on rail1"
    world.wait(9.0)
    assert len(one.wants()) == len({w.id for w in one.wants()}) == 2  # once under each of the rail's ids
    world.wait(2.0)
    assert len(one.wants()) == 4


def test_peers_of_jobs_count_as_in_use_while_they_are_connected() -> None:
    world = World()
    one, _ = world.job()
    assert world.desks["a"].registry.peers() == {"b"}
    assert world.in_use["a"] == 1
    world.desks["a"].left(one)
    assert world.desks["a"].registry.peers() == set()
    assert world.in_use["a"] == 2
