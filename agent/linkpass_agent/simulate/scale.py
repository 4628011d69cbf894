"""How news of ports spreads in large fleets: the real sharing code on a virtual network, without judges and planners.

    python -m linkpass_agent.simulate.scale --hosts 64 512 2048 --loss 0 0.01 0.05 0.2 > scale.json

Hosts start as members that know each other and each other's records (joining isn't measured here), make the sessions
that they keep, and are left idle; then one leaf fails under about 64 of them, and each tells its port's end as its
agent would, within 10 ms. Datagrams take 0.1 to 0.4 ms; the share `--loss` of them is lost. One JSON line a run.
"""

import argparse
import gc
import heapq
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from linkpass.model import HostRecord, PortRecord, PortState
from linkpass.wire import Stamp, stamp
from linkpass_topology.fabric import Fabric, grid
from linkpass_topology.gossip.core import Gossip
from linkpass_topology.gossip.keyring import Keyring
from linkpass_topology.gossip.membership import Member
from linkpass_topology.gossip.options import Options
from linkpass_topology.gossip.outputs import Address, Learned, MemberTurned, Output, Send
from linkpass_topology.gossip.row import Row
from linkpass_topology.gossip.suspicion import SwimRule
from linkpass_topology.view import SUMMARY_MASK

from .fleet import key
from .overlay import Overlay
from .paper import memo, paper

PORT = 7471
UNDER = 64  # hosts under one leaf
PEERS = 8  # hosts that have routes or queue pairs with one, 4 on each side
WARM = 5.0  # s to make sessions
IDLE = 10.0  # s measured
LOOK = 10.0  # s after the failure
BUSY = 2.0  # s after the failure whose bytes are counted


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. Times in seconds, bytes of UDP payload that a host sends in a second."""

    hosts: int
    rails: int
    loss: float
    failed: int  # hosts under the leaf
    peers: tuple[float, ...]  # p50, p99, max until a peer of a host under the leaf knows of that host's port
    all: tuple[float, ...]  # the same until any host knows
    everyone: float | None  # until every host knows of every port; None: not while we looked
    idle_bytes: float
    busy_bytes: float
    busiest_bytes: float  # of the busiest host
    deaths: int  # verdicts of death, all of them wrong: every host lives
    took: float  # s of CPU, for all of it


def record_of(fabric: Fabric, number: int, down: str = "", version: int = 1) -> HostRecord:
    """A host's record with one IPv4 address and one GID a port; `down` is the rail whose port has no carrier."""
    host = fabric.hosts[number]
    ports = []
    for i, rail in enumerate(fabric.rails):
        dead = rail == down
        address = host.on_rail(i)
        ports.append(
            PortRecord(
                f"eth{i}",
                rail,
                PortState.DOWN if dead else PortState.UP,
                "carrier lost (carrier)" if dead else "carrier (sweep)",
                (address,),
                9000,
                (f"0000:0000:0000:0000:0000:ffff:{number + 1:04x}:{i:04x}",),
            )
        )
    return HostRecord(host.name, 1_700_000_000, version, (host.service,), tuple(ports))


def _member(row: Row) -> Member:
    return Member(row, 0.0)


def _same(held: tuple[HostRecord, Stamp]) -> tuple[HostRecord, Stamp]:
    return held


