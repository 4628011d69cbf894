"""The route actuator on real next-hop objects, and the fake kernel held to the real one."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from linkpass.errors import KernelError
from linkpass.model import Hop, Plan, Route, Step
from linkpass_agent.act import rtnl
from linkpass_agent.act.ledger import Ledger
from linkpass_agent.act.routes import RouteActuator, RouteRule
from linkpass_agent.act.rtnl import KernelRoute, Message, NextHop, Rtnl
from tests.fakes.kernel import FakeKernel
from tests.system.sandbox import Sandbox, sandbox, until

pytestmark = pytest.mark.system
RULE = RouteRule(metric=50, protocol=76, table=254, base=1280311296)
B = "10.255.0.2"
B0, B1 = Hop("a-rail0", "10.10.0.2"), Hop("a-rail1", "10.11.0.2")


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with sandbox() as made:
        made.cable(0)
        made.cable(1)
        made.ip("addr", "add", "10.255.0.1/32", "dev", "lo")
        Path("/proc/sys/net/ipv4/fib_multipath_hash_policy").write_text("1")  # ports count: flows spread
        yield made


@pytest.fixture
def kernel(box: Sandbox) -> Iterator[Rtnl]:
    door = Rtnl()
    yield door
    door.close()


def index(name: str) -> int | None:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return None


def name(index_: int) -> str | None:
    try:
        return socket.if_indextoname(index_)
    except OSError:
        return None


def actuator(kernel: Rtnl, folder: Path) -> RouteActuator:
    return RouteActuator(kernel, Ledger(folder / "ledger.json"), RULE, index)


def apply(act: RouteActuator, *hops: Hop, to: str = B, source: str = "10.255.0.1") -> tuple[tuple[Hop, ...], str]:
    step = Step(Route("b", to, hops, source), act.current.get(to, ()), "test")
    (outcome,) = act.apply(Plan((step,)))
    return outcome.hops, outcome.error


def lookup(box: Sandbox, to: str = B, flow: int = 0) -> str:
    """The device that the kernel would send a packet of this flow out of; '' if none."""
    try:
        answer = json.loads(
            box.ip("-j", "route", "get", to, "ipproto", "udp", "sport", str(1000 + flow), "dport", "9")
        )
    except subprocess.CalledProcessError:
        return ""
    return str(answer[0].get("dev", ""))


def lower_up(box: Sandbox, device: str) -> bool:
    """Does routing know that the device has carrier? (operstate follows with the same event)"""
    return (box.sysfs / device / "operstate").read_text().strip() == "up"


def picture(box: Sandbox) -> tuple[list[str], list[str]]:
    """All next hops and IPv4 routes, as text. (IPv6 has its link-local ones come when they like.)"""
    return box.ip("nexthop").splitlines(), box.ip("-4", "route", "show", "table", "all").splitlines()


def baseline(box: Sandbox) -> None:
    """The route that is there without LinkPass, somebody else's next hop, and a route that uses it."""
    box.ip(
        "route", "add", B, "metric", "1024", "src", "10.255.0.1",
        "nexthop", "via", "10.10.0.2", "dev", "a-rail0", "nexthop", "via", "10.11.0.2", "dev", "a-rail1",
    )  # fmt: skip
    box.ip("nexthop", "add", "id", "7", "via", "10.10.0.77", "dev", "a-rail0", "proto", "static")
    box.ip("route", "add", "10.77.0.0/16", "nhid", "7")


# -- prepare, commit, undo ---------------------------------------------------------------------------------------


def test_route_spreads_over_its_hops_and_wins_over_the_baseline(box: Sandbox, kernel: Rtnl, tmp_path: Path) -> None:
    baseline(box)
    act = actuator(kernel, tmp_path)
    assert apply(act, B0, B1) == ((B0, B1), "")
    assert {lookup(box, flow=n) for n in range(40)} == {"a-rail0", "a-rail1"}
    assert f"metric {RULE.metric}" in box.ip("route", "show", B)
    assert apply(act, B1) == ((B1,), "")
    assert {lookup(box, flow=n) for n in range(20)} == {"a-rail1"}
    assert act.verify(name) == []


