"""Public threads about names, and ports that are followed by what they are."""

from linkpass.model import EventKind, PortState
from linkpass_agent.see.rdma_devices import RdmaPort, behind
from linkpass_agent.see.verbs import gid_text
from tests.unit.field.conftest import Make

S = PortState


def test_nccl_236_name_of_one_device_does_not_match_a_longer_one(host: Make) -> None:
    h = host("mlx5", "eth1")
    h.tree.rename("infiniband", "mlx5_2", "mlx5_11")
    h.tree.rename("infiniband", "mlx5_0", "mlx5_1x")
    h.tree.rename("net", "mgmt0", "eth11")
    h.run(2)
    named = h.observing._named()
    assert {k: v for k, v in named.items() if v == "eth1"} == {
        "eth1": "eth1",
        "0000:17:00.0": "eth1",
        "mlx5_1x": "eth1",
    }
    from linkpass_agent.see.kernel_log import hint

    assert hint(1.0, "mlx5_core 0000:19:00.0 eth11: Link down", named) is None
    assert hint(1.0, "mlx5_core 0000:17:00.0 eth1: Link down", named) is not None


def test_nccl_1363_stray_extra_nic_is_never_a_port(host: Make) -> None:
    h = host("mlx5", "eth1", "eth2")
    h.tree.put("net/mgmt0/carrier", 0)
    h.tree.put("infiniband/mlx5_2/ports/1/state", "1: DOWN")
    h.tree.put("infiniband/mlx5_2/ports/1/counters/symbol_error", 60000)
    h.run(5)
    assert set(h.reactor.ports) == {"eth1", "eth2"} == set(h.observing.watched)
    assert [e for e in h.told if "mgmt0" in e.subject + e.text or "mlx5_2" in e.subject + e.text] == []


def test_megatron_132_wrong_rdma_name_is_told_with_those_that_are_there(host: Make) -> None:
    h = host("mlx5", "eth1", choice={"eth1": "mlx5_bond_0"})
    text = "no RDMA device 'mlx5_bond_0' here; there are mlx5_0, mlx5_1, mlx5_2"
    assert h.explain("eth1").unseen["rdma"] == text
    h.run(3)
    assert h.texts(EventKind.SEEN, "eth1").count(text) == 1  # told once
    h.tree.rename("infiniband", "mlx5_0", "mlx5_bond_0")
    h.run(1)
    assert "RDMA device mlx5_bond_0 is there" in h.texts(EventKind.SEEN, "eth1")
    assert h.state("eth1") is S.UP


def test_renamed_net_device_is_the_same_port_and_keeps_its_state(host: Make) -> None:
    h = host("mlx5", "eth1", "eth2")
    h.run(3)
    since = h.reactor.ports["eth1"].since
    h.tree.rename("net", "eth1", "ens17f0np0")
    h.run(3)
    assert (h.state("eth1"), h.reactor.ports["eth1"].since, h.reactor.ports["eth1"].flaps) == (S.UP, since, 0)
    told = h.explain("eth1")
    assert (told.device, told.pci, told.rdma) == ("ens17f0np0", "0000:17:00.0", "mlx5_0/1")
    assert "eth1 is called ens17f0np0 now (PCI 0000:17:00.0)" in h.texts(EventKind.SEEN, "eth1")
    h.tree.put("net/ens17f0np0/carrier", 0)
    h.run(1)
    assert (h.state("eth1"), h.state("eth2")) == (S.DOWN, S.UP)


def test_names_that_two_devices_swapped_stay_with_the_devices(host: Make) -> None:
    h = host("mlx5", "eth1", "eth2")
    h.tree.rename("net", "eth1", "tmp")
    h.tree.rename("net", "eth2", "eth1")
    h.tree.rename("net", "tmp", "eth2")
    h.run(1)
    assert (h.names.device("eth1"), h.names.device("eth2")) == ("eth2", "eth1")
    h.tree.put("infiniband/mlx5_0/ports/1/state", "1: DOWN")  # of the NIC that was eth1 when we began
    h.run(1)
    assert (h.state("eth1"), h.state("eth2")) == (S.DOWN, S.UP)


