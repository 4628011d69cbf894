"""Merging records: order, number and road of arrivals don't matter, and nobody writes an owner's record."""

from hypothesis import given
from hypothesis import strategies as st

from linkpass.model import HostRecord, PortRecord, PortState
from linkpass_topology.view import Outcome, View

HOSTS = ["a", "b", "c"]
records = st.builds(
    HostRecord,
    host=st.sampled_from(HOSTS),
    incarnation=st.integers(0, 2),
    version=st.integers(0, 2),
    addresses=st.sampled_from([(), ("10.255.0.1",), ("10.255.0.2",)]),
    ports=st.sampled_from(
        [(), (PortRecord("p", "r", PortState.UP, ""),), (PortRecord("p", "r", PortState.DOWN, "x"),)]
    ),
)


def merged(*given: HostRecord, owner: str = "") -> View:
    view = View(owner)
    for record in given:
        view.merge(record)
    return view


def contents(view: View) -> dict[str, HostRecord]:
    return {r.host: r for r in view}


@given(st.lists(records, max_size=8), st.randoms(use_true_random=False))
def test_merge_in_any_order_gives_the_same_view(given_records: list[HostRecord], rng) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(given_records)
    rng.shuffle(shuffled)
    first, second = merged(*given_records), merged(*shuffled)
    assert contents(first) == contents(second)
    assert first.summary == second.summary


@given(st.lists(records, max_size=8))
def test_merge_again_changes_nothing(given_records: list[HostRecord]) -> None:
    view = merged(*given_records)
    before, total = contents(view), view.summary
    for record in given_records:
        assert view.merge(record).changes == ()
    assert contents(view) == before and view.summary == total


@given(st.lists(records, max_size=4), st.lists(records, max_size=4), st.lists(records, max_size=4))
def test_merge_of_views_is_associative(x: list[HostRecord], y: list[HostRecord], z: list[HostRecord]) -> None:
    left = merged(*merged(*x, *y), *z)
    right = merged(*x, *merged(*y, *z))
    assert contents(left) == contents(right)


@given(st.lists(records, max_size=10))
def test_merge_keeps_the_greatest_age_of_each_host(given_records: list[HostRecord]) -> None:
    view = merged(*given_records)
    for host in HOSTS:
        ages = [r.age_key for r in given_records if r.host == host]
        held = view.get(host)
        assert (held.age_key if held else None) == (max(ages) if ages else None)


@given(st.lists(records, max_size=10), st.integers(0, 2), st.integers(0, 2))
def test_owner_record_survives_whatever_others_claim(
    claims: list[HostRecord], incarnation: int, version: int
) -> None:
    view = View("a")
    own = HostRecord("a", incarnation, version, ("10.255.0.9",))
    view.publish(own)
    for record in claims:
        answer = view.merge(record)
        if record.host == "a":
            assert answer.changes == ()
            if record.age_key != own.age_key:
                assert (answer.outcome is Outcome.OUTRUN) == (record.age_key > own.age_key)
        assert view.get("a") == own


@given(st.lists(records, max_size=10))
def test_change_tells_exactly_what_was_replaced(given_records: list[HostRecord]) -> None:
    view = View()
    for record in given_records:
        before = view.get(record.host)
        for change in view.merge(record).changes:
            assert (change.previous, change.record) == (before, record)
            old = {p.name: p for p in before.ports} if before else {}
            new = {p.name: p for p in record.ports}
            names = {n for n in old.keys() | new.keys() if old.get(n) != new.get(n)}
            assert {c.name: (c.before, c.after) for c in change.ports} == {n: (old.get(n), new.get(n)) for n in names}
