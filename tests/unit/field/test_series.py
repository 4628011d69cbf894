"""Trees of every driver as time goes by: outages, half rates, resets, reboots."""

import errno
from pathlib import Path
from random import Random

import pytest

from linkpass.model import EventKind, PortState
from linkpass_agent.judge.counting import Reading
from linkpass_agent.see.rdma_devices import RdmaPort
from linkpass_agent.see.rdma_ports import PortFiles
from tests.fakes.host import Host
from tests.fakes.tree import Tree
from tests.unit.field.conftest import Make

S = PortState
# tree, port, RDMA device, rate in Mbit/s, lanes: as the trees' files say, read by hand
HEALTHY = [
    ("mlx5", "eth1", "mlx5_0", 400_000, 4),
    ("mlx5-ib", "ib0", "mlx5_0", 400_000, 4),
    ("bnxt_re", "ens0np0", "bnxt_re0", 200_000, 4),
    ("irdma", "ens3f0", "irdma0", 100_000, 4),
    ("ionic", "benic1p1", "ionic_0", 400_000, 4),
    ("efa", "ens5", "rdmap81s0", 100_000, 4),
    ("rxe", "a-rail0", "rxe0", 2_500, 1),
    ("other", "enp97s0", "newnic0", 800_000, 4),
]
# tree -> a counter of the driver's own that a rule watches, the rule, and growth in one look beyond its limit
OWN = {
    "mlx5": ("local_ack_timeout_err", "ack-timeouts", 11),
    "bnxt_re": ("to_retransmits", "ack-timeouts", 11),
    "irdma": ("tcpInProtoErrors", "receive-errors", 101),
    "ionic": ("tx_rdma_ack_timeout", "ack-timeouts", 11),
    "efa": ("unresponsive_remote_events", "retries-exceeded", 1),
    "rxe": ("retry_exceeded_err", "retries-exceeded", 1),
}


@pytest.mark.parametrize(("tree", "port", "device", "rate", "lanes"), HEALTHY, ids=[row[0] for row in HEALTHY])
def test_healthy_tree_of_every_driver_is_up_without_findings(
    host: Make, tree: str, port: str, device: str, rate: int, lanes: int
) -> None:
    h = host(tree, port, choice={port: device})
    h.run(5)
    look = h.observing.watched[port].last
    assert look is not None
    assert (look.driver, look.rate, look.width) == (tree.partition("-")[0], rate, lanes)
    assert (look.state, look.phys) == ((None, None) if tree == "efa" else ("active", "linkup"))
    assert (h.state(port), h.findings(port)) == (S.UP, [])
    assert h.observing.watched[port].rules.blind() == {}


@pytest.mark.parametrize("tree", list(OWN))
def test_drivers_own_counters_are_watched(host: Make, tree: str) -> None:
    port, device = next((p, d) for t, p, d, *_ in HEALTHY if t == tree)
    file, rule, growth = OWN[tree]
    h = host(tree, port, choice={port: device})
    path = f"infiniband/{device}/ports/1/hw_counters/{file}"
    h.tree.put(path, int(h.tree.value(path)) + growth - 1 if growth > 1 else h.tree.value(path))
    h.run(1)
    assert h.findings(port) == []  # at the limit isn't beyond it
    h.tree.put(path, int(h.tree.value(path)) + 1)
    h.run(1)
    assert h.findings(port) == [rule]


def test_recorded_outage_of_rxe_is_down_then_held_then_up(host: Make) -> None:
    h = host("rxe", "a-rail0", "a-rail1")
    h.run(2)
    h.tree.load(h.tree.fixture("rxe", "1.txt"))
    h.run(1)
    assert h.state("a-rail0") is S.DOWN
    assert h.findings("a-rail0") == ["link-went-down"]
    h.tree.load(h.tree.fixture("rxe", "2.txt"))
    h.run(1)
    assert h.state("a-rail0") is S.HELD
    h.run(1)
    assert h.state("a-rail0") is S.UP
    h.run(120)
    assert h.findings("a-rail0") == []
    assert (h.state("a-rail1"), h.reactor.ports["a-rail1"].flaps) == (S.UP, 0)
    kinds = [(e.kind, e.text) for e in h.story.about(lambda e: e.subject == "a-rail0", 100)]
    assert ("verdict", "up -> down") in kinds and ("finding", "link-went-down is over") in kinds


