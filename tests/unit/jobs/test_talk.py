"""Letters between desks: each kind survives, anything else is a WireError or skipped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass.errors import WireError
from linkpass.shim import abi
from linkpass_agent.jobs import talk
from linkpass_topology.gossip.messages import MAX_LETTER

WHO = abi.Identity(bytes(range(16)), bytes(range(16, 32)), 1, 2, 3, 4)
SPARE = abi.Spare(bytes(16), 1, 2, 3, 4, 5, 6, 3, 7, 1, 9)
LETTERS: list[talk.Letter] = [
    talk.Have(WHO, 2**32 - 1, 1, "rail0", True),
    talk.Unknown(WHO),
    talk.Want(WHO, 7, 2**32 - 1, "rail1"),
    talk.Cant(WHO, 7, 9, "no port\u2026"),
    talk.Drop(WHO, 7, 9),
    talk.Half(WHO, SPARE),
    talk.Told(WHO, abi.Tell(1, 2, 1, 8)),
    talk.Pin(WHO, "rail1"),
]


@pytest.mark.parametrize("letter", LETTERS, ids=lambda m: type(m).__name__)
def test_letter_comes_back_as_it_was(letter: talk.Letter) -> None:
    assert talk.read(talk.pack(letter)) == letter


def test_letter_of_a_later_agent_s_kind_is_skipped() -> None:
    assert talk.read(b"\x63whatever") is None


def test_letter_fits_whatever_is_in_it() -> None:
    assert len(talk.pack(talk.Cant(WHO, 7, 9, "x" * 5000))) <= MAX_LETTER


@pytest.mark.parametrize("letter", LETTERS, ids=lambda m: type(m).__name__)
def test_letter_cut_short_or_too_long_is_refused(letter: talk.Letter) -> None:
    whole = talk.pack(letter)
    for end in range(len(whole)):
        with pytest.raises(WireError):
            talk.read(whole[:end])
    with pytest.raises(WireError):
        talk.read(whole + b"\0")


@given(st.binary(max_size=200))
def test_noise_never_breaks_the_reader(data: bytes) -> None:
    try:
        letter = talk.read(data)
    except WireError:
        return
    assert letter is None or talk.read(talk.pack(letter)) == letter
