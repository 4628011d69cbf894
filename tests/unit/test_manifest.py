"""The manifest: reading it, writing it, comparing."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass.errors import ConfigError
from linkpass.manifest import Manifest, PresentPort, capture, differences, load
from linkpass.subnet import inside

PORT = PresentPort(
    "eth1", "rail0", "up", "", "0000:17:00.0", "ethernet", 400_000, 4, 400_000, 4200,
    ("10.10.0.1/24", "fd00::1/64"), "28.39.1002",
)  # fmt: skip
OTHER = replace(PORT, name="eth2", rail="rail1", pci="0000:18:00.0", addresses=("10.11.0.1/24",))


def of(tmp_path: Path, text: str) -> Manifest:
    path = tmp_path / "manifest.toml"
    path.write_text(text)
    return load(path)


def captured(tmp_path: Path, *ports: PresentPort) -> Manifest:
    return of(tmp_path, capture("a", ports))


def test_captured_host_is_as_its_manifest_says(tmp_path: Path) -> None:
    manifest = captured(tmp_path, PORT, OTHER)
    assert manifest.host == "a" and manifest.ports[0].subnet == "10.10.0.0/24"
    assert differences(manifest, [OTHER, PORT]) == []


def test_port_without_pci_or_rdma_is_captured_with_what_it_has(tmp_path: Path) -> None:
    veth = PresentPort("a-rail0", "rail0", "up", speed=10_000, mtu=1500)
    assert differences(captured(tmp_path, veth), [veth]) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rate": 200_000}, "eth1: rate is 200000 Mbit/s, expected 400000 Mbit/s"),
        ({"width": 2}, "eth1: width is 2 lanes, expected 4 lanes"),
        ({"mtu": 1500}, "eth1: mtu is 1500 bytes, expected 4200 bytes"),
        ({"link_layer": "infiniband"}, "eth1: link_layer is infiniband, expected ethernet"),
        ({"firmware": "28.40.1"}, "eth1: firmware is 28.40.1, expected 28.39.1002"),
        ({"rail": "rail7"}, "eth1: rail is rail7, expected rail0"),
        ({"rate": None}, "eth1: rate can't be observed, expected 400000 Mbit/s"),
        ({"addresses": ("192.168.0.1/16",)}, "eth1: subnet is 192.168.0.1/16, expected 10.10.0.0/24"),
        ({"addresses": ()}, "eth1: subnet can't be observed, expected 10.10.0.0/24"),
        ({"state": "absent"}, "eth1: missing: a port of rail0 at 0000:17:00.0"),
    ],
)
def test_difference_names_the_port_what_it_has_and_what_was_expected(
    tmp_path: Path, change: dict[str, object], text: str
) -> None:
    found = differences(captured(tmp_path, PORT), [replace(PORT, **change)])  # type: ignore[arg-type]
    assert [d.text for d in found] == [text]


def test_renamed_port_is_known_by_its_pci_address(tmp_path: Path) -> None:
    assert differences(captured(tmp_path, PORT), [replace(PORT, name="ens1f0np0")]) == []


def test_another_nic_with_the_ports_name_is_not_the_port(tmp_path: Path) -> None:
    found = differences(captured(tmp_path, PORT), [replace(PORT, pci="0000:ff:00.0")])
    assert [d.kind for d in found] == ["missing", "unexpected"]


def test_management_port_that_is_not_in_the_manifest_is_no_fault(tmp_path: Path) -> None:
    found = differences(captured(tmp_path, PORT), [PORT, replace(OTHER, state="down")])
    assert [(d.port, d.kind) for d in found] == [("eth2", "unexpected")]


@pytest.mark.parametrize(
    ("text", "line", "key", "problem"),
    [
        ('[[port]]\nname = "eth1"\nrail = "rail0"\nmtu = "4200"\n', 4, "port[0].mtu", "valid integer"),
        ('[[port]]\nname = "eth1"\nrail = "rail0"\nrat = 1\n', 4, "port[0].rat", "did you mean 'rate'"),
        ('[[port]]\nname = "eth1"\nrail = "rail0"\nsubnet = "10.0.0.1/8"\n', 4, "port[0].subnet", "no subnet"),
        ('[[port]]\nname = "eth1"\nrail = "r"\n[[port]]\nname = "eth2"\nrail = "r"\n', 6, "port[1].rail", "twice"),
        ('host = "a"\n', 1, "port", "[[port]]"),
        ("[[port]\n", 1, "", ""),
    ],
)
def test_bad_manifest_is_refused_with_line_and_key(
    tmp_path: Path, text: str, line: int, key: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as e:
        of(tmp_path, text)
    assert (e.value.line, e.value.key) == (line, key)
    assert problem in e.value.problem


@given(
    firmware=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64),
    rate=st.integers(1, 2**31 - 1),
)
def test_whatever_a_device_tells_of_itself_can_be_written_and_read(
    tmp_path_factory: pytest.TempPathFactory, firmware: str, rate: int
) -> None:
    odd = replace(PORT, firmware=firmware, rate=rate)
    assert differences(captured(tmp_path_factory.mktemp("m"), odd), [odd]) == []


def test_inside_takes_addresses_with_and_without_prefix() -> None:
    assert inside("10.10.0.0/24", "10.10.0.7") and inside("10.10.0.0/24", "10.10.0.7/16")
    assert not inside("10.10.0.0/24", "fd00::1") and not inside("10.10.0.0/24", "10.11.0.1")
