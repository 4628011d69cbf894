"""The route actuator against a kernel with the real one's rules (tests/fakes/kernel.py)."""

import errno
from pathlib import Path

import pytest

from linkpass.model import Hop, Plan, Route, Step
from linkpass_agent.act.ledger import Ledger
from linkpass_agent.act.routes import RouteActuator, RouteRule
from linkpass_agent.act.rtnl import KernelRoute, Message, NextHop
from tests.fakes.kernel import Entry, FakeKernel

RULE = RouteRule(metric=50, protocol=76, table=254, base=1000)
B, C = "10.255.0.2", "10.255.0.3"
B0, B1 = Hop("a-rail0", "10.10.0.2"), Hop("a-rail1", "10.11.0.2")
C0, C1 = Hop("a-rail0", "10.10.0.3"), Hop("a-rail1", "10.11.0.3")


@pytest.fixture
def kernel() -> FakeKernel:
    kernel = FakeKernel()
    kernel.add_device("a-rail0", 3)
    kernel.add_device("a-rail1", 4)
    return kernel


class Host:
    """An actuator, its kernel and its ledger's folder."""

    def __init__(self, kernel: FakeKernel, folder: Path) -> None:
        self.kernel, self.folder = kernel, folder
        self.act = RouteActuator(kernel, Ledger(folder / "ledger.json"), RULE, kernel.index)

    def step(self, destination: str, *hops: Hop) -> Step:
        before = self.act.current.get(destination, ())
        return Step(Route("peer", destination, hops, "10.255.0.1"), before, "test")

    def apply(self, destination: str, *hops: Hop) -> tuple[tuple[Hop, ...], str]:
        (outcome,) = self.act.apply(Plan((self.step(destination, *hops),)))
        return outcome.hops, outcome.error

    def verify(self) -> list[str]:
        return self.act.verify(self.kernel.name)

    def believed(self, destination: str) -> set[tuple[str, str]]:
        return {(h.device, h.via) for h in self.act.current.get(destination, ())}

    def check(self, *destinations: str) -> None:
        """What the actuator believes is what the kernel has."""
        for destination in destinations:
            assert self.believed(destination) == self.kernel.hops_of(destination)


@pytest.fixture
def host(kernel: FakeKernel, tmp_path: Path) -> Host:
    return Host(kernel, tmp_path)


def restarted(host: Host) -> tuple[Host, list[str]]:
    """The agent was killed; a new one starts."""
    again = Host(host.kernel, host.folder)
    return again, again.act.adopt(host.kernel.name)


# -- prepare and commit ------------------------------------------------------------------------------------------


def test_new_route_has_a_group_of_its_hops_and_our_marks(host: Host) -> None:
    assert host.apply(B, B0, B1) == ((B0, B1), "")
    entry = host.kernel.table[B, 254, 50]
    assert (entry.source, entry.route.protocol) == ("10.255.0.1", 76)
    assert {n.protocol for n in host.kernel.nexthops()} == {76}
    assert host.kernel.hops_of(B) == {("a-rail0", "10.10.0.2"), ("a-rail1", "10.11.0.2")}
    host.check(B)


def test_prepare_writes_ids_down_and_touches_no_kernel(host: Host) -> None:
    host.act.prepare(Plan((host.step(B, B0),)))
    assert host.kernel.sent == []
    made, complaint = Ledger(host.folder / "ledger.json").load()
    assert (made.nexthops, made.groups, complaint) == ({("a-rail0", "10.10.0.2"): 1000}, {B: 1001}, "")


def test_ids_are_never_given_twice(host: Host) -> None:
    host.apply(B, B0, B1)
    host.apply(C, C0, C1)
    ids = [*host.act._made.nexthops.values(), *host.act._made.groups.values()]
    assert sorted(ids) == [1000, 1001, 1002, 1003, 1004, 1005]


def test_path_taken_out_or_back_in_is_one_message(host: Host) -> None:
    host.apply(B, B0, B1)
    for hops in ((B1,), (B0, B1)):
        host.kernel.sent.clear()
        assert host.apply(B, *hops) == (hops, "")
        assert len(host.kernel.sent) == 1
        assert host.kernel.sent[0].startswith("next-hop group")
        host.check(B)


def test_path_taken_out_or_back_in_waits_for_no_file(host: Host) -> None:
    host.apply(B, B0, B1)
    (host.folder / "ledger.json").unlink()
    host.apply(B, B1)
    host.apply(B, B0, B1)
    assert not (host.folder / "ledger.json").exists()
    host.apply(C, C0)
    assert Ledger(host.folder / "ledger.json").load()[0].groups.keys() == {B, C}


