"""The re-admission gates one by one, and how they hold a port."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass.model import Observation, PortState, Signal, Value
from linkpass_agent.gating import Gating
from linkpass_agent.judge.gates import GateState, Look, asked
from linkpass_agent.judge.gates import shut as first_shut
from linkpass_agent.judge.holddown import HoldDownRule
from linkpass_agent.judge.port import Port
from tests.fakes.host import Host
from tests.fakes.tree import Tree

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


def shut(look: Look) -> str:
    return first_shut(asked(look))


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
        (replace(RIGHT, peers={"d": 9000, "c": 9000, "b": 1500}), "mtu is 4200 bytes, c's is 9000 bytes"),
        (having(GIDS=("1 RoCEv2 fe80::1",)), "no RoCEv2 GID belongs to an address of the port"),
        (having(GIDS=("3 RoCEv1 ::ffff:10.10.0.1",)), "no RoCEv2 GID belongs to an address of the port"),
        (having(GIDS=()), "no RoCEv2 GID belongs to an address of the port"),
        (replace(RIGHT, subnet="10.11.0.0/24"), "no RoCEv2 GID lies in the rail's subnet 10.11.0.0/24"),
        (replace(RIGHT, loud="counters/symbol_error grew"), "counters aren't quiet: counters/symbol_error grew"),
    ],
)
def test_gate_is_shut_and_says_what_is_missing(look: Look, text: str) -> None:
    assert shut(look) == text


def test_one_odd_peer_holds_nobody() -> None:
    assert shut(replace(RIGHT, peers={"b": 4200, "c": 4200, "d": 9216})) == ""


def test_infiniband_port_needs_no_roce_gid() -> None:
    assert shut(having(GIDS=("0 IB fe80::1",), LINK_LAYER="infiniband")) == ""


@given(st.sets(st.sampled_from(sorted(RIGHT.facts))))
def test_what_cant_be_observed_shuts_no_gate(unseen: set[Signal]) -> None:
    blind = replace(RIGHT, facts={s: None if s in unseen else v for s, v in RIGHT.facts.items()})
    gone = replace(RIGHT, facts={s: v for s, v in RIGHT.facts.items() if s not in unseen})
    assert shut(blind) == shut(gone) == ""


def test_each_gate_says_whether_it_is_open_shut_or_cant_be_observed() -> None:
    look = replace(having(RDMA_WIDTH=None, MTU=1500), loud=None, pair=(None, "b offers no queue pair"))
    assert [(g.name, g.state.value, g.text) for g in asked(look)] == [
        ("physical state", "open", ""),
        ("rate", "open", ""),
        ("width", "can't observe", ""),
        ("speed", "open", ""),
        ("mtu", "shut", "mtu is 1500 bytes, expected 4200 bytes"),
        ("peers' mtu", "open", ""),
        ("GID", "open", ""),
        ("counters", "can't observe", ""),
        ("queue pair probe", "can't observe", "b offers no queue pair"),
    ]


def test_queue_pair_probe_is_the_last_gate_asked() -> None:
    silent = replace(RIGHT, pair=("no answer from b by rail0 for 3 s", ""))
    assert shut(silent) == "queue pair probe: no answer from b by rail0 for 3 s"
    assert asked(replace(RIGHT, pair=("", "b answered by rail0")))[-1].state is GateState.OPEN
    assert shut(replace(silent, loud="x grew")) == "counters aren't quiet: x grew"


# -- joined with looks at a recorded tree

PORT = "infiniband/mlx5_0/ports/1/"


def recorded(folder: Path) -> Host:
    host = Host(Tree(folder, "mlx5"), ("eth1",), choice={"eth1": "mlx5_0"})
    host.observing._gates = Gating(host.reactor).look
    host.run(3)
    return host


def leaves(host: Host) -> None:
    for name, text in (("net/eth1/carrier", "0"), (PORT + "state", "1: DOWN"), (PORT + "phys_state", "2: Polling")):
        host.tree.put(name, text)
    told(host, "down")


def comes(host: Host, rate: str) -> None:
    for name, text in (("net/eth1/carrier", "1"), (PORT + "state", "4: ACTIVE"), (PORT + "phys_state", "5: LinkUp")):
        host.tree.put(name, text)
    host.tree.put(PORT + "rate", rate)
    told(host, "active")


def told(host: Host, state: str) -> None:
    """What netlink and the verbs watch say at once."""
    verbs = Observation(host.clock.now(), "verbs", "eth1", Signal.RDMA, state)
    host.reactor.observe([*host._netlink("eth1"), verbs])


def passes(host: Host, seconds: float) -> str:
    host.clock.advance(seconds)
    host.reactor.tick(retry=False)
    verdict = host.reactor.ports["eth1"].verdict
    return f"{verdict.state}: {verdict.cause}"


def test_port_back_from_a_blip_with_half_its_rate_is_held_by_the_look_at_its_return(tmp_path: Path) -> None:
    host = recorded(tmp_path)
    leaves(host)
    host.clock.advance(0.3)
    comes(host, "200 Gb/sec (2X NDR)")
    host.look()
    assert "gate: rate is 200000 Mbit/s, expected 400000" in passes(host, 1.0)
    told = {g.name: (g.state, g.text) for g in host.explain("eth1").gates}
    assert told["rate"] == ("shut", "rate is 200000 Mbit/s, expected 400000 Mbit/s")
    assert told["queue pair probe"] == ("can't observe", "")
    host.tree.put(PORT + "rate", "400 Gb/sec (4X NDR)")
    host.look()
    assert passes(host, 0.1).startswith("up")


def test_look_at_a_port_that_is_down_says_nothing_of_its_gates(tmp_path: Path) -> None:
    host = recorded(tmp_path)
    leaves(host)
    host.run(5)
    comes(host, "400 Gb/sec (4X NDR)")
    assert "not looked at since the port came back" in passes(host, 1.0)
    host.look()
    assert passes(host, 0.1).startswith("up")


def test_gate_opens_when_what_shut_it_cant_be_observed_any_more(tmp_path: Path) -> None:
    host = recorded(tmp_path)
    leaves(host)
    comes(host, "200 Gb/sec (2X NDR)")
    host.look()
    assert "gate: rate" in passes(host, 1.0)
    host.tree.fail(PORT + "rate")
    host.tree.put("net/eth1/speed", "400000")
    host.run(2)
    assert passes(host, 0.1).startswith(("up", "suspect"))


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


def test_port_behind_a_gate_is_not_let_in_by_a_restart() -> None:
    port = see(returned(), 2.1, Signal.GATE, "mtu is 1400 bytes, expected 1500 bytes").tick(500.0)
    again = Port(HoldDownRule(1.0, 300.0, 10.0)).recall(port.past(500.0), 0.0)
    assert see(again, 0.1, Signal.CARRIER, True).state is PortState.HELD


def test_shut_gate_never_takes_a_working_port_out() -> None:
    port = see(Port(HoldDownRule(1.0, 300.0, 10.0)), 0.0, Signal.CARRIER, True)
    assert see(port, 1.0, Signal.GATE, "mtu is 1400 bytes").tick(2.0).state is PortState.UP


def test_port_without_gates_is_let_back_by_its_hold_down_alone() -> None:
    port = see(Port(HoldDownRule(1.0, 300.0, 10.0)), 0.0, Signal.CARRIER, True)
    port = see(see(port, 1.0, Signal.CARRIER, False), 2.0, Signal.CARRIER, True)
    assert port.tick(3.0).state is PortState.UP
