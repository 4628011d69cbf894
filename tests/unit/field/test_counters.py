"""Public threads about counters and states, each with what the agent does about it."""

import errno
import itertools

import pytest

from linkpass.model import EventKind, PortState
from tests.unit.field.conftest import Make

S = PortState
COUNTERS = "infiniband/mlx5_0/ports/1/counters"
HW = "infiniband/mlx5_0/ports/1/hw_counters"


def test_nccl_905_port_that_flaps_is_named_with_its_count_and_the_other_is_left_alone(host: Make) -> None:
    h = host("mlx5", "eth1", "eth2")

    def flap(n: int) -> None:
        up = n % 2
        h.tree.put("net/eth1/carrier", up)
        h.tree.put("net/eth1/operstate", "up" if up else "down")
        h.tree.put("infiniband/mlx5_0/ports/1/state", "4: ACTIVE" if up else "1: DOWN")
        h.tree.put("net/eth1/carrier_down_count", 1 + n // 2 + 1)

    h.run(14, flap)  # 7 falls in 14 s
    assert h.reactor.ports["eth1"].flaps == 7
    assert "link-flaps" in h.findings("eth1")  # 7 in 60 s are more than 5
    (finding,) = [f for f in h.observing.watched["eth1"].rules.findings if f.rule == "link-flaps"]
    assert finding.text == "netdev/carrier_down_count grew by 7 in 60 s, more than 5"
    assert (h.state("eth2"), h.findings("eth2"), h.reactor.ports["eth2"].flaps) == (S.UP, [], 0)


def test_rccl_1423_port_that_cycles_between_polling_and_linkup_is_damped_and_says_so(host: Make) -> None:
    h = host("mlx5", "eth1", "eth2")

    def cycle(n: int) -> None:
        up = n % 2
        h.tree.put("infiniband/mlx5_0/ports/1/state", "4: ACTIVE" if up else "1: DOWN")
        h.tree.put("infiniband/mlx5_0/ports/1/phys_state", "5: LinkUp" if up else "2: Polling")

    h.run(8, cycle)  # 4 falls: hold-downs of 1, 2, 4, 8 s; the last began with the rise at the 8th second
    port = h.reactor.ports["eth1"]
    assert (port.flaps, port.verdict.state) == (4, S.HELD)
    assert "hold-down 8 s" in port.cause
    h.run(7)
    assert h.state("eth1") is S.HELD
    h.run(1)
    assert h.state("eth1") is S.UP
    assert "rdma-phys linkup -> polling" in h.texts(EventKind.SEEN, "eth1")


@pytest.mark.parametrize("file", ["symbol_error", "link_downed", "port_rcv_errors", "port_xmit_wait"])
def test_node_exporter_966_1130_no_pma_is_absent_and_not_zero(host: Make, file: str) -> None:
    h = host("mlx5", "eth1")
    h.tree.put(f"{COUNTERS}/{file}", "N/A (no PMA)")
    h.run(3)
    watched = h.observing.watched["eth1"]
    assert watched.rules.blind() == {f"counters/{file}": "N/A (no PMA)"}
    (shown,) = [c for c in h.explain("eth1").counters if c.source == f"counters/{file}"]
    assert (shown.value, shown.note) == (None, "N/A (no PMA)")
    assert (h.state("eth1"), h.findings("eth1")) == (S.UP, [])


def test_counter_that_can_be_read_again_after_no_pma_counts_from_what_was_known(host: Make) -> None:
    h = host("mlx5", "eth1")
    h.tree.put(f"{COUNTERS}/local_link_integrity_errors", "N/A (no PMA)")
    h.run(2)
    h.tree.put(f"{COUNTERS}/local_link_integrity_errors", 3)
    h.run(4)
    assert "integrity-errors" in h.findings("eth1")


def test_node_exporter_2769_2846_one_drivers_errors_hide_no_other_device(host: Make) -> None:
    h = host("mlx5", "eth1", "eth2")
    for name in ("state", "phys_state", "rate"):
        h.tree.fail(f"infiniband/mlx5_0/ports/1/{name}", errno.EINVAL)
    for path in (h.tree.root / "class" / HW).iterdir():
        h.tree.fail(f"{HW}/{path.name}", errno.EOPNOTSUPP)
    h.tree.put("infiniband/mlx5_1/ports/1/hw_counters/local_ack_timeout_err", 0)
    h.run(2)
    h.tree.put("infiniband/mlx5_1/ports/1/hw_counters/local_ack_timeout_err", 20)
    h.run(1)
    assert "ack-timeouts" in h.findings("eth2")
    told = h.explain("eth1")
    assert told.unseen["rate"] == "Invalid argument"
    assert told.unseen["state"] == "Invalid argument"
    # And the same device's other files are read on:
    h.tree.put(f"{COUNTERS}/excessive_buffer_overrun_errors", 1)
    h.run(1)
    assert h.findings("eth1") == ["buffer-overruns"]
    assert h.state("eth1") is S.SUSPECT


def test_gpud_1164_node_exporter_3434_file_that_fails_is_asked_ever_more_rarely(host: Make) -> None:
    h = host("mlx5", "eth1")
    path = f"{COUNTERS}/port_xmit_wait"
    h.tree.fail(path)
    reads: list[int] = []
    real = h.tree.read

    def counted(fd: int, size: int) -> bytes:
        if h.tree._names[fd].endswith("port_xmit_wait"):
            reads.append(round(h.clock.now()))
        return real(fd, size)

    h.tree.read = counted  # type: ignore[method-assign]
    h.run(200)
    # Asked at once again, then after 4, 8, 16, 32, 64, 64 looks.
    assert len(reads) == 8
    gaps = [b - a for a, b in itertools.pairwise(reads)]
    assert gaps == [1, 4, 8, 16, 32, 64, 64]


def test_gpud_1164_excluded_port_has_no_counter_read_and_still_its_state_watched(host: Make) -> None:
    h = host("mlx5", "eth1", exclude=("eth1",))
    h.run(2)
    assert h.explain("eth1").counters == []
    h.tree.put("infiniband/mlx5_0/ports/1/state", "1: DOWN")
    h.run(1)
    assert h.state("eth1") is S.DOWN


def test_node_exporter_3434_flooded_kernel_log_lets_the_ports_counters_rest_for_a_minute(host: Make) -> None:
    from linkpass_agent.see.kernel_log import hint

    h = host("mlx5", "eth1", "eth2")
    line = "mlx5_core 0000:17:00.0: mlx5_cmd_out_err:838:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed"
    found = hint(h.clock.now(), line, h.observing._named())
    assert found is not None and found.port == "eth1"
    h.observing._hint(found)
    h.tree.put(f"{COUNTERS}/excessive_buffer_overrun_errors", 2)
    h.run(59)
    assert h.findings("eth1") == []
    h.run(2)
    assert h.findings("eth1") == ["buffer-overruns"]
    assert h.texts(EventKind.HINT) == ["firmware commands fail"]


@pytest.mark.parametrize(
    ("file", "top", "rule"),
    [
        ("link_downed", 255, "link-flaps"),
        ("local_link_integrity_errors", 15, "integrity-errors"),
        ("symbol_error", 65535, "symbol-errors"),
    ],
)
def test_gpud_943_counter_at_its_top_is_saturated_and_no_verdict_rests_on_it(
    host: Make, file: str, top: int, rule: str
) -> None:
    h = host("mlx5-ib", "ib0", before={f"{COUNTERS}/{file}": top})
    h.run(120)
    assert h.findings("ib0") == []
    assert h.observing.watched["ib0"].rules.blind() == {f"counters/{file}": f"saturated at {top}"}


def test_gpud_943_flaps_are_counted_by_the_carrier_when_link_downed_is_full(host: Make) -> None:
    h = host("mlx5-ib", "ib0", before={f"{COUNTERS}/link_downed": 255})
    h.run(6, lambda n: h.tree.put("net/ib0/carrier_down_count", 2 + n))
    (finding,) = [f for f in h.observing.watched["ib0"].rules.findings if f.rule == "link-flaps"]
    assert [e.source for e in finding.evidence] == ["netdev/carrier_down_count"]
    assert h.state("ib0") is S.SUSPECT


def test_step_up_to_the_top_counts_for_the_least_that_it_was_and_goes_again(host: Make) -> None:
    h = host("mlx5-ib", "ib0", before={f"{COUNTERS}/link_downed": 249})
    h.tree.put(f"{COUNTERS}/link_downed", 255)
    h.run(1)
    assert "link-flaps" in h.findings("ib0")  # at least 6
    h.run(400)  # 60 s of window, 300 s of clear
    assert h.findings("ib0") == []


def test_soperator_481_counters_are_served_by_the_agents_socket(host: Make) -> None:
    h = host("mlx5", "eth1")
    h.tree.put(f"{HW}/local_ack_timeout_err", 4)
    h.run(1)
    shown = {c.source: c for c in h.explain("eth1").counters}
    assert shown["hw_counters/local_ack_timeout_err"].value == 4
    assert {"counters/symbol_error", "netdev/carrier_down_count"} <= set(shown)


def test_sonic_1883_flap_count_and_time_of_the_last_flap_are_both_kept(host: Make) -> None:
    h = host("mlx5", "eth1")
    h.run(5, lambda n: h.tree.put("net/eth1/carrier", 0 if n == 2 else 1))
    verdict = h.reactor.ports["eth1"].verdict
    assert (verdict.flaps, verdict.last_flap) == (1, 103.0)
    assert h.clock.now() == 105.0


def test_nccl_1015_ucx_10430_bond_with_half_its_bandwidth_names_the_member(host: Make) -> None:
    h = host("bond", "bond0")
    assert (h.state("bond0"), h.findings("bond0")) == (S.UP, [])
    h.tree.put("net/eth2/bonding_slave/mii_status", "down")
    h.tree.put("net/bond0/speed", 100000)
    h.tree.put("net/bond0/carrier_changes", 4)  # what lets the speed be read anew
    h.run(4)
    assert h.findings("bond0") == ["bond-degraded", "speed-lost"]
    told = {f.rule: f.text for f in h.explain("bond0").findings}
    assert told["bond-degraded"] == "members is degraded: eth2 down of 2"
    assert told["speed-lost"] == "speed is 100000, was 200000"
    assert h.state("bond0") is S.SUSPECT
    h.tree.put("net/eth2/bonding_slave/mii_status", "up")
    h.tree.put("net/bond0/speed", 200000)
    h.tree.put("net/bond0/carrier_changes", 5)
    h.run(12)
    assert (h.findings("bond0"), h.state("bond0")) == ([], S.UP)
