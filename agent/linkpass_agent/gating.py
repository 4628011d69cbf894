"""The re-admission gates (`judge/gates.py`), joined with what they look at."""

from collections.abc import Callable, Mapping

from linkpass.model import PortState, Signal, Value

from .judge.gates import Look, shut
from .judge.rules import PortRules
from .reactor import Reactor

QUIET = 1.0  # s without growth of an error counter: a sweep's time; a port that goes on erring stays out
WORKS = (PortState.UP, PortState.SUSPECT)


class Gating:
    """`subnet` gives the rail's subnet for a port of ours, "" if nobody says; `expected` what the manifest says."""

    def __init__(
        self,
        reactor: Reactor,
        subnet: Callable[[str], str] = lambda port: "",
        expected: Callable[[str], Mapping[str, int]] = lambda port: {},
    ) -> None:
        self._reactor, self._subnet, self._expected = reactor, subnet, expected

    def shut(self, port: str, rules: PortRules, now: float, facts: Mapping[Signal, Value | None]) -> str | None:
        """Why a held port isn't let back yet, "" if all gates are open or the port works.

        None for a port that is out: its gates are looked at when it is back.
        """
        state = self._reactor.ports[port].state
        if state is not PortState.HELD:
            return "" if state in WORKS else None
        quiet, loud = rules.quiet(now, QUIET)
        peers = {} if "mtu" in self._expected(port) else self._mtus(self._reactor.rails[port])
        return shut(Look(facts, rules.wanted(), self._subnet(port), peers, loud if quiet is False else ""))

    def _mtus(self, rail: str) -> dict[str, int]:
        """MTU of the peers' working ports of a rail, by host."""
        return {
            host: there.mtu
            for host, record in self._reactor.peers.items()
            if (there := record.port_on(rail)) is not None and there.state in WORKS and there.mtu
        }
