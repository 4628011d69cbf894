"""When views are compared. Times are virtual seconds."""

from itertools import pairwise
from random import Random

from linkpass_topology.gossip.messages import Ping
from linkpass_topology.gossip.rounds import AFTER_NEWS, ANSWER, UNANSWERED, Rounds

EVERY = 5.0
REST = (0.8 * EVERY, 1.2 * EVERY)


def begun(now: float = 100.0) -> tuple[Rounds, Ping]:
    rounds = Rounds(EVERY, Random(1))
    assert rounds.due(now)
    return rounds, rounds.begin("b", now)


def test_round_that_finds_no_difference_is_followed_by_the_regular_one() -> None:
    rounds, ping = begun()
    rounds.pong("b", ping.token)
    assert not rounds.due(rounds.at)
    assert REST[0] <= rounds.at - 100.0 - ANSWER <= REST[1]


def test_round_without_an_answer_is_repeated_at_once_but_not_for_ever() -> None:
    rounds, _ = begun()
    for _ in range(UNANSWERED):
        at = rounds.at
        assert rounds.due(at)
        rounds.begin("b", at)
    at = rounds.at
    assert not rounds.due(at)
    assert REST[0] <= rounds.at - at <= REST[1]


def test_rounds_that_find_differences_come_ever_later_until_one_finds_none() -> None:
    rounds, ping = begun()
    pauses = []
    for _ in range(7):
        rounds.pong("b", ping.token)
        rounds.differs("b")
        at = rounds.at
        assert not rounds.due(at)
        pauses.append(rounds.at - at)
        assert rounds.due(rounds.at)
        ping = rounds.begin("b", rounds.at)
    assert pauses[0] < 0.31 and REST[0] <= pauses[-1] <= REST[1]
    assert all(later > earlier for earlier, later in pairwise(pauses[:5]))
    rounds.pong("b", ping.token)
    assert not rounds.due(rounds.at) and rounds.due(rounds.at)
    ping = rounds.begin("b", rounds.at)
    rounds.pong("b", ping.token)
    rounds.differs("b")
    at = rounds.at
    assert not rounds.due(at) and rounds.at - at < 0.31


def test_answers_of_others_or_of_earlier_rounds_count_nothing() -> None:
    rounds, ping = begun()
    rounds.pong("c", ping.token)
    rounds.pong("b", ping.token ^ 1)
    assert rounds.due(rounds.at)


def test_news_bring_the_next_round_nearer_once() -> None:
    rounds = Rounds(EVERY, Random(1))
    rounds.rest(100.0)
    assert rounds.news(100.0) and rounds.at <= 100.0 + 1.2 * AFTER_NEWS
    assert not rounds.news(100.1)


def test_news_during_a_round_are_compared_soon_after_it() -> None:
    rounds, ping = begun()
    assert not rounds.news(100.1)
    rounds.pong("b", ping.token)
    at = rounds.at
    assert not rounds.due(at)
    assert rounds.at - at <= 1.2 * AFTER_NEWS