def test_undo_leaves_the_kernel_as_it_was_and_the_baseline_resurfaces(
    box: Sandbox, kernel: Rtnl, tmp_path: Path
) -> None:
    baseline(box)
    before = picture(box)
    act = actuator(kernel, tmp_path)
    apply(act, B1)
    assert picture(box) != before
    assert act.undo(keep_stranded=True) == []
    assert picture(box) == before
    assert lookup(box) in ("a-rail0", "a-rail1")


def test_undo_keeps_the_only_route(box: Sandbox, kernel: Rtnl, tmp_path: Path) -> None:
    act = actuator(kernel, tmp_path)
    apply(act, B0)
    assert act.undo(keep_stranded=True) == [B]
    assert lookup(box) == "a-rail0"
    assert act.undo(keep_stranded=False) == []
    assert lookup(box) == ""


def test_ipv6_routes_and_ipv4_by_way_of_ipv6_neighbours_work(box: Sandbox, kernel: Rtnl, tmp_path: Path) -> None:
    box.ip("addr", "add", "fd10::1/64", "dev", "a-rail0", "nodad")
    box.ip("addr", "add", "fd00::1/128", "dev", "lo", "nodad")
    act = actuator(kernel, tmp_path)
    by_six = Hop("a-rail0", "fd10::2")
    assert apply(act, by_six, to="fd00::2", source="fd00::1") == ((by_six,), "")
    assert apply(act, by_six) == ((by_six,), "")
    assert (lookup(box, "fd00::2"), lookup(box)) == ("a-rail0", "a-rail0")
    assert act.verify(name) == []
    assert act.undo(keep_stranded=False) == []
    assert (lookup(box, "fd00::2"), lookup(box)) == ("", "")


def test_route_in_a_table_past_255_is_made_verified_and_undone(box: Sandbox, kernel: Rtnl, tmp_path: Path) -> None:
    rule = RouteRule(50, 76, 7600, RULE.base)
    act = RouteActuator(kernel, Ledger(tmp_path / "l.json"), rule, index)
    assert apply(act, B0) == ((B0,), "")
    assert B in box.ip("route", "show", "table", "7600")
    assert act.verify(name) == []
    act.undo(keep_stranded=False)
    assert B not in box.ip("route", "show", "table", "all")


def test_source_that_is_not_ours_is_refused_by_the_kernel_and_told(
    box: Sandbox, kernel: Rtnl, tmp_path: Path
) -> None:
    hops, error = apply(actuator(kernel, tmp_path), B0, source="10.255.0.99")
    assert hops == ()
    assert error
    assert lookup(box) == ""


def test_gateway_that_no_device_reaches_is_left_out(box: Sandbox, kernel: Rtnl, tmp_path: Path) -> None:
    act = actuator(kernel, tmp_path)
    assert apply(act, Hop("a-rail0", "192.0.2.9"), B1) == ((B1,), "")


def test_route_of_somebody_else_with_our_metric_is_left_alone(box: Sandbox, kernel: Rtnl, tmp_path: Path) -> None:
    box.ip("route", "add", B, "metric", "50", "via", "10.10.0.77", "proto", "static")
    before = picture(box)
    act = actuator(kernel, tmp_path)
    hops, error = apply(act, B0)
    assert (hops, "routes.metric" in error) == ((), True)
    act.undo(keep_stranded=False)
    assert picture(box) == before


def test_next_hop_of_somebody_else_with_our_id_is_left_alone(box: Sandbox, kernel: Rtnl, tmp_path: Path) -> None:
    box.ip("nexthop", "add", "id", str(RULE.base), "via", "10.10.0.77", "dev", "a-rail0", "proto", "static")
    before = picture(box)
    act = actuator(kernel, tmp_path)
    act.adopt(name)
    assert apply(act, B0, B1) == ((B0, B1), "")
    act.undo(keep_stranded=False)
    assert picture(box) == before


# -- carrier -----------------------------------------------------------------------------------------------------


def test_carrier_loss_drops_the_devices_objects_and_verify_sees_it(
    box: Sandbox, kernel: Rtnl, tmp_path: Path
) -> None:
    act = actuator(kernel, tmp_path)
    apply(act, B0, B1)
    box.far_end(0, up=False)
    until(lambda: len(kernel.nexthops()) == 2)
    assert act.verify(name) == [B]
    assert act.current == {B: (B1,)}
    assert {n.interface for n in kernel.nexthops() if not n.members} == {index("a-rail1")}
    hops, _ = apply(act, B0, B1)
    assert hops == (B1,)  # ENETDOWN
    box.far_end(0, up=True)
    assert apply(act, B0, B1) == ((B0, B1), "")
    assert act.verify(name) == []


