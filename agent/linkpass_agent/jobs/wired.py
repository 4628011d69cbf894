"""The parts of this package, joined: desk, page and sessions, and the task that lets their time pass."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from linkpass.clock import Clock
from linkpass.model import HostRecord
from linkpass.settings import Settings
from linkpass_agent.events import EventLog
from linkpass_agent.reactor import Reactor
from linkpass_agent.see.rdma_devices import RdmaPort
from linkpass_agent.see.rdma_owner import QueuePairOwners

from .decide import Rule
from .desk import Desk, Post
from .locality import UNKNOWN, Locality, distance
from .outlook import Outlook
from .page import Page
from .sessions import Limits, Sessions

log = logging.getLogger("linkpass.jobs")

BEAT = 0.1  # s


class Jobs:
    """Made with the agent; `open` lets jobs attach, `close` lets them go: they run on.

    The reactor's news come in here. A defect of this part must not cost the host its routes: it is logged.
    """

    def __init__(
        self,
        settings: Settings,
        reactor: Reactor,
        rdma: Callable[[], Mapping[str, RdmaPort]],
        post: Post,
        peers_changed: Callable[[], None],
        events: EventLog,
        clock: Clock,
        places: Mapping[str, Locality],
    ) -> None:
        jobs = settings.jobs
        self.page = Page(reactor.record.incarnation)
        self.owners = QueuePairOwners()
        self.desk = Desk(
            Outlook(settings.host, reactor, rdma),
            post,
            self.page.show,
            peers_changed,
            Rule(jobs.spares, jobs.fail_back, jobs.fail_back_wait),
            (round(1000 * jobs.give_up), round(1000 * jobs.attempt)),
            jobs.fail_back_rate,
            events,
            clock,
            act=settings.mode == "act",
            distance=lambda here, there: distance(places.get(here, UNKNOWN), places.get(there, UNKNOWN)),
            owner=self.owners.owner,
        )
        limits = Limits(sessions=jobs.sessions)
        self.sessions = Sessions(settings.paths.jobs_socket, self.desk, self.page.fd, clock, limits)
        self._clock = clock

    @property
    def dropped(self) -> Counter[str]:
        """Refused input, by reason."""
        return self.desk.dropped + self.sessions.dropped

    def open(self) -> None:
        """Listen for shims."""
        self.desk.ports_moved()
        self.sessions.open()

    def ports_moved(self) -> None:
        """A port of ours has another state."""
        with _contained():
            self.desk.ports_moved()

    def moved(self, hosts: Iterable[str]) -> None:
        """The ways to these hosts were judged anew."""
        with _contained():
            self.desk.moved(hosts)

    def learned(self, record: HostRecord) -> None:
        """A host's newer record, or our own."""
        with _contained():
            self.desk.learned(record)

    async def beats(self) -> None:
        """The page's beat, what the agent has seen since of its devices, and whatever waits for time to pass."""
        while True:
            await asyncio.sleep(BEAT)
            self.page.beat(self._clock.now())
            self.ports_moved()
            with _contained():
                self.desk.tick()

    def close(self) -> None:
        """Let go of everything."""
        self.sessions.close()
        self.page.close()
        self.owners.close()


@contextmanager
def _contained() -> Iterator[None]:
    try:
        yield
    except Exception:
        log.exception("the jobs' part failed; routes are not affected")
