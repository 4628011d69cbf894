"""The re-admission gates one by one, and how they hold a port."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass.model import Observation, PortState, Signal, Value
from linkpass_agent.judge.gates import GATES, Look, shut
from linkpass_agent.judge.holddown import HoldDownRule
from linkpass_agent.judge.port import Port

RIGHT = Look(
    {
        Signal.RDMA_PHYS: "linkup", Signal.RDMA_RATE: 400_000, Signal.RDMA_WIDTH: 4, Signal.SPEED: 400_000,
        Signal.MTU: 4200, Signal.ADDRESSES: ("10.10.0.1",), Signal.LINK_LAYER: "ethernet",
        Signal.GIDS: ("0 RoCEv1 fe80::1", "1 RoCEv2 fe80::1", "3 RoCEv2 ::ffff:10.10.0.1"),
    },
    {"rate": 400_000, "width": 4, "speed": 400_000, "mtu": 4200},
    "10.10.0.0/24",
    {"b": 4200, "c": 1500},
)  # fmt: skip


def having(**facts: Value | None) -> Look:
    return replace(RIGHT, facts={**RIGHT.facts, **{Signal[name]: value for name, value in facts.items()}})


def test_port_that_has_all_it_should_passes() -> None:
    assert shut(RIGHT) == ""


@pytest.mark.parametrize(
    ("look", "text"),
    [
        (having(RDMA_PHYS="polling"), "physical state polling, expected linkup"),
        (having(RDMA_RATE=200_000), "rate is 200000 Mbit/s, expected 400000 Mbit/s"),
        (having(RDMA_WIDTH=2), "width is 2 lanes, expected 4 lanes"),
        (having(SPEED=100_000), "speed is 100000 Mbit/s, expected 400000 Mbit/s"),
        (having(MTU=1500), "mtu is 1500 bytes, expected 4200 bytes"),
        (replace(RIGHT, peers={"b": 9000}), "mtu is 4200 bytes, b's is 9000 bytes"),
        (having(GIDS=("1 RoCEv2 fe80::1",)), "no RoCEv2 GID belongs to an address of the port"),
        (having(GIDS=("3 RoCEv1 ::ffff:10.10.0.1",)), "no RoCEv2 GID belongs to an address of the port"),
        (having(GIDS=()), "no RoCEv2 GID belongs to an address of the port"),
        (replace(RIGHT, subnet="10.11.0.0/24"), "no RoCEv2 GID lies in the rail's subnet 10.11.0.0/24"),
        (replace(RIGHT, loud="counters/symbol_error grew"), "counters aren't quiet: counters/symbol_error grew"),
    ],
)
def test_gate_is_shut_and_says_what_is_missing(look: Look, text: str) -> None:
    assert shut(look) == text


def test_infiniband_port_needs_no_roce_gid() -> None:
    assert shut(having(GIDS=("0 IB fe80::1",), LINK_LAYER="infiniband")) == ""


@given(st.sets(st.sampled_from(sorted(RIGHT.facts))), st.sampled_from(GATES))
def test_what_cant_be_observed_shuts_no_gate(unseen: set[Signal], gate: object) -> None:
    blind = replace(RIGHT, facts={s: None if s in unseen else v for s, v in RIGHT.facts.items()})
    gone = replace(RIGHT, facts={s: v for s, v in RIGHT.facts.items() if s not in unseen})
    assert shut(blind) == shut(gone) == ""


# -- in the port's state machine


def see(port: Port, at: float, signal: Signal, value: Value) -> Port:
    return port.observe(Observation(at, "test", "p", signal, value))


def returned() -> Port:
    """UP, down at 1 s, back at 2 s with a hold-down of 1 s."""
    port = see(Port(HoldDownRule(1.0, 300.0, 10.0)), 0.0, Signal.CARRIER, True)
    port = see(port, 0.0, Signal.GATE, "")
    return see(see(port, 1.0, Signal.CARRIER, False), 2.0, Signal.CARRIER, True)


def test_port_that_returned_waits_until_its_gates_were_looked_at() -> None:
    port = returned().tick(3.5)
    assert (port.state, port.cause) == (
        PortState.HELD, "hold-down served; gate: not looked at since the port came back"
    )  # fmt: skip
    assert port.wakes_at is None
    assert see(port, 3.6, Signal.GATE, "").tick(3.7).state is PortState.UP


def test_shut_gate_holds_after_the_hold_down_and_is_shown_and_its_opening_lets_go() -> None:
    port = see(returned(), 2.1, Signal.GATE, "mtu is 1400 bytes, expected 1500 bytes")
    assert port.wakes_at == 3.0
    port = port.tick(3.0)
    assert port.verdict.cause == "hold-down served; gate: mtu is 1400 bytes, expected 1500 bytes"
    assert port.tick(500.0).state is PortState.HELD
    assert see(port, 501.0, Signal.GATE, "").tick(501.1).state is PortState.UP


def test_shut_gate_never_takes_a_working_port_out() -> None:
    port = see(Port(HoldDownRule(1.0, 300.0, 10.0)), 0.0, Signal.CARRIER, True)
    assert see(port, 1.0, Signal.GATE, "mtu is 1400 bytes").tick(2.0).state is PortState.UP


def test_port_without_gates_is_let_back_by_its_hold_down_alone() -> None:
    port = see(Port(HoldDownRule(1.0, 300.0, 10.0)), 0.0, Signal.CARRIER, True)
    port = see(see(port, 1.0, Signal.CARRIER, False), 2.0, Signal.CARRIER, True)
    assert port.tick(3.0).state is PortState.UP
