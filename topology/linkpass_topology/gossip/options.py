"""What can be set of the protocol, with the values to start from."""

from dataclasses import dataclass

from linkpass_topology.gossip.suspicion import SwimRule


@dataclass(frozen=True, slots=True)
class Options:
    """Times in seconds, rates in handshakes a second."""

    anti_entropy: float = 5.0
    keepalive: float = 1.0  # a peer that was quiet this long is asked to say something
    silent_after: float = 3.0
    close_after: float = 60.0  # silence after which a peer's sessions are closed
    forget_after: float = 3600.0  # silence after which a peer is forgotten (not its record)
    hello_first: float = 0.25  # between questions to an address: at first, doubling,
    hello_max: float = 2.0  # at most,
    hello_idle: float = 10.0  # and after `hello_patience` tries without an answer
    hello_patience: int = 40
    max_peers: int = 4096
    max_hosts: int = 16_384
    strangers: float = 500.0  # handshakes asked by unknown addresses, all together; 60 us of CPU each
    stale: float = 20.0  # handshakes that we ask because of sessions that we don't know
    swim: SwimRule | None = None  # membership; without it only seeds and those who ask are known
