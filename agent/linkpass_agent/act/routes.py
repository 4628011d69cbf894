"""The first actuator: a host route for each peer's address, over a group of next-hop objects, one per usable path.

Our routes lie over those that others made (a better metric); undoing ours brings theirs back. Taking a path out of
a route is one message, a group replace. The kernel itself drops a device's next hops when its carrier goes, and the
groups and routes that had only those, but late where it throttles link events; so after `lost_device` nothing about
that device's routes is taken for granted, and `verify` reads the truth.
"""

import errno
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from itertools import count
from typing import Protocol

from linkpass.errors import KernelError
from linkpass.model import Hop, Plan, Route, Step

from . import rtnl
from .ledger import Ledger, Made
from .rtnl import KernelRoute, Message, NextHop

# The kernel's answers to a next hop that can't be used now; the route does without it.
HOP_ERRORS = frozenset({errno.ENETDOWN, errno.ENODEV, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL})

log = logging.getLogger(__name__)


class KernelDoor(Protocol):
    """What the actuator needs of `rtnl.Rtnl`."""

    def send(self, messages: Sequence[Message]) -> list[KernelError | None]: ...
    def nexthops(self) -> list[NextHop]: ...
    def routes(self) -> list[KernelRoute]: ...


@dataclass(frozen=True, slots=True)
class RouteRule:
    """Numbers that mark and place what is ours."""

    metric: int
    protocol: int
    table: int
    base: int  # first next-hop id that we may use


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one step. `hops` are those that the kernel took; `error` '' on success."""

    step: Step
    hops: tuple[Hop, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan whose object ids are set aside and written to the ledger."""

    plan: Plan
    group_ids: dict[str, int]