def test_explanation_tells_of_observation_finding_and_verdict_in_order(host: Make) -> None:
    h = host("rxe", "a-rail0", "a-rail1")
    h.tree.load(h.tree.fixture("rxe", "1.txt"))
    h.run(1)
    story = h.explain("a-rail0").story
    seen = next(e.seq for e in story if e.kind == "seen" and e.text == "carrier true -> false")
    verdict = next(e for e in story if e.kind == "verdict" and e.text == "up -> down")
    shared = next(e.seq for e in story if e.kind == "shared" and "a-rail0 up -> down" in e.text)
    finding = next(e.seq for e in story if e.kind == "finding")
    assert seen < verdict.seq < shared < finding
    assert "carrier false (netlink, 0.00 s ago)" in str(verdict.data["evidence"])


def test_half_rate_is_suspect_after_its_window_and_fine_again_after_the_repair(host: Make) -> None:
    h = host("mlx5", "eth1", "eth2")
    rate = "infiniband/mlx5_0/ports/1/rate"
    h.tree.put(rate, "200 Gb/sec (2X NDR)")
    h.run(2)
    assert h.state("eth1") is S.UP  # a link that comes up step by step gets 2 s
    h.run(1)
    assert h.state("eth1") is S.SUSPECT
    assert h.findings("eth1") == ["rate-lost", "lanes-lost"]
    assert h.explain("eth1").findings[0].text == "rate is 200000, was 400000"
    h.tree.put(rate, "400 Gb/sec (4X NDR)")
    h.run(11)
    assert (h.state("eth1"), h.findings("eth1")) == (S.UP, [])


def test_half_rate_that_an_operator_accepts_by_undrain_is_right_from_then_on(host: Make) -> None:
    h = host("mlx5", "eth1")
    h.tree.put("infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (2X NDR)")
    h.run(5)
    assert h.findings("eth1") == ["rate-lost", "lanes-lost"]
    h.observing.accept("eth1")
    h.run(30)
    assert h.findings("eth1") == []


def test_rate_that_a_port_without_link_shows_is_no_lost_rate(host: Make) -> None:
    h = host("mlx5", "eth1")
    h.tree.put("infiniband/mlx5_0/ports/1/state", "1: DOWN")
    h.tree.put("infiniband/mlx5_0/ports/1/rate", "2.5 Gb/sec (1X SDR)")
    h.run(10)
    assert (h.state("eth1"), h.findings("eth1")) == (S.DOWN, [])


def test_rate_unknown_to_the_kernel_reads_as_sdr_and_is_not_believed(host: Make) -> None:
    h = host("other", "enp97s0", before={"infiniband/newnic0/ports/1/rate": "10 Gb/sec (4X SDR)"})
    h.run(5)
    assert h.findings("enp97s0") == []
    assert h.explain("enp97s0").unseen["rate"] == "10 Gb/sec (4X SDR), but the net device runs at 800000 Mbit/s"


@pytest.mark.parametrize("text", ["", "<unknown>", "9: NEW", "N/A (no PMA)"])
def test_state_in_words_that_nobody_knows_is_no_observation(host: Make, text: str) -> None:
    h = host("mlx5", "eth1")
    h.tree.put("infiniband/mlx5_0/ports/1/state", text)
    h.tree.put("infiniband/mlx5_0/ports/1/phys_state", text)
    h.run(30)
    assert (h.state("eth1"), h.reactor.ports["eth1"].flaps) == (S.UP, 0)
    assert "state" in h.explain("eth1").unseen


def test_mtu_that_a_driver_reset_is_told_and_stays_in_use(host: Make) -> None:
    h = host("mlx5", "eth1")
    h.tree.put("net/eth1/mtu", 1500)
    h.run(3)
    assert (h.findings("eth1"), h.state("eth1")) == (["mtu-lost"], S.UP)
    h.tree.put("net/eth1/mtu", 9000)
    h.run(11)
    assert h.findings("eth1") == []


def test_link_that_retrains_is_suspect(host: Make) -> None:
    h = host("mlx5-ib", "ib0")
    h.tree.put("infiniband/mlx5_0/ports/1/phys_state", "6: LinkErrorRecovery")
    h.run(2)
    assert (h.findings("ib0"), h.state("ib0")) == (["link-retrains"], S.SUSPECT)


def test_efa_port_that_always_says_active_is_judged_by_its_net_device(host: Make) -> None:
    h = host("efa", "ens5", choice={"ens5": "rdmap81s0"})
    h.tree.put("net/ens5/carrier", 0)
    h.run(1)
    assert h.tree.value("infiniband/rdmap81s0/ports/1/state") == "4: ACTIVE"
    assert h.state("ens5") is S.DOWN


