"""Agents in guests: they see their RDMA ports through verbs, and one guest's fault reaches the other's agent."""

import time

import pytest

from linkpass_lab.agents import Agents, toml
from linkpass_lab.fault import parse
from linkpass_lab.guests.faults import gid_of
from linkpass_topology.fabric import dump

CUT = parse({"kind": "carrier", "host": "b", "rail": "rail0"})


@pytest.fixture(scope="module")
def agents(shared_lab):
    """One agent in each guest; that of b reads its ports, address and seeds off the fabric's file."""
    running = Agents(shared_lab, {"log": {"level": "debug"}, "hold_down": {"max": 2.0}})
    running.write()
    fabric = shared_lab.folder / "fabric.toml"
    if not fabric.exists():
        fabric.write_text(dump(shared_lab.fabric))
    own = running.configuration("b")
    short = {"fabric": str(fabric), **{k: own[k] for k in ("host", "mode", "paths", "probe", "log")}}
    short["share"] = {"keyring": own["share"]["keyring"]}
    (running.folder("b") / "linkpass.toml").write_text(toml(short))
    for host in ("a", "b"):
        running.launch(host)
    for host in ("a", "b"):
        running.wait(host)
    running.wait_until_connected(60.0)
    yield running
    assert running.stop_all() == {"a": 0, "b": 0}


class Log:
    """An agent's log, which lies in the folder that guests share with us: no guest's clock or program is needed."""

    def __init__(self, agents: Agents, host: str) -> None:
        self._path = agents.log(host)
        self._from = self._path.stat().st_size

    def first(self, *words: str, seconds: float = 60.0) -> float:
        """When a new line with all these words stood here first (monotonic seconds of this machine)."""
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline:
            with self._path.open("rb") as file:
                file.seek(self._from)
                lines = file.read().decode(errors="replace").splitlines()
            if any(all(w in line for w in words) for line in lines):
                return now
            time.sleep(0.002)
        raise AssertionError(f"no line with {words} within {seconds:g} s; there are {lines}")


def test_ports_show_their_rdma_state_and_gids(agents):
    for host in ("a", "b"):
        for index, port in enumerate(agents.ports(host)):
            assert (port["state"], port["rdma"]) == ("up", "active")
            address = agents.lab.fabric.host(host).on_rail(index)
            assert any("RoCEv2" in gid and gid.endswith(f"::ffff:{address}") for gid in port["gids"]), port["gids"]


def test_carrier_fault_in_one_guest_reaches_the_other_agent(agents, lab, record_property):
    near, far = Log(agents, "a"), Log(agents, "b")
    cut = time.monotonic()
    lab.inject(CUT)
    figures = {
        "b saw it by verbs": far.first("kind=seen subject=b-rail0", "rdma active -> down", "source=verbs"),
        "b's verdict": far.first("kind=verdict subject=b-rail0", "up -> down"),
        "a learned it": near.first("kind=learned subject=b", "b-rail0 up -> down"),
        "a's routes are changed": near.first("kind=acted subject=10.255.0.2", "a-rail1 via 10.11.0.2"),
    }
    print("\nafter the cut: " + ", ".join(f"{what} {1000 * (at - cut):.0f} ms" for what, at in figures.items()))
    for what, at in figures.items():
        record_property(what, at - cut)
    assert {p["name"]: p["state"] for p in agents.ports("a")} == {"a-rail0": "up", "a-rail1": "up"}
    lab.repair(CUT)
    far.first("kind=seen subject=b-rail0", "rdma down -> active")
    near.first("kind=learned subject=b", "b-rail0 held -> up")


def test_gid_that_moves_is_seen(agents, lab):
    far = Log(agents, "b")
    fault = parse({"kind": "gid", "host": "b", "rail": "rail1"})
    lab.inject(fault)
    far.first("kind=seen subject=b-rail1", "gids ", "source=verbs")
    lab.repair(fault)


# -- each gate holds a port that came back, and lets it go. Rate and lanes never change on rxe: recorded trees show
# those gates (tests/unit/agent/test_gates.py).

RETRYING = """
import sys
import pyverbs.addr, pyverbs.cq, pyverbs.device, pyverbs.mr, pyverbs.pd, pyverbs.qp, pyverbs.wr
context = pyverbs.device.Context(name="rxe0")
pd, cq = pyverbs.pd.PD(context), pyverbs.cq.CQ(context, 8)
mr = pyverbs.mr.MR(pd, 64, 1)
cap = pyverbs.qp.QPCap(1, 1, 1, 1)
print("ready", flush=True)
qp = pyverbs.qp.QP(pd, pyverbs.qp.QPInitAttr(qp_type=2, scq=cq, rcq=cq, cap=cap))
to = pyverbs.addr.GlobalRoute(pyverbs.addr.GID(sys.argv[2]), sgid_index=int(sys.argv[1]), hop_limit=64)
attr = pyverbs.qp.QPAttr(port_num=1)
attr.ah_attr = pyverbs.addr.AHAttr(gr=to, is_global=1, port_num=1)
attr.dest_qp_num, attr.path_mtu = 0xABCDEF, 3
attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7  # every 67 ms, for ever
sys.stdin.readline()
qp.to_rts(attr)
qp.post_send(pyverbs.wr.SendWR(opcode=2, num_sge=1, sg=[pyverbs.wr.SGE(mr.buf, 8, mr.lkey)]))
sys.stdin.read()
"""


