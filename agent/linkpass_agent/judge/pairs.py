"""Whether a port that came back carries a real queue pair's datagrams to a peer's and back. Pure.

UDP goes through the kernel's network stack; what jobs use is the NIC's own transport, its GID table and its path to
the peer's NIC. So the last gate is a round trip between two queue pairs. The peer offers its own by a sealed letter.
Who offers none tells nothing; the silence of who offers one counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PEERS = 3  # asked at a time: one broken peer holds nobody, and a leaf's return asks each peer a few times only
TURN = 5.0  # s without an answer until others are asked
PATIENCE = 2.0  # s for a first offer; letters are repeated within 1 s at the latest
FRESH = 5.0  # s that an answer counts for
AGAIN = 4.0  # s until an offer is asked for anew
OFFERED = 3 * AGAIN  # s that an offer counts
PERIOD = 0.5  # s between two datagrams to a peer, until one is answered
KEPT = 2.0  # s the same, from then on
HEARD = 2.5  # s that an answer over UDP counts; paths of ports that wait are probed at the fast period
STEPS = (1, 2, 3, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)  # s: a cause that changed each second would be no news


@dataclass(frozen=True, slots=True)
class Address:
    """Where a queue pair is: its port's GID as text, its number, and the key that it asks of datagrams."""

    gid: str
    number: int
    key: int


@dataclass(slots=True)
class Asked:
    """One peer. Times are monotonic seconds, None: never."""

    letter: float | None = None  # when it was asked for an offer
    offer: float | None = None  # when that came
    at: Address | None = None  # and what it says
    why: str = ""  # it can't offer one
    sent: float | None = None  # the latest datagram
    answered: float | None = None


@dataclass(slots=True)
class Wait:
    """One port's wait for re-admission: since when, and whom it asked. `hindrance`: why it can't ask."""

    rail: str
    since: float
    peers: dict[str, Asked] = field(default_factory=dict)
    hindrance: str = ""
    broken: str = ""  # what the NIC itself said of a datagram, until one is answered

    def choose(self, candidates: Sequence[str], now: float) -> list[str]:
        """Whom to ask now: of these, in this order, the next few at each turn. Who answered is remembered as well."""
        ordered = list(candidates)
        turn = 0 if self.answered(now) else int((now - self.since) / TURN) * PEERS
        at = turn % len(ordered) if ordered else 0
        chosen = (ordered[at:] + ordered[:at])[:PEERS]
        proven = [h for h, asked in self.peers.items() if asked.answered is not None and h in ordered]
        self.peers = {h: self.peers.get(h) or Asked() for h in dict.fromkeys((*proven, *chosen))}
        return chosen

    def asks(self, host: str, now: float) -> bool:
        """Whether to ask for an offer now, because there is none or it grows old."""
        asked = self.peers[host]
        return asked.letter is None or now >= asked.letter + AGAIN

    def sends(self, host: str, now: float, heard: float | None) -> bool:
        """Whether to send a datagram now: to who offers, and whose agent answered over UDP since the port is back."""
        asked = self.peers[host]
        period = KEPT if asked.answered is not None else PERIOD
        due = asked.sent is None or now >= asked.sent + period
        return due and self._offers(asked, now) and self._heard(heard, now)

    def answer(self, host: str, now: float) -> None:
        """A peer's answer came."""
        self.peers[host].answered, self.broken = now, ""

    def answered(self, now: float) -> str:
        """Who answered lately, "" for nobody."""
        proofs = {h: a.answered for h, a in self.peers.items() if a.answered is not None and now < a.answered + FRESH}
        return max(proofs, key=lambda h: proofs[h], default="")

    def says(self, now: float, heard: Mapping[str, float | None]) -> tuple[str | None, str]:
        """What shuts the gate, "" if it is open, None if that can't be observed; and a word on it."""
        if host := self.answered(now):
            return "", f"{host} answered by {self.rail}"
        if self.broken:
            return self.broken, ""
        if self.hindrance:
            return None, self.hindrance
        offering = sorted(h for h, a in self.peers.items() if self._offers(a, now))
        if offering:
            deaf = not any(self._heard(heard.get(h), now) for h in offering)
            text = f"no answer from {', '.join(offering)} by {self.rail}{_for(now - self.since)}"
            return f"{text}, nor to UDP probes" if deaf else text, ""
        if not self.peers:
            return None, f"no peer with a working RDMA port on {self.rail}"
        refusals = [f"{h}: {a.why}" for h, a in sorted(self.peers.items()) if a.why]
        if len(refusals) < len(self.peers) and now < self.since + PATIENCE:
            return f"asks {', '.join(sorted(self.peers))} by {self.rail}", ""
        return None, "; ".join(refusals) or f"{', '.join(sorted(self.peers))} offers no queue pair"

    def _offers(self, asked: Asked, now: float) -> bool:
        return asked.offer is not None and now < asked.offer + OFFERED

    def _heard(self, heard: float | None, now: float) -> bool:
        return heard_lately(heard, now) and heard is not None and heard >= self.since


def heard_lately(heard: float | None, now: float) -> bool:
    """Whether a peer's latest answer over UDP still says that its kernel, and ours, know the way."""
    return heard is not None and heard >= now - HEARD


def _for(seconds: float) -> str:
    whole = [s for s in STEPS if s <= seconds]
    return f" for {whole[-1]} s" if whole else ""
