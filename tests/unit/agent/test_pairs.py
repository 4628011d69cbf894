"""What the queue pair probe's gate says, and whom it asks when."""

from linkpass_agent.judge.pairs import FRESH, OFFERED, PATIENCE, PERIOD, TURN, Address, Wait

AT = Address("::ffff:10.10.0.2", 17, 1)


def waiting(*hosts: str, offered: float | None = 100.0) -> Wait:
    wait = Wait("rail0", 100.0)
    wait.choose(hosts, 100.0)
    for host in wait.peers:
        wait.peers[host].offer = offered
    return wait


def test_silence_of_a_peer_that_offers_shuts_the_gate_and_says_for_how_long() -> None:
    wait = waiting("b")
    assert wait.says(103.4, {"b": 103.0}) == ("no answer from b by rail0 for 3 s", "")
    assert wait.says(104.0, {"b": 99.0}) == ("no answer from b by rail0 for 3 s, nor to UDP probes", "")


def test_cause_changes_at_a_few_steps_only() -> None:
    wait = waiting("b")
    told = {wait.says(100.0 + s / 10, {"b": 100.0 + s / 10})[0] for s in range(int(10 * OFFERED))}
    assert len(told) == 6  # less than 1 s, then 1, 2, 3, 5 and 10 s


def test_answer_opens_the_gate_for_a_while() -> None:
    wait = waiting("b", "c")
    wait.peers["c"].answered = 101.0
    assert wait.says(101.0 + FRESH - 0.1, {}) == ("", "c answered by rail0")
    assert wait.says(101.0 + FRESH, {"b": 106.0})[0] == "no answer from b, c by rail0 for 5 s"


def test_peer_that_offers_nothing_is_waited_for_a_moment_and_tells_nothing_then() -> None:
    wait = waiting("b", offered=None)
    assert wait.says(100.0 + PATIENCE - 0.1, {})[0] == "asks b by rail0"
    assert wait.says(100.0 + PATIENCE, {}) == (None, "b offers no queue pair")


def test_refusal_is_not_waited_for() -> None:
    wait = waiting("b", offered=None)
    wait.peers["b"].why = "no RDMA port"
    assert wait.says(100.1, {}) == (None, "b: no RDMA port")


def test_offer_grows_old() -> None:
    assert waiting("b").says(100.0 + OFFERED, {})[0] is None


def test_nobody_to_ask_shuts_nothing() -> None:
    assert waiting().says(100.0, {}) == (None, "no peer with a working RDMA port on rail0")


def test_few_peers_are_asked_at_once_and_others_after_a_turn_without_an_answer() -> None:
    wait = waiting(*"bcdefgh")
    assert wait.choose("bcdefgh", 100.0 + TURN - 0.1) == ["b", "c", "d"]
    assert wait.choose("bcdefgh", 100.0 + TURN) == ["e", "f", "g"]
    assert wait.choose("bcdefgh", 100.0 + 2 * TURN) == ["h", "b", "c"]


def test_who_answered_is_asked_on() -> None:
    wait = waiting(*"bcdefgh")
    wait.peers["c"].answered = 100.0 + TURN
    assert wait.choose("bcdefgh", 100.0 + TURN + 1.0) == ["b", "c", "d"]
    assert "c" in wait.peers


def test_datagrams_leave_only_while_udp_is_answered_since_the_port_is_back() -> None:
    """The kernel would look for a neighbour that doesn't answer for a second, and the agent stand still."""
    wait = waiting("b")
    assert not wait.sends("b", 101.0, None)
    assert not wait.sends("b", 101.0, 99.9)
    assert wait.sends("b", 101.0, 100.5)
    assert not wait.sends("b", 110.0, 101.0)  # its answer is too long ago


def test_datagrams_keep_their_distance() -> None:
    wait = waiting("b")
    wait.peers["b"].sent = 101.0
    assert not wait.sends("b", 101.0 + PERIOD - 0.01, 101.0)
    assert wait.sends("b", 101.0 + PERIOD, 101.0)