def test_hop_that_the_kernel_refuses_is_left_out(host: Host) -> None:
    host.kernel.carrier("a-rail0", False)
    assert host.apply(B, B0, B1) == ((B1,), "")
    host.check(B)


def test_device_that_does_not_exist_is_left_out(host: Host) -> None:
    assert host.apply(B, Hop("gone0", "10.9.0.2"), B1) == ((B1,), "")
    host.check(B)


def test_route_without_any_usable_hop_is_an_error_that_names_the_reason(host: Host) -> None:
    host.kernel.carrier("a-rail0", False)
    hops, error = host.apply(B, B0)
    assert hops == ()
    assert "10.10.0.2" in error
    assert "Network is down" in error
    host.check(B)


def test_step_that_fails_leaves_its_route_as_it_was(host: Host) -> None:
    host.apply(B, B0)
    host.kernel.carrier("a-rail1", False)
    hops, error = host.apply(B, B1)
    assert hops == (B0,)
    assert "Network is down" in error
    host.check(B)
    assert host.kernel.hops_of(B) == {("a-rail0", "10.10.0.2")}


@pytest.mark.parametrize("refused", ["group", "route", "next hop"])
def test_kernel_that_refuses_everything_changes_neither_the_route_nor_what_we_believe(
    host: Host, refused: str
) -> None:
    host.apply(B, B0)
    host.act.lost_device("a-rail0")  # so that hops and route are sent again
    host.kernel.refuse = lambda m: errno.EPERM if refused in m.name else 0
    hops, error = host.apply(B, B0, B1)
    assert "not permitted" in error
    assert hops == (B0,)
    host.kernel.refuse = lambda m: 0
    host.verify()
    assert ("a-rail0", "10.10.0.2") in host.kernel.hops_of(B)
    host.check(B)
    assert host.apply(B, B0, B1) == ((B0, B1), "")


def test_step_that_fails_keeps_no_other_from_its_turn(host: Host) -> None:
    host.kernel.refuse = lambda m: errno.EPERM if B in m.name else 0
    outcomes = host.act.apply(Plan((host.step(B, B0), host.step(C, C0))))
    assert [bool(o.error) for o in outcomes] == [True, False]
    assert host.kernel.hops_of(C) == {("a-rail0", "10.10.0.3")}


def test_source_address_that_is_not_ours_is_an_error(host: Host) -> None:
    host.kernel.addresses = {"10.9.9.9"}
    hops, error = host.apply(B, B0)
    assert (hops, bool(error)) == ((), True)
    host.check(B)


def test_objects_removed_behind_our_back_are_made_again(host: Host) -> None:
    host.apply(B, B0, B1)
    for id_ in list(host.kernel.objects):
        if id_ in host.kernel.objects:
            host.kernel._remove(id_)
    assert host.apply(B, B0) == ((B0,), "")
    host.verify()
    assert host.apply(B, B0) == ((B0,), "")
    assert host.kernel.hops_of(B) == {("a-rail0", "10.10.0.2")}


