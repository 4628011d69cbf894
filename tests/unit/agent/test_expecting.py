"""The manifest joined with the agent's ports."""

from pathlib import Path

import pytest

from linkpass.errors import ConfigError
from linkpass.manifest import Manifest
from linkpass.model import Observation, Signal
from linkpass_agent.expecting import Expecting
from linkpass_agent.judge.rules import PortRules
from tests.fakes.host import Host
from tests.fakes.tree import Tree

from .test_rules import rule

MANIFEST = Manifest.model_validate(
    {
        "port": [
            {"name": "eth7", "pci": "0000:17:00.0", "rail": "rail0", "rate": 400_000, "mtu": 4200},
            {"name": "a-rail9", "rail": "rail9"},
        ]
    }
)
PLACES = {"a-rail0": "0000:17:00.0", "a-rail1": "0000:17:00.0 port 1"}


def host(folder: Path) -> Host:
    return Host(Tree(folder, "other"), ("a-rail0", "a-rail1"))


def expecting(of: Host, manifest: Manifest | None = MANIFEST) -> Expecting:
    return Expecting(manifest, None, of.reactor, PLACES.__getitem__)


def test_port_is_expected_by_its_pci_address_whatever_it_is_called(tmp_path: Path) -> None:
    found = expecting(host(tmp_path))
    assert found.expected("a-rail0") and found.best("a-rail0") == {"rate": 400_000, "mtu": 4200}
    assert not found.expected("a-rail1") and found.best("a-rail1") == {}


def test_port_of_the_manifest_that_isnt_configured_is_told_with_the_remedy(tmp_path: Path) -> None:
    found = [(want.name, why) for want, why in expecting(host(tmp_path)).missing()]
    assert found == [("a-rail9", "it is in the manifest (rail9) and isn't configured: add a [[port]]")]


def test_manifest_read_anew_counts_from_then_on_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    of, file = host(tmp_path / "tree"), tmp_path / "manifest.toml"
    file.write_text('[[port]]\nname = "a-rail1"\nrail = "rail1"\nmtu = 9000\n')
    found = Expecting(MANIFEST, file, of.reactor, lambda port: "")
    assert not found.expected("a-rail1")
    assert found.reload() == f"{file} read anew: 1 ports are expected"
    assert found.expected("a-rail1") and found.best("a-rail1") == {"mtu": 9000}
    file.write_text('[[port]]\nname = "a-rail1"\nrail = "rail1"\nmtu = "big"\n')
    with pytest.raises(ConfigError, match=r"manifest.toml:4: .*mtu"):
        found.reload()
    assert found.best("a-rail1") == {"mtu": 9000}


def test_rules_compare_with_what_a_new_manifest_says(tmp_path: Path) -> None:
    of, wanted = Host(Tree(tmp_path, "mlx5"), ("eth1",)), {"rate": 400_000}
    of.observing._expected = lambda port: wanted
    of.run(12)
    assert of.findings("eth1") == []
    wanted["rate"] = 800_000
    of.observing.expect_anew()
    of.run(12)
    assert of.findings("eth1") == ["rate-lost"]


def test_without_a_manifest_all_configured_ports_are_expected(tmp_path: Path) -> None:
    found = expecting(host(tmp_path), None)
    assert found.expected("a-rail1") and found.missing() == [] and found.view().manifest is None


def test_present_port_shows_what_was_observed_and_none_for_what_was_not(tmp_path: Path) -> None:
    seen = host(tmp_path)
    for signal, value in ((Signal.MTU, 4200), (Signal.NETWORKS, ("10.10.0.1/24",)), (Signal.RDMA_RATE, 400_000)):
        seen.reactor.observe([Observation(1.0, "test", "a-rail0", signal, value)])
    port = expecting(seen).present()[0]
    assert (port.pci, port.mtu, port.addresses) == ("0000:17:00.0", 4200, ("10.10.0.1/24",))
    assert (port.firmware, port.width) == (None, None)
    assert expecting(seen).present()[1].pci is None


def test_rule_compares_with_what_is_expected_even_if_the_port_never_had_it() -> None:
    rules = PortRules("p", [rule(kind="drop", watch="rate", window=0.0)], {"rate": 400})
    rules.look(0.0, {"rate": 200}, [])
    assert [f.text for f in rules.findings] == ["rate is 200, expected 400"]
    rules.look(1.0, {"rate": 800}, [])
    rules.look(200.0, {"rate": 400}, [])
    assert rules.findings == ()


def test_recorded_port_tells_its_link_layer_rate_and_lanes(tmp_path: Path) -> None:
    seen = Host(Tree(tmp_path, "mlx5"), ("eth1",))
    seen.look()
    port = Expecting(None, None, seen.reactor, seen.names.place).present()[0]
    assert (port.link_layer, port.rate, port.width) == ("ethernet", 400_000, 4)
    assert (port.pci, port.firmware) == ("0000:17:00.0", "28.39.1002")
