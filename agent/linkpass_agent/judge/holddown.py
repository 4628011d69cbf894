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

    def since(self, rule: HoldDownRule, good_for: float | None, now: float) -> "HoldDown":
        """The same price after a gap in which nobody looked: that gap pays nothing off."""
        length = min(max(0.0, self.length), rule.maximum)
        return HoldDown(length, None if good_for is None else now - max(0.0, good_for))


NEVER_FELL = HoldDown()


@dataclass(frozen=True, slots=True)
class Past:
    """What is remembered of a port or path over a restart of the agent. All times are lengths, in seconds, so that
    neither another boot nor a step of the wall clock changes what they mean.

    `length` is the last hold-down, `good_for` how long it had been paid off (None: not trusted then), `owes` what of
    a hold-down was still to be served, `last_flap` how long ago.
    """

    length: float = 0.0
    good_for: float | None = None
    owes: float = 0.0
    flaps: int = 0
    last_flap: float | None = None

    @property
    def clean(self) -> bool:
        """Nothing that is worth remembering."""
        return self.length == 0.0 and self.owes == 0.0 and self.flaps == 0


def past_of(
    hold: HoldDown,
    *,
    out: bool,
    held_until: float | None,
    owes: float,
    flaps: int,
    last_flap: float | None,
    now: float,
) -> Past:
    """The past of what is in this state now. `out`: it is down, and owes its whole hold-down when it returns."""
    if held_until is not None:
        owes = max(0.0, held_until - now)
    elif out:
        owes = hold.length
    return Past(
        hold.length,
        None if hold.trusted_at is None else max(0.0, now - hold.trusted_at),
        owes,
        flaps,
        None if last_flap is None else max(0.0, now - last_flap),
    )
