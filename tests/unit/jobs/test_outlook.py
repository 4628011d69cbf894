"""Whose a GID is, and how near two ports are."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from linkpass.model import HostRecord, PortRecord, PortState
from linkpass_agent.jobs import locality
from linkpass_agent.jobs.locality import FAR, NODE, SWITCH, UNKNOWN, Locality
from linkpass_agent.jobs.outlook import GONE_GIDS, Gids, Place, gid_of, show_gid


def record(host: str, version: int, *gids: str, addresses: tuple[str, ...] = ()) -> HostRecord:
    return HostRecord(host, 1, version, (), (PortRecord("p0", "rail0", PortState.UP, "", addresses, 1500, gids),))


def test_gid_is_read_in_every_spelling() -> None:
    mapped = bytes(10) + b"\xff\xff\x0a\x0a\x00\x02"
    assert gid_of("0000:0000:0000:0000:0000:ffff:0a0a:0002") == gid_of("::ffff:10.10.0.2") == mapped
    assert gid_of("10.10.0.2") == mapped
    assert gid_of("fe80::1") == b"\xfe\x80" + bytes(13) + b"\x01"
    assert gid_of("mlx5_0") is None
    assert show_gid(mapped) == "10.10.0.2"
    assert show_gid(b"\xfe\x80" + bytes(13) + b"\x01") == "fe80::1"


def test_gid_is_found_by_the_record_s_gids_and_by_its_addresses() -> None:
    gids = Gids()
    gids.learn(record("b", 1, "fe80::1", addresses=("10.10.0.2",)))
    place = Place("b", "rail0", "p0")
    assert gids.find(gid_of("fe80::1") or b"") == gids.find(gid_of("10.10.0.2") or b"") == place
    assert gids.find(bytes(16)) is None


def test_gid_that_a_port_lost_stays_known_until_another_host_names_it() -> None:
    gids = Gids()
    gids.learn(record("b", 1, "fe80::1"))
    gids.learn(record("b", 2))
    found = gids.find(gid_of("fe80::1") or b"")
    assert found is not None and found.host == "b"
    gids.learn(record("c", 1, "fe80::1"))
    found = gids.find(gid_of("fe80::1") or b"")
    assert found is not None and found.host == "c"


@given(st.lists(st.tuples(st.sampled_from("bc"), st.lists(st.integers(0, 9999), max_size=128)), max_size=30))
def test_gids_of_a_host_are_bounded(history: list[tuple[str, list[int]]]) -> None:
    gids, now = Gids(), {}
    for version, (host, numbers) in enumerate(history):
        names = tuple(dict.fromkeys(f"fe80::{n:x}" for n in numbers))
        gids.learn(record(host, version, *names))
        now[host] = names
        for name in names:
            found = gids.find(gid_of(name) or b"")
            assert found is not None and found.host == host
    assert len(gids._places) <= sum(len(n) + GONE_GIDS for n in now.values())


def device(root: Path, netdev: str, path: str, node: int) -> None:
    folder = root / "devices" / path
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{node}\n")
    (root / netdev).mkdir()
    (root / netdev / "device").symlink_to(folder)


def test_locality_is_read_from_sysfs(tmp_path: Path) -> None:
    switch = "pci0000:15/0000:15:01.0/0000:16:00.0"
    device(tmp_path, "eth1", f"{switch}/0000:17:00.0/0000:18:00.0", 0)
    device(tmp_path, "eth2", f"{switch}/0000:17:01.0/0000:19:00.0", 0)
    device(tmp_path, "eth3", "pci0000:25/0000:25:01.0/0000:26:00.0", 0)
    device(tmp_path, "eth4", "pci0000:97/0000:97:01.0/0000:98:00.0", 1)
    one, two, three, four = (locality.read(f"eth{n}", tmp_path) for n in range(1, 5))
    assert one == Locality(("0000:15:01.0", "0000:16:00.0", "0000:17:00.0"), 0)
    assert [locality.distance(one, other) for other in (two, three, four)] == [SWITCH, NODE, FAR]
    assert locality.read("eth9", tmp_path) == UNKNOWN
    assert locality.distance(one, UNKNOWN) == NODE
