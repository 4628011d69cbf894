"""The view's outcomes, one by one."""

import pytest

from linkpass.model import HostRecord, PortRecord, PortState
from linkpass_topology.view import Outcome, View, changed_ports
from tests.fakes.mesh import record


def test_merge_newer_incarnation_beats_higher_version() -> None:
    view = View()
    view.merge(record("b", 1, 900))
    assert view.merge(record("b", 2, 1)).outcome is Outcome.LEARNED
    assert view.merge(record("b", 1, 901)).outcome is Outcome.OLDER


def test_merge_same_age_other_contents_counts_conflict_and_agrees_on_one() -> None:
    x, y = record("b", cause="x"), record("b", cause="y")
    first, second = View(), View()
    outcomes = [first.merge(x).outcome, first.merge(y).outcome, second.merge(y).outcome, second.merge(x).outcome]
    assert outcomes.count(Outcome.CONFLICT_WON) == 1 and outcomes.count(Outcome.CONFLICT_LOST) == 1
    assert first.get("b") == second.get("b")
    assert first.conflicts == second.conflicts == 1


def test_merge_unknown_host_into_full_view_is_refused_known_one_is_not() -> None:
    view = View(max_hosts=1)
    view.merge(record("b"))
    assert view.merge(record("c")).outcome is Outcome.FULL
    assert view.merge(record("b", 1, 2)).outcome is Outcome.LEARNED
    assert len(view) == 1


def test_publish_of_another_host_or_not_newer_raises() -> None:
    view = View("a")
    with pytest.raises(ValueError, match="not our own"):
        view.publish(record("b"))
    view.publish(record("a", 2, 5))
    assert view.publish(record("a", 2, 5)) is None
    for stale in (record("a", 2, 4), record("a", 1, 9), record("a", 2, 5, cause="other")):
        with pytest.raises(ValueError, match="must grow"):
            view.publish(stale)


def test_names_range_is_half_open_and_empty_end_is_no_end() -> None:
    view = View()
    for host in "dbca":
        view.merge(record(host))
    assert view.names() == ["a", "b", "c", "d"]
    assert view.names("b", "d") == ["b", "c"]
    assert view.names("c", "") == ["c", "d"]


def test_forget_restores_summary_of_before() -> None:
    view = View("a")
    view.publish(record("a"))
    before = view.summary
    view.merge(record("b"))
    assert view.summary != before
    assert view.forget("b") and not view.forget("b") and not view.forget("a")
    assert view.summary == before and view.names() == ["a"]


def test_changed_ports_names_new_changed_and_gone() -> None:
    up, down = PortRecord("p", "r", PortState.UP, ""), PortRecord("p", "r", PortState.DOWN, "")
    gone, come = PortRecord("q", "s", PortState.UP, ""), PortRecord("n", "t", PortState.UP, "")
    found = changed_ports(HostRecord("b", 1, 1, (), (up, gone)), HostRecord("b", 1, 2, (), (down, come)))
    assert [(c.name, c.before, c.after) for c in found] == [("p", up, down), ("n", None, come), ("q", gone, None)]


def test_hosts_that_changed_last_are_told_latest_first_and_once() -> None:
    view = View("z")
    for host in "abc":
        view.merge(HostRecord(host, 1, 1))
    view.merge(HostRecord("a", 1, 2))
    assert view.recent() == ["a", "c", "b"]
