"""Rotating keys in a running fleet, and replays against it. Times are virtual seconds."""

from linkpass.model import PortState
from linkpass_topology.gossip.keyring import Key, Keyring
from linkpass_topology.gossip.outputs import Drop, PeerSilent
from tests.fakes.fleet import PORT, Fleet, fleet_record, name
from tests.fakes.mesh import KEYRING

OLD = KEYRING.sending
NEW = Key("two", bytes(range(1, 33)))


def fleet(hosts: int) -> Fleet:
    made = Fleet(1)
    made.wire = []
    for number in range(hosts):
        made.add(number, [0] if number else [])
    assert made.run(30, lambda: made.together() and made.agree())
    made.run(3)
    return made


def test_rotation_host_by_host_in_any_moment_of_it_keeps_everyone_connected_and_changes_at_once() -> None:
    made = fleet(5)
    state = [PortState.UP, PortState.DOWN]
    for step, keys in enumerate(((OLD, NEW), (NEW, OLD), (NEW,))):
        for number in range(5):  # one host after the other, seconds apart, as an operator does
            made.take(number, made.cores[number].set_keyring(Keyring(keys), made.now))
            made.run(1.7)
            new = made.publish((number + 1) % 5, state[(step + number) % 2])
            made.run(0.0006)
            assert all(c.view.get(new.host) == new for c in made.cores.values())
    made.run(60)
    assert not made.deaths()
    assert not [o for outputs in made.out.values() for _, o in outputs if isinstance(o, PeerSilent)]
    sessions = [s for c in made.cores.values() for p in c._roster.peers.values() for s in p.sessions]
    assert sessions and {s.key.id for s in sessions} == {"two"}
    assert all(c.dropped[Drop.UNKNOWN_KEY] == 0 for c in made.cores.values())


def test_members_tell_which_keys_they_accept() -> None:
    made = fleet(3)
    made.take(1, made.cores[1].set_keyring(Keyring((OLD, NEW)), made.now))
    made.run(1)
    rings = {m.row.host: [key for key, _ in m.row.ring] for m in made.cores[2].members()}
    assert rings == {name(0): ["one"], name(1): ["one", "two"], name(2): ["one"]}
    assert NEW.mark != OLD.mark and NEW.secret not in b"".join(mark for _, mark in Keyring((NEW,)).ring)


def test_host_with_a_removed_key_is_shut_out() -> None:
    made = fleet(3)
    for number in (0, 1):
        made.take(number, made.cores[number].set_keyring(Keyring((OLD, NEW)), made.now))
        made.take(number, made.cores[number].set_keyring(Keyring((NEW,)), made.now))
    made.run(1)
    held = made.cores[0].view.get(name(2))
    made.publish(2, PortState.DOWN)
    made.run(60)
    assert made.cores[0].view.get(name(2)) == held
    assert [h for _, h in made.turns(0, "dead")] == [name(2)]


def state_of(made: Fleet, number: int) -> object:
    core = made.cores[number]
    peers = sorted(core._roster.peers)
    return (core.view.summary, [m.row for m in core.members()], peers, core._links.sizes[2])


def test_everything_recorded_and_replayed_to_a_running_fleet_changes_nothing() -> None:
    made = fleet(4)
    made.publish(1, PortState.DOWN)
    made.run(2)
    recorded = list(made.wire or [])
    before = [state_of(made, n) for n in range(4)]
    for source, target, data in recorded:
        made.deliver(int(target[0].rsplit(".", 1)[1]), source, data)
    assert [state_of(made, n) for n in range(4)] == before
    assert len(recorded) > 100
    made.run(20)
    assert made.together() and made.agree() and not made.deaths()


def test_everything_recorded_before_a_restart_brings_no_old_row_or_record_back() -> None:
    """No clock is compared: it makes no difference how long ago it was recorded, or what the clocks say meanwhile."""
    made = fleet(4)
    made.take(3, made.cores[3].leave(made.now))
    made.remove(3)
    made.run(2)
    recorded = list(made.wire or [])
    made.remove(1)
    made.run(1)
    made.add(1, [0], incarnation=2)
    core = made.cores[1]
    for _ in range(2):
        for source, target, data in recorded:
            if target == (f"10.99.0.{1}", PORT):
                made.take(1, core.on_datagram(data, source, made.now))
    assert core.view.names() == [name(1)] and [m.row.host for m in core.members()] == [name(1)]
    assert core.view.get(name(1)) == fleet_record(1, incarnation=2)
    assert made.run(20, lambda: made.together() and made.agree())
    assert {m.row.host for m in made.cores[0].members() if m.row.status.here} == {name(0), name(1), name(2)}


def test_time_that_jumps_far_ahead_as_after_a_suspend_kills_nobody() -> None:
    """Monotonic time may stand or jump with a suspended host; wall time isn't looked at by the core at all."""
    made = fleet(4)
    for _ in range(3):
        made.now += 3600.0
        made._heap = [(at + 3600.0, count, n, source, data) for at, count, n, source, data in made._heap]
        for number, core in made.cores.items():
            made.take(number, core.on_timer(made.now))
        made.run(20)
    assert not made.deaths() and made.together() and made.agree()
