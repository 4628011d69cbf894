"""What a restart remembers: round trips, gaps, boots, clock steps, and files that can't be believed."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linkpass.model import Observation, PathId, PortState, Signal
from linkpass_agent import recall
from linkpass_agent.judge.alarms import PastAlarm
from linkpass_agent.judge.counting import CounterKind, Sample
from linkpass_agent.judge.holddown import HoldDownRule, Past
from linkpass_agent.judge.port import Port
from linkpass_agent.judge.rules import Baselines, PortRules
from linkpass_agent.memory import Drained, Memory, State
from linkpass_agent.observing import CountersPast
from linkpass_agent.recall import PathPast, Recall, Recaller, after_gap

RULE = HoldDownRule(1.0, 300.0, 10.0)
SECONDS = st.floats(0.0, 1e9)
NAMES = st.text(max_size=12)
PASTS = st.builds(
    Past, SECONDS, st.none() | SECONDS, SECONDS, st.integers(0, 2**40), st.none() | SECONDS
)  # fmt: skip
BASELINES = st.builds(
    Baselines,
    st.dictionaries(NAMES, st.tuples(st.integers(0, 2**64), SECONDS), max_size=3),
    st.dictionaries(
        NAMES,
        st.dictionaries(NAMES, st.lists(st.tuples(SECONDS, SECONDS), max_size=3).map(tuple), max_size=2),
        max_size=2,
    ),
    st.dictionaries(NAMES, st.integers(0, 2**40), max_size=2),
)
RECALLS = st.builds(
    Recall,
    NAMES,
    SECONDS,
    SECONDS,
    st.dictionaries(NAMES, PASTS, max_size=3),
    st.lists(st.builds(PathPast, NAMES, NAMES, NAMES, PASTS), max_size=3).map(tuple),
    st.dictionaries(NAMES, st.builds(CountersPast, NAMES, NAMES, st.integers(1, 2**31), BASELINES), max_size=2),
    st.lists(
        st.builds(PastAlarm, NAMES, NAMES, NAMES, NAMES, NAMES, SECONDS, st.none() | SECONDS, NAMES), max_size=3
    ).map(tuple),
    st.dictionaries(NAMES, BASELINES, max_size=2),
    st.dictionaries(NAMES, SECONDS, max_size=2),
)
SAVED = Recall(
    "boot1", 1000.0, 5e8,
    {"p": Past(8.0, 2.0, 3.0, 4, 60.0)},
    (PathPast("b", "rail0", "p", Past(2.0, None, 2.0, 1, 5.0)),),
    {"p": CountersPast("mlx5", "guid", 7, Baselines({"counters/x": (10, 1.0)}, {}, {"rate": 400_000}))},
    (PastAlarm("p", "port-flaps", "alarm", "text", "evidence", 4.9e8),),
    {"p": Baselines({"agent/flaps": (4, 0.5)}, {"agent/flaps": {"port-flaps/": ((60.0, 1.0),)}}, {})},
)  # fmt: skip
ON_DISK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


@given(what=RECALLS)
@ON_DISK
def test_recall_reads_back_whatever_it_saved(tmp_path: Path, what: Recall) -> None:
    Recaller(tmp_path).close(what)
    assert Recaller(tmp_path).load() == (what, "")


def test_recall_that_is_missing_is_empty_without_complaint(tmp_path: Path) -> None:
    assert Recaller(tmp_path).load() == (Recall(), "")


@given(data=st.data())
@ON_DISK
def test_any_truncation_or_bit_flip_is_set_aside_and_takes_no_port_down(tmp_path: Path, data: st.DataObject) -> None:
    Recaller(tmp_path).close(SAVED)
    Memory(tmp_path).save(State(5, "boot1", {"p": Drained("optic", "root", 1.0)}))
    for name in ("recall.json", "state.json"):
        file = tmp_path / name
        whole = bytearray(file.read_bytes())
        at = data.draw(st.integers(0, len(whole) - 2))
        if data.draw(st.booleans()):
            del whole[at:]
        else:
            whole[at] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(whole)
    found, complaint = Recaller(tmp_path).load()
    # A flip may fall on a blank, or change the case of a \u escape or of an E: then nothing was changed.
    assert (found == SAVED and not complaint) or (found == Recall() and "corrupt-" in complaint)
    state, complaint = Memory(tmp_path).load()
    assert state.drains in ({}, {"p": Drained("optic", "root", 1.0)}) and bool(complaint) != bool(state.drains)
    port = Port(RULE).recall(after_gap(found, "boot1", 1001.0, 5e8).ports.get("p", Past()), 1001.0)
    assert port.verdict.state is PortState.UNKNOWN
    seen = port.observe(Observation(1002.0, "carrier", "p", Signal.CARRIER, True))
    assert seen.verdict.state in (PortState.UP, PortState.HELD)


def test_damaged_files_are_kept_under_numbers_of_their_own(tmp_path: Path) -> None:
    for n in range(1, 12):
        (tmp_path / "recall.json").write_text(f"damage {n}")
        assert f"corrupt-{min(n, 9)}" in Recaller(tmp_path).load()[1]
    assert (tmp_path / "recall.json.corrupt-1").read_text() == "damage 1"
    assert (tmp_path / "recall.json.corrupt-9").read_text() == "damage 11"


def test_file_of_another_version_is_set_aside_and_says_so(tmp_path: Path) -> None:
    Recaller(tmp_path).close(SAVED)
    file = tmp_path / "recall.json"
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 99'))
    found, complaint = Recaller(tmp_path).load()
    assert found == Recall() and "schema 99" in complaint and "hold-downs" in complaint


# -- gaps, boots and clocks --------------------------------------------------------------------------------------


def test_within_a_boot_the_monotonic_clock_tells_the_gap_whatever_the_wall_clock_did() -> None:
    for wall in (0.0, 5e8, 9e9):
        found = after_gap(SAVED, "boot1", 1010.0, wall)
        assert found.ports["p"].last_flap == 70.0
        assert found.counters["p"].baselines.counts["counters/x"] == (10, 11.0)


def test_over_a_boot_the_wall_clock_tells_it_and_one_set_back_counts_as_none() -> None:
    assert after_gap(SAVED, "boot2", 3.0, 5e8 + 100).ports["p"].last_flap == 160.0
    assert after_gap(SAVED, "boot2", 3.0, 4e8).ports["p"].last_flap == 60.0


def test_penalties_are_the_same_over_boots_and_clock_steps() -> None:
    for boot, now, wall in (("boot1", 1010.0, 5e8), ("boot2", 1.0, 0.0), ("boot2", 1.0, 9e9), ("", 1.0, 5e8)):
        past = after_gap(SAVED, boot, now, wall).ports["p"]
        assert (past.length, past.good_for, past.owes, past.flaps) == (8.0, 2.0, 3.0, 4)


def test_counters_of_another_boot_are_forgotten() -> None:
    assert after_gap(SAVED, "boot2", 3.0, 5e8).counters == {}


def test_paths_come_back_by_their_ids() -> None:
    assert SAVED.by_path() == {PathId("b", "rail0", "p"): Past(2.0, None, 2.0, 1, 5.0)}


def test_growth_while_no_agent_looked_is_growth() -> None:
    from linkpass.rules import shipped

    kind = CounterKind("counters", "link_downed", "link-downed", 8, "sticks")
    first = PortRules("p", shipped())
    first.look(10.0, {}, [Sample(kind, 3)])
    after = PortRules("p", shipped())
    after.recall(first.baselines(11.0), 20.0)
    assert [f.rule for f in after.look(20.0, {}, [Sample(kind, 4)]).opened] == ["link-went-down"]
    blank = PortRules("p", shipped())
    assert not blank.look(20.0, {}, [Sample(kind, 4)]).opened


# -- the writer --------------------------------------------------------------------------------------------------


async def test_changes_are_written_at_once_and_then_at_most_every_few_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "APART", 0.05)
    written: list[float] = []
    keeper = Recaller(tmp_path)

    def gather() -> Recall:
        written.append(asyncio.get_running_loop().time())
        return replace(SAVED, at=float(len(written)))

    task = asyncio.create_task(keeper.run(gather))
    for _ in range(40):
        keeper.changed()
        await asyncio.sleep(0.005)
    task.cancel()
    assert 2 <= len(written) <= 6
    assert min(b - a for a, b in pairwise(written)) >= 0.045
    assert Recaller(tmp_path).load()[0] != Recall()


def test_disk_that_refuses_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keeper = Recaller(tmp_path / "missing")
    keeper.close(SAVED)
    keeper.close(SAVED)
    assert len(caplog.records) == 1 and "can't be written" in caplog.text


async def test_writer_ends_when_it_is_cancelled_together_with_a_change(tmp_path: Path) -> None:
    keeper = Recaller(tmp_path)
    task = asyncio.create_task(keeper.run(lambda: SAVED))
    await asyncio.sleep(0)
    keeper.changed()
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=2)
    assert done and task.cancelled()
