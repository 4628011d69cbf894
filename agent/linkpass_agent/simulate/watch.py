"""Looks on while a fleet runs, and says when something doesn't hold that must. Uses its own reading of the rules.

What it holds the agents to, after every step in which an agent or its kernel moved:

    use          traffic to a peer takes only paths of the best kind that the agent believes in: in use or in doubt,
                 else held, else drained (docs/design.md); within 2.5 s it takes all of those that the kernel accepts
    last         the agent never takes the last next hop of a route away
    false-port   no port is judged down whose cable has been whole for 1.2 s
    false-path   no probe convicts a path that has been whole for 1.5 s, whatever the agents at its ends do
    damping      a port that fell is held at least as long as the doubling says
    older        no agent takes an older record of a host for the one that it has
    ping-pong    while better ones than held paths exist, a path comes back into a route at most 7 times in 10 s: of
                 the three that may hold it (the ports at both ends, the probes), one 3 times and two twice
    silent       no peer that runs, and has been reachable by the management network for 5 s, is called silent or dead
    road         no agent calls a host dead that runs, and that a whole rail has joined to it for 10 s, whatever
                 becomes of the management network

and at the end, after a quiet time:

    converged    all running agents hold the newest record of every running one
    reach        where a path works, the route has hops, and all of them work
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from linkpass.errors import LinkPassError
from linkpass.model import Event, EventKind, HostRecord, PathId, PortState
from linkpass.wire import stamp
from linkpass_topology.gossip.outputs import MemberTurned, Output, PeerSilent

from .faults import Fault

if TYPE_CHECKING:
    from .fleet import Fleet
    from .host import SimHost

S = PortState
DEAD = frozenset({S.DOWN, S.ABSENT})
KIND = {S.HELD: 1, S.DRAINED: 2, S.DOWN: 3, S.ABSENT: 3}  # all others: 0
ROUTE_TABLE, ROUTE_METRIC = 254, 50
SEEN_BY = 1.2  # s after which an agent has surely seen what its port's carrier does: a sweep and some
PROBED_BY = 1.5  # s in which probes sent before a path was mended have surely been settled
USED_BY = 2.5  # s until a path that is believed good is in the routes: two sweeps and some
ROAD = 10.0  # s that a rail must have joined two running agents until neither may call the other dead
QUIET_MGMT = 5.0  # s without loss or partition before silence of a peer is held against the agents
HOLD = 1.0  # s, the first hold-down; doubles up to
HOLD_MOST = 300.0
CALM = 10.0  # s of good behaviour below which no hold-down is forgiven
PING, PONG = 10.0, 7
KEEP = 400  # lines of the trace that are kept


class Broken(LinkPassError):
    """Something didn't hold. `what` is its name in this module's text."""

    def __init__(self, what: str, at: float, text: str) -> None:
        super().__init__(f"{at:.6f} s: {what}: {text}")
        self.what, self.at, self.text = what, at, text

    def __reduce__(self) -> tuple[type["Broken"], tuple[str, float, str]]:
        return Broken, (self.what, self.at, self.text)  # results come from other processes


@dataclass(slots=True)
class Fall:
    """What damping has cost a port so far, by our own count."""

    chain: int = 0  # falls without calm between them
    at: float | None = None  # of the last fall
    up_at: float | None = None
    back_at: float | None = None


@dataclass
class Counts:
    """Figures of a run."""

    verdicts: int = 0
    lossy: int = 0  # paths convicted while packets were lost on them
    acts: int = 0
    learned: int = 0
    silences: int = 0
    checks: int = 0
    bytes_by: dict[str, int] = field(default_factory=dict)


class Watch:
    """Judges one run. `lines` is the trace."""

    fleet: "Fleet"

    def __init__(self, keep: int = 0) -> None:
        self.counts = Counts()
        self.lines: deque[str] = deque(maxlen=keep)
        self._tracing = keep > 0
        self._falls: dict[tuple[str, str], Fall] = {}
        self._missing: dict[tuple[str, str], dict[str, float]] = {}
        self._taken: dict[tuple[str, str, str], deque[float]] = {}
        self._using: dict[tuple[str, str], frozenset[str]] = {}
        self._mgmt_bad_at = 0.0

    # -- what the fleet tells ----------------------------------------------------------------------------------

    def fault(self, fault: Fault, *, begins: bool) -> None:
        """A fault strikes or ends."""
        self.note("", f"{'FAULT' if begins else 'ENDS '} {fault}")
        self._mgmt_bad_at = self.fleet.queue.now

    def event(self, host: "SimHost", event: Event) -> None:
        """An agent tells its story."""
        if self._tracing:
            cause = f" ({event.cause})" if event.cause else ""
            self.note(host.name, f"{event.kind:<8} {event.subject}: {event.text}{cause}")
        if event.kind is EventKind.VERDICT:
            self.counts.verdicts += 1
            if event.subject in host.rail_of:
                self._port_moved(host, event.subject, PortState(str(event.data["to"])))

    def sent(self, host: "SimHost", to: str, size: int) -> None:
        """A gossip datagram left."""

    def learned(self, host: "SimHost", record: HostRecord) -> None:
        """A record came in."""
        self.counts.learned += 1
        before = host.reactor.peers.get(record.host)
        if before is not None and record.age_key < before.age_key:
            self._broken("older", f"{host.name} takes {record.age_key} of {record.host} for {before.age_key}")

    def told(self, host: "SimHost", output: Output) -> None:
        """The gossip says something else."""
        if isinstance(output, MemberTurned):
            self.note(host.name, f"member   {output.host}: {output.before} -> {output.status}")
            if output.status == "dead":
                self._silent(host, output.host)
                self._heard_by_rail(host, output.host)
        if isinstance(output, PeerSilent):
            self.note(host.name, f"silent   {output.host}")
            self.counts.silences += 1
            self._silent(host, output.host)

    def probed(self, host: "SimHost", paths: Iterable[PathId]) -> None:
        """Probe verdicts moved."""
        now, network = self.fleet.queue.now, self.fleet.network
        for path in paths:
            state = host.probing.get(path).state
            self.note(host.name, f"probes   {path}: {state}")
            if state is not S.DOWN:
                continue
            since = network.clean_since(host.name, path.peer, path.rail, now)
            self.counts.lossy += network.works(host.name, path.peer, path.rail)
            if now - since > PROBED_BY:
                self._broken("false-path", f"{host.name}: {path} judged down, but whole for {now - since:.3f} s")

    def acted(
        self, host: "SimHost", destination: str, before: set[tuple[str, str]], after: set[tuple[str, str]]
    ) -> None:
        """An agent changed a route."""
        self.counts.acts += 1
        if before and not after:
            self._broken("last", f"{host.name}: the route to {destination} lost its last hop by the agent's doing")

    # -- checks ------------------------------------------------------------------------------------------------

    def check(self, host: "SimHost", peers: Iterable[str] | None = None) -> None:
        """The host moved: do its routes to these peers (or all) follow from what it believes?"""
        if not host.running or host.frozen:
            return
        self.counts.checks += 1
        local = {port: state.verdict.state for port, state in host.reactor.ports.items()}
        carriers = {port for port, device in host.kernel.devices.items() if device.carrier}
        names = {device.index: name for name, device in host.kernel.devices.items()}
        for peer in host.reactor.peers if peers is None else peers:
            if (record := host.gossip.view.get(peer)) is not None:
                self._check_peer(host, record, local, carriers, self._used(host, record.addresses[0], names))

    def _check_peer(
        self,
        host: "SimHost",
        record: HostRecord,
        local: dict[str, PortState],
        carriers: set[str],
        used: frozenset[str],
    ) -> None:
        peer = record.host
        kinds: dict[str, int] = {}
        for port in record.ports:
            path = host.paths.get((peer, port.rail))
            if path is not None and port.addresses and local[path.port] not in DEAD:
                kinds[path.port] = _kind(local[path.port], port.state, host.probing.get(path).state)
        best = min(kinds.values(), default=3)
        if best == 3:
            self._missed(host, peer, frozenset())
            return
        allowed = {p for p, k in kinds.items() if k == best}
        possible = allowed & carriers
        if possible and not used <= allowed:
            wrong, right = ", ".join(sorted(used - allowed)), ", ".join(sorted(allowed))
            self._broken("use", f"{host.name}: traffic to {peer} takes {wrong}; believed best is {right}")
        self._missed(host, peer, possible - used)
        if best == 0:
            self._pinged(host, peer, used)

    def swept(self, host: "SimHost") -> bool:
        """The agent has just looked at everything. Whether it still has routes to mend."""
        now, found = self.fleet.queue.now, False
        for peer in host.reactor.peers if self._missing else ():
            for port, since in self._missing.get((host.name, peer), {}).items():
                found = True
                if now - since > USED_BY:
                    what = f"{port} to {peer} is believed good for {now - since:.3f} s, but not used"
                    self._broken("use", f"{host.name}: {what}")
        return found

    def finish(self) -> None:
        """The quiet time is over."""
        live = [h for h in self.fleet.hosts.values() if h.running]
        newest = {h.name: stamp(h.reactor.record) for h in live}
        for host in live:
            self.check(host)
            for name, mark in newest.items():
                held = host.gossip.view.stamp(name)
                if held != mark:
                    self._broken(
                        "converged", f"{host.name} holds {_short(held)} of {name}, whose record is {_short(mark)}"
                    )
                if name != host.name:
                    self._reaches(host, name)

    def _reaches(self, host: "SimHost", peer: str) -> None:
        network = self.fleet.network
        working = {host.port_on[r] for r in host.rails if network.works(host.name, peer, r)}
        names = {device.index: name for name, device in host.kernel.devices.items()}
        used = self._used(host, network.hosts[peer].service, names)
        if working and not used:
            self._broken("reach", f"{host.name}: no route to {peer}, though {', '.join(sorted(working))} works")
        if working and not used <= working:
            self._broken(
                "reach", f"{host.name}: traffic to {peer} takes {', '.join(sorted(used - working))}: doesn't work"
            )

    # -- inside ------------------------------------------------------------------------------------------------

    def note(self, who: str, text: str) -> None:
        """A line of the trace."""
        if self._tracing:
            self.lines.append(f"{self.fleet.queue.now:12.6f}  {who:<5} {text}")

    def _broken(self, what: str, text: str) -> None:
        self.note("", f"BROKEN {what}: {text}")
        raise Broken(what, self.fleet.queue.now, text)

    def _used(self, host: "SimHost", destination: str, names: dict[int, str]) -> frozenset[str]:
        """Devices that the kernel sends the destination's traffic out of."""
        entry = host.kernel.table.get((destination, ROUTE_TABLE, ROUTE_METRIC))
        if entry is None:
            return frozenset()
        objects = host.kernel.objects
        return frozenset(names[objects[m].interface] for m in objects[entry.route.nexthop].members)

    def _missed(self, host: "SimHost", peer: str, absent: Collection[str]) -> None:
        """Which believed-good paths aren't in the route, and since when."""
        key = (host.name, peer)
        if not absent:
            self._missing.pop(key, None)
            return
        known = self._missing.setdefault(key, {})
        for port in [p for p in known if p not in absent]:
            del known[port]
        for port in absent:
            known.setdefault(port, self.fleet.queue.now)

    def _pinged(self, host: "SimHost", peer: str, used: frozenset[str]) -> None:
        """Traffic to the peer takes paths of the first kind: count those that it didn't take before."""
        now, before = self.fleet.queue.now, self._using.get((host.name, peer))
        self._using[host.name, peer] = used
        if before is None or used <= before:
            return
        for device in used - before:
            taken = self._taken.setdefault((host.name, peer, device), deque(maxlen=PONG + 1))
            taken.append(now)
            if len(taken) > PONG and now - taken[0] < PING:
                count = f"{len(taken)} times in {now - taken[0]:.3f} s"
                self._broken("ping-pong", f"{host.name}: {device} came back into the route to {peer} {count}")

    def _port_moved(self, host: "SimHost", port: str, to: PortState) -> None:
        now, network = self.fleet.queue.now, self.fleet.network
        fall = self._falls.setdefault((host.name, port), Fall())
        if to in DEAD:
            cable = network.cables[host.name, host.rail_of[port]]
            since = max(cable.bad_at, host.thawed_at)  # a frozen agent hears late of what was
            if cable.perfect and now - since > SEEN_BY:
                self._broken("false-port", f"{host.name}: {port} judged {to}, but whole for {now - since:.3f} s")
            calm = fall.up_at is not None and now - fall.up_at >= CALM * HOLD * 0.99
            fall.chain = 1 if calm or fall.at is None else fall.chain + 1
            fall.at, fall.up_at, fall.back_at = now, None, None
        elif to in (S.HELD, S.DRAINED) and fall.back_at is None:
            fall.back_at = now
        elif to is S.UP:
            if fall.at is not None and fall.back_at is not None and fall.up_at is None:
                due = min(HOLD_MOST, HOLD * 2.0 ** (fall.chain - 1))
                if now - fall.back_at < due * 0.99:
                    self._broken("damping", f"{host.name}: {port} held {now - fall.back_at:.3f} s, not {due:g} s")
            fall.up_at = now

    def forget(self, host: "SimHost") -> None:
        """A new agent knows nothing of earlier falls."""
        for key in [k for k in self._falls if k[0] == host.name]:
            del self._falls[key]
        for pairs in (self._missing, self._using):
            for pair in [k for k in pairs if host.name in k]:
                del pairs[pair]
        for triple in [k for k in self._taken if host.name in k[:2]]:
            del self._taken[triple]

    def _silent(self, host: "SimHost", peer: str) -> None:
        other, network = self.fleet.hosts[peer], self.fleet.network
        now = self.fleet.queue.now
        calm = not network.islands and network.mgmt_loss == 0.0 and now - self._mgmt_bad_at > QUIET_MGMT
        if other.running and not other.frozen and calm:
            self._broken("silent", f"{host.name} calls {peer} silent or dead, which runs and can be reached")

    def _heard_by_rail(self, host: "SimHost", peer: str) -> None:
        """The host calls the peer dead: is there no rail over which they have heard each other for long?"""
        other, network, now = self.fleet.hosts[peer], self.fleet.network, self.fleet.queue.now
        if (
            not other.running
            or other.frozen
            or min(now - max(h.started_at, h.thawed_at) for h in (host, other)) < ROAD
        ):
            return
        for rail in host.rails:
            whole = now - network.clean_since(host.name, peer, rail, now)
            if whole > ROAD:
                self._broken("road", f"{host.name} calls {peer} dead, but {rail} has joined them for {whole:.3f} s")


def _kind(*states: PortState) -> int:
    """0: to be used, 1: held, 2: drained, 3: hopeless; of a path with these states of its parts."""
    return max(KIND.get(s, 0) for s in states)


def _short(mark: object) -> str:
    return "nothing" if mark is None else f"{mark[0]}.{mark[1]}"  # type: ignore[index]
