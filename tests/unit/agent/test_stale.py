"""A dead agent's last word: passed over where its kernel proves it wrong, and nowhere else."""

from pathlib import Path

import pytest

from linkpass.model import PathId, PortState
from linkpass_agent.judge.stale import PROOF, Echoes
from linkpass_agent.see import echo
from tests.fakes.agent import FakeAgent, record

S = PortState
PATH = PathId("b", "rail0", "a-rail0")
BOTH = {"a-rail0", "a-rail1"}


@pytest.fixture
def agent(tmp_path: Path) -> FakeAgent:
    made = FakeAgent(tmp_path).start("b")
    made.reactor.learned(record("b", [S.DOWN, S.UP], 2, cause="carrier lost"))
    return made


def test_dead_agents_down_is_passed_over_where_its_kernel_answers(agent: FakeAgent) -> None:
    agent.reactor.agent_died("b")
    assert set(agent.reactor.vetoed()) == {PATH}
    assert agent.devices("b") == {"a-rail1"}
    agent.reactor.proven(frozenset({PATH}))
    assert agent.devices("b") == BOTH
    assert "its last word was down (carrier lost)" in agent.reactor.paths["b"][PATH].verdict.cause


def test_living_agents_word_counts_whatever_its_kernel_answers(agent: FakeAgent) -> None:
    assert agent.reactor.vetoed() == {}
    agent.reactor.proven(frozenset({PATH}))
    assert agent.devices("b") == {"a-rail1"}


def test_agent_that_lives_again_is_believed_at_once(agent: FakeAgent) -> None:
    agent.reactor.agent_died("b")
    agent.reactor.proven(frozenset({PATH}))
    agent.reactor.agent_lives("b")
    assert agent.devices("b") == {"a-rail1"}


def test_echo_that_fails_takes_the_path_out_again(agent: FakeAgent) -> None:
    agent.reactor.agent_died("b")
    agent.reactor.proven(frozenset({PATH}))
    agent.reactor.proven(frozenset())
    assert agent.devices("b") == {"a-rail1"}


def test_probes_that_found_the_path_dead_before_the_agent_died_are_passed_over_too(agent: FakeAgent) -> None:
    agent.probe("b", 0, S.DOWN)
    agent.reactor.agent_died("b")
    agent.reactor.proven(frozenset({PATH}))
    assert agent.devices("b") == BOTH


def test_drain_of_a_dead_host_stands(agent: FakeAgent) -> None:
    agent.reactor.learned(record("b", [S.DRAINED, S.UP], 3, cause="optic"))
    agent.reactor.agent_died("b")
    assert agent.reactor.vetoed() == {}
    agent.reactor.proven(frozenset({PATH}))
    assert agent.devices("b") == {"a-rail1"}


def test_own_dead_port_is_not_revived_by_it(agent: FakeAgent) -> None:
    agent.see("a-rail0", carrier=False)
    agent.reactor.agent_died("b")
    agent.reactor.proven(frozenset({PATH}))
    assert agent.devices("b") == {"a-rail1"}


# -- echoes ------------------------------------------------------------------------------------------------------


def test_path_is_proven_by_a_row_of_answers_and_not_before() -> None:
    echoes = Echoes()
    for n in range(PROOF):
        number, proven = echoes.ask([PATH])
        assert proven == frozenset(), n
        echoes.answered(PATH, number)
    assert echoes.ask([PATH])[1] == {PATH}
    assert echoes.ask([PATH])[1] == frozenset()  # that round wasn't answered


def test_late_repeated_and_unasked_answers_do_not_count() -> None:
    echoes = Echoes()
    first, _ = echoes.ask([PATH])
    echoes.ask([PATH])
    echoes.answered(PATH, first)
    echoes.answered(PathId("c", "rail0", "x"), first)
    number = 0
    for _ in range(PROOF - 1):
        number, proven = echoes.ask([PATH])
        assert not proven
        echoes.answered(PATH, number)
        echoes.answered(PATH, number)
    assert echoes.ask([PATH])[1] == frozenset()


def test_path_that_is_not_asked_any_more_begins_anew() -> None:
    echoes = Echoes()
    for _ in range(PROOF):
        echoes.answered(PATH, echoes.ask([PATH])[0])
    echoes.ask([])
    assert echoes.ask([PATH])[1] == frozenset()


def test_echo_request_has_the_checksum_of_rfc_1071() -> None:
    sent = echo.request(4, 0x1234, 7, b"12345678")
    assert sent[:2] == b"\x08\x00" and echo.checksum(sent) == 0
    assert echo.checksum(b"\x01") == 0xFEFF
    assert echo.request(6, 0x1234, 7, b"12345678")[:4] == b"\x80\x00\x00\x00"


def test_only_echo_replies_are_read() -> None:
    header = b"\x45" + bytes(19)
    body = echo.HEAD.pack(echo.REPLY, 0, 0, 0x1234, 7) + b"12345678"
    assert echo.reply(4, header + body) == (0x1234, 7, b"12345678")
    assert echo.reply(4, header + echo.request(4, 0x1234, 7, b"12345678")) is None
    assert echo.reply(6, echo.HEAD.pack(echo.REPLY6, 0, 0, 1, 2) + b"12345678") == (1, 2, b"12345678")
    for short in (b"", b"\x4f", header, header + body[:-1]):
        assert echo.reply(4, short) is None
    assert echo.reply(6, b"") is None