def test_device_made_anew_at_its_pci_address_under_another_name_is_the_port_again(host: Make) -> None:
    h = host("mlx5", "eth1", "eth2")
    h.run(1)
    h.tree.vanish("net", "eth1")
    h.run(3)
    assert h.state("eth1") is S.ABSENT
    lines = [
        line.replace("net/eth1", "net/eth7").replace("ifindex = 4", "ifindex = 31")
        for line in (h.tree.fixture("mlx5")).splitlines()
        if "net/eth1" in line
    ]
    h.tree.load("\n".join(lines))
    h.run(1)
    assert h.names.device("eth1") == "eth7"
    assert h.state("eth1") is S.HELD
    h.run(1)
    assert h.state("eth1") is S.UP


def test_other_nic_that_took_the_ports_name_is_not_the_port(host: Make) -> None:
    h = host("mlx5", "eth1", "eth2")
    h.run(1)
    h.tree.vanish("net", "eth1")
    h.tree.rename("net", "mgmt0", "eth1")
    h.run(3)
    assert h.state("eth1") is S.ABSENT
    text = "eth1 is another NIC now, at 0000:19:00.0; the port's own, at 0000:17:00.0, is gone"
    assert text in h.texts(EventKind.SEEN, "eth1")


def test_port_given_by_pci_address_is_found_whatever_it_is_called(host: Make) -> None:
    h = host("mlx5", "fabric0", pci={"fabric0": "0000:18:00.0"})
    h.run(1)
    assert h.names.device("fabric0") == "eth2"
    assert h.explain("fabric0").rdma == "mlx5_1/1"
    assert h.state("fabric0") is S.UP


def test_representor_at_the_parents_pci_address_is_not_taken_for_the_port(host: Make) -> None:
    h = host("mlx5", "eth1")
    lines = [
        line.replace("net/eth1", "net/eth1_rep0").replace("ifindex = 4", "ifindex = 40").replace("= p0", "= pf0vf0")
        for line in h.tree.fixture("mlx5").splitlines()
        if "net/eth1" in line
    ]
    h.tree.load("\n".join(lines))
    h.tree.rename("net", "eth1", "uplink0")
    h.run(1)
    assert h.names.device("eth1") == "uplink0"
    h.tree.vanish("net", "uplink0")
    h.run(1)
    assert h.names.index("eth1") is None


def test_renamed_rdma_device_is_followed(host: Make) -> None:
    h = host("mlx5", "eth1")
    h.tree.rename("infiniband", "mlx5_0", "rocep23s0")
    h.run(1)
    assert h.explain("eth1").rdma == "rocep23s0/1"
    assert h.state("eth1") is S.UP
    h.tree.put("infiniband/rocep23s0/ports/1/counters/excessive_buffer_overrun_errors", 1)
    h.run(2)
    assert h.findings("eth1") == ["buffer-overruns"]  # counted on from before the new name


def test_nccl_1333_gid_that_moves_to_another_index_is_found_there(host: Make) -> None:
    """What the guest's kernel showed: index 1 became index 8. The device is still found by its GIDs."""
    h = host("rxe", "a-rail0", "a-rail1")
    assert behind("a-rail0", h.tree.infiniband) == RdmaPort("rxe0", 1)
    h.tree.load(h.tree.fixture("rxe", "3.txt"))
    (h.tree.root / "devices/virtual/infiniband/rxe0/parent").unlink()  # only the GIDs tell
    assert behind("a-rail0", h.tree.infiniband) == RdmaPort("rxe0", 1)
    assert gid_text("0000:0000:0000:0000:0000:ffff:0a0a:0001") == "::ffff:10.10.0.1"
    h.run(3)
    assert (h.state("a-rail0"), h.findings("a-rail0")) == (S.UP, [])
