"""How long a member is suspected before it is believed dead, and how far our own health lets us judge others at all.

After Lifeguard (Dadgar, Phillips, Currey: "Lifeguard: Local Health Awareness for More Accurate Failure Detection",
2018). Constants are memberlist's for a LAN where that has them.
"""

from dataclasses import dataclass, field
from math import log, log10


@dataclass(frozen=True, slots=True)
class SwimRule:
    """Times in seconds. `direct` is the number of members up to which everybody keeps a session with everybody."""

    interval: float = 1.0  # one member is probed in each
    timeout: float = 0.5  # for the member itself; what is left of the interval belongs to the helpers
    helpers: int = 3  # that are asked to probe for us
    suspicion: float = 4.0  # intervals that a member is suspected at least, times log10 of the fleet's size
    longest: float = 6.0  # times that, without anybody's confirmation
    confirmations: int = 3  # of others that bring the time down to the least
    worst_health: int = 8  # our own times are stretched up to 1 + this
    late: float = 0.5  # a timer that is called this much too late: it is us who stood still
    rejoin: float = 15.0  # between attempts to reach some dead member
    most: int = 16_384  # members that are known
    reap: float = 86_400.0  # after which the dead and those who left are forgotten
    direct: int = 64  # members
    gossip: float = 0.05  # between rounds of spreading, while there is anything to spread
    fanout: int = 3  # members told in a round
    multiplier: int = 4  # times ceil(log10(members + 1)): how often one piece of news is sent
    burst: int = 4  # datagrams to one member in a round
    neighbours: int = 8  # sessions to keep at least, beyond `direct` members
    sessions: int = 256  # to keep at most beyond `direct` members, besides those with hosts that we are told of
    warm: int = 1024  # hosts that we are told of (`set_interested`) to keep sessions with


class Health:
    """Our own: 0 is well. Whoever doesn't get answers that others would get is slow himself, and waits longer."""

    def __init__(self, worst: int) -> None:
        self.worst = worst
        self.score = 0

    @property
    def scale(self) -> int:
        """Factor for our timeouts."""
        return self.score + 1

    def better(self) -> None:
        """A probe was answered."""
        self.score = max(0, self.score - 1)

    def worse(self, by: int = 1) -> None:
        """A sign that it is us: an answer missing that a helper owed, a timer late, somebody suspecting us."""
        self.score = min(self.worst, self.score + by)


@dataclass(slots=True)
class Suspicion:
    """One member, suspected since `start`. Shortens with every further accuser, as log(accusers) does."""

    start: float
    least: float
    most: float
    expected: int  # confirmations that bring it down to the least
    accusers: set[str] = field(default_factory=set)
    extra: float = 0.0  # added because we stood still, or because the member still speaks to us

    def confirm(self, accuser: str) -> bool:
        """Another one who suspects it; whether that is news worth passing on."""
        if accuser in self.accusers or len(self.accusers) > self.expected:
            return False
        self.accusers.add(accuser)
        return True

    @property
    def ends(self) -> float:
        """When it is believed dead."""
        if self.expected < 1:
            return self.start + self.least + self.extra
        share = log(max(1, len(self.accusers))) / log(self.expected + 1)
        return self.start + max(self.least, self.most - share * (self.most - self.least)) + self.extra


def suspect(now: float, accuser: str, members: int, rule: SwimRule) -> Suspicion:
    """The suspicion of one among `members`, ourselves included."""
    least = rule.suspicion * max(1.0, log10(max(1, members))) * rule.interval
    expected = max(0, min(rule.confirmations, members - 2))
    return Suspicion(now, least, rule.longest * least, expected, {accuser})
