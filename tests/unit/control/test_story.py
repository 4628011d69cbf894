"""The host's story: bounded memory, order, and followers that come and go."""

import asyncio

import pytest

from linkpass.api import EventView
from linkpass.errors import RefusedError
from linkpass.model import Event, EventKind
from linkpass_agent.story import Story, event_view


def event(seq: int) -> Event:
    return Event(seq, seq / 10, 1.0e9 + seq, EventKind.VERDICT, "a-rail0", "up -> down", "no carrier", {"flaps": 1})


def told(story: Story, *seqs: int) -> Story:
    for seq in seqs:
        story.tell(event(seq))
    return story


def seqs(views: list[EventView]) -> list[int]:
    return [v.seq for v in views]


def test_event_view_shows_every_field() -> None:
    assert event_view(event(3)) == EventView(
        seq=3,
        at=0.3,
        time=1.0e9 + 3,
        kind="verdict",
        subject="a-rail0",
        text="up -> down",
        cause="no carrier",
        data={"flaps": 1},
    )


def test_events_without_since_are_the_newest_and_with_it_the_first_after_it() -> None:
    story = told(Story(), 1, 2, 3, 5, 8)
    assert seqs(story.events(None, 2)) == [5, 8]
    assert seqs(story.events(2, 2)) == [3, 5]
    assert seqs(story.events(0, 100)) == [1, 2, 3, 5, 8]
    assert seqs(story.events(8, 100)) == []


def test_oldest_events_go_when_the_story_is_full() -> None:
    assert seqs(told(Story(kept=3), 1, 2, 3, 4).events(0, 100)) == [2, 3, 4]


async def test_follower_gets_what_is_told_after_it_came_in_order() -> None:
    story = told(Story(), 1)
    follower = story.subscribe()
    told(story, 2, 3)
    first, second = await follower.next(), await follower.next()
    assert first and second
    assert seqs([first, second]) == [2, 3]
    waiting = asyncio.create_task(follower.next())
    await asyncio.sleep(0)
    told(story, 4)
    last = await waiting
    assert last is not None
    assert last.seq == 4


async def test_slow_follower_is_let_go_and_others_are_not() -> None:
    story = Story(waiting=2)
    slow, quick = story.subscribe(), story.subscribe()
    for n in (1, 2, 3):
        story.tell(event(n))
        view = await quick.next()
        assert view is not None
        assert view.seq == n
    assert await slow.next() is None
    assert slow.behind
    assert story.followers == {quick}


async def test_closing_wakes_a_waiting_follower_with_none() -> None:
    follower = Story().subscribe()
    waiting = asyncio.create_task(follower.next())
    await asyncio.sleep(0)
    follower.close()
    assert await waiting is None


async def test_too_many_followers_are_refused_until_one_leaves() -> None:
    story = Story(followers=2)
    first, _ = story.subscribe(), story.subscribe()
    with pytest.raises(RefusedError, match="2 followers already"):
        story.subscribe()
    first.close()
    assert story.subscribe() in story.followers
