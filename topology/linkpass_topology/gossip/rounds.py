"""When to compare the view with a peer's: every few seconds, soon after news, and again until a peer is found equal.

Equal views answer a SUMMARY with silence, and so does a network that loses it. So a PING goes with it: its PONG alone
says "equal", with something beside it "different", and no PONG that nothing came of the round. Pure.
"""

from random import Random

from linkpass_topology.gossip.messages import Ping

AFTER_NEWS = 1.0  # s from the first of many news to the next round; by then infection has reached nearly all
ANSWER = 0.25  # s in which a peer answers; a datagram's way takes milliseconds
UNANSWERED = 8  # rounds in a row without an answer; then the next one waits for its turn
AGAIN = 0.25  # s from a round that found a difference to the next, doubling: a busy fleet always differs a little


class Rounds:
    """One host's rounds. `at`: when to ask `due` next."""

    def __init__(self, every: float, rng: Random) -> None:
        self.at = 0.0
        self._every, self._rng = every, rng
        self._pause = AGAIN
        self._unanswered = 0
        self._host, self._token = "", 0  # of the round under way; '': none is
        self._answered = self._differs = self._news = False

    def rest(self, now: float) -> None:
        """The next round waits for its turn."""
        self._host = ""
        self.at = now + self._jitter(self._every)

    def due(self, now: float) -> bool:
        """The time is `at`. Whether a round is to begin."""
        if not self._host:
            return True
        self._host = ""
        if not self._answered:
            self._unanswered += 1
            if self._unanswered <= UNANSWERED:
                return True
            self._unanswered = 0
            self.rest(now)
        elif self._differs:
            self._unanswered = 0
            self.at = now + self._jitter(self._pause)
            self._pause = min(2.0 * self._pause, self._every)
        else:
            self._unanswered, self._pause = 0, AGAIN
            self.at = now + self._jitter(AFTER_NEWS if self._news else self._every)
        return False

    def begin(self, host: str, now: float) -> Ping:
        """A round with that peer begins; what to send before the sums."""
        self._host, self._token = host, self._rng.getrandbits(32)
        self._answered = self._differs = self._news = False
        self.at = now + ANSWER
        return Ping(self._token)

    def pong(self, host: str, token: int) -> None:
        """A PONG came from the host."""
        self._answered |= (host, token) == (self._host, self._token)

    def differs(self, host: str) -> None:
        """The host told sums or digests of its own."""
        self._differs |= host == self._host

    def news(self, now: float) -> bool:
        """Something is new. Whether `at` is earlier for that."""
        self._news = True
        if self._host or self.at <= now + 1.2 * AFTER_NEWS:
            return False
        self.at = now + self._jitter(AFTER_NEWS)
        return True

    def _jitter(self, seconds: float) -> float:
        return seconds * self._rng.uniform(0.8, 1.2)
