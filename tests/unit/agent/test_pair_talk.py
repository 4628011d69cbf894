"""Letters and datagrams of the queue pair probe: what is read back, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass.errors import WireError
from linkpass_agent import pair_talk
from linkpass_agent.jobs import talk
from linkpass_agent.judge.pairs import Address
from linkpass_agent.pair_talk import Datagram, Letter

TOKEN = bytes(range(16))
AT = Address("::ffff:10.10.0.2", 17, 0x7FFF_FFFF)
LETTERS = [
    Letter(pair_talk.ASK, TOKEN, "rail0", AT),
    Letter(pair_talk.OFFER, TOKEN, "rail0", Address("fe80::1", 1, 0)),
    Letter(pair_talk.CANT, TOKEN, "rail0", why="no RDMA port"),
]


@pytest.mark.parametrize("letter", LETTERS)
def test_letter_comes_back_as_it_was(letter: Letter) -> None:
    assert pair_talk.read(pair_talk.pack(letter)) == letter


@pytest.mark.parametrize("letter", LETTERS)
def test_letter_that_is_cut_or_longer_is_refused(letter: Letter) -> None:
    whole = pair_talk.pack(letter)
    for data in (*(whole[:n] for n in range(len(whole))), whole + b"x"):
        with pytest.raises(WireError):
            pair_talk.read(data)


@given(st.binary(max_size=120))
def test_no_letter_does_harm(data: bytes) -> None:
    try:
        letter = pair_talk.read(data)
    except WireError:
        return
    assert pair_talk.read(pair_talk.pack(letter)) == letter


@pytest.mark.parametrize("letter", LETTERS)
def test_agent_that_doesnt_know_these_letters_skips_them(letter: Letter) -> None:
    assert pair_talk.ours(pair_talk.pack(letter))
    assert talk.read(pair_talk.pack(letter)) is None


@given(st.binary(max_size=40))
def test_datagram_that_isnt_ours_is_none(data: bytes) -> None:
    assert pair_talk.read_datagram(data) is None
    ping = Datagram(pair_talk.PING, TOKEN, 7)
    assert pair_talk.read_datagram(pair_talk.pack_datagram(ping)) == ping
