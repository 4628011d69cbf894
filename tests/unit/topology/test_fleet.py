"""Hosts with membership on a virtual network: joining, dying, leaving, coming back. Times are virtual seconds."""

from linkpass.model import PortState
from tests.fakes.fleet import Fleet, name
from tests.fakes.mesh import Weather


def fleet(hosts: int, seed: int = 1, weather: Weather | None = None) -> Fleet:
    """Hosts that know only the first one, all together."""
    made = Fleet(seed, weather)
    for number in range(hosts):
        made.add(number, [0] if number else [])
    assert made.run(30, lambda: made.together() and made.agree())
    return made


def test_hosts_that_know_one_seed_learn_all_others_and_talk_to_them() -> None:
    made = fleet(6)
    made.run(3)
    for core in made.cores.values():
        assert {p.host for p in core.peers() if p.state == "connected"} == {name(n) for n in range(6)} - {core.host}
        assert all(p.rtt is not None for p in core.peers())


def test_change_reaches_all_of_a_small_fleet_in_one_way() -> None:
    made = fleet(6)
    made.run(3)
    new = made.publish(4, PortState.DOWN)
    made.run(0.0006)
    assert all(core.view.get(name(4)) == new for core in made.cores.values())


def test_host_that_dies_is_suspected_then_dead_and_its_record_stays() -> None:
    made = fleet(5)
    made.run(10)
    at = made.now
    made.remove(2)
    assert made.run(60, lambda: all(made.turns(n, "dead") for n in made.cores))
    for number, core in made.cores.items():
        ((dead, host),) = made.turns(number, "dead")
        assert host == name(2) and dead - at > 4.0
        assert made.turns(number, "suspect")[0][0] < dead
        assert core.view.get(name(2)) is not None


def test_host_that_leaves_is_never_suspected() -> None:
    made = fleet(5)
    made.run(10)
    made.take(2, made.cores[2].leave(made.now))
    made.remove(2)
    made.run(60)
    for number in made.cores:
        assert [h for _, h in made.turns(number, "left")] == [name(2)]
        assert not made.turns(number, "suspect") and not made.turns(number, "dead")
        assert name(2) not in {p.host for p in made.cores[number].peers() if p.state == "connected"}


def test_host_that_left_and_starts_again_is_a_member_again() -> None:
    made = fleet(4)
    made.take(2, made.cores[2].leave(made.now))
    made.remove(2)
    made.run(5)
    made.add(2, [0], incarnation=2)
    assert made.run(10, lambda: made.together() and made.agree())


def test_host_that_reboots_quickly_is_never_dead() -> None:
    made = fleet(5)
    made.run(10)
    made.remove(2)
    made.run(2)
    made.add(2, [0], incarnation=2)
    assert made.run(10, lambda: made.together() and made.agree())
    made.run(60)
    assert not made.deaths()


def test_host_replaced_under_its_name_without_any_memory_takes_its_place() -> None:
    made = Fleet(3)
    for number in range(4):
        made.add(number, [0] if number else [], incarnation=1000)
    assert made.run(30, made.together)
    made.run(5)
    made.remove(2)
    assert made.run(60, lambda: all(made.turns(n, "dead") for n in made.cores))
    made.add(2, [0], incarnation=1)
    assert made.run(20, lambda: made.together() and made.agree())
    held = made.cores[0].view.get(name(2))
    assert held is not None and held.incarnation > 1000


def test_frozen_host_accuses_nobody_when_it_wakes() -> None:
    made = fleet(5)
    made.run(10)
    made.frozen.add(3)
    made.run(40)
    assert {n for n, _, host in made.deaths() if host == name(3)} == {0, 1, 2, 4}
    made.frozen.clear()
    assert made.run(30, made.together)
    made.run(60)
    assert {host for _, _, host in made.deaths()} == {name(3)}


def test_partition_that_heals_becomes_one_fleet_again() -> None:
    made = fleet(6)
    made.run(10)
    made.lost = lambda source, target, road: (source < 3) != (target < 3)
    made.run(90)
    assert not made.together()
    made.publish(1, PortState.DOWN)
    made.publish(4, PortState.DRAINED)
    made.lost = lambda source, target, road: False
    assert made.run(60, lambda: made.together() and made.agree())


def test_loss_of_a_tenth_kills_nobody() -> None:
    for seed in range(3):
        made = fleet(8, seed, Weather(loss=0.1, duplicate=0.05, least=0.0002, most=0.005))
        made.run(120)
        assert not made.deaths()


def test_host_reachable_by_a_rail_only_is_never_dead_and_hears_changes_at_once() -> None:
    made = fleet(5)
    made.run(10)
    made.lost = lambda source, target, road: road == "" and 2 in (source, target)
    made.run(120)
    assert not made.deaths()
    for number, to in ((2, 0), (0, 2)):
        new = made.publish(number, PortState.SUSPECT)
        at = made.now
        assert made.run(1, lambda to=to, new=new: made.cores[to].view.get(new.host) == new, 1)  # type: ignore[misc]
        assert made.now - at < 0.1


def test_management_network_lost_for_all_leaves_the_fleet_together_over_one_rail() -> None:
    made = fleet(5)
    made.run(10)
    made.lost = lambda source, target, road: road != "rail1"
    made.run(10)
    new = made.publish(3, PortState.DOWN)
    at = made.now
    assert made.run(2, lambda: all(c.view.get(name(3)) == new for c in made.cores.values()), 1)
    assert made.now - at < 0.5
    made.run(120)
    assert not made.deaths() and made.together()


def test_host_that_is_cut_off_alone_declares_nobody_dead() -> None:
    made = fleet(6)
    made.run(10)
    made.lost = lambda source, target, road: 2 in (source, target)
    made.run(60)
    assert not made.turns(2, "dead")
    made.lost = lambda source, target, road: False
    assert made.run(60, made.together)
    assert {host for _, _, host in made.deaths()} == {name(2)}


def test_fleet_of_one_seed_replays_exactly() -> None:
    runs = []
    for _ in range(2):
        made = fleet(5, 7, Weather(loss=0.1, duplicate=0.1, least=0.0001, most=0.01))
        made.run(10)
        runs.append(made.sent)
    assert runs[0] == runs[1] and len(runs[0]) > 100
