"""Records and messages as bytes: exact round trips, and one error for all that is wrong."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass import wire
from linkpass.errors import WireError
from linkpass.model import HostRecord, PortRecord, PortState
from linkpass.wire import Stamp
from linkpass_topology.gossip import messages as m
from tests.fakes.mesh import record, wide_record, with_state

names = st.from_regex(wire.HOST, fullmatch=True)
printable = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=20)
ips = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
ports = st.builds(
    PortRecord,
    name=printable.filter(bool),
    rail=printable.filter(bool),
    state=st.sampled_from(PortState),
    cause=printable,
    addresses=st.lists(ips, max_size=3).map(tuple),
    mtu=st.integers(0, wire.MAX_MTU),
    gids=st.lists(ips, max_size=3).map(tuple),
)
records = st.builds(
    HostRecord,
    host=names,
    incarnation=st.integers(0, wire.MAX_NUMBER),
    version=st.integers(0, wire.MAX_NUMBER),
    addresses=st.lists(ips, max_size=3).map(tuple),
    ports=st.lists(ports, max_size=5, unique_by=lambda p: p.name).map(tuple),
)
stamps = st.builds(
    Stamp, st.integers(0, wire.MAX_NUMBER), st.integers(0, wire.MAX_NUMBER), st.binary(min_size=8, max_size=8)
)


@given(records)
def test_record_round_trip_is_exact(r: HostRecord) -> None:
    assert wire.decode(wire.encode(r)) == r


def test_record_encoding_is_the_documented_array() -> None:
    r = HostRecord(
        "a", 3, 7, ("10.255.0.1",), (PortRecord("p0", "r0", PortState.DOWN, "no carrier", ("::1",), 1500),)
    )
    expected = '["a",3,7,["10.255.0.1"],[["p0","r0","down","no carrier",["::1"],1500,[]]]]'
    assert wire.encode(r).decode() == expected


@given(records, records)
def test_delta_leads_from_any_base_to_the_record(base: HostRecord, r: HostRecord) -> None:
    base = dataclasses.replace(base, host=r.host)
    mark = wire.digest(wire.encode(base))
    data = wire.encode_delta(base, mark, r)
    assert wire.delta_base(data) == (r.host, Stamp(base.incarnation, base.version, mark))
    assert wire.apply_delta(base, data) == r


def test_delta_of_one_port_among_sixteen_fits_one_datagram() -> None:
    base = wide_record("a")
    changed = with_state(base, 5, PortState.DOWN)
    assert len(wire.encode(changed)) > 4 * m.CHUNK
    assert len(wire.encode_delta(base, wire.digest(wire.encode(base)), changed)) < m.CHUNK


@given(st.binary(max_size=300))
def test_decode_garbage_raises_only_wire_error(data: bytes) -> None:
    for reader in (wire.decode, wire.delta_base, lambda d: wire.apply_delta(record("a"), d), m.unpack):
        try:
            reader(data)
        except WireError:
            continue
        assert reader is m.unpack  # by chance a message, never a record


@given(records, st.data())
def test_decode_mutilated_record_raises_or_is_canonical(r: HostRecord, data: st.DataObject) -> None:
    raw = bytearray(wire.encode(r))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(at + 1, len(raw)))])
    try:
        found = wire.decode(cut)
    except WireError:
        return
    assert wire.encode(found) == cut


PORT = ["p", "r", "up", "", ["10.0.0.1"], 9000, []]
BAD = {
    "not an array": {"host": "a"},
    "too few fields": ["a", 1, 1, []],
    "bad host": ["a b", 1, 1, [], []],
    "host too long": ["a" * 65, 1, 1, [], []],
    "host with newline": ["a\n", 1, 1, [], []],
    "negative version": ["a", 1, -1, [], []],
    "huge incarnation": ["a", 1 << 63, 1, [], []],
    "boolean version": ["a", 1, True, [], []],
    "float version": ["a", 1, 1.0, [], []],
    "address is a name": ["a", 1, 1, ["localhost"], []],
    "address is short": ["a", 1, 1, ["10.1"], []],
    "address is a number": ["a", 1, 1, [1], []],
    "address has a NUL": ["a", 1, 1, ["10.0.0.1\0"], []],
    "too many addresses": ["a", 1, 1, ["10.0.0.1"] * 33, []],
    "too many ports": ["a", 1, 1, [], [[f"p{i}", *PORT[1:]] for i in range(65)]],
    "port twice": ["a", 1, 1, [], [PORT, PORT]],
    "unknown state": ["a", 1, 1, [], [["p", "r", "sideways", "", [], 0, []]]],
    "state is a list": ["a", 1, 1, [], [["p", "r", [], "", [], 0, []]]],
    "empty port name": ["a", 1, 1, [], [["", "r", "up", "", [], 0, []]]],
    "cause with newline": ["a", 1, 1, [], [["p", "r", "up", "x\ny", [], 0, []]]],
    "cause with escape": ["a", 1, 1, [], [["p", "r", "up", "\x1b[31m", [], 0, []]]],
    "cause too long": ["a", 1, 1, [], [["p", "r", "up", "x" * 161, [], 0, []]]],
    "mtu too large": ["a", 1, 1, [], [["p", "r", "up", "", [], 1 << 18, []]]],
    "too many gids": ["a", 1, 1, [], [["p", "r", "up", "", [], 0, ["::1"] * 129]]],
}


@pytest.mark.parametrize("name", BAD)
def test_decode_bad_record_raises_wire_error(name: str) -> None:
    with pytest.raises(WireError):
        wire.decode(json.dumps(BAD[name], separators=(",", ":")).encode())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[" * 20_000,
        b"\xff\xfe",
        b'["a",1,1,[],[]] ',
        b'[ "a",1,1,[],[]]',
        b'["\\u0061",1,1,[],[]]',
        b'["a",1,1,[],[]]x',
        b'["a",NaN,1,[],[]]',
        b'["a",' + b"9" * 5000 + b",1,[],[]]",
        b'["a",1,1,[],[["p","r","up","\\ud800",[],0,[]]]]',
        b'["a",1,1,[],[]]' + b" " * wire.MAX_RECORD,
    ],
)
def test_decode_other_than_canonical_json_raises_wire_error(raw: bytes) -> None:
    with pytest.raises(WireError):
        wire.decode(raw)


def test_encode_beyond_a_bound_names_the_field() -> None:
    with pytest.raises(WireError, match="mtu"):
        wire.encode(HostRecord("a", 1, 1, (), (PortRecord("p", "r", PortState.UP, "", (), -1),)))


def test_fit_makes_causes_printable_and_short() -> None:
    long = record("a", cause="line one\nline two " + "x" * 300)
    with pytest.raises(WireError, match="cause"):
        wire.encode(long)
    cause = wire.fit(long).ports[0].cause
    assert cause.startswith("line one line two xx") and cause.endswith("…") and len(cause) == wire.MAX_CAUSE
    assert wire.decode(wire.encode(wire.fit(long))) == wire.fit(long)


part_messages = st.builds(
    lambda host, stamp, delta, chunk: m.Part(host, stamp, delta, 0, 1, chunk),
    names,
    stamps,
    st.booleans(),
    st.binary(min_size=1, max_size=m.CHUNK),
)
tokens = st.integers(0, 2**32 - 1)
messages = st.one_of(
    st.builds(m.Ping, tokens),
    st.builds(m.Pong, tokens),
    part_messages,
    st.builds(m.Ack, names, stamps, st.booleans()),
    st.builds(m.Summary, tokens, st.integers(0, 2**64 - 1)),
    st.builds(lambda e: m.Digests(False, "", "", tuple(e)), st.lists(st.tuples(names, stamps), max_size=10)),
    st.builds(m.Want, st.lists(names, max_size=16).map(tuple)),
)


@given(st.lists(messages, max_size=6), st.integers(0, 40))
def test_messages_round_trip_through_payloads_in_order(given_messages: list[m.Message], pad: int) -> None:
    payloads = m.pack(given_messages)
    assert all(len(p) <= m.MAX_PAYLOAD for p in payloads)
    assert [x for p in payloads for x in m.unpack(p + bytes(pad))] == given_messages


@given(messages, st.data())
def test_unpack_truncated_message_raises_wire_error(message: m.Message, data: st.DataObject) -> None:
    (payload,) = m.pack([message])
    with pytest.raises(WireError):
        m.unpack(payload[: data.draw(st.integers(1, len(payload) - 1))])


@pytest.mark.parametrize(
    "payload",
    [
        b"\x09\0\x01",  # unknown type, cut short
        b"\x01\0\x05aaaab",  # too long a body
        b"\0\0\x01",  # padding that isn't
        b"\x04\0\x1a\x01a" + bytes(23) + b"\x02",  # flag 2, one byte short
        b"\x07\0\x02\x01 ",  # host is a space
        b"\x03\0\x1e\x01a" + bytes(24) + b"\0\x01\x01x",  # part 1 of 1
        b"\x03\0\x1e\x01a" + bytes(24) + b"\0\0\x02x",  # short part that isn't the last
        b"\x06\0\x1e\x01\x01b\0\x01a" + bytes(24),  # host before the range
    ],
)
def test_unpack_malformed_message_raises_wire_error(payload: bytes) -> None:
    with pytest.raises(WireError):
        m.unpack(payload)


def test_unpack_skips_messages_of_a_later_version() -> None:
    (known,) = m.pack([m.Ping(7)])
    assert m.unpack(b"\xf0\0\x03new" + known + b"\xf1\0\0") == [m.Ping(7)]


def test_parts_of_a_wide_record_fit_and_join() -> None:
    data = wire.encode(wide_record("a" * 64))
    mark = Stamp(wire.MAX_NUMBER, wire.MAX_NUMBER, bytes(8))
    found = m.parts("a" * 64, mark, data, delta=False)
    assert b"".join(p.chunk for p in found) == data
    assert all(len(p) + m.OVERHEAD <= m.MAX_DATAGRAM for p in m.pack(found))
    assert len(m.pack(found)) == len(found) == -(-len(data) // m.CHUNK)
