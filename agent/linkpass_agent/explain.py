"""A port's story for people and programs: observations, findings, verdicts and decisions, in order."""

import re
from collections.abc import Callable

from linkpass.api import CounterView, EvidenceView, ExplainView, FactView, FindingView, GateView
from linkpass.errors import NotFoundError
from linkpass.model import Event, EventKind, Finding

from .judge.counting import Reading
from .observing import Observing, Watched
from .reactor import Reactor
from .story import Story
from .telling import show

# What comes of a verdict: such events concern a port when they name it or speak of its rail.
CONSEQUENCES = frozenset(
    {EventKind.SHARED, EventKind.DECIDED, EventKind.REFUSED, EventKind.ACTED, EventKind.FAILED, EventKind.INCIDENT}
)


def explain(
    port: str, reactor: Reactor, story: Story, observing: Observing | None, now: float, limit: int
) -> ExplainView:
    """All that is known of a port. NotFoundError for an unknown one."""
    known = reactor.ports.get(port)
    if known is None:
        raise NotFoundError(f"no port {port!r} here; there are {', '.join(sorted(reactor.ports))}")
    verdict, rail = known.verdict, reactor.rails[port]
    watched = observing.watched.get(port) if observing else None
    facts = sorted(reactor.witnesses[port].values(), key=lambda o: (o.signal.value, -o.at))
    rdma = watched.key[1] if watched else None
    return ExplainView(
        port=port,
        rail=rail,
        state=verdict.state.value,
        cause=verdict.cause,
        since=now - verdict.since,
        device=observing.names.device(port) if observing else port,
        pci=observing.names.place(port) if observing else "",
        rdma=f"{rdma.device}/{rdma.number}" if rdma else "",
        guid=watched.guid if watched else "",
        driver=watched.driver if watched else "",
        facts=[
            FactView(
                signal=o.signal.value,
                source=o.source,
                value=None if o.value is None else show(o.value),
                age=now - o.at,
                detail=o.detail,
            )
            for o in facts
        ],
        gates=_gates(watched) if watched else [],
        findings=[_finding(f, now) for f in watched.rules.findings] if watched else [],
        counters=_counters(watched, now) if watched else [],
        module=_module(watched) if watched else "",
        fec=_fec(watched) if watched else "",
        unseen=_unseen(watched) if watched else {},
        story=story.about(concerns(port, rail), limit),
    )


def concerns(port: str, rail: str) -> Callable[[Event], bool]:
    """Whether an event is about a port: its own, and what came of it."""
    named = re.compile(rf"(?<![\w.-])(?:{re.escape(port)}|{re.escape(rail)})(?![\w.-])")

    def concerns_it(event: Event) -> bool:
        if event.subject == port:
            return True
        if event.kind is EventKind.VERDICT:
            return event.data.get("rail") == rail
        if event.kind is EventKind.AGENT:
            return named.search(event.subject) is not None
        return event.kind in CONSEQUENCES and named.search(f"{event.text} {event.cause}") is not None

    return concerns_it


def _finding(f: Finding, now: float) -> FindingView:
    evidence = [EvidenceView(age=now - e.at, source=e.source, text=e.text) for e in f.evidence]
    return FindingView(rule=f.rule, act=f.act, since=now - f.since, text=f.text, evidence=evidence)


def _gates(watched: Watched) -> list[GateView]:
    return [GateView(name=g.name, state=g.state.value, text=g.text) for g in watched.gates or ()]


def _counters(watched: Watched, now: float) -> list[CounterView]:
    blind = watched.rules.blind()
    return [
        CounterView(
            source=source,
            role=count.kind.role,
            value=None if count.reading is Reading.BLIND else count.value,
            note=blind.get(source, ""),
            grew=None if count.grew_at is None else now - count.grew_at,
        )
        for source, count in sorted(watched.rules.counts.items())
    ]


def _module(watched: Watched) -> str:
    m = watched.told.module
    if m is None:
        return ""
    powers = ", ".join(f"{p:.2f}" for p in m.received)
    return f"{m.temperature:.0f} degrees C, {m.voltage:.2f} V" + (f", received {powers} mW" if powers else "")


def _fec(watched: Watched) -> str:
    f = watched.told.fec
    if f is None:
        return ""
    counts = [("corrected", f.corrected), ("beyond correction", f.uncorrectable)]
    return ", ".join([f.mode, *(f"{n} blocks {word}" for word, n in counts if n is not None)])


def _unseen(watched: Watched) -> dict[str, str]:
    found = {f"ethtool {what}": why for what, why in watched.told.why.items()}
    if watched.last:
        found |= watched.last.why
    return found
