"""Each fault verb, proven on the guests: by what the kernel says, and by what a real RC queue pair sees."""

import time

import pytest

from linkpass_lab.fault import FaultError, parse
from linkpass_lab.guests import jobs, workloads
from linkpass_lab.guests.clients import built
from linkpass_lab.guests.faults import gid_of
from linkpass_lab.guests.jobs import Blow
from linkpass_lab.guests.results import status_of

FAR = {"host": "b", "rail": "rail0"}
OWN = {"host": "a", "rail": "rail0"}


def struck(lab, fault, size, patience=60.0):
    """rcflow, which gives up after 7 tries (0.48 s), for 6 s times `size`, struck for 2.5 s."""
    workload = workloads.every()["rcflow"]
    where = jobs.place(lab, "a", "b", workload, size=size)
    outcome = jobs.run(lab, workload, where, Blow(parse(fault), 2.5, patience))
    assert lab.run("a", ["ping", "-c", "1", "-W", "5", "10.10.0.2"]).returncode == 0, "the repair didn't take"
    return outcome


def carrier(lab, host, rail):
    return lab.run(host, ["cat", f"/sys/class/net/{host}-{rail}/carrier"]).stdout.strip()


def eventually(true, seconds=40.0):
    deadline = time.monotonic() + seconds
    while not (value := true()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


@pytest.mark.parametrize(
    ("fault", "statuses"),
    [
        ({"kind": "silent", **FAR}, {"RETRY_EXC_ERR"}),
        ({"kind": "silent", "way": "to", **FAR}, {"RETRY_EXC_ERR"}),
        ({"kind": "carrier", **FAR}, {"RETRY_EXC_ERR", "LOC_QP_OP_ERR"}),
        ({"kind": "rails", "host": "b"}, {"RETRY_EXC_ERR", "LOC_QP_OP_ERR"}),
        ({"kind": "leaf", "leaf": "l0"}, {"RETRY_EXC_ERR", "LOC_QP_OP_ERR"}),
    ],
    ids=["silent port", "requests lost", "far carrier", "all rails", "leaf"],
)
def test_rc_job_dies_of_a_lost_path(lab, fault, statuses):
    outcome = struck(lab, fault, 3.0)
    assert outcome.ended == "died"
    assert outcome.status in statuses


@pytest.mark.parametrize(
    "fault",
    [{"kind": "loss", "percent": 2, **FAR}, {"kind": "latency", "ms": 5, **FAR}],
    ids=["loss", "latency"],
)
def test_rc_job_survives_a_bad_path_with_every_byte_right(lab, fault):
    outcome = struck(lab, fault, 1.0)
    assert (outcome.ended, outcome.exits) == ("finished", {"server": 0, "client": 0})


@pytest.mark.parametrize("kind", ["gid", "admin-down"])
def test_rc_job_does_not_outlive_its_own_port(lab, kind):
    """It dies when it sends while the GID or port is away, and else stands still: the return doesn't help it."""
    outcome = struck(lab, {"kind": kind, **OWN}, 3.0, patience=10.0)
    assert (outcome.ended, outcome.status) in (("died", "LOC_QP_OP_ERR"), ("died", "WR_FLUSH_ERR"), ("hangs", ""))


def test_lost_acks_kill_a_sender_whose_requests_were_executed(lab):
    """Only acknowledgements are lost: what is sent again, the far end had executed before."""

    # Timeout 4.096 us x 2^17 = 0.54 s, so that a crowded machine alone doesn't make it give up.
    def options(host, address):  # an earlier fault may have given the address another index
        gid = lab.gids(host, "rxe0")[gid_of(address)]
        return [str(built("rcflow") / "rcflow"), "-d", "rxe0", "-x", str(gid), "-u", "17"]

    lost = parse({"kind": "acks", **FAR})
    with lab.start("b", options("b", "10.10.0.2")) as server:
        listening = ["sh", "-c", "grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6"]
        assert eventually(lambda: lab.run("b", listening, check=False).returncode == 0)
        with lab.start(
            "a", [*options("a", "10.10.0.1"), "--ops", "write,send_imm", "-D", "60", "10.99.0.2"]
        ) as client:
            start = counter(lab, "b", "rcvd_pkts")
            assert eventually(lambda: counter(lab, "b", "rcvd_pkts") > start + 200)
            before = counter(lab, "b", "duplicate_request")
            lab.inject(lost)
            assert client.wait(60) == 1
            server.wait(60)
            assert status_of(client.stdout_bytes.decode()) == "RETRY_EXC_ERR"
            assert counter(lab, "b", "duplicate_request") > before


def counter(lab, host, name):
    return int(lab.run(host, ["cat", f"/sys/class/infiniband/rxe0/ports/1/hw_counters/{name}"]).stdout)


def test_carrier_is_lost_at_the_struck_end_only_and_comes_back(lab):
    fault = parse({"kind": "carrier", **FAR})
    lab.inject(fault)
    assert eventually(lambda: carrier(lab, "b", "rail0") == "0")
    assert (carrier(lab, "a", "rail0"), carrier(lab, "b", "rail1")) == ("1", "1")
    lab.repair(fault)
    assert eventually(lambda: carrier(lab, "b", "rail0") == "1")


def test_leaf_takes_the_carrier_of_all_its_ports(lab):
    fault = parse({"kind": "leaf", "leaf": "l1"})
    lab.inject(fault)
    assert eventually(lambda: (carrier(lab, "a", "rail1"), carrier(lab, "b", "rail1")) == ("0", "0"))
    assert (carrier(lab, "a", "rail0"), carrier(lab, "b", "rail0")) == ("1", "1")


def test_flap_train_takes_carrier_as_often_as_asked(lab):
    changes = ["cat", "/sys/class/net/b-rail0/carrier_changes"]
    before = int(lab.run("b", changes).stdout)
    lab.inject(parse({"kind": "flap", "count": 3, "down": 0.3, "up": 0.3, **FAR}))
    assert eventually(lambda: int(lab.run("b", changes).stdout) == before + 6)
    assert carrier(lab, "b", "rail0") == "1"


def test_silent_port_keeps_carrier(lab):
    lab.inject(parse({"kind": "silent", **FAR}))
    assert carrier(lab, "b", "rail0") == "1"
    assert lab.run("a", ["ping", "-c", "2", "-i", "0.2", "-W", "1", "10.10.0.2"], check=False).returncode == 1
    assert lab.run("a", ["ping", "-c", "1", "-W", "5", "10.11.0.2"]).returncode == 0


def test_latency_is_added_once_each_way(lab):
    lab.inject(parse({"kind": "latency", "ms": 60, **FAR}))
    said = lab.run("a", ["ping", "-q", "-c", "3", "-i", "0.2", "-W", "5", "10.10.0.2"]).stdout
    least = float(said.split("=")[1].split("/")[0])
    assert least >= 120


def test_gid_returns_at_the_index_asked_for_and_goes_home(lab):
    own = "0000:0000:0000:0000:0000:ffff:0a0a:0002"
    before = lab.gids("b", "rxe0")
    fault = parse({"kind": "gid", "index": 5, **FAR})
    lab.inject(fault)
    assert lab.gids("b", "rxe0") == {**before, own: 5}
    lab.repair(fault)
    assert lab.gids("b", "rxe0") == before


def test_mtu_changes_the_rdma_ports_mtu_and_comes_back(lab):
    state = ["sh", "-c", "ibv_devinfo -d rxe0 | grep active_mtu"]
    fault = parse({"kind": "mtu", "bytes": 1280, **FAR})
    assert "4096" in lab.run("b", state).stdout
    lab.inject(fault)
    assert "1024" in lab.run("b", state).stdout
    lab.repair(fault)
    assert "4096" in lab.run("b", state).stdout


def test_routes_are_back_after_an_admin_down(lab):
    show = ["ip", "route", "show", "10.255.0.1"]
    before = lab.run("b", show).stdout
    fault = parse({"kind": "admin-down", **FAR})
    lab.inject(fault)
    assert lab.run("b", show).stdout != before
    lab.repair(fault)
    assert lab.run("b", show).stdout == before


def test_unknown_target_is_an_error_that_names_those_that_exist(lab):
    with pytest.raises(FaultError, match="it has rail0, rail1"):
        lab.inject(parse({"kind": "carrier", "host": "a", "rail": "rail9"}))
    with pytest.raises(FaultError, match="there are l0, l1"):
        lab.inject(parse({"kind": "leaf", "leaf": "l9"}))
    assert lab.broken() == []
