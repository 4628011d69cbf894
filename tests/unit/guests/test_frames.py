"""The exec channel's frames survive any cutting of the stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass_lab.guests.frames import BrokenStreamError, Decoder, Kind, frame, frame_count

FRAMES = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.sampled_from(Kind), st.binary(max_size=300)), max_size=20)


@given(FRAMES, st.lists(st.integers(1, 50), min_size=1, max_size=200))
def test_frames_cut_anywhere_come_back_whole(frames, cuts):
    stream = b"".join(frame(*f) for f in frames)
    decoder, got, at = Decoder(), [], 0
    while at < len(stream):
        step = cuts[at % len(cuts)]
        got += decoder.feed(stream[at : at + step])
        at += step
    assert got == frames


def test_frame_layout_is_channel_kind_length_payload():
    assert frame(7, Kind.STDOUT, b"hi") == b"\x00\x00\x00\x07\x12\x00\x00\x00\x02hi"
    assert frame_count(1, Kind.CREDIT, 258) == b"\x00\x00\x00\x01\x07\x00\x00\x00\x04\x00\x00\x01\x02"


@pytest.mark.parametrize(
    "stream",
    [b"\x00\x00\x00\x01\xff\x00\x00\x00\x00", b"\x00\x00\x00\x01\x02\x7f\xff\xff\xff"],
    ids=["kind", "length"],
)
def test_stream_that_is_no_frame_is_refused(stream):
    with pytest.raises(BrokenStreamError):
        list(Decoder().feed(stream))
