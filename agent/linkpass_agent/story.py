"""The host's story: the latest events, kept for whoever asks, and handed to whoever follows.

Memory is bounded: so many events, so many followers, so many events waiting for one follower. A follower that falls
behind is let go; it can come again and ask for what it missed.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice

from linkpass.api import EventView
from linkpass.errors import RefusedError
from linkpass.model import Event

# 4000 events of about 700 bytes are under 3 MiB, and hours of a busy host's story.
KEPT = 4000
WAITING = 1000
FOLLOWERS = 32


def event_view(event: Event) -> EventView:
    """An event as the socket shows it."""
    fields = asdict(event)
    return EventView(time=fields.pop("wall"), kind=fields.pop("kind").value, **fields)


class Follower:
    """One reader of the story as it goes on. Get one from `Story.subscribe`; close it when done."""

    def __init__(self, story: "Story", waiting: int) -> None:
        self._story = story
        self._limit = waiting
        self._queue: deque[Event] = deque()
        self._wake = asyncio.Event()
        self.behind = False  # too slow: let go

    async def next(self) -> EventView | None:
        """The next event; None when the story ended or the follower was too slow and some are lost to it."""
        while not self._queue:
            if self.behind or self not in self._story.followers:
                return None
            self._wake.clear()
            await self._wake.wait()
        return event_view(self._queue.popleft())

    def close(self) -> None:
        """Follow no longer; a waiting `next` gives None."""
        self._story.followers.discard(self)
        self._wake.set()

    def hand(self, event: Event) -> None:
        """Called by the story."""
        if len(self._queue) < self._limit:
            self._queue.append(event)
            self._wake.set()
            return
        self.behind = True
        self._queue.clear()
        self.close()


class Story:
    """The latest `kept` events, in the order told."""

    def __init__(self, kept: int = KEPT, followers: int = FOLLOWERS, waiting: int = WAITING) -> None:
        self._events: deque[Event] = deque(maxlen=kept)
        self._max_followers = followers
        self._waiting = waiting
        self.followers: set[Follower] = set()

    def tell(self, event: Event) -> None:
        """Keep an event and hand it to all followers. Sequence numbers must grow."""
        self._events.append(event)
        for follower in tuple(self.followers):
            follower.hand(event)

    def events(self, since: int | None, limit: int) -> list[EventView]:
        """Oldest first: the first `limit` after number `since`; without `since` the newest `limit`."""
        if since is None:
            chosen = islice(self._events, max(0, len(self._events) - limit), None)
        else:
            chosen = islice((e for e in self._events if e.seq > since), limit)
        return [event_view(e) for e in chosen]

    def about(self, concerns: Callable[[Event], bool], limit: int) -> list[EventView]:
        """The newest `limit` of those that concern something, oldest first."""
        found = deque((e for e in self._events if concerns(e)), maxlen=limit)
        return [event_view(e) for e in found]

    def subscribe(self) -> Follower:
        """A new follower, from the next event on. RefusedError when there are too many."""
        if len(self.followers) >= self._max_followers:
            raise RefusedError(f"{self._max_followers} followers already; end one of them first")
        follower = Follower(self, self._waiting)
        self.followers.add(follower)
        return follower
