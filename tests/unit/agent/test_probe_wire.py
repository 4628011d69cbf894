"""Probe datagrams: what is packed is read back, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass_agent.see.probe_wire import ANSWER, REQUEST, SIZE, Probe, ProbeCodec, rail_mark

OLD, NEW, STRANGER = b"o" * 32, b"n" * 32, b"s" * 32
PROBE = Probe(REQUEST, 0x1122334455667788, 42, rail_mark("rail0"))
GOOD = ProbeCodec([OLD]).pack(PROBE)


@given(
    st.sampled_from([REQUEST, ANSWER]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.text(max_size=40),
)
def test_probe_is_read_back_as_packed(kind: int, session: int, seq: int, rail: str) -> None:
    probe = Probe(kind, session, seq, rail_mark(rail))
    data = ProbeCodec([OLD]).pack(probe)
    assert len(data) == SIZE == 49
    assert ProbeCodec([OLD]).unpack(data) == probe


@given(st.binary(max_size=2 * SIZE))
def test_garbage_is_none(data: bytes) -> None:
    assert ProbeCodec([OLD, NEW]).unpack(data) is None


@given(st.binary(max_size=SIZE))
def test_garbage_after_the_right_magic_is_none(data: bytes) -> None:
    assert ProbeCodec([OLD, NEW]).unpack((b"LPP1" + data).ljust(SIZE, b"\0")[:SIZE]) is None


@pytest.mark.parametrize("bit", range(8 * SIZE))
def test_probe_with_any_bit_flipped_is_none(bit: int) -> None:
    flipped = bytearray(GOOD)
    flipped[bit // 8] ^= 1 << (bit % 8)
    assert ProbeCodec([OLD]).unpack(bytes(flipped)) is None


@pytest.mark.parametrize("length", range(SIZE))
def test_probe_cut_short_is_none(length: int) -> None:
    assert ProbeCodec([OLD]).unpack(GOOD[:length]) is None


def test_probe_with_more_behind_it_is_none() -> None:
    assert ProbeCodec([OLD]).unpack(GOOD + b"\0") is None


def test_probe_of_another_fleet_is_none() -> None:
    assert ProbeCodec([OLD, NEW]).unpack(ProbeCodec([STRANGER]).pack(PROBE)) is None


def test_keys_rotate_without_a_gap() -> None:
    # One host after the other gets [OLD, NEW], then [NEW, OLD], then [NEW]: neighbours in the sequence must talk.
    stages = [[OLD], [OLD, NEW], [NEW, OLD], [NEW]]
    for a, b in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]:
        assert ProbeCodec(stages[b]).unpack(ProbeCodec(stages[a]).pack(PROBE)) == PROBE
    assert ProbeCodec([NEW]).unpack(GOOD) is None


def test_request_can_not_be_turned_into_an_answer() -> None:
    forged = GOOD[:4] + bytes([ANSWER]) + GOOD[5:]
    assert ProbeCodec([OLD]).unpack(forged) is None


def test_rails_have_different_marks() -> None:
    assert len({rail_mark(f"rail{n}") for n in range(1000)}) == 1000
