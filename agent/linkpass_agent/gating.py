"""The re-admission gates (`judge/gates.py`), joined with what they look at."""

from collections.abc import Callable, Mapping

from linkpass.model import PortState, Signal, Value

from .judge.gates import Gate, Look, asked
from .judge.rules import PortRules
from .reactor import Reactor

QUIET = 1.0  # s without growth of an error counter: a sweep's time; a port that goes on erring stays out
WORKS = (PortState.UP, PortState.SUSPECT)


class Gating:
    """`subnet` gives the rail's subnet for a port of ours, "" if nobody says; `expected` what the manifest says;
    `pair` what the queue pair probe shuts."""

    def __init__(
        self,
        reactor: Reactor,
        subnet: Callable[[str], str] = lambda port: "",
        expected: Callable[[str], Mapping[str, int]] = lambda port: {},
        pair: Callable[[str], tuple[str | None, str]] = lambda port: (None, ""),
    ) -> None:
        self._reactor, self._subnet, self._expected, self._pair = reactor, subnet, expected, pair

    def look(
        self, port: str, rules: PortRules, now: float, facts: Mapping[Signal, Value | None]
    ) -> tuple[Gate, ...] | None:
        """What a held port's gates say; none for a port that works.

        None for a port that is out: its gates are looked at when it is back.
        """
        state = self._reactor.ports[port].state
        if state is not PortState.HELD:
            return () if state in WORKS else None
        quiet, loud = rules.quiet(now, QUIET)
        peers = {} if "mtu" in self._expected(port) else self._mtus(self._reactor.rails[port])
        noise = None if quiet is None else "" if quiet else loud
        return asked(Look(facts, rules.wanted(), self._subnet(port), peers, noise, self._pair(port)))

    def _mtus(self, rail: str) -> dict[str, int]:
        """MTU of the peers' working ports of a rail, by host."""
        return {
            host: there.mtu
            for host, record in self._reactor.peers.items()
            if (there := record.port_on(rail)) is not None and there.state in WORKS and there.mtu
        }