class RouteActuator:
    """Carries out plans: prepare, commit, undo."""

    def __init__(
        self, kernel: KernelDoor, ledger: Ledger, rule: RouteRule, interface_index: Callable[[str], int | None]
    ) -> None:
        self._kernel, self._ledger, self._rule, self._index = kernel, ledger, rule, interface_index
        self._made = Made()
        self._exists: set[tuple[str, str]] = set()  # next hops that the kernel has, as far as we know
        self._current: dict[str, tuple[Hop, ...]] = {}
        self._unsure: set[str] = set()  # destinations whose route the kernel may have dropped
        self._foreign: set[int] = set()  # next-hop ids that others use

    @property
    def current(self) -> Mapping[str, tuple[Hop, ...]]:
        """Destination -> next hops that the kernel has from us now."""
        return self._current

    @property
    def unsure(self) -> Collection[str]:
        """Destinations whose hops in `current` may be gone: to be made again even where they look right."""
        return self._unsure

    # -- start ------------------------------------------------------------------------------------------------

    def adopt(self, device_of: Callable[[int], str | None]) -> list[str]:
        """Find what an earlier agent left: take over whole routes, remove the rest. Returns what was mended."""
        self._made, complaint = self._ledger.load()
        told = [complaint] if complaint else []
        ours = self._our_objects()
        routes = [r for r in self._kernel.routes() if self._is_ours(r)]
        hop_of = {
            i: (device, n.gateway)
            for i, n in ours.items()
            if not n.members and (device := device_of(n.interface)) is not None
        }
        kept: set[int] = set()
        made = Made()
        for route in routes:
            group = ours.get(route.nexthop)
            hops = [(m, hop_of[m]) for m in group.members if m in hop_of] if group else []
            if group is None or not hops:
                self._kernel.send([self._delete_route(route.destination)])
                told.append(f"removed a route to {route.destination} that had no next hop")
                continue
            made.groups[route.destination] = group.id
            made.nexthops |= {hop: i for i, hop in hops}
            kept |= {group.id, *(i for i, _ in hops)}
            self._current[route.destination] = tuple(sorted(Hop(*hop) for _, hop in hops))
        stray = [i for i in ours if i not in kept]
        self._kernel.send([rtnl.delete_nexthop(i) for i in sorted(stray, key=lambda i: not ours[i].members)])
        if stray:
            told.append(f"removed {len(stray)} next-hop object(s) that no route used")
        if self._current:
            told.append(f"took over {len(self._current)} route(s) of an earlier agent")
        self._made, self._exists = made, set(made.nexthops)
        self._save()
        return told

    # -- prepare, commit, undo --------------------------------------------------------------------------------

    def prepare(self, plan: Plan) -> Prepared:
        """Set object ids aside and write them down. Changes nothing in the kernel.

        A plan that only leaves paths out needs no new ids, and so waits for no file.
        """
        hops = {(h.device, h.via) for s in plan.steps for h in (*s.before, *s.after)} - self._made.nexthops.keys()
        groups = {s.route.destination for s in plan.steps} - self._made.groups.keys()
        if hops or groups:
            self._give_ids(sorted(hops), sorted(groups))
            self._save()
        return Prepared(plan, {s.route.destination: self._made.groups[s.route.destination] for s in plan.steps})

    def commit(self, prepared: Prepared) -> list[Outcome]:
        """Carry the steps out, each for itself. One that fails leaves its route as it was before."""
        return [self._step(step) for step in prepared.plan.steps]

    def apply(self, plan: Plan) -> list[Outcome]:
        """Prepare and commit in one go."""
        return self.commit(self.prepare(plan))

    def undo(self, *, keep_stranded: bool) -> list[str]:
        """Remove what we made. With `keep_stranded`, a route without a fallback in the kernel stays."""
        kept = {d for d in self._stranded() if keep_stranded}
        gone = [d for d in self._made.groups if d not in kept]
        self._kernel.send([self._delete_route(d) for d in gone if d in self._current])
        self._kernel.send([rtnl.delete_nexthop(self._made.groups.pop(d)) for d in gone])
        for destination in gone:
            self._current.pop(destination, None)
        self._sweep_unused()
        if kept:
            self._save()
        else:
            self._ledger.remove()
        return sorted(kept)

    def forget(self, destination: str, *, keep_stranded: bool) -> bool:
        """Remove the route to one destination. False if it stays, being the only one there."""
        if keep_stranded and destination in self._stranded():
            return False
        self._kernel.send([self._delete_route(destination)])
        group = self._made.groups.pop(destination, None)
        if group is not None:
            self._kernel.send([rtnl.delete_nexthop(group)])
        self._current.pop(destination, None)
        self._sweep_unused()
        self._save()
        return True

    def _stranded(self) -> set[str]:
        """Destinations that only our route reaches."""
        others = [r for r in self._kernel.routes() if not self._is_ours(r) and r.table == self._rule.table]
        return {d for d in self._current if not any(_covers(r, d) for r in others)}

    # -- keeping the picture true -----------------------------------------------------------------------------

    def lost_device(self, device: str) -> None:
        """The device or its carrier went: the kernel dropped, or will soon drop, its next hops."""
        self._exists = {hop for hop in self._exists if hop[0] != device}
        self._unsure |= {d for d, hops in self._current.items() if any(h.device == device for h in hops)}

    def verify(self, device_of: Callable[[int], str | None]) -> list[str]:
        """Read the kernel's tables; returns destinations whose route isn't what we last made of it."""
        objects = self._our_objects()
        hop_of = {
            i: Hop(device, n.gateway)
            for i, n in objects.items()
            if not n.members and (device := device_of(n.interface)) is not None
        }
        self._exists = {hop for hop, i in self._made.nexthops.items() if i in hop_of and hop_of[i] == Hop(*hop)}
        actual: dict[str, tuple[Hop, ...]] = {}
        for route in self._kernel.routes():
            group = objects.get(route.nexthop)
            if self._is_ours(route) and group is not None:
                actual[route.destination] = tuple(sorted(hop_of[m] for m in group.members if m in hop_of))
        differ = [d for d in {*actual, *self._current} if actual.get(d, ()) != self._current.get(d, ())]
        self._current = {d: hops for d, hops in actual.items() if hops}
        self._unsure.clear()
        return sorted(differ)

    # -- inside -----------------------------------------------------------------------------------------------

    def _step(self, step: Step) -> Outcome:
        hops, error = self._ensure(step.route, step.after, fast=True)
        if error:
            hops, error = self._ensure(step.route, step.after, fast=False)
        if error:
            back, failed = self._ensure(step.route, step.before, fast=False) if step.before else ((), "")
            if failed:  # the kernel has what it had before, or nothing: `verify` will tell
                self._unsure.add(step.route.destination)
                return Outcome(step, self._current.get(step.route.destination, ()), error)
            self._set_current(step.route.destination, back)
            return Outcome(step, back, error)
        self._set_current(step.route.destination, hops)
        self._unsure.discard(step.route.destination)
        return Outcome(step, hops)

    def _ensure(self, route: Route, wanted: tuple[Hop, ...], *, fast: bool) -> tuple[tuple[Hop, ...], str]:
        """Give `route` the hops `wanted`, as far as the kernel takes them. Returns those, or an error."""
        usable, first_error = [], ""
        for hop in wanted:
            key = (hop.device, hop.via)
            if fast and key in self._exists:
                usable.append(hop)
                continue
            index = self._index(hop.device)
            refusal = (
                self._kernel.send([rtnl.set_nexthop(self._made.nexthops[key], index, hop.via, self._rule.protocol)])[
                    0
                ]
                if index is not None
                else KernelError(f"next hop via {hop.via} out of {hop.device}", errno.ENODEV)
            )
            if refusal is None:
                self._exists.add(key)
                usable.append(hop)
            else:
                first_error = first_error or str(refusal)
                if refusal.errno not in HOP_ERRORS:
                    return (), first_error
        if not usable:
            return (), first_error or "no next hop"
        group = self._made.groups[route.destination]
        messages = [
            rtnl.set_group(group, [self._made.nexthops[h.device, h.via] for h in usable], self._rule.protocol)
        ]
        ours = route.destination in self._current or route.destination in self._unsure
        if not fast or not ours or route.destination in self._unsure:
            rule = self._rule
            messages.append(
                rtnl.set_route(
                    route.destination, route.source, group, rule.table, rule.metric, rule.protocol, replace=ours
                )
            )
        refused = next((e for e in self._kernel.send(messages) if e is not None), None)
        if refused is not None and refused.errno == errno.EEXIST:
            return (), f"{refused}: somebody else's has metric {self._rule.metric}; give routes.metric another value"
        return ((), str(refused)) if refused else (tuple(usable), "")

    def _set_current(self, destination: str, hops: tuple[Hop, ...]) -> None:
        if hops:
            self._current[destination] = hops
        else:
            self._current.pop(destination, None)

    def _give_ids(self, hops: list[tuple[str, str]], groups: list[str]) -> None:
        used = {*self._made.nexthops.values(), *self._made.groups.values(), *self._foreign}
        free = (i for i in count(self._rule.base) if i not in used)
        self._made.nexthops.update(zip(hops, free, strict=False))
        self._made.groups.update(zip(groups, free, strict=False))

    def _sweep_unused(self) -> None:
        used = {(h.device, h.via) for hops in self._current.values() for h in hops}
        unused = [hop for hop in self._made.nexthops if hop not in used]
        self._kernel.send([rtnl.delete_nexthop(self._made.nexthops.pop(hop)) for hop in unused])
        self._exists -= set(unused)

    def _our_objects(self) -> dict[int, NextHop]:
        objects = self._kernel.nexthops()
        self._foreign = {n.id for n in objects if n.protocol != self._rule.protocol}
        return {n.id: n for n in objects if n.protocol == self._rule.protocol}

    def _save(self) -> None:
        """A ledger that can't be written mustn't hold a fail-over up: our protocol number marks what is ours too."""
        try:
            self._ledger.save(self._made)
        except OSError as e:
            log.error("can't write the ledger: %s; going on without", e)

    def _is_ours(self, route: KernelRoute) -> bool:
        rule = self._rule
        return (route.protocol, route.table, route.metric) == (rule.protocol, rule.table, rule.metric)

    def _delete_route(self, destination: str) -> Message:
        return rtnl.delete_route(destination, self._rule.table, self._rule.metric, self._rule.protocol)


def _covers(route: KernelRoute, destination: str) -> bool:
    """Would `route` carry traffic to `destination`? A default route doesn't count as a way over the rails."""
    net = ip_network(route.destination, strict=False)
    return net.prefixlen > 0 and ip_address(destination) in net
