"""Agents that are broken on purpose, to see that the simulator notices. Each changes one rule while it lasts."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from linkpass.model import PortState
from linkpass_agent.decide import planner
from linkpass_agent.judge.holddown import HoldDown, HoldDownRule
from linkpass_agent.judge.probe import ProbedPath
from linkpass_agent.reactor import Reactor
from linkpass_topology.gossip.core import Gossip
from linkpass_topology.gossip.messages import Part
from linkpass_topology.gossip.peers import Peer
from linkpass_topology.gossip.records import Records
from linkpass_topology.gossip.roads import Roads

Variant = Callable[[], AbstractContextManager[object]]


@contextmanager
def _instead(owner: type, name: str, doing: Callable[..., Any]) -> Iterator[None]:
    """`owner.name` is `doing` while this lasts."""
    original = getattr(owner, name)
    setattr(owner, name, doing)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def _tiers_ignored() -> Iterator[None]:
    """The planner uses every path, whatever is believed of it."""
    original = dict(planner.TIER)
    planner.TIER.update(dict.fromkeys(original, 0))
    try:
        yield
    finally:
        planner.TIER.update(original)


def _hold_down_off() -> AbstractContextManager[None]:
    """A port that returns is trusted at once."""
    return _instead(HoldDown, "fell", lambda self, rule, now: HoldDown(0.0))


def _hold_down_flat() -> AbstractContextManager[None]:
    """The hold-down doesn't double."""

    def fell(self: HoldDown, rule: HoldDownRule, now: float) -> HoldDown:
        return HoldDown(rule.first)

    return _instead(HoldDown, "fell", fell)


def _anybody_overwrites() -> AbstractContextManager[None]:
    """The record that came last wins, whoever told it and however old it is."""
    original = Records.on_part

    def on_part(self: Records, peer: Peer, part: Part, *more: Any) -> None:
        if part.host != self.host and part.stamp != self.view.stamp(part.host):
            self.view.forget(part.host)
        original(self, peer, part, *more)

    return _instead(Records, "on_part", on_part)


def _no_proof_needed() -> AbstractContextManager[None]:
    """Silence alone convicts a path."""
    return _instead(ProbedPath, "_proven", lambda self, *_: True)


def _last_path_goes() -> AbstractContextManager[None]:
    """A route whose paths all look dead is taken away."""
    original = Reactor._act

    def act(self: Reactor, host: str) -> None:
        if all(v.verdict.state in (PortState.DOWN, PortState.ABSENT) for v in self.paths[host].values()):
            for destination in self.peers[host].addresses:
                self._actuator.forget(destination, keep_stranded=False)  # type: ignore[union-attr]
        original(self, host)

    return _instead(Reactor, "_act", act)


def _one_road() -> AbstractContextManager[None]:
    """Agents look for each other on the management network alone."""
    return _instead(Roads, "rails", lambda self, host, row=None: [])


@contextmanager
def _no_repair() -> Iterator[None]:
    """Records are told once: no repetition and no anti-entropy."""
    with _instead(Peer, "retry_after", lambda self: 1e9), _instead(Gossip, "_sync", lambda self, now: None):
        yield


VARIANTS: dict[str, Variant] = {
    "tiers-ignored": _tiers_ignored,
    "hold-down-off": _hold_down_off,
    "hold-down-flat": _hold_down_flat,
    "anybody-overwrites": _anybody_overwrites,
    "no-proof-needed": _no_proof_needed,
    "last-path-goes": _last_path_goes,
    "no-repair": _no_repair,
    "one-road": _one_road,
}
