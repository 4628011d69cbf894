"""All paths together: proof between siblings, confirming probes, wake-ups."""

from random import Random

import pytest

from linkpass.model import PathId, PortState
from linkpass_agent.judge.holddown import HoldDownRule
from linkpass_agent.judge.probe import ProbeRule
from linkpass_agent.judge.probing import Probing
from linkpass_agent.judge.schedule import ScheduleRule

S = PortState
R0, R1 = PathId("b", "rail0", "a-rail0"), PathId("b", "rail1", "a-rail1")
C0, C1 = PathId("c", "rail0", "a-rail0"), PathId("c", "rail1", "a-rail1")
TIMEOUT = 0.015


class Wire:
    """Runs a `Probing` on a network where `dead` paths carry nothing and the rest answers after `rtt` seconds."""

    def __init__(
        self, paths: list[PathId], period: float = 0.05, max_rate: float = 2000.0, rtt: float = 0.0003
    ) -> None:
        rule = ProbeRule(HoldDownRule(1.0, 300.0, 10.0), TIMEOUT, 3, 0.003)
        self.probing = Probing(rule, ScheduleRule(period, 1.0, max_rate), Random(7))
        self.probing.set_paths(paths, paths, 0.0)
        self.dead: set[PathId] = set()
        self.rtt, self.now = rtt, 0.0
        self.flying: list[tuple[float, PathId, int]] = []
        self.sent: list[tuple[float, PathId]] = []
        self.changes: list[tuple[float, PathId, PortState]] = []

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            times = [t for t, _, _ in self.flying]
            wake = self.probing.next_at()
            if wake is not None:
                times.append(wake)
            if not times or min(times) > end:
                self.now = end
                return
            self.now = max(self.now, min(times))
            for answer in sorted(f for f in self.flying if f[0] <= self.now):
                self.flying.remove(answer)
                if self.probing.answered(answer[1], answer[2], self.now):
                    self._changed([answer[1]])
            self._changed(self.probing.tick(self.now))
            for path, seq in self.probing.due(self.now):
                self.probing.sent(path, seq, self.now)
                self.sent.append((self.now, path))
                if path not in self.dead:
                    self.flying.append((self.now + self.rtt, path, seq))

    def _changed(self, paths: list[PathId]) -> None:
        self.changes += [(self.now, p, self.probing.get(p).state) for p in paths]

    def when(self, path: PathId, state: PortState) -> float:
        return next(t for t, p, s in self.changes if (p, s) == (path, state))


def settled(paths: list[PathId], **rest: float) -> Wire:
    wire = Wire(paths, **rest)
    wire.run(2.0)
    assert all(wire.probing.get(p).state == S.UP for p in paths)
    wire.changes.clear()
    wire.sent.clear()
    return wire


def test_path_that_was_never_probed_is_unknown() -> None:
    assert Wire([]).probing.get(R0).state == S.UNKNOWN


def test_dead_path_is_down_within_three_periods_and_a_timeout() -> None:
    wire = settled([R0, R1])
    wire.dead = {R0}
    wire.run(1.0)
    assert wire.when(R0, S.DOWN) - 2.0 <= 3 * 0.05 + TIMEOUT + 1e-3
    assert wire.probing.get(R1).state == S.UP
    assert {p for _, p, _ in wire.changes} == {R0}


def test_dead_path_of_an_only_rail_is_never_down() -> None:
    wire = settled([R0])
    wire.dead = {R0}
    wire.run(30.0)
    assert wire.probing.get(R0).state == S.SUSPECT


def test_peer_whose_agent_died_keeps_all_its_paths() -> None:
    wire = settled([R0, R1, C0, C1])
    wire.dead = {R0, R1}
    wire.run(30.0)
    assert [wire.probing.get(p).state for p in (R0, R1, C0, C1)] == [S.SUSPECT, S.SUSPECT, S.UP, S.UP]


def test_peer_whose_agent_is_started_again_keeps_all_its_paths() -> None:
    wire = settled([R0, R1, C0])
    wire.dead = {R0, R1}
    wire.run(5.0)
    wire.dead = set()
    wire.run(5.0)
    # The first answer on one path, some 25 ms before the other's, proves life now, not while the lost probes flew.
    assert S.DOWN not in {s for _, _, s in wire.changes}
    assert [wire.probing.get(p).state for p in (R0, R1)] == [S.UP, S.UP]


