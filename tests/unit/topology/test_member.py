"""The protocol core and a member that holds the key but talks nonsense: no crash, no change beyond its claims."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from linkpass import wire
from linkpass.model import HostRecord
from linkpass.wire import Stamp
from linkpass_topology.gossip import messages as m
from linkpass_topology.gossip import seal
from linkpass_topology.gossip.core import Gossip
from linkpass_topology.gossip.options import Options
from linkpass_topology.gossip.outputs import Address, Drop, Dropped, Output, Outrun, Send
from linkpass_topology.gossip.row import MAX_COUNT, Row, Status
from linkpass_topology.gossip.suspicion import SwimRule
from tests.fakes.mesh import KEYRING, record, wide_record

AT: Address = ("10.99.0.66", 7471)


class Member:
    """Someone with the fleet key, who has connected to host a."""

    def __init__(self, core: Gossip, name: str = "m") -> None:
        self.core = core
        asked = seal.End(b"n" * 16, b"session!", name)
        hello = seal.make_hello(KEYRING.sending, asked.nonce, asked.session, name)
        (ack,) = [o.data for o in core.on_datagram(hello, AT, 0.0) if isinstance(o, Send)]
        nonce, session, host = seal.open_ack(KEYRING.sending, asked.nonce, ack)
        self.session = seal.Session(KEYRING.sending, asked, seal.End(nonce, session, host), asking=True)

    def say(self, payload: bytes) -> list[Output]:
        return self.core.on_datagram(self.session.seal(payload), AT, 1.0)

    def tell(self, *messages: m.Message) -> list[Output]:
        return [o for payload in m.pack(messages) for o in self.say(payload)]


def host_a() -> Gossip:
    core = Gossip("a", KEYRING, [], rng=Random(1), entropy=Random(2).randbytes)
    core.start(0.0)
    core.publish(record("a", 5, 5), 0.0)
    core.view.merge(record("b"))
    return core


hosts = st.sampled_from(["a", "b", "c", "m"])
stamps = st.builds(Stamp, st.integers(0, 9), st.integers(0, 9), st.binary(min_size=8, max_size=8))
chunks = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.builds(lambda h, v: wire.encode(record(h, 1, v)), hosts, st.integers(0, 9)),
    st.builds(lambda h: wire.encode_delta(record(h), wire.stamp(record(h)).digest, record(h, 1, 2, ports=3)), hosts),
)
nonsense = st.one_of(
    st.builds(lambda h, s, d, c: m.Part(h, s, d, 0, 1, c), hosts, stamps, st.booleans(), chunks),
    st.builds(
        lambda h, s, d, n: m.Part(h, s, d, 0, n, bytes(m.CHUNK)), hosts, stamps, st.booleans(), st.integers(2, 39)
    ),
    st.builds(m.Ack, hosts, stamps, st.booleans()),
    st.builds(m.Summary, st.integers(0, 99), st.integers(0, 99)),
    st.builds(lambda e: m.Digests(True, "", "", tuple(e)), st.lists(st.tuples(hosts, stamps), max_size=5)),
    st.builds(m.Want, st.lists(hosts, max_size=30).map(tuple)),
    st.builds(m.Pong, st.integers(0, 9)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(nonsense.map(lambda x: m.pack([x])[0]), st.binary(max_size=300)), max_size=10))
def test_member_that_talks_nonsense_never_changes_our_own_record_or_crashes(payloads: list[bytes]) -> None:
    core = host_a()
    member = Member(core)
    for payload in payloads:
        member.say(payload)
        core.on_timer(1.0)
    assert core.view.get("a") == record("a", 5, 5)
    for held in core.view:
        assert wire.decode(wire.encode(held)) == held  # whatever came in keeps the bounds


def test_part_whose_record_is_not_the_announced_one_is_malformed() -> None:
    core = host_a()
    member = Member(core)
    for host, r in (("c", record("m")), ("m", record("m", 1, 2))):
        outputs = member.tell(m.Part(host, wire.stamp(record(host)), False, 0, 1, wire.encode(r)))
        assert [o.reason for o in outputs if isinstance(o, Dropped)] == [Drop.MALFORMED]
    assert core.view.names() == ["a", "b"]


def test_want_of_everything_many_times_is_answered_once_for_each_host() -> None:
    core = host_a()
    member = Member(core)
    core.view.merge(wide_record("w"))
    whole = len(m.parts("w", wire.stamp(wide_record("w")), wire.encode(wide_record("w")), delta=False))
    member.tell(m.Pong(0))
    sent = [o for o in member.tell(m.Want(("w",) * 300)) if isinstance(o, Send)]
    assert len(sent) == whole


def test_unfinished_records_of_a_member_are_bounded() -> None:
    core = host_a()
    member = Member(core)
    for i in range(500):
        member.tell(m.Part(f"x{i}", Stamp(1, 1, bytes(8)), False, 0, 39, bytes(m.CHUNK)))
    assert core._records.unfinished <= 24 * m.CHUNK
    assert core.view.names() == ["a", "b"]


def test_claim_about_another_host_is_believed_until_its_owner_outruns_it() -> None:
    """Documented: who holds the fleet key is believed. The owner's next record wins again."""
    core = host_a()
    member = Member(core)
    lie = record("b", 1, 2, cause="a lie")
    member.tell(m.Part("b", wire.stamp(lie), False, 0, 1, wire.encode(lie)))
    assert core.view.get("b") == lie
    owner = Gossip("b", KEYRING, [], rng=Random(3), entropy=Random(4).randbytes)
    owner.publish(record("b"), 0.0)
    told = Member(owner).tell(m.Digests(False, "", "", (("b", wire.stamp(lie)),)))
    assert [(o.incarnation, o.version) for o in told if isinstance(o, Outrun)] == [(1, 2)]
    assert core.view.merge(HostRecord("b", 2, 1)).changes != ()


