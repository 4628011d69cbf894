"""Whatever is observed in whatever order: down at once, up late, and blindness is no failure."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from linkpass.model import Observation, PortState, Signal, Value
from linkpass_agent.judge.holddown import HoldDownRule
from linkpass_agent.judge.port import MOVES, Port

S = PortState
FACTS: dict[Signal, list[Value | None]] = {
    Signal.PRESENT: [True, False, None],
    Signal.ADMIN: [True, False, None],
    Signal.CARRIER: [True, False, None],
    Signal.OPERSTATE: ["up", "down", "unknown", "dormant", "lowerlayerdown", None],
    Signal.MTU: [1500, 9000, None],
    Signal.ADDRESSES: [(), ("10.0.0.1",), None],
    Signal.RULES: ["ok", "suspect", "down", None],
}
OBSERVATIONS = st.sampled_from([(signal, value) for signal, values in FACTS.items() for value in values])


class PortMachine(RuleBasedStateMachine):
    """`fell` is the model's own memory: when the link last stopped being good, None while it never did."""

    @initialize(
        first=st.floats(0.1, 5.0), factor=st.floats(1.0, 1000.0), decay=st.floats(0.1, 20.0)
    )  # fmt: skip
    def begin(self, first: float, factor: float, decay: float) -> None:
        self.rule = HoldDownRule(first, first * factor, decay)
        self.port = Port(self.rule)
        self.now = 100.0
        self.held_since: float | None = None
        self.must_hold = False

    def becomes(self, after: Port, *, blind: bool = False, seen: bool = False) -> None:
        before, self.port = self.port, after
        if before.state == after.state:
            if after.held_until != before.held_until:
                assert after.state == S.HELD, "a rule that comes or goes"
                self.held_since = self.now
                rule_bars = after.facts[Signal.RULES] == "down"
                assert (after.held_until is None) == rule_bars
            return
        assert after.state in MOVES[before.state]
        assert after.since == self.now
        if after.state in (S.DOWN, S.ABSENT):
            assert seen, "only an observation takes a port down"
            assert not blind, "and not one that saw nothing"
            self.must_hold = True
        if after.state == S.HELD:
            self.held_since = self.now
            if after.held_until is None:
                assert after.facts[Signal.RULES] == "down", "only a rule holds for as long as it likes"
            else:
                length = after.held_until - self.now
                assert self.rule.first - 1e-9 <= length <= self.rule.maximum + 1e-9
        if after.state in (S.UP, S.SUSPECT):
            if self.must_hold:
                assert before.state == S.HELD
                assert self.held_since is not None
                assert self.now - self.held_since >= self.rule.first - 1e-9
            self.must_hold = False
        assert after.flaps - before.flaps in (0, 1)
        assert after.flaps == before.flaps or after.state in (S.DOWN, S.ABSENT)

    @rule(fact=OBSERVATIONS)
    def observe(self, fact: tuple[Signal, Value | None]) -> None:
        signal, value = fact
        seen = Observation(self.now, "test", "p", signal, value)
        self.becomes(self.port.observe(seen), blind=value is None, seen=True)

    @rule(seconds=st.one_of(st.floats(0.0, 2.0), st.floats(0.0, 5000.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.becomes(self.port.tick(self.now))

    @rule()
    def wait_for_the_wake_up(self) -> None:
        if self.port.wakes_at is not None:
            self.now = max(self.now, self.port.wakes_at)
            self.becomes(self.port.tick(self.now))
            assert self.port.state in (S.UP, S.SUSPECT)

    @rule()
    def drain(self) -> None:
        self.becomes(self.port.drain("x", self.now))

    @rule()
    def undrain(self) -> None:
        self.becomes(self.port.undrain(self.now))

    @invariant()
    def bad_facts_are_believed(self) -> None:
        reading = self.port.reading()
        if reading.good is False:
            assert self.port.state == (S.DOWN if reading.present else S.ABSENT)

    @invariant()
    def blindness_is_not_down(self) -> None:
        if all(v is None for s, v in self.port.facts.items() if s in (Signal.PRESENT, Signal.ADMIN, Signal.CARRIER)):
            assert self.port.state != S.ABSENT

    @invariant()
    def held_ports_wake_and_others_do_not(self) -> None:
        barred = self.port.facts.get(Signal.RULES) == "down"
        assert self.port.held_until is None or self.port.state == S.HELD
        assert self.port.state != S.HELD or self.port.held_until is not None or barred

    @invariant()
    def verdict_of_a_drained_port_is_drained_or_worse(self) -> None:
        if self.port.drained is not None:
            assert self.port.verdict.state in (S.DRAINED, S.DOWN, S.ABSENT)
            assert "drained: x" in self.port.verdict.cause
        else:
            assert self.port.verdict.state == self.port.state


PortMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestPortMachine = PortMachine.TestCase