def test_slow_path_that_answers_first_after_a_restart_convicts_no_prompt_one() -> None:
    wire = Wire([R0, R1])
    wire.rtt = 0.06  # R1's patience grows with its round trips, far above R0's
    for seq in range(1, 40):
        wire.probing.sent(R1, seq, 0.1 * seq)
        wire.probing.answered(R1, seq, 0.1 * seq + 0.06)
    for seq in (100, 101, 102):  # the agent is being restarted
        at = 5.0 + 0.02 * (seq - 100)
        wire.probing.sent(R0, seq, at)
        wire.probing.sent(R1, seq + 10, at)
    wire.probing.tick(5.06)
    assert wire.probing.get(R0).state == S.SUSPECT
    wire.probing.sent(R1, 120, 5.06)
    wire.probing.answered(R1, 120, 5.07)
    wire.probing.tick(5.2)
    assert wire.probing.get(R0).state == S.SUSPECT


def test_path_that_died_while_the_agent_was_restarted_is_down_three_probes_after_its_return() -> None:
    wire = settled([R0, R1])
    wire.dead = {R0, R1}
    wire.run(5.0)
    wire.dead = {R0}
    wire.run(1.0)
    # R1 is tried, and answers, within a period; then three more probes of R0 and the last one's timeout.
    assert 0.0 < wire.when(R0, S.DOWN) - 7.0 <= 0.05 + 3 * 0.05 + TIMEOUT + 1e-3


def test_other_peers_answers_are_no_proof() -> None:
    wire = settled([R0, C0, C1])
    wire.dead = {R0}
    wire.run(30.0)
    assert wire.probing.get(R0).state == S.SUSPECT


def test_probe_on_a_path_in_doubt_takes_its_siblings_along() -> None:
    wire = settled([R0, R1, C0])
    wire.dead = {R0}
    wire.run(0.2)
    doubt = wire.when(R0, S.SUSPECT)
    for at in [t for t, p in wire.sent if p == R0 and doubt < t < wire.when(R0, S.DOWN)]:
        assert (at, R1) in wire.sent
        assert (at, C0) not in wire.sent


@pytest.mark.parametrize("rails", [2, 4, 8])
@pytest.mark.parametrize("period", [0.05, 0.01, 0.004])
def test_dead_path_is_found_however_often_its_siblings_answer(rails: int, period: float) -> None:
    paths = [PathId("b", f"rail{n}", f"a-rail{n}") for n in range(rails)]
    wire = settled(paths, period=period, max_rate=1e5)
    wire.dead = {paths[0]}
    wire.run(1.0)
    # Three probes, the third one's timeout, then the grace beside the first answer that proves.
    assert wire.when(paths[0], S.DOWN) - 2.0 <= 3 * period + TIMEOUT + 0.003 + wire.rtt + 1e-3


def test_proof_that_comes_late_wakes_the_path_that_waits_for_it() -> None:
    wire = settled([R0, R1])
    wire.dead = {R0}
    wire.rtt = 0.040  # the peer's agent is busy: every answer is late, but comes
    wire.run(1.0)
    # The third probe leaves within 150 ms; its sibling's answer comes 40 ms later, and settles 3 ms after that.
    assert wire.when(R0, S.DOWN) - 2.0 <= 0.15 + 0.040 + 0.003 + 1e-3


def test_slow_peer_is_in_doubt_again_and_again_but_never_down() -> None:
    wire = settled([R0, R1])
    wire.rtt = 0.040
    wire.run(20.0)
    assert S.DOWN not in {s for _, _, s in wire.changes}


def test_path_that_returns_is_held_then_up() -> None:
    wire = settled([R0, R1])
    wire.dead = {R0}
    wire.run(1.0)
    wire.dead = set()
    wire.run(3.0)
    assert [s for _, p, s in wire.changes if p == R0] == [S.SUSPECT, S.DOWN, S.HELD, S.UP]
    served = wire.when(R0, S.UP) - wire.when(R0, S.HELD)
    assert 1.0 <= served <= 1.0 + 0.05 + TIMEOUT


def test_answer_read_after_the_hold_downs_end_but_before_the_tick_loses_no_wake_up() -> None:
    wire = Wire([R0, R1])
    wire.run(1.0)
    wire.dead.add(R0)
    wire.run(1.0)
    wire.dead.clear()
    wire.run(0.5)
    held = wire.probing.get(R0)
    assert held.state is S.HELD and held.held_until is not None
    wire.run(held.held_until - wire.now - 0.0001)
    seq = 10**6
    wire.probing.sent(R0, seq, wire.now)
    late = held.held_until + 0.0001  # the loop was busy with something else
    assert not wire.probing.answered(R0, seq, late)
    assert (wake := wire.probing.next_at()) is not None and wake <= late
    assert wire.probing.tick(late) == [R0]
    assert wire.probing.get(R0).state is S.UP