def host_in_fleet() -> Gossip:
    core = Gossip(
        "a", KEYRING, [], rng=Random(1), entropy=Random(2).randbytes, options=Options(swim=SwimRule(most=8))
    )
    core.start(0.0, ("10.99.0.1", 7471))
    core.publish(record("a", 5, 5), 0.0)
    core.view.merge(record("b"))
    return core


addresses = st.none() | st.tuples(st.sampled_from(["10.99.0.2", "10.99.0.66"]), st.integers(1, 65535))
numbers = st.integers(0, 9) | st.sampled_from([wire.MAX_NUMBER, MAX_COUNT])
rows = st.builds(
    Row,
    hosts,
    numbers,
    numbers.map(lambda n: min(n, MAX_COUNT)),
    st.sampled_from(list(Status)),
    addresses,
    st.lists(st.tuples(st.sampled_from(["one", "two"]), st.binary(min_size=4, max_size=4)), max_size=2).map(tuple),
    hosts,
)
fleet_nonsense = st.one_of(
    st.builds(lambda r: m.Rows(True, "", "", tuple(r)), st.lists(rows, max_size=5)),
    st.builds(lambda r: m.Rows(False, "", "", tuple(r)), st.lists(rows, max_size=5)),
    st.builds(m.Roll, st.integers(0, 99), st.integers(0, 99)),
    st.builds(lambda k, p: m.Ranges(k, "", p), st.integers(0, 1), st.just((("", 1, 2), ("b", 3, 4)))),
    st.builds(m.Probe, st.integers(0, 9), hosts),
    st.builds(m.Probed, st.integers(0, 9), hosts, st.booleans()),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(fleet_nonsense, nonsense), max_size=12))
def test_member_that_talks_nonsense_about_the_fleet_never_silences_us(talk: list[m.Message]) -> None:
    core = host_in_fleet()
    member = Member(core)
    for number, message in enumerate(talk):
        for output in [*member.tell(message), *core.on_timer(1.0 + number)]:
            if isinstance(output, Send) and output.addr == AT and output.data[:2] == seal.DATA:
                m.unpack(member.session.open(output.data)[0])  # whatever we say is well-formed
    assert core.view.get("a") == record("a", 5, 5)
    me = core.fleet.table.me if core.fleet else None
    assert me is not None and me.status is Status.ALIVE
    assert len(core.members()) <= 8


def test_table_takes_no_more_members_than_it_may() -> None:
    core = host_in_fleet()
    member = Member(core)
    for i in range(40):
        member.tell(m.Rows(False, "", "", (Row(f"x{i}", 1, 0, Status.ALIVE),)))
    assert len(core.members()) == 8