def test_ledger_that_can_not_be_written_holds_no_fail_over_up(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    host.apply(B, B0)
    (host.folder / "ledger.new").mkdir()  # a full or read-only folder, as root can't be refused by permissions
    assert host.apply(B, B1) == ((B1,), "")
    assert host.kernel.hops_of(B) == {("a-rail1", "10.11.0.2")}
    assert "ledger" in caplog.text


# -- carrier -----------------------------------------------------------------------------------------------------


def test_lost_device_with_another_hop_left_survives_a_late_kernel(host: Host) -> None:
    host.apply(B, B0, B1)
    host.kernel.carrier("a-rail0", False, noticed=False)
    host.act.lost_device("a-rail0")
    assert host.apply(B, B1) == ((B1,), "")
    host.kernel.notice("a-rail0")
    host.check(B)
    assert host.verify() == []


def test_lost_device_with_the_only_hop_moves_whatever_the_kernel_did(host: Host) -> None:
    for noticed in (True, False):
        host.apply(B, B0)
        host.kernel.carrier("a-rail0", False, noticed=noticed)
        host.act.lost_device("a-rail0")
        assert host.apply(B, B1) == ((B1,), "")
        host.kernel.notice("a-rail0")
        host.check(B)
        host.kernel.carrier("a-rail0", True)


def test_only_device_that_blinks_has_its_route_made_again_without_waiting_for_a_sweep(host: Host) -> None:
    host.apply(B, B0)
    host.kernel.carrier("a-rail0", False)
    host.act.lost_device("a-rail0")
    assert B in host.act.unsure
    host.kernel.carrier("a-rail0", True)
    assert host.apply(B, B0) == ((B0,), "")
    assert host.kernel.hops_of(B) == {("a-rail0", "10.10.0.2")}
    assert B not in host.act.unsure


def test_device_made_anew_with_another_index_is_used_anew(host: Host) -> None:
    host.apply(B, B0, B1)
    host.kernel.delete_device("a-rail0")
    host.act.lost_device("a-rail0")
    host.apply(B, B1)
    host.kernel.add_device("a-rail0", 17)
    assert host.apply(B, B0, B1) == ((B0, B1), "")
    assert {n.interface for n in host.kernel.nexthops() if not n.members} == {17, 4}
    host.check(B)


# -- verify ------------------------------------------------------------------------------------------------------


def test_verify_of_an_untouched_kernel_finds_nothing(host: Host) -> None:
    host.apply(B, B0, B1)
    host.apply(C, C1)
    assert host.verify() == []


def test_verify_tells_once_what_the_kernel_dropped(host: Host) -> None:
    host.apply(B, B0, B1)
    host.apply(C, C0)
    host.kernel.carrier("a-rail0", False)
    assert host.verify() == [B, C]
    host.check(B, C)
    assert host.act.current == {B: (B1,)}
    assert host.verify() == []


def test_verify_finds_a_route_that_somebody_removed(host: Host) -> None:
    host.apply(B, B0, B1)
    del host.kernel.table[B, 254, 50]
    assert host.verify() == [B]
    assert host.apply(B, B0, B1) == ((B0, B1), "")
    host.check(B)


def test_verify_finds_a_hop_that_somebody_added_and_can_live_with_it(host: Host) -> None:
    host.apply(B, B0)
    host.kernel.objects[77] = NextHop(77, 76, 4, "10.11.0.99")
    group = host.act._made.groups[B]
    host.kernel.objects[group] = NextHop(group, 76, members=(*host.kernel.objects[group].members, 77))
    assert host.verify() == [B]
    host.kernel.carrier("a-rail1", False, noticed=False)
    host.kernel.refuse = lambda m: errno.EPERM if B1.via in m.name else 0
    _, error = host.apply(B, B1)  # fails, and goes back to what was before: a hop that we never made
    assert error
    host.kernel.refuse = lambda m: 0
    assert host.apply(B, B0) == ((B0,), "")
    host.check(B)


# -- undo and forget ---------------------------------------------------------------------------------------------


def test_undo_removes_all_that_is_ours_and_nothing_else(host: Host) -> None:
    host.kernel.objects[5] = NextHop(5, 4, 3, "10.10.0.77")
    host.kernel.add_foreign_route(B, 1024)
    before = (dict(host.kernel.objects), dict(host.kernel.table))
    host.apply(B, B0, B1)
    host.apply(B, B1)  # B0 stays as a spare object
    host.apply(C, C0)
    assert host.act.undo(keep_stranded=False) == []
    assert (host.kernel.objects, host.kernel.table) == before
    assert host.act.current == {}
    assert list(host.folder.iterdir()) == []


def test_undo_keeps_a_route_that_nothing_would_replace(host: Host) -> None:
    host.kernel.add_foreign_route(B, 1024)
    host.apply(B, B0)
    host.apply(C, C0, C1)
    assert host.act.undo(keep_stranded=True) == [C]
    assert host.kernel.hops_of(B) == set()
    host.check(B, C)
    assert len(host.kernel.objects) == 3
    made, _ = Ledger(host.folder / "ledger.json").load()
    assert list(made.groups) == [C]


@pytest.mark.parametrize(
    ("destination", "table", "covers"),
    [
        ("10.255.0.0/16", 254, True),
        (B, 254, True),
        ("10.254.0.0/16", 254, False),
        (B, 100, False),
        ("fd00::/8", 254, False),
    ],
)
def test_undo_knows_what_would_replace_a_route(host: Host, destination: str, table: int, covers: bool) -> None:
    host.kernel.add_foreign_route(destination, 1024, table=table)
    host.apply(B, B0)
    assert host.act.undo(keep_stranded=True) == ([] if covers else [B])


def test_forget_removes_one_route_and_its_objects(host: Host) -> None:
    host.apply(B, B0)
    host.apply(C, C0)
    assert host.act.forget(B, keep_stranded=True) is False
    assert host.act.forget(B, keep_stranded=False) is True
    assert (host.kernel.hops_of(B), list(host.act.current)) == (set(), [C])
    assert len(host.kernel.objects) == 2
    assert host.verify() == []


# -- others' things ----------------------------------------------------------------------------------------------


def test_next_hop_id_that_somebody_else_uses_is_passed_over(host: Host) -> None:
    theirs = NextHop(1000, 4, 3, "10.10.0.77")
    host.kernel.objects[1000] = theirs
    host.act.adopt(host.kernel.name)
    assert host.apply(B, B0, B1) == ((B0, B1), "")
    assert host.kernel.objects[1000] == theirs


def test_route_of_the_same_metric_that_somebody_else_made_is_left_alone_and_told(host: Host) -> None:
    host.kernel.add_foreign_route(B, 50)
    hops, error = host.apply(B, B0)
    assert hops == ()
    assert "routes.metric" in error
    assert host.kernel.table[B, 254, 50].route.protocol == 4
    assert host.verify() == []


# -- adopt -------------------------------------------------------------------------------------------------------


def test_adopt_of_an_empty_kernel_says_nothing(host: Host) -> None:
    assert host.act.adopt(host.kernel.name) == []


def test_adopt_takes_whole_routes_over_as_they_are(host: Host) -> None:
    host.apply(B, B0, B1)
    host.apply(C, C1)
    before = (dict(host.kernel.objects), dict(host.kernel.table))
    again, told = restarted(host)
    assert told == ["took over 2 route(s) of an earlier agent"]
    assert (host.kernel.objects, host.kernel.table) == before
    assert again.act.current == {B: (B0, B1), C: (C1,)}
    assert again.apply(B, B1) == ((B1,), "")
    again.check(B, C)


@pytest.mark.parametrize("damage", [None, b"", b"\xff", b'{"schema": 2}'])
def test_adopt_rebuilds_a_lost_or_damaged_ledger_from_the_kernel(host: Host, damage: bytes | None) -> None:
    host.apply(B, B0, B1)
    file = host.folder / "ledger.json"
    whole = Ledger(file).load()
    file.unlink()
    if damage is not None:
        file.write_bytes(damage)
    again, told = restarted(host)
    assert again.act.current == {B: (B0, B1)}
    assert Ledger(file).load() == whole
    assert any("damaged" in line for line in told) == (damage is not None)


def crash_states() -> list[int]:
    return list(range(14))


@pytest.mark.parametrize("messages", crash_states())
def test_adopt_mends_what_an_agent_killed_after_any_message_left(host: Host, messages: int) -> None:
    host.kernel.add_foreign_route(B, 1024)
    host.kernel.objects[5] = theirs = NextHop(5, 4, 3, "10.10.0.77")

    class KilledError(Exception):
        pass

    left = messages

    def until_killed(_message: Message) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise KilledError
        return 0

    host.kernel.refuse = until_killed
    try:
        host.apply(B, B0, B1)
        host.apply(C, C0, C1)
        host.apply(B, B1)
        host.act.undo(keep_stranded=False)
    except KilledError:
        pass
    host.kernel.refuse = lambda m: 0
    again, _ = restarted(host)
    again.check(B, C)
    used = {m for e in host.kernel.table.values() if e.route.nexthop for m in (e.route.nexthop,)}
    used |= {m for g in list(used) for m in host.kernel.objects[g].members}
    assert set(host.kernel.objects) == used | {5}  # no strays
    made, complaint = Ledger(host.folder / "ledger.json").load()
    assert {*made.nexthops.values(), *made.groups.values()} == used
    assert complaint == ""
    assert again.apply(B, B0, B1) == ((B0, B1), "")
    assert again.act.undo(keep_stranded=False) == []
    assert host.kernel.objects == {5: theirs}
    assert list(host.kernel.table) == [(B, 254, 1024)]


def test_adopt_removes_a_route_of_ours_that_leads_nowhere(host: Host) -> None:
    host.kernel.table[B, 254, 50] = Entry(KernelRoute(B, 76, 254, 50, 0), "10.255.0.1")
    told = host.act.adopt(host.kernel.name)
    assert told == [f"removed a route to {B} that had no next hop"]
    assert host.kernel.table == {}


def test_adopt_leaves_out_hops_of_devices_that_have_no_name_any_more(host: Host) -> None:
    host.apply(B, B0, B1)
    again = Host(host.kernel, host.folder)
    again.act.adopt(lambda index: "a-rail1" if index == 4 else None)
    assert again.act.current == {B: (B1,)}
