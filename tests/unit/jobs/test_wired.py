"""Two agents' jobs with everything real but the kernel's part: sessions, pages, letters over gossip, views."""

from pathlib import Path

from linkpass.errors import NotFoundError
from linkpass.model import EventKind, PortState
from linkpass.shim import abi
from linkpass_agent.jobs.registry import ORIGINAL
from tests.fakes.joined import EchoShim, Host, two, until

COUNT = 64


async def attached(one: Host, other: Host, count: int = COUNT) -> tuple[EchoShim, EchoShim]:
    shims = EchoShim(one.path, "a", one.world), EchoShim(other.path, "b", one.world)
    for shim in shims:
        shim.send(abi.Hello(0, "test", "train"))
    for conn in range(1, count + 1):
        who = one.world.identity(100 + conn)
        shims[0].up(conn, who)
        shims[1].up(conn, who.mirror)
    await until(lambda: all([j.protected for j in h.facade.jobs()] == [count] for h in (one, other)))
    return shims


async def test_64_connections_are_paired_protected_and_ordered_away_at_both_ends(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        shims = await attached(one, other)
        for host in (one, other):
            (job,) = host.facade.jobs()
            assert (job.queue_pairs, job.protected, job.rails, job.name) == (COUNT, COUNT, {"rail0": COUNT}, "train")
        assert shims[0].nics() == {"rxe0": 1, "rxe1": 1}
        one.port(0, PortState.DOWN)
        other.jobs.desk.moved(["a"])
        assert shims[0].nics() == {"rxe0": 5, "rxe1": 1}
        await until(lambda: all(s.count(abi.Order) == COUNT for s in shims))
        decided = [e.text for e in one.events if e.kind is EventKind.DECIDED]
        assert decided == [f"{COUNT} queue pairs ordered off a dead path: rail0 -> rail1"]


async def test_shims_words_cross_both_agents(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        shims = await attached(one, other, 2)
        tell = abi.Tell(abi.C.LP_TELL_NEED, 0, 1, ORIGINAL)
        shims[1].send(abi.Relay(2, shims[1].ids[2], tell))
        await until(lambda: shims[0].count(abi.Relay) == 1)
        assert abi.Relay(2, shims[1].ids[2], tell) in shims[0].got


async def test_drained_port_gets_quiet_and_names_who_stays(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        shims = await attached(one, other, 2)
        lonely = one.world.identity(900)
        shims[0].up(9, lonely)
        await until(lambda: len(one.facade.on_port("a-rail0")) == 3)
        one.port(0, PortState.DRAINED)
        for conn in (1, 2):
            spare = next(m.spare for m in shims[0].got if isinstance(m, abi.SparePeer) and m.conn == conn).id
            shims[0].send(abi.ConnState(conn, abi.ACTIVE, 1, 1, spare, 2_000_000, 0, 0, 0, 0, 10, 1, 0))
        await until(lambda: len(one.facade.on_port("a-rail0")) == 1)
        (stays,) = one.facade.stay(one.facade.on_port("a-rail0"))
        assert stays == "1.9: b's agent knows no such connection: no shim there"
        moved = next(q for q in one.facade.qps(1) if q.qp == "1.1")
        assert (moved.port, moved.rail, moved.home, moved.migrations) == ("a-rail1", "rail1", "rail0", 1)
        assert moved.last_gap == 0.002
        assert one.facade.jobs()[0].rails == {"rail0": 1, "rail1": 2}


async def test_operator_moves_one_or_all_of_a_port(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        shims = await attached(one, other, 3)
        known = one.verdicts.rails.__contains__
        answer = one.facade.migrate("1.2", "a-rail1", known, "root")
        assert (answer.ordered, answer.refused) == (1, {})
        await until(lambda: shims[0].count(abi.Order) == 1)
        answer = one.facade.migrate("a-rail0", "a-rail1", known, "root")
        assert (answer.ordered, answer.text) == (3, "ordered 3 of 3 queue pairs to a-rail1")
        answer = one.facade.migrate("a-rail0", "a-rail0", known, "root")
        assert answer.refused == {f"1.{n}": "it is on rail0 already" for n in (1, 2, 3)}
        for what, to in (("9.9", "a-rail1"), ("1.2", "eth9"), ("eth9", "a-rail1")):
            try:
                one.facade.migrate(what, to, known, "root")
            except NotFoundError:
                continue
            raise AssertionError((what, to))


async def test_ended_process_frees_its_peer_s_spares(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        shims = await attached(one, other, 4)
        shims[0].close()
        await until(lambda: shims[1].count(abi.SpareDrop) == 4)
        assert one.facade.jobs() == []
        assert other.facade.jobs()[0].protected == 0
