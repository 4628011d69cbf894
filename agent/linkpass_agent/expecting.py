"""What this host should have, joined: the manifest (`linkpass.manifest`) and the ports as they are now.

Without a manifest the configured ports are what is expected. With one, a port that isn't in it is never called a
fault, and one that is in it and not configured is told as absent.
"""

from collections.abc import Callable
from pathlib import Path

from linkpass.api import ManifestView, PresentPortView
from linkpass.manifest import ExpectedPort, Manifest, PresentPort, load
from linkpass.model import PortState, Signal, Value

from .reactor import Reactor
from .see.names import PCI

LIKE_BEST = ("rate", "width", "speed", "mtu")  # facts that rules compare with the best seen, or with what is expected


class Expecting:
    """`place` gives a port's PCI place, as `Names.place`."""

    def __init__(
        self, manifest: Manifest | None, path: Path | None, reactor: Reactor, place: Callable[[str], str]
    ) -> None:
        self._manifest, self._path, self._reactor, self._place = manifest, path, reactor, place

    def of(self, port: str) -> ExpectedPort | None:
        """What the manifest says of a port of ours."""
        return self._manifest.of(port, self._pci(port) or "") if self._manifest else None

    def expected(self, port: str) -> bool:
        """Whether its trouble is a fault."""
        return self._manifest is None or self.of(port) is not None

    def best(self, port: str) -> dict[str, int]:
        """What rules compare with instead of the best that was seen."""
        want = self.of(port)
        found = {key: getattr(want, key) for key in LIKE_BEST} if want else {}
        return {key: value for key, value in found.items() if value is not None}

    def subnet(self, port: str) -> str:
        """The rail's, if the manifest says."""
        want = self.of(port)
        return (want.subnet if want else None) or ""

    def missing(self) -> list[tuple[ExpectedPort, str]]:
        """Ports of the manifest that aren't configured, and what to say of each."""
        if self._manifest is None:
            return []
        known = [self.of(port) for port in self._reactor.ports]
        return [
            (want, f"it is in the manifest ({want.pci or want.rail}) and isn't configured: add a [[port]]")
            for want in self._manifest.ports
            if want not in known
        ]

    def reload(self) -> str:
        """Read the manifest's file anew; what was done. ConfigError for a bad one: what was expected stays so."""
        if self._path is None:
            return "no manifest is configured: nothing to read anew"
        self._manifest = load(self._path)
        return f"{self._path} read anew: {len(self._manifest.ports)} ports are expected"

    def present(self) -> list[PresentPort]:
        """The ports as they are."""
        return [self._present(name) for name in self._reactor.ports]

    def view(self) -> ManifestView:
        """For the API."""
        return ManifestView(
            host=self._reactor.record.host,
            manifest=str(self._path) if self._path else None,
            ports=[PresentPortView.model_validate(p, from_attributes=True) for p in self.present()],
        )

    def _pci(self, port: str) -> str | None:
        place = self._place(port)
        return place if PCI.fullmatch(place) else None  # "ADDRESS port N": several ports there, told apart by name

    def _present(self, name: str) -> PresentPort:
        port = self._reactor.ports[name]
        facts, verdict = port.facts, port.verdict
        networks = facts.get(Signal.NETWORKS)
        works = verdict.state not in (PortState.DOWN, PortState.ABSENT)
        return PresentPort(
            name,
            self._reactor.rails[name],
            verdict.state.value,
            verdict.cause,
            self._pci(name),
            _text(facts.get(Signal.LINK_LAYER)),
            _number(facts.get(Signal.RDMA_RATE)) if works else None,
            _number(facts.get(Signal.RDMA_WIDTH)) if works else None,
            _number(facts.get(Signal.SPEED)) if works else None,
            _number(facts.get(Signal.MTU)),
            networks if isinstance(networks, tuple) else (),
            _text(facts.get(Signal.FIRMWARE)),
        )


def _text(value: Value | None) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Value | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