def cut(lab, log, host, rail):
    """Take the port's carrier and see it fall; the fault that gives it back."""
    fault = parse({"kind": "carrier", "host": host, "rail": rail})
    lab.inject(fault)
    log.first(f"kind=verdict subject={host}-{rail}", "-> down")
    return fault


def returns(log, port, *reason):
    """The gate holds it, and says why."""
    log.first(f"kind=seen subject={port}", "gate ", *reason)


def passes(agents, host, port):
    """The gate lets it go."""
    deadline = time.monotonic() + 60.0
    while (state := {p["name"]: p for p in agents.ports(host)}[port])["state"] != "up":
        assert time.monotonic() < deadline, state["cause"]


def test_port_back_with_a_smaller_mtu_waits_for_the_right_one(agents, lab):
    log = Log(agents, "b")
    back = cut(lab, log, "b", "rail0")
    small = parse({"kind": "mtu", "host": "b", "rail": "rail0", "bytes": 1280})
    lab.inject(small)
    lab.repair(back)
    returns(log, "b-rail0", "-> mtu is 1280 bytes, expected 9000 bytes")
    lab.repair(small)
    passes(agents, "b", "b-rail0")


def test_port_back_without_its_gid_waits_for_it(agents, lab):
    log = Log(agents, "b")
    back = cut(lab, log, "b", "rail1")
    _, device, address = lab.plan.holder("b", "rail1")
    lab.run("b", ["ip", "addr", "del", address, "dev", device])
    lab.repair(back)
    try:
        returns(log, "b-rail1", "-> no RoCEv2 GID belongs to an address of the port")
    finally:
        lab.repair(parse({"kind": "gid", "host": "b", "rail": "rail1"}))
    passes(agents, "b", "b-rail1")


def test_port_whose_counters_grow_waits_until_they_are_quiet(agents, lab):
    log = Log(agents, "a")
    program = lab.folder / "retrying.py"
    program.write_text(RETRYING)
    index = lab.gids("a", "rxe0")[gid_of("10.10.0.1")]
    argv = ["python3", str(program), str(index), gid_of("10.10.0.2")]
    with lab.start("a", argv, input=None) as sender:
        sender.wait_for("ready", 60.0)
        back = cut(lab, log, "a", "rail0")
        small = parse({"kind": "mtu", "host": "a", "rail": "rail0", "bytes": 1280})
        lab.inject(small)  # so that another gate holds it until the counter grows
        lab.repair(back)
        returns(log, "a-rail0", "-> mtu is 1280 bytes")
        sender.write(b"\n")
        log.first("kind=finding subject=a-rail0", "ack-timeouts", "hw_counters/completer_retry_err grew")
        lab.repair(small)
        returns(log, "a-rail0", "-> counters aren't quiet: hw_counters/completer_retry_err grew")
    passes(agents, "a", "a-rail0")


def test_port_that_is_silent_one_way_waits_for_an_answer(agents, lab):
    log = Log(agents, "a")
    back = cut(lab, log, "a", "rail1")
    silent = parse({"kind": "silent", "way": "to", "host": "a", "rail": "rail1"})
    lab.inject(silent)
    lab.repair(back)
    returns(log, "a-rail1", "-> queue pair probe: no answer from b by rail1 for ", "nor to UDP probes")
    lab.repair(silent)
    passes(agents, "a", "a-rail1")


def test_port_that_carries_all_but_queue_pairs_waits_for_theirs(agents, lab):
    """UDP probes pass; RoCE's packets, to UDP port 4791, don't arrive."""
    log = Log(agents, "b")
    back = cut(lab, log, "b", "rail0")
    lab.run("b", ["tc", "qdisc", "add", "dev", "b-rail0", "clsact"])
    match = ["u32", "match", "ip", "dport", "4791", "0xffff", "action", "drop"]
    lab.run("b", ["tc", "filter", "add", "dev", "b-rail0", "ingress", "protocol", "ip", *match])
    lab.repair(back)
    try:
        returns(log, "b-rail0", "-> queue pair probe: no answer from a by rail0 for ")
        told = {g["name"]: g for g in agents.ask("b", "explain", "b-rail0")["gates"]}
        assert told["queue pair probe"]["state"] == "shut" and "UDP" not in told["queue pair probe"]["text"]
        assert {told[gate]["state"] for gate in ("physical state", "mtu", "GID")} == {"open"}
        assert told["speed"]["state"] == "can't observe"
    finally:
        lab.run("b", ["tc", "qdisc", "del", "dev", "b-rail0", "clsact"])
    passes(agents, "b", "b-rail0")
