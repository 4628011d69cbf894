"""Hold-down: how long a port that came back must behave before it is trusted.

The first fall costs `first` seconds, every further one doubles that up to `maximum`; after a port has been trusted
for `decay` times its last hold-down without a fall, the next price halves again. Down is never held back, only up.

The doubling and its ceiling follow Open/R's link back-off (its ceiling is 300 s too); the decay plays the part that
the half-life plays in RFC 2439 damping.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class HoldDownRule:
    """`first` and `maximum` in seconds; `decay` in multiples of the last hold-down."""

    first: float = 1.0
    maximum: float = 300.0
    decay: float = 10.0


@dataclass(frozen=True, slots=True)
class HoldDown:
    """The price history of one port. `length` is the last hold-down in seconds, 0 before the first fall."""

    length: float = 0.0
    trusted_at: float | None = None

    def fell(self, rule: HoldDownRule, now: float) -> "HoldDown":
        """The port fell: what its next return costs."""
        length = self.worth(rule, now)
        return HoldDown(length=min(rule.maximum, max(rule.first, 2 * length)), trusted_at=None)

    def trusted(self, now: float) -> "HoldDown":
        """The port served its hold-down and is in use again."""
        return replace(self, trusted_at=now)

    def worth(self, rule: HoldDownRule, now: float) -> float:
        """The last hold-down, less what good behaviour since has paid off; 0 when all is forgiven."""
        length = self.length
        if self.trusted_at is None:
            return length
        good = now - self.trusted_at
        while length > 0 and good >= rule.decay * length:
            good -= rule.decay * length
            length = length / 2 if length > rule.first else 0.0
        return length


NEVER_FELL = HoldDown()
