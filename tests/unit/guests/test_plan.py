"""A fabric as guests: names, wiring, what each guest is told."""

import pytest

from linkpass_lab.guests.plan import baseline_routes, plan, setup, wiring
from linkpass_topology.fabric import grid


def test_nic_names_are_the_hosts_and_the_rails():
    lab = plan(grid(2, 2))
    assert [n.name for n in lab.guest("b").nics] == ["b-rail0", "b-rail1", "b-mgmt"]


def test_macs_carry_rail_and_host_number_and_are_unique():
    lab = plan(grid(300, 2))
    macs = [n.mac for g in lab.guests for n in g.nics]
    assert len(set(macs)) == 900
    assert lab.guests[299].nics[1].mac == "52:54:00:01:01:2c"  # rail 1, host 300 = 0x012c


def test_nics_are_plugged_into_the_hosts_own_leaves():
    lab = plan(grid(2, 1, leaves=2))
    assert [g.nics[0].bridge for g in lab.guests] == ["l0x0", "l0x1"]


def test_wiring_joins_leaves_by_their_spine():
    lines = wiring(plan(grid(2, 1, leaves=2, mtu=9000)))
    assert "link add l0x0-s0 type veth peer name s0-l0x0" in lines
    assert "link set s0-l0x0 mtu 9000 master s0 up" in lines


def test_wiring_of_rails_keeps_them_apart_unless_bonded():
    apart, joined = (wiring(plan(grid(2, 2), bond=b)) for b in (False, True))
    assert not any("veth" in line for line in apart)
    assert "link add l0-l1 type veth peer name l1-l0" in joined


def test_unknown_guest_is_answered_with_those_that_exist():
    with pytest.raises(KeyError, match="there are a, b"):
        plan(grid(2, 1)).guest("z")


def test_unknown_rail_is_answered_with_those_that_exist():
    with pytest.raises(KeyError, match="it has rail0"):
        plan(grid(2, 1)).guest("a").nic("rail7")


def test_bond_needs_two_rails():
    with pytest.raises(ValueError, match="needs 2 rails"):
        plan(grid(2, 1), bond=True)


def test_routes_spread_over_all_rails_to_every_peer():
    lab = plan(grid(3, 2))
    assert baseline_routes(lab, lab.guest("a")) == [
        "10.255.0.2/32 metric 1024 src 10.255.0.1"
        " nexthop via 10.10.0.2 dev a-rail0 nexthop via 10.11.0.2 dev a-rail1",
        "10.255.0.3/32 metric 1024 src 10.255.0.1"
        " nexthop via 10.10.0.3 dev a-rail0 nexthop via 10.11.0.3 dev a-rail1",
    ]


def test_bonded_routes_go_over_the_bond_and_the_third_rail():
    lab = plan(grid(2, 3), bond=True)
    assert baseline_routes(lab, lab.guest("a")) == [
        "10.255.0.2/32 metric 1024 src 10.255.0.1 nexthop via 10.10.0.2 dev a-bond0 nexthop via 10.12.0.2 dev a-rail2"
    ]


def test_setup_names_rdma_devices_by_rail():
    lab = plan(grid(2, 2))
    told = setup(lab, lab.guest("a"))
    assert told["rdma"] == [["rxe0", "a-rail0"], ["rxe1", "a-rail1"]]
    assert told["service"] == "10.255.0.1/32"
    assert told["hosts"] == {"a": "10.99.0.1", "b": "10.99.0.2"}


def test_bonded_setup_gives_the_first_rails_address_to_the_bond():
    lab = plan(grid(2, 3), bond=True)
    told = setup(lab, lab.guest("b"))
    assert told["rdma"] == [["rxe0", "b-bond0"], ["rxe1", "b-rail2"]]
    assert told["bond"]["ports"] == ["b-rail0", "b-rail1"]
    assert told["bond"]["address"] == "10.10.0.2/16"
    assert [n["address"] for n in told["nics"]] == [None, None, "10.12.0.2/16", "10.99.0.2/16"]


@pytest.mark.parametrize(
    ("bond", "rail", "expected"),
    [
        (False, "rail1", ("rxe1", "a-rail1", "10.11.0.1/16")),
        (True, "rail1", ("rxe0", "a-bond0", "10.10.0.1/16")),
        (True, "rail2", ("rxe1", "a-rail2", "10.12.0.1/16")),
    ],
)
def test_holder_is_what_carries_the_rails_traffic(bond, rail, expected):
    assert plan(grid(2, 3), bond=bond).holder("a", rail) == expected
