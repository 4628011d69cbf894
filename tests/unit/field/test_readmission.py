"""Public threads about ports that are back and don't carry, and about what was never to be looked at."""

from pathlib import Path

import pytest

from linkpass.manifest import Manifest
from linkpass.model import Observation, PortState, Signal
from linkpass.settings import load
from linkpass.shim import abi
from linkpass_agent.__main__ import main
from linkpass_agent.expecting import Expecting
from linkpass_agent.gating import Gating
from tests.fakes.desks import World
from tests.fakes.host import Host
from tests.unit.agent.test_alarms import Watch
from tests.unit.agent.test_pairing import Cloth, End, passes
from tests.unit.field.conftest import Make

S = PortState


def gids(host: Host, *table: str) -> None:
    now = host.clock.now()
    addresses = Observation(now, "sweep", "eth1", Signal.ADDRESSES, ("10.10.0.1",))
    host.reactor.observe([addresses, Observation(now, "verbs", "eth1", Signal.GIDS, table)])


def test_nccl_2157_port_that_is_back_before_its_gid_waits_and_is_used_with_the_one_that_comes(host: Make) -> None:
    h = host("mlx5", "eth1", "eth2")
    h.observing._gates = Gating(h.reactor).look
    gids(h, "1 RoCEv2 fe80::1", "3 RoCEv2 ::ffff:10.10.0.1")
    h.run(3)
    h.tree.put("net/eth1/carrier", 0)
    h.run(1)
    h.tree.put("net/eth1/carrier", 1)
    gids(h, "1 RoCEv2 fe80::1")
    h.run(30)
    assert (h.state("eth1"), h.state("eth2")) == (S.HELD, S.UP)
    assert "gate: no RoCEv2 GID belongs to an address of the port" in h.reactor.ports["eth1"].verdict.cause
    gids(h, "1 RoCEv2 fe80::1", "5 RoCEv2 ::ffff:10.10.0.1")  # at another index: fine
    h.run(2)
    assert h.state("eth1") is S.UP
    record = h.reactor.record.port_on("rail0")
    assert record is not None and record.gids == ("fe80::1", "::ffff:10.10.0.1")  # what new queue pairs go by


async def test_mooncake_3596_port_that_is_active_after_a_flap_proves_that_queue_pairs_work_first() -> None:
    cloth = Cloth()
    a, b = End("a", 1, cloth), End("b", 2, cloth)
    a.peers["b"], b.peers["a"] = b, a
    a.comes()
    b.comes()
    cloth.deaf.add("::ffff:10.10.0.1")  # carrier, ACTIVE, a GID and UDP: all there
    a.bounces()
    await passes(cloth, a, b, seconds=11)
    assert a.pairing.says("a0")[0] == "no answer from b by rail0 for 10 s"
    cloth.deaf.clear()
    await passes(cloth, a, b, seconds=1)
    assert a.pairing.says("a0") == ("", "b answered by rail0")


@pytest.mark.parametrize("host", ["a", "b"])
def test_mooncake_3523_bond_that_bounces_sends_both_ends_to_another_pair_and_its_quick_return_takes_no_order_back(
    host: str,
) -> None:
    world = World()
    one, other = world.job()
    world.port(host, 0, S.DOWN)
    world.port(host, 0, S.HELD)  # back before either end has moved
    world.wait(1.0)
    spare = one.wants()[0].id
    for end in (one, other):
        assert [(o.why, o.spare) for o in end.orders()] == [(abi.C.LP_WHY_DOWN, spare)]
    world.move(one, other)
    assert world.connection(one).rail == world.connection(other).rail == "rail1"


def test_nvsentinel_1361_port_that_the_manifest_doesnt_expect_is_never_a_fault() -> None:
    manifest = Manifest.model_validate({"port": [{"name": "p", "rail": "rail0"}]})
    watch = Watch("p", "q")
    watch.alarming._expected = Expecting(manifest, None, watch.reactor, lambda port: "").expected
    for port in "pq":
        watch.see(port, Signal.CARRIER, False)
    watch.run(3600, step=20)
    assert watch.active == [("p", "port-outage")]
    assert not [e for e in watch.events() if e.startswith("q")]


def test_nvsentinel_1529_bad_configuration_stops_the_agent_and_names_file_line_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "linkpass.toml"
    lines = [
        'host = "a"', "[[port]]", 'name = "eth1"', 'rail = "rail0"', "[share]", 'listen = "10.0.0.1:7471"',
        f'keyring = "{tmp_path}/fleet.keys"', "[hold_down]", "first = 1.0",
    ]  # fmt: skip
    file.write_text("\n".join(lines))
    assert load(file).hold_down.first == 1.0
    for bad, says in (('first = "soon"', "hold_down.first"), ("frist = 1.0", "hold_down.frist")):
        file.write_text("\n".join([*lines[:-1], bad]))
        assert main(["--config", str(file)]) == 2
        said = capsys.readouterr().err
        assert f"{file}:9:" in said and says in said
