"""The re-admission gates (`judge/gates.py`), joined with what they look at."""

from collections.abc import Callable

from linkpass.model import PortState

from .judge.gates import Look, shut
from .judge.rules import PortRules
from .reactor import Reactor

QUIET = 1.0  # s without growth of an error counter: a sweep's time; a port that goes on erring stays out
WORKS = (PortState.UP, PortState.SUSPECT)


class Gating:
    """`subnet` gives the rail's subnet for a port of ours, "" if nobody says."""

    def __init__(self, reactor: Reactor, subnet: Callable[[str], str]) -> None:
        self._reactor, self._subnet = reactor, subnet

    def shut(self, port: str, rules: PortRules, now: float) -> str:
        """Why a held port isn't let back yet; "" for every other port, and when all gates are open."""
        known = self._reactor.ports[port]
        if known.state is not PortState.HELD:
            return ""
        quiet, loud = rules.quiet(now, QUIET)
        rail = self._reactor.rails[port]
        peers = {
            host: there.mtu
            for host, record in self._reactor.peers.items()
            if (there := record.port_on(rail)) is not None and there.state in WORKS and there.mtu
        }
        return shut(Look(known.facts, rules.wanted(), self._subnet(port), peers, loud if quiet is False else ""))