def test_last_carrier_lost_and_back_takes_the_route_with_it_and_brings_it_back(
    box: Sandbox, kernel: Rtnl, tmp_path: Path
) -> None:
    act = actuator(kernel, tmp_path)
    apply(act, B0)
    box.far_end(0, up=False)
    act.lost_device("a-rail0")
    until(lambda: lookup(box) == "")
    box.far_end(0, up=True)
    assert apply(act, B0) == ((B0,), "")
    assert lookup(box) == "a-rail0"


def test_device_made_anew_is_used_anew(box: Sandbox, kernel: Rtnl, tmp_path: Path) -> None:
    act = actuator(kernel, tmp_path)
    apply(act, B0, B1)
    box.ip("link", "del", "a-rail0")
    act.lost_device("a-rail0")
    assert apply(act, B1) == ((B1,), "")
    box.cable(0)
    assert apply(act, B0, B1) == ((B0, B1), "")
    assert act.verify(name) == []


# -- adopt -------------------------------------------------------------------------------------------------------

VICTIM = """
import os, signal, socket, sys
from pathlib import Path
from linkpass.model import Hop, Plan, Route, Step
from linkpass_agent.act.ledger import Ledger
from linkpass_agent.act.routes import RouteActuator, RouteRule
from linkpass_agent.act.rtnl import Rtnl

left = int(sys.argv[1])

class Door(Rtnl):  # one message a call, and death after some of them
    def send(self, messages):
        global left
        results = []
        for message in messages:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            results += super().send([message])
        return results

rule = RouteRule(50, 76, 254, 1280311296)
act = RouteActuator(Door(), Ledger(Path(sys.argv[2]) / "ledger.json"), rule, socket.if_nametoindex)
hops = Hop("a-rail0", "10.10.0.2"), Hop("a-rail1", "10.11.0.2")
for wanted in (hops, hops[1:], hops):
    route = Route("b", "10.255.0.2", wanted, "10.255.0.1")
    act.apply(Plan((Step(route, act.current.get("10.255.0.2", ()), "test"),)))
act.undo(keep_stranded=False)
"""
MESSAGES = 10  # 4 for the first route, 2 group replaces, 1 + 1 + 2 for undo


