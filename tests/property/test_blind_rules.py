"""Whatever can't be observed, for however long: no port goes DOWN, no finding opens, no growth is invented."""

from hypothesis import given, settings
from hypothesis import strategies as st

from linkpass.model import Observation, PortState, Signal
from linkpass.rules import shipped
from linkpass_agent.judge.counting import CounterKind, Reading, Sample, compare
from linkpass_agent.judge.holddown import HoldDownRule
from linkpass_agent.judge.port import Port
from linkpass_agent.judge.rules import PortRules
from linkpass_agent.see.counters import driver

S = PortState
DRIVERS = ("mlx5", "bnxt_re", "irdma", "ionic", "efa", "rxe", "other")
FACTS = ("rate", "speed", "width", "mtu", "phys", "members")
HEALTHY = {"rate": 400_000, "speed": 400_000, "width": 4, "mtu": 9000, "phys": "linkup", "members": "complete"}
# Per look: seconds since the last, which facts and counters can be read (by bit), and the bare signals gone blind
LOOKS = st.lists(
    st.tuples(
        st.floats(0.01, 4000.0),
        st.integers(0, 2**6 - 1),
        st.integers(0, 2**24 - 1),
        st.sampled_from([s for s in Signal if s is not Signal.RULES]),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(DRIVERS), LOOKS)
def test_no_sequence_of_cannot_observe_alone_ever_makes_a_port_down(
    name: str, looks: list[tuple[float, int, int, Signal]]
) -> None:
    rules = PortRules("p", [r for r in shipped() if r.applies(name)])
    port = Port(HoldDownRule())
    now = 100.0
    for signal in (Signal.PRESENT, Signal.ADMIN, Signal.CARRIER):
        port = port.observe(Observation(now, "test", "p", signal, True))
    assert port.state is S.UP
    for pause, facts, counters, blind in looks:
        now += pause
        seen = {f: HEALTHY[f] if facts >> n & 1 else None for n, f in enumerate(FACTS)}
        samples = [
            # A healthy counter stands still; one that can't be read says why, in one of the ways that occur.
            Sample(kind, 7) if counters >> n & 1 else Sample(kind, None, ("N/A (no PMA)", "EINVAL", "")[n % 3])
            for n, kind in enumerate(driver(name).kinds)
        ]
        judged = rules.look(now, seen, samples, None)
        assert (judged.opened, judged.state) == ((), "ok")
        port = port.observe(Observation(now, "rules", "p", Signal.RULES, judged.state, judged.text))
        port = port.observe(Observation(now, "test", "p", blind, None, "can't be read"))
        port = port.tick(now)
        assert port.state in (S.UP, S.UNKNOWN)
    assert port.flaps == 0


@given(
    st.integers(4, 64),
    st.sampled_from(["sticks", "wraps"]),
    st.lists(st.one_of(st.none(), st.integers(0, 2**64 - 1)), max_size=20),
)
def test_growth_is_never_negative_nor_more_than_the_counter_holds_nor_known_of_what_cannot_be_read(
    bits: int, full: str, values: list[int | None]
) -> None:
    kind = CounterKind("counters", "c", "role", bits, full)  # type: ignore[arg-type]
    before: int | None = None
    for raw in values:
        value = None if raw is None else raw % (1 << bits)
        grown = compare(before, value, kind)
        assert grown.by is None or 0 <= grown.by < 1 << bits
        assert (grown.reading is Reading.BLIND) == (value is None)
        if value is None or before is None:
            assert grown.by is None
        if grown.reading is Reading.COUNTED:
            assert before is not None and value is not None and before + (grown.by or 0) == value
        if grown.reading is Reading.WRAPPED:
            assert before is not None and (before + (grown.by or 0)) % (1 << bits) == value
        if value is not None:
            before = value
