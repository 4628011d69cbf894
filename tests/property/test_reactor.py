"""The whole decision loop over a fake kernel, against an oracle that looks at the graph of paths alone."""

import errno
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from linkpass.errors import RefusedError
from linkpass.model import HostRecord, PathId, PortState, Value
from linkpass_agent.act.rtnl import Message
from tests.fakes.agent import FakeAgent, record, service

S = PortState
RAILS = 3
PEERS = ("b", "c")
PORTS = [f"a-rail{n}" for n in range(RAILS)]
USABLE, HOPELESS = (S.UP, S.SUSPECT, S.UNKNOWN), (S.DOWN, S.ABSENT)
REMOTE = st.sampled_from([S.UP, S.UP, S.UP, S.DOWN, S.HELD, S.DRAINED, S.SUSPECT, S.UNKNOWN, S.ABSENT, None])
PROBED = st.sampled_from([S.UP, S.UP, S.SUSPECT, S.DOWN, S.HELD, S.UNKNOWN])
Hops = set[tuple[str, str]]


class ReactorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.versions = dict.fromkeys(PEERS, 1)
        self.refusing = False
        self.last_index = 100

    def teardown(self) -> None:
        self.folder.cleanup()

    @initialize()
    def begin(self) -> None:
        self.agent = FakeAgent(Path(self.folder.name), RAILS)
        self.agent.start(*PEERS)

    # -- what each call must not do ------------------------------------------------------------------------------

    def routes(self) -> dict[str, Hops]:
        return {peer: self.agent.kernel.hops_of(service(peer)) for peer in PEERS}

    @contextmanager
    def news(self, *, may_move: bool = True) -> Iterator[None]:
        """One call into the reactor: it may not take a last hop away, nor tell without end."""
        before, told = self.routes(), len(self.agent.events)
        yield
        after = self.routes()
        for peer in PEERS:
            assert after[peer] or not before[peer], f"the route to {peer} lost its last hop by our doing"
            assert may_move or after[peer] == before[peer], "blindness alone moved traffic"
        # At most: a fact and a verdict for each port, a share, and for each peer its record, its paths' verdicts,
        # and three lines of its route.
        assert len(self.agent.events) - told <= 2 * RAILS + 1 + len(PEERS) * (RAILS + 4)

    # -- the world -----------------------------------------------------------------------------------------------

    @rule(port=st.sampled_from(PORTS), carrier=st.booleans(), noticed=st.booleans(), seen=st.booleans())
    def link_changes(self, port: str, carrier: bool, noticed: bool, seen: bool) -> None:
        if port not in self.agent.kernel.devices:
            return
        self.agent.kernel.carrier(port, carrier, noticed=noticed)
        if seen:
            with self.news():
                self.agent.see(port, carrier=carrier)

    @rule(port=st.sampled_from(PORTS))
    def link_blinks_unseen(self, port: str) -> None:
        if port in self.agent.kernel.devices and self.agent.kernel.devices[port].carrier:
            self.agent.kernel.carrier(port, False)
            self.agent.kernel.carrier(port, True)

    @rule(port=st.sampled_from(PORTS))
    def device_goes_and_comes(self, port: str) -> None:
        if port in self.agent.kernel.devices:
            self.agent.kernel.delete_device(port)
            with self.news():
                self.agent.see(port, present=False)
        else:
            self.last_index += 1
            self.agent.kernel.add_device(port, self.last_index)
            address = f"10.{10 + PORTS.index(port)}.0.1"
            with self.news():
                self.agent.see(port, present=True, admin=True, carrier=True, mtu=9000, addresses=(address,))

    @rule(
        port=st.sampled_from(PORTS),
        signals=st.sets(st.sampled_from(["carrier", "admin", "operstate", "mtu", "addresses"]), min_size=1),
    )
    def sight_is_lost(self, port: str, signals: set[str]) -> None:
        nothing_pending = self.agent.reactor.plan().steps == ()
        with self.news(may_move=not nothing_pending):
            self.agent.see(port, **dict.fromkeys(sorted(signals)))

    @rule(port=st.sampled_from(PORTS), value=st.sampled_from(["up", "lowerlayerdown", "dormant", "unknown"]))
    def operstate_is_seen(self, port: str, value: Value) -> None:
        with self.news():
            self.agent.see(port, operstate=value)

    @rule(peer=st.sampled_from(PEERS), states=st.lists(REMOTE, max_size=RAILS), reboot=st.booleans())
    def record_arrives(self, peer: str, states: list[PortState | None], reboot: bool) -> None:
        self.versions[peer] += 1
        new: HostRecord = record(peer, states, self.versions[peer], incarnation=2 if reboot else 1)
        with self.news():
            self.agent.reactor.learned(new)

    @rule(peer=st.sampled_from(PEERS), rail=st.integers(0, RAILS - 1), state=PROBED)
    def probes_say(self, peer: str, rail: int, state: PortState) -> None:
        with self.news():
            self.agent.probe(peer, rail, state)

    @rule(port=st.sampled_from(PORTS))
    def drain(self, port: str) -> None:
        usable = {peer: self.usable(peer) for peer in PEERS}
        fresh = self.agent.reactor.ports[port].drained is None
        try:
            with self.news():
                self.agent.reactor.drain(port, "x", dry_run=False)
        except RefusedError:
            assert fresh
            assert self.agent.reactor.ports[port].drained is None
            return
        for peer in PEERS if fresh else ():
            assert not usable[peer] or usable[peer] != {port}, f"drained the last usable path to {peer}"

    @rule(port=st.sampled_from(PORTS))
    def undrain(self, port: str) -> None:
        if self.agent.reactor.ports[port].drained is not None:
            with self.news():
                self.agent.reactor.undrain(port)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        before = self.routes()
        self.agent.wait(seconds)
        assert all(after or not before[peer] for peer, after in self.routes().items())

    @rule()
    def sweep(self) -> None:
        before = self.routes()
        self.agent.sweep()
        assert all(after or not before[peer] for peer, after in self.routes().items())

    @rule(peer=st.sampled_from(PEERS))
    def somebody_removes_our_route(self, peer: str) -> None:
        self.agent.kernel.table.pop((service(peer), 254, 50), None)

    @rule(
        error=st.sampled_from([errno.EPERM, errno.ENOBUFS, errno.ENETDOWN]),
        which=st.sampled_from(["", "group", "route", "via"]),
    )
    def kernel_refuses(self, error: int, which: str) -> None:
        refuse: Callable[[Message], int] = lambda m: error if which in m.name else 0  # noqa: E731
        self.agent.kernel.refuse = refuse
        self.refusing = True

    @precondition(lambda self: self.refusing)
    @rule()
    def kernel_takes_again(self) -> None:
        self.agent.kernel.refuse = lambda m: 0
        self.refusing = False

    # -- what must hold once things settle -----------------------------------------------------------------------

    @rule()
    def everything_settles(self) -> None:
        """All facts are seen, routing has noticed, nothing is refused, and a few sweeps pass."""
        self.kernel_takes_again()
        for port in PORTS:
            device = self.agent.kernel.devices.get(port)
            if device is not None:
                self.agent.kernel.notice(port)
                self.agent.see(port, present=True, admin=True, carrier=device.carrier)
        for _ in range(3):
            self.agent.sweep()
        told, sent, published = len(self.agent.events), len(self.agent.kernel.sent), len(self.agent.published)
        for peer in PEERS:
            self.check_wish(peer)
        assert self.agent.reactor.plan().steps == ()
        for _ in range(5):
            self.agent.sweep()
        assert self.agent.events[told:] == []
        assert self.agent.kernel.sent[sent:] == []
        assert len(self.agent.published) == published

    def candidates(self, peer: str) -> dict[str, set[PortState]]:
        """Local port -> the three states of its path, for paths that the kernel could have a hop for."""
        reactor, found = self.agent.reactor, {}
        for n, port in enumerate(PORTS):
            remote = reactor.peers[peer].port_on(f"rail{n}")
            local = reactor.ports[port].verdict.state
            if remote is not None and local not in HOPELESS:
                probe = self.agent.probing.states.get(PathId(peer, f"rail{n}", port), S.UP)
                found[port] = {local, remote.state, probe}
        return found

    def usable(self, peer: str) -> set[str]:
        return {port for port, states in self.candidates(peer).items() if states <= set(USABLE)}

    def check_wish(self, peer: str) -> None:
        """The oracle: the best kind of path that there is, all of that kind, none of another."""
        found, paths = {d for d, _ in self.routes()[peer]}, self.candidates(peer)
        drained = {p for p, s in paths.items() if S.DRAINED in s and not s & set(HOPELESS)}
        held = {p for p, s in paths.items() if S.HELD in s and not s & {S.DRAINED, *HOPELESS}}
        best = self.usable(peer) or held or drained
        if best:
            assert found == best
        elif paths:
            assert found, f"no route to {peer} at all, although {sorted(paths)} might work"

    @invariant()
    def belief_names_only_our_ports(self) -> None:
        if hasattr(self, "agent"):
            for hops in self.agent.routes.current.values():
                assert {h.device for h in hops} <= set(PORTS)


# Without the explain phase: it traces every line, which takes minutes here.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
ReactorMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None, phases=PHASES)
TestReactor = ReactorMachine.TestCase
