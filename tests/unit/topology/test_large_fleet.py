"""A fleet too large for everybody to talk with everybody, by a small `direct`. Times are virtual seconds."""

import pytest

from linkpass.model import PortState
from linkpass_topology.gossip.outputs import PeerSilent, PeerUp
from linkpass_topology.gossip.suspicion import SwimRule
from tests.fakes.fleet import Fleet, address, fleet_record, name
from tests.fakes.mesh import Weather

HOSTS = 16
RULE = SwimRule(direct=4, sessions=8, neighbours=3)
WAY = 0.0005  # s, from host to host


def fleet(seed: int = 1, weather: Weather | None = None, rule: SwimRule = RULE) -> Fleet:
    made = Fleet(seed, weather, rule)
    for number in range(HOSTS):
        made.add(number, [0] if number else [])
    assert made.run(30, lambda: made.together() and made.agree())
    made.run(5)
    return made


def knows(made: Fleet, number: int) -> bool:
    own = made.cores[number].view.get(name(number))
    return all(core.view.get(name(number)) == own for core in made.cores.values())


def test_sessions_stay_within_their_bound_while_all_are_known() -> None:
    made = fleet()
    made.run(60)
    for core in made.cores.values():
        assert len(core._roster.peers) <= RULE.sessions + 1
        assert len(core.peers()) == HOSTS - 1
        assert {p.state for p in core.peers()} == {"connected"}


def test_change_reaches_those_who_use_the_port_in_one_way_and_all_within_a_fraction_of_a_second() -> None:
    made = fleet()
    using = {name(n): ["p0"] for n in (5, 7, 15)} | {name(8): ["p1"]}
    made.take(3, made.cores[3].set_interested(using, made.now))
    for number in (5, 7, 15, 8):  # whom we talk with talks with us
        made.take(number, made.cores[number].set_interested({name(3): []}, made.now))
    made.run(2)
    for port in (0, 1):
        new = made.publish(3, PortState.DOWN, port)
        at = made.now
        made.run(WAY * 1.01)
        there = {n for n, core in made.cores.items() if core.view.get(name(3)) == new}
        assert there - {3} == ({5, 7, 15} if port == 0 else {8})
        assert made.run(2, lambda: knows(made, 3)) and made.now - at < 0.5
        made.run(3)


def test_owner_hears_once_that_a_member_is_there_though_sessions_come_and_go() -> None:
    made = fleet()
    made.run(90)
    for outputs in made.out.values():
        up = [o.host for _, o in outputs if isinstance(o, PeerUp)]
        assert len(up) == len(set(up)) == HOSTS - 1
        assert not [o for _, o in outputs if isinstance(o, PeerSilent)]


def test_many_changes_at_once_reach_all_within_two_seconds_in_a_network_that_loses_a_tenth() -> None:
    made = fleet(3, Weather(loss=0.1, duplicate=0.02, least=0.0002, most=0.002))
    for number in range(8):
        made.publish(number, PortState.DOWN)
    assert made.run(2, made.agree)


def test_host_that_dies_is_dead_for_all_and_one_that_leaves_has_left_for_all() -> None:
    made = fleet()
    made.remove(7)
    made.take(9, made.cores[9].leave(made.now))
    made.remove(9)
    assert made.run(90, lambda: all(made.turns(n, "dead") and made.turns(n, "left") for n in made.cores))
    assert {host for _, _, host in made.deaths()} == {name(7)}
    assert all(not [h for _, h in made.turns(n, "suspect") if h == name(9)] for n in made.cores)


def test_host_that_missed_everything_is_brought_up_to_date_by_anti_entropy() -> None:
    made = fleet()
    made.lost = lambda source, target, road: 4 in (source, target)
    for number in range(6, 12):
        made.publish(number, PortState.DOWN)
    made.run(3)
    made.lost = lambda source, target, road: False
    assert made.run(15, made.agree)
    assert not made.deaths()


def test_newcomer_learns_a_large_fleet_within_a_second() -> None:
    made = fleet()
    at = made.now
    made.add(HOSTS, [12])
    assert made.run(5, lambda: made.together() and made.agree())
    assert made.now - at < 1.0


def test_reboot_of_all_hosts_at_once_kills_nobody_for_long() -> None:
    made = fleet()
    for number in range(HOSTS):
        made.remove(number)
    made.run(5)
    for number in range(HOSTS):
        made.add(number, [0, 1], incarnation=2)
    assert made.run(30, lambda: made.together() and made.agree())
    assert not made.deaths()


@pytest.mark.parametrize("loss", [0.05, 0.2])
def test_nobody_is_declared_dead_in_a_network_that_loses(loss: float) -> None:
    made = fleet(5, Weather(loss=loss, least=0.0002, most=0.005))
    made.run(120)
    assert not made.deaths()
    assert made.agree()


def test_halves_that_were_apart_become_one_fleet_again() -> None:
    made = fleet()
    made.lost = lambda source, target, road: (source < 8) != (target < 8)
    made.run(120)
    made.publish(2, PortState.DOWN)
    made.publish(12, PortState.DOWN)
    made.lost = lambda source, target, road: False
    assert made.run(60, lambda: made.together() and made.agree())


def test_idle_host_sends_less_than_a_kibibyte_a_second() -> None:
    made = fleet()
    made.run(30)
    before = len(made.sent)
    made.run(60)
    assert sum(size + 28 for *_, size in made.sent[before:]) / 60 / HOSTS < 1024  # with IPv4 and UDP headers


def test_every_datagram_keeps_the_bound() -> None:
    made = fleet()
    for number in range(10):
        made.publish(number, PortState.DOWN)
    made.run(5)
    assert max(size for *_, size in made.sent) <= 1400


def test_host_without_a_management_network_reaches_all_of_a_large_fleet_over_a_rail() -> None:
    made = fleet()
    made.lost = lambda source, target, road: road == "" and 3 in (source, target)
    made.run(90)
    assert not made.deaths()
    made.publish(3, PortState.DOWN, 1)
    assert made.run(5, lambda: knows(made, 3))
    assert made.cores[3].view.get(name(5)) == fleet_record(5)
    assert address(3, "rail0") != address(3)
