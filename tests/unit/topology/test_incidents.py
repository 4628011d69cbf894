"""Switch incidents: which falls belong together. Times are virtual seconds."""

from collections.abc import Callable
from random import Random

from linkpass.model import PortRecord, PortState
from linkpass_topology.incidents import Incidents
from linkpass_topology.view import PortChange

UP, DOWN, DRAINED = PortState.UP, PortState.DOWN, PortState.DRAINED


def change(before: PortState, after: PortState, rail: str = "rail0") -> list[PortChange]:
    return [
        PortChange(
            f"p-{rail}",
            PortRecord(f"p-{rail}", rail, before, "fine"),
            PortRecord(f"p-{rail}", rail, after, "no carrier"),
        )
    ]


def leaf(host: str, rail: str) -> str | None:
    """Hosts h0 to h7 are plugged into l0, the others into l1."""
    return "l0" if int(host[1:]) < 8 else "l1"


def known(size: int = 8) -> Incidents:
    return Incidents(leaf, lambda switch: size)


def fall(incidents: Incidents, at: float, *hosts: str, rail: str = "rail0") -> list[str]:
    return [i.where for h in hosts for i in incidents.note(at, h, change(UP, DOWN, rail))]


def test_many_ports_of_one_leaf_are_one_incident_with_one_cause() -> None:
    incidents = known()
    assert fall(incidents, 10.0, "h0", "h1") == []
    assert fall(incidents, 11.5, "h2", "h3", "h4") == ["l0"]
    (incident,) = incidents.open
    assert incident.cause == "l0 failed" and len(incident.ports) == 5 and incident.sign == "no carrier"
    assert incident.text == "l0 (rail0): 5 of 8 ports fell within 1.5 s"


def test_falls_further_apart_than_two_seconds_are_no_incident() -> None:
    incidents = known()
    assert fall(incidents, 10.0, "h0", "h1") == []
    assert fall(incidents, 12.1, "h2", "h3") == []
    assert incidents.open == []


def test_ports_of_two_leaves_are_not_counted_together() -> None:
    incidents = known()
    assert fall(incidents, 10.0, "h0", "h1", "h8", "h9") == []
    assert fall(incidents, 10.5, "h10") == ["l1"]


def test_unknown_switch_is_inferred_from_ports_of_one_rail_that_fall_together() -> None:
    incidents = Incidents()
    assert fall(incidents, 10.0, "h0", "h9") == []
    assert fall(incidents, 10.1, "h3", rail="rail1") == []
    assert fall(incidents, 10.2, "h5") == ["a switch of rail0"]
    assert incidents.open[0].text == "a switch of rail0: 3 ports fell within 0.2 s"


def test_small_switch_needs_two() -> None:
    incidents = known(size=4)
    assert fall(incidents, 10.0, "h0") == []
    assert fall(incidents, 10.0, "h1") == ["l0"]


def test_one_host_losing_all_its_ports_is_no_incident() -> None:
    incidents = Incidents()
    for rail in ("rail0", "rail1", "rail2", "rail3"):
        assert fall(incidents, 10.0, "h0", rail=rail) == []
    for _ in range(5):  # nor is one port that flaps
        incidents.note(10.1, "h0", change(DOWN, UP))
        assert fall(incidents, 10.1, "h0") == []


def test_drains_and_first_records_are_no_falls() -> None:
    incidents = known()
    for i in range(8):
        assert incidents.note(10.0, f"h{i}", change(UP, DRAINED)) == []
        assert incidents.note(10.0, f"h{i}", [PortChange("p", None, PortRecord("p", "rail0", DOWN, ""))]) == []
        assert incidents.note(10.0, f"h{i}", change(PortState.ABSENT, DOWN)) == []
    assert incidents.open == []


def test_incident_that_grows_is_told_once_more_when_it_is_quiet() -> None:
    incidents = known()
    fall(incidents, 10.0, "h0", "h1", "h2")
    fall(incidents, 10.5, "h3", "h4")
    fall(incidents, 11.0, "h5")
    assert incidents.settle(12.0) == ([], [])
    grown, over = incidents.settle(13.1)
    assert [len(i.ports) for i in grown] == [6] and over == []
    assert incidents.settle(14.0) == ([], [])


def test_incident_is_over_when_every_port_is_back() -> None:
    incidents = known()
    fall(incidents, 10.0, "h0", "h1", "h2")
    incidents.note(20.0, "h0", change(DOWN, PortState.HELD))
    incidents.note(20.0, "h1", change(DOWN, UP))
    assert incidents.open[0].text.endswith("; 2 are back")
    assert incidents.settle(20.5) == ([], [])
    incidents.note(21.0, "h2", change(DOWN, UP))
    (_, (over,)) = incidents.settle(21.5)
    assert over.where == "l0" and incidents.open == []
    assert fall(incidents, 30.0, "h0", "h1") == [] and fall(incidents, 30.1, "h2") == ["l0"]


def test_any_order_of_arrival_gives_the_same_incident() -> None:
    found = set()
    for seed in range(50):
        rng = Random(seed)
        falls: list[Callable[[Incidents], object]] = [
            lambda i, h=f"h{n}", t=10.0 + n / 10: fall(i, t, h)  # type: ignore[misc]
            for n in range(6)
        ]
        rng.shuffle(falls)
        incidents = known()
        for one in falls:
            one(incidents)
        found.add((incidents.open[0].where, incidents.open[0].ports))
    assert len(found) == 1