def test_counters_that_a_reload_reset_are_no_growth_and_counted_from_there(host: Make) -> None:
    h = host("mlx5", "eth1", before={"infiniband/mlx5_0/ports/1/counters/symbol_error": 5000})
    h.tree.put("infiniband/mlx5_0/ports/1/counters/symbol_error", 100)
    h.run(1)
    assert h.observing.watched["eth1"].rules.counts["counters/symbol_error"].reading is Reading.RESET
    h.tree.put("infiniband/mlx5_0/ports/1/counters/symbol_error", 220)
    h.run(1)
    assert h.findings("eth1") == []  # 120 is the limit
    h.tree.put("infiniband/mlx5_0/ports/1/counters/symbol_error", 221)
    h.run(1)
    assert h.findings("eth1") == ["symbol-errors"]


def test_operators_own_link_down_is_no_growth(host: Make) -> None:
    h = host("mlx5", "eth1")
    h.admin["eth1"] = False
    h.tree.put("net/eth1/carrier_down_count", 2)
    h.run(2)
    h.admin["eth1"] = True
    h.tree.put("net/eth1/carrier_down_count", 3)
    h.run(2)
    assert h.findings("eth1") == []
    h.run(3)
    h.tree.put("net/eth1/carrier_down_count", 4)
    h.run(1)
    assert h.findings("eth1") == ["link-went-down"]


def test_vanished_device_is_absent_and_its_neighbour_unharmed_and_no_file_stays_open(host: Make) -> None:
    h = host("mlx5", "eth1", "eth2")
    before = len(h.tree._names)
    h.tree.vanish("infiniband", "mlx5_0")
    h.tree.vanish("net", "eth1")
    h.run(3)
    assert (h.state("eth1"), h.state("eth2")) == (S.ABSENT, S.UP)
    h.close()
    assert before > 40 and h.tree._names == {}


def test_missing_files_are_not_asked_for(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "bnxt_re")
    files = PortFiles("ens0np0", RdmaPort("bnxt_re0", 1), tree.infiniband, tree.net, tree)
    look = files.look()
    assert {s.kind.place for s in look.samples} == {"hw_counters", "netdev"}  # it has no folder `counters`
    assert all(s.value is not None for s in look.samples)
    files.close()


def test_file_that_goes_while_it_is_open_is_one_value_unseen(host: Make) -> None:
    h = host("mlx5", "eth1")
    h.tree.lose("infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence")
    h.run(2)
    assert list(h.observing.watched["eth1"].rules.blind()) == ["hw_counters/out_of_sequence"]
    assert h.state("eth1") is S.UP


def test_device_that_fails_wholly_and_comes_back_is_never_down_for_it(host: Make) -> None:
    h = host("mlx5", "eth1")
    port = h.tree.root / "class/infiniband/mlx5_0/ports/1"
    files = [p.relative_to(h.tree.root / "class") for p in port.rglob("*") if p.is_file()]
    for path in files:
        h.tree.fail(str(path), errno.EIO)
    h.run(100)
    assert (h.state("eth1"), h.reactor.ports["eth1"].flaps, h.findings("eth1")) == (S.UP, 0, [])


def test_nvsentinel_1701_maintenance_reboot_of_200_hosts_flags_none(tmp_path: Path) -> None:
    """Every host's links go down for good reason and the agents start anew, before or after their links; counters
    have the falls in them that bringing links up costs. Nobody's port may be doubted or count as flapping."""
    tree, rng = Tree(tmp_path, "rxe"), Random(1701)
    flagged = []
    for n in range(200):
        tree.put("net/a-rail0/carrier_down_count", rng.randrange(1, 9))
        tree.put("infiniband/rxe0/ports/1/hw_counters/link_downed", rng.randrange(0, 9))
        up_after = rng.randrange(-1, 5)  # s after the agent's start
        tree.put("net/a-rail0/carrier", int(up_after < 0))
        tree.put("infiniband/rxe0/ports/1/state", "4: ACTIVE" if up_after < 0 else "1: DOWN")
        h = Host(tree, ("a-rail0",), name=f"h{n}")
        for second in range(8):
            if second == up_after:
                tree.put("net/a-rail0/carrier", 1)
                tree.put("infiniband/rxe0/ports/1/state", "4: ACTIVE")
            h.run(1)
        port = h.reactor.ports["a-rail0"]
        if port.verdict.state is not S.UP or port.flaps or h.texts(EventKind.FINDING):
            flagged.append((n, port.verdict, h.texts(EventKind.FINDING)))
        h.close()
    assert flagged == []
