"""What the lab writes for ip, FRR and people."""

from pathlib import Path
from typing import Any

import pytest

from linkpass_lab import mininet_fabric
from linkpass_lab.namespaces import lossy
from linkpass_lab.story import Line, stages, timeline
from linkpass_lab.traffic import iperf3_result
from linkpass_topology.fabric import Fabric, dump, grid, load


def test_addresses_follow_from_the_fabric() -> None:
    fabric = grid(2, 2, mtu=9000)
    assert mininet_fabric.addresses(fabric, fabric.host("b")).splitlines() == [
        "address replace 10.99.0.2/16 dev b-mgmt",
        "link set b-rail0 mtu 9000",
        "address replace 10.10.0.2/16 dev b-rail0",
        "link set b-rail1 mtu 9000",
        "address replace 10.11.0.2/16 dev b-rail1",
        "address replace 10.255.0.2/32 dev lo",
    ]


def test_baseline_is_equal_cost_to_every_peer() -> None:
    fabric = grid(3, 2)
    assert mininet_fabric.baseline(fabric, fabric.host("a")).splitlines() == [
        "route replace 10.255.0.2/32 metric 1024 src 10.255.0.1"
        " nexthop via 10.10.0.2 dev a-rail0 nexthop via 10.11.0.2 dev a-rail1",
        "route replace 10.255.0.3/32 metric 1024 src 10.255.0.1"
        " nexthop via 10.10.0.3 dev a-rail0 nexthop via 10.11.0.3 dev a-rail1",
    ]


@pytest.mark.parametrize(("percent", "threshold"), [(0.0, 0), (50.0, 2**31), (25.0, 2**30), (100.0, 2**32 - 1)])
def test_loss_is_a_share_of_32_bits(percent: float, threshold: int) -> None:
    # 53 is BPF_JMP | BPF_JGE | BPF_K: at or above the threshold jump over the drop.
    assert f",53 1 0 {threshold},6 0 0 2," in lossy(percent)


@pytest.mark.parametrize("fabric", [grid(2, 2), grid(4, 2, mtu=9000, leaves=2), grid(30, 3)])
def test_fabric_dumped_is_loaded_as_the_same(tmp_path: Path, fabric: Fabric) -> None:
    file = tmp_path / "f.toml"
    file.write_text(dump(fabric))
    assert load(file) == fabric


LINES = [
    Line(10.001, "b", "seen", "b-rail1", "b-rail1: carrier true -> false", ""),
    Line(10.002, "b", "shared", "b-rail1", "b-rail1 up -> down (carrier lost)", ""),
    Line(10.0035, "a", "learned", "b", "b-rail1 up -> down", "x"),
    Line(10.004, "a", "decided", "10.255.0.2", "a-rail0 via 10.10.0.2", "rail1 is down"),
    Line(10.005, "a", "acted", "10.255.0.2", "10.255.0.2: a-rail0 via 10.10.0.2", "rail1 is down"),
]


def test_timeline_counts_from_the_fault_and_gives_a_cause_once() -> None:
    told = [" ".join(text.split()) for text in timeline(LINES, 10.0)]
    assert told[0] == "+1.0 ms b seen b-rail1: carrier true -> false"
    assert told[3] == "+4.0 ms a decided 10.255.0.2: a-rail0 [rail1 is down]"
    assert told[4] == "+5.0 ms a acted 10.255.0.2: a-rail0"


def test_stages_are_the_first_of_each_kind_at_the_right_host() -> None:
    assert stages(LINES, 10.0, "a", "b") == {
        "seen": 1.0,
        "shared": 2.0,
        "learned": 3.5,
        "decided": 4.0,
        "acted": 5.0,
    }


@pytest.mark.parametrize(
    ("text", "finished", "expected"),
    [
        ("", False, {"bytes": 0, "error": "did not end in its time"}),
        ("oops", True, {"bytes": 0, "error": "no JSON: 'oops'"}),
    ],
)
def test_transfer_without_a_report_moved_nothing(text: str, finished: bool, expected: dict[str, Any]) -> None:
    assert iperf3_result(text, finished=finished) == expected


def test_transfer_with_a_report_moved_what_was_received() -> None:
    text = (
        '{"end": {"sum_sent": {"bytes": 9, "retransmits": 3},'
        ' "sum_received": {"bytes": 8, "seconds": 2, "bits_per_second": 32e6}}}'
    )
    assert iperf3_result(text, finished=True) == {
        "bytes": 8,
        "seconds": 2.0,
        "mbit": 32.0,
        "retransmits": 3,
        "error": "",
    }