def test_rate_bound_holds_for_confirming_probes_too() -> None:
    paths = [PathId(f"h{n}", f"rail{r}", f"a-rail{r}") for n in range(20) for r in range(4)]
    wire = Wire(paths, max_rate=200.0)
    wire.run(2.0)
    wire.dead = {p for p in paths if p.rail == "rail0"}  # a whole leaf: every peer is in doubt at once
    wire.run(10.0)
    times = [t for t, _ in wire.sent]
    for i in range(0, len(times), 13):
        for j in range(i, len(times), 17):
            assert j - i + 1 <= 20 + (times[j] - times[i]) * 200.0 + 1e-6
    assert all(wire.probing.get(p).state == S.DOWN for p in wire.dead)


def test_probe_that_could_not_leave_is_never_lost() -> None:
    wire = settled([R0, R1])
    for _ in range(100):
        wire.now += 0.05
        wire.probing.tick(wire.now)
        wire.probing.due(wire.now)  # and nothing is reported as sent
    assert wire.probing.get(R0).state == S.UP


def test_late_answer_of_a_path_that_was_dropped_meanwhile_is_ignored() -> None:
    wire = settled([R0, R1])
    wire.probing.sent(R0, 10_000, wire.now)
    wire.probing.set_paths([R1], [R1], wire.now)
    assert wire.probing.answered(R0, 10_000, wire.now + 0.001) is False
    assert wire.probing.get(R0).state == S.UNKNOWN
    wire.run(1.0)
    assert wire.probing.get(R1).state == S.UP


def test_path_that_comes_again_starts_afresh() -> None:
    wire = settled([R0, R1])
    wire.dead = {R0}
    wire.run(1.0)
    wire.probing.set_paths([R1], [R1], wire.now)
    wire.probing.set_paths([R0, R1], [R0, R1], wire.now)
    assert wire.probing.get(R0).state == S.UNKNOWN
    wire.run(1.0)
    assert wire.probing.get(R0).state == S.DOWN  # still dead, and found so


def test_paths_that_stay_keep_their_state_when_others_come() -> None:
    wire = settled([R0, R1])
    wire.dead = {R0}
    wire.run(1.0)
    wire.probing.set_paths([R0, R1, C0], [R0], wire.now)
    assert [wire.probing.get(p).state for p in (R0, R1, C0)] == [S.DOWN, S.UP, S.UNKNOWN]


def test_nothing_to_probe_needs_no_wake_up() -> None:
    wire = settled([R0, R1])
    wire.probing.set_paths([], [], wire.now)
    assert wire.probing.next_at() is None
    assert wire.probing.tick(wire.now + 100) == []


# -- doubt -------------------------------------------------------------------------------------------------------


def idle(paths: list[PathId]) -> Wire:
    """Paths to peers that aren't in use: probed once a second."""
    wire = Wire(paths)
    wire.probing.set_paths(paths, [], 0.0)
    wire.run(4.0)
    wire.sent.clear()
    wire.changes.clear()
    return wire


def test_idle_path_in_doubt_is_decided_at_the_fast_pace() -> None:
    wire = idle([R0, R1])
    wire.dead = {R0}
    wire.run(2.0)
    # From the first loss on: two more probes at most 25 ms apart, the last one's timeout, and the grace.
    assert wire.when(R0, S.DOWN) - wire.when(R0, S.SUSPECT) <= 2 * 0.025 + TIMEOUT + 0.003 + 1e-3


def test_doubt_that_can_not_be_settled_goes_back_to_the_idle_pace() -> None:
    wire = idle([R0])
    wire.dead = {R0}
    wire.run(30.0)
    # 2 x 3 + 1 at the pace of doubt, then one in 0.75 to 1 s.
    assert len(wire.sent) <= 7 + 30 / 0.75 + 1
    assert wire.probing.get(R0).state == S.SUSPECT


def test_path_that_answers_again_goes_back_to_the_idle_pace() -> None:
    wire = idle([R0, R1])
    wire.dead = {R0}
    wire.run(1.0)
    wire.dead = set()
    wire.run(10.0)
    wire.sent.clear()
    wire.run(10.0)
    assert 10 <= sum(p == R0 for _, p in wire.sent) <= 15


@pytest.mark.parametrize("hosts", [5, 50])
def test_one_dead_path_among_many_hosts_is_found_in_time_whatever_the_rest_does(hosts: int) -> None:
    paths = [PathId(f"h{n}", f"rail{r}", f"a-rail{r}") for n in range(hosts) for r in range(2)]
    wire = settled(paths)
    wire.dead = {paths[0]}
    wire.run(1.0)
    assert wire.when(paths[0], S.DOWN) - 2.0 <= 0.15 + TIMEOUT + 1e-3
    assert {p for _, p, s in wire.changes} == {paths[0]}