class Crowd:
    """All hosts' sharing, on one queue."""

    def __init__(self, hosts: int, rails: int, loss: float, seed: int) -> None:
        self.fabric = grid(hosts, rails, mtu=9000, leaves=max(1, hosts // UNDER))
        self.rng, self.loss = Random(f"crowd {seed} {hosts} {loss}"), loss
        self.now = 0.0
        self.bytes = [0] * hosts
        self.turned: list[tuple[float, str, str]] = []  # when which host was called suspect or dead, by anybody
        self.frozen: dict[int, float] = {}  # until when a host's agent stands still
        self.lost_rail: Callable[[int, str], bool] = lambda host, rail: False
        self.heard: dict[tuple[int, int], float] = {}  # (of, by) -> when the failure's news came
        self.news: dict[str, tuple[int, int]] = {}  # host -> its number, the version to watch for
        self._heap: list[tuple[float, int, int, Address | None, bytes]] = []
        self._armed: list[float] = [float("inf")] * hosts
        self._count = 0
        self._at: dict[str, tuple[int, str]] = {}
        for n, host in enumerate(self.fabric.hosts):
            self._at[host.management] = (n, "")
            self._at.update({host.on_rail(i): (n, rail) for i, rail in enumerate(self.fabric.rails)})
        rng, options = self.rng, Options(swim=SwimRule())
        ring = Keyring((key(1),))
        self.cores = []
        for n, host in enumerate(self.fabric.hosts):
            own = Random(rng.getrandbits(64))
            core = Gossip(host.name, ring, (), rng=own, entropy=own.randbytes, options=options)
            self.cores.append(core)
            self.take(n, core.publish(record_of(self.fabric, n), 0.0))
            self.take(n, core.start(0.0, (host.management, PORT)))
        self._acquaint()
        names = [h.name for h in self.fabric.hosts]
        for n, core in enumerate(self.cores):
            near = (names[(n + d) % hosts] for d in range(-(PEERS // 2), PEERS // 2 + 1) if d)
            self.take(n, core.set_interested({name: () for name in near if name != names[n]}, 0.0))

    def _acquaint(self) -> None:
        """Everybody knows everybody, as after a long quiet time; the tables are copied rather than told."""
        fleets = {core.host: core.fleet for core in self.cores if core.fleet}
        rows = {host: me for host, fleet in fleets.items() if (me := fleet.table.me)}
        own = {core.host: core.view.get(core.host) for core in self.cores}
        records = {host: (record, stamp(record)) for host, record in own.items() if record}
        assert len(rows) == len(records) == len(self.cores)
        names = sorted(rows)
        total = sum(int.from_bytes(mark.digest, "big") for _, mark in records.values()) & SUMMARY_MASK
        table_sum = sum(row.digest for row in rows.values()) & SUMMARY_MASK
        rails = {a: p.rail for record, _ in records.values() for p in record.ports for a in p.addresses}
        for core in self.cores:
            core.view._records, core.view._names, core.view._sum = Overlay(records, _same), list(names), total
            fleets[core.host].roads._rail_of = rails  # the same for all, and addresses don't change here
            table = fleets[core.host].table
            table.take()
            mine = table.members[core.host]
            table.members = Overlay(rows, _member)
            table.members[core.host] = mine
            table.names, table.here, table.sum = list(names), len(names), table_sum
            table._others = [name for name in names if name != core.host]
            table._place = {name: i for i, name in enumerate(table._others)}
            table._order = self.rng.sample(table._others, len(table._others))

    # -- time --------------------------------------------------------------------------------------------------

    def run(self, end: float) -> None:
        """Let time pass."""
        heap, armed, cores = self._heap, self._armed, self.cores
        while heap and heap[0][0] <= end:
            at, _, n, source, data = heapq.heappop(heap)
            if (until := self.frozen.get(n, at)) > at:  # waits in the socket, or runs late
                if source is not None:
                    self._push(until, n, source, data)
                elif armed[n] == at:
                    armed[n] = until
                    self._push(until, n, None, b"")
            elif source is not None:
                self.now = at
                self.take(n, cores[n].on_datagram(data, source, at))
            elif armed[n] == at:
                self.now = at
                armed[n] = float("inf")
                self.take(n, cores[n].on_timer(at))
        self.now = end

    def take(self, n: int, outputs: list[Output]) -> None:
        """Carry out what a core says."""
        for output in outputs:
            match output:
                case Send(addr=addr, data=data):
                    self._send(n, addr, data)
                case Learned(host=host, record=record) if host in self.news:
                    number, version = self.news[host]
                    if record.version >= version:
                        self.heard.setdefault((number, n), self.now)
                case MemberTurned(host=host, status=("dead" | "suspect") as status):
                    self.turned.append((self.now, host, status))
        due = self.cores[n].next_timer()
        if due is not None and due < self._armed[n]:
            self._armed[n] = due
            self._push(due, n, None, b"")

    def _send(self, n: int, addr: Address, data: bytes) -> None:
        self.bytes[n] += len(data)
        target, rail = self._at[addr[0]]
        if self.rng.random() < self.loss or (rail and (self.lost_rail(n, rail) or self.lost_rail(target, rail))):
            return
        host = self.fabric.hosts[n]
        here = host.on_rail(self.fabric.rails.index(rail)) if rail else host.management
        self._push(self.now + self.rng.uniform(0.0001, 0.0004), target, (here, PORT), data)

    def _push(self, at: float, n: int, source: Address | None, data: bytes) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, n, source, data))


def measure(hosts: int, rails: int, loss: float, seed: int = 1) -> Measured:
    """One run."""
    began = time.process_time()
    with paper(), memo():
        crowd = Crowd(hosts, rails, loss, seed)
        gc.freeze()
        crowd.run(WARM)
        before = sum(crowd.bytes)
        crowd.run(WARM + IDLE)
        idle = (sum(crowd.bytes) - before) / IDLE / hosts
        start = crowd.now
        rail, leaf = crowd.fabric.rails[0], crowd.fabric.leaves[0].name
        under = [n for n, h in enumerate(crowd.fabric.hosts) if h.leaves[rail] == leaf]
        crowd.news = {crowd.fabric.hosts[n].name: (n, 2) for n in under}
        dead = set(under)
        crowd.lost_rail = lambda n, r: r == rail and n in dead
        began_at = {n: start + crowd.rng.uniform(0.0002, 0.0102) for n in under}
        base = list(crowd.bytes)
        for n in sorted(under, key=began_at.__getitem__):
            crowd.run(began_at[n])
            crowd.take(n, crowd.cores[n].publish(record_of(crowd.fabric, n, down=rail, version=2), crowd.now))
        crowd.run(start + BUSY)
        busy = [(now - then) / BUSY for now, then in zip(crowd.bytes, base, strict=True)]
        crowd.run(start + LOOK)
    gc.unfreeze()
    took = {pair: at - began_at[pair[0]] for pair, at in crowd.heard.items()}
    near = {(n, (n + d) % hosts) for n in under for d in range(-(PEERS // 2), PEERS // 2 + 1) if d}
    whole = len(took) == len(under) * (hosts - 1)
    return Measured(
        hosts,
        rails,
        loss,
        len(under),
        quantiles([took.get(pair, float("inf")) for pair in near if pair[0] != pair[1]]),
        quantiles(list(took.values()) + [float("inf")] * (len(under) * (hosts - 1) - len(took))),
        max(crowd.heard.values()) - start if whole else None,
        idle,
        sum(busy) / hosts,
        max(busy),
        sum(status == "dead" for _, _, status in crowd.turned),
        time.process_time() - began,
    )


def quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """p50, p99, max."""
    row = sorted(values)
    return tuple(row[min(len(row) - 1, int(q * len(row)))] for q in (0.5, 0.99, 1.0))


def lines(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One line a run, the small fleets first."""
    for hosts in options.hosts:
        for loss in options.loss:
            found = measure(hosts, options.rails, loss, options.seed)
            yield {name: getattr(found, name) for name in Measured.__slots__}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    top = argparse.ArgumentParser(prog="python -m linkpass_agent.simulate.scale", description=__doc__)
    top.add_argument("--hosts", type=int, nargs="+", default=[64, 512])
    top.add_argument("--rails", type=int, default=8)
    top.add_argument("--loss", type=float, nargs="+", default=[0.0, 0.01, 0.05, 0.2])
    top.add_argument("--seed", type=int, default=1)
    for line in lines(top.parse_args(argv)):
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