@pytest.mark.parametrize("killed_after", range(MESSAGES + 1))
def test_adopt_mends_what_an_agent_killed_after_any_message_left(
    box: Sandbox, kernel: Rtnl, tmp_path: Path, killed_after: int
) -> None:
    baseline(box)
    before = picture(box)
    root = Path(__file__).parents[2]
    path = os.pathsep.join(str(root / p) for p in (".", "agent", "topology"))
    done = subprocess.run(
        [sys.executable, "-c", VICTIM, str(killed_after), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == (0 if killed_after == MESSAGES else -signal.SIGKILL), done.stderr
    act = actuator(kernel, tmp_path)
    act.adopt(name)
    ours = {n.id: n for n in kernel.nexthops() if n.protocol == RULE.protocol}
    used = {r.nexthop for r in kernel.routes() if r.protocol == RULE.protocol}
    used |= {m for g in list(used) for m in ours[g].members}
    assert set(ours) == used  # no strays
    assert lookup(box)  # the host was never without a route
    assert act.verify(name) == []
    assert apply(act, B0, B1) == ((B0, B1), "")
    act.undo(keep_stranded=False)
    assert picture(box) == before


# -- the netlink door --------------------------------------------------------------------------------------------


def test_thousand_requests_in_one_call_are_all_answered(box: Sandbox, kernel: Rtnl) -> None:
    device = index("a-rail0") or 0
    ids = range(RULE.base, RULE.base + 1000)
    made = kernel.send([rtnl.set_nexthop(i, device, f"10.10.0.{2 + i % 200}", 76) for i in ids])
    assert made == [None] * 1000
    assert {n.id for n in kernel.nexthops()} == set(ids)
    gone = kernel.send([rtnl.delete_nexthop(i) for i in [*ids, 1]])
    assert gone[:-1] == [None] * 1000
    assert gone[-1] is not None
    assert gone[-1].errno == errno.ENOENT
    assert kernel.nexthops() == []


def test_thousand_routes_are_read_back_whole(box: Sandbox, kernel: Rtnl, tmp_path: Path) -> None:
    act = actuator(kernel, tmp_path)
    addresses = [f"10.200.{n >> 8}.{n & 255}" for n in range(1000)]
    outcomes = act.apply(Plan(tuple(Step(Route("b", a, (B0, B1), "10.255.0.1"), (), "") for a in addresses)))
    assert not [o for o in outcomes if o.error]
    assert act.verify(name) == []
    assert set(act.current) == set(addresses)
    again = actuator(kernel, tmp_path)
    assert again.adopt(name) == ["took over 1000 route(s) of an earlier agent"]
    assert again.undo(keep_stranded=False) == []
    assert kernel.nexthops() == []


# -- the fake ----------------------------------------------------------------------------------------------------


def test_fake_kernel_behaves_like_the_real_one(box: Sandbox, kernel: Rtnl) -> None:
    """A thousand random requests and carrier changes: same errors, same objects, same routes at every step."""
    random = Random(20240611)
    fake = FakeKernel(addresses={"10.255.0.1"})
    devices = {}
    for rail in (0, 1):
        devices[rail] = index(f"a-rail{rail}") or 0
        fake.add_device(f"a-rail{rail}", devices[rail])
    up = {0: True, 1: True}

    def request() -> Message:
        id_ = random.randint(1, 8)
        match random.choice(["hop", "hop", "hop", "group", "group", "delete", "route", "route", "route", "unroute"]):
            case "hop":
                rail = random.choice([0, 1, 1, 0, 9])
                device = devices.get(rail, 4000)
                return rtnl.set_nexthop(id_, device, f"10.{10 + rail}.0.{random.randint(2, 4)}", 76)
            case "group":
                return rtnl.set_group(id_, random.choices(range(1, 9), k=random.randint(1, 3)), 76)
            case "delete":
                return rtnl.delete_nexthop(id_)
            case "route":
                source = random.choice(["10.255.0.1", "10.255.0.1", "10.9.9.9"])
                to = f"10.255.0.{random.randint(2, 3)}"
                return rtnl.set_route(to, source, id_, 254, 50, 76, replace=random.random() < 0.5)
            case _:
                return rtnl.delete_route(f"10.255.0.{random.randint(2, 3)}", 254, 50, 76)

    def state(objects: list[NextHop], routes: list[KernelRoute]) -> tuple[list[NextHop], list[str]]:
        return sorted(objects, key=lambda n: n.id), sorted(map(str, (r for r in routes if r.protocol == 76)))

    def code(error: KernelError | None) -> str:
        return errno.errorcode[error.errno] if error else ""

    happened = set()
    for step in range(1000):
        if random.random() < 0.1:
            rail = random.choice([0, 1])
            up[rail] = not up[rail]
            box.far_end(rail, up=up[rail])
            fake.carrier(f"a-rail{rail}", up[rail])
            until(lambda: state(kernel.nexthops(), kernel.routes()) == state(fake.nexthops(), fake.routes()))
            until(lambda rail=rail: lower_up(box, f"a-rail{rail}") == up[rail])  # type: ignore[misc]
            what = f"carrier of rail{rail} {up[rail]}"
        else:
            message = request()
            real, pretended = kernel.send([message])[0], fake.send([message])[0]
            what = f"{message.name} ({message.kind}): {code(real) or 'done'}"
            assert code(real) == code(pretended), f"step {step}: {what}"
            happened.add((message.kind, code(real)))
        assert state(kernel.nexthops(), kernel.routes()) == state(fake.nexthops(), fake.routes()), (
            f"step {step}: {what}"
        )
    errors = {(24, "EEXIST"), (24, "EINVAL"), (25, "ESRCH"), (104, "EINVAL"), (104, "ENETDOWN"), (105, "ENOENT")}
    assert happened == errors | {(kind, "") for kind in (24, 25, 104, 105)}  # nothing was left out
