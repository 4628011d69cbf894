"""The slow sources and the rules, joined: files of sysfs, ethtool, RDMA device events and the kernel log.

    PortFiles ──┐
    Ethtool ────┼─> PortRules ──> findings: events, and `Signal.RULES` for the port's state machine
    DeviceEvents ─> look anew
    KernelLog ────> hints: events, and rest for counters whose reading floods the log

`look` is called with each sweep (cost: bench/sweep.py). Ethtool is asked in a thread of its own: a driver
may go to its firmware for an answer.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from linkpass.clock import Clock
from linkpass.model import EventKind, Finding, Observation, Signal, Value
from linkpass.rules import AGENTS_OWN, Rule, changed, for_driver
from linkpass.settings import Settings

from .events import Data, EventLog
from .judge.counting import Sample
from .judge.gates import Gate, shut
from .judge.rules import Baselines, Fact, PortRules
from .reactor import Reactor
from .see import rdma_ports
from .see.counters import driver
from .see.ethtool import Ethtool, Fec, LinkState, Module
from .see.files import SYSTEM, Door, text
from .see.kernel_log import FLOODED, Hint, KernelLog
from .see.names import Names
from .see.rdma_devices import RdmaPort
from .see.rdma_events import DeviceEvent, DeviceEvents
from .see.rdma_ports import PortFiles, PortLook
from .see.verbs import RdmaWatch

log = logging.getLogger(__name__)

Facts = Mapping[Signal, Value | None]
# What the gates say of a port that was out, none if it works; None: nothing to say of it now.
Gates = Callable[[str, PortRules, float, Facts], tuple[Gate, ...] | None]
MODULE_ROUNDS = 6  # of ethtool: a module's EEPROM is read over I2C, some milliseconds at a time
HINT_AGAIN = 10.0  # s until a hint with the same meaning is told of the same port again
REST = 60.0  # s that counters rest after the log was flooded


@dataclass(slots=True)
class Told:
    """What drivers told over ethtool in the last round."""

    link: LinkState | None = None
    fec: Fec | None = None
    module: Module | None = None
    samples: list[Sample] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CountersPast:
    """A port's counters before a restart, and which device they were of."""

    driver: str
    guid: str
    index: int
    baselines: Baselines

    def fits(self, driver: str, guid: str, index: int) -> bool:
        """Whether it is that device still."""
        return (self.driver, self.guid, self.index) == (driver, guid, index)


@dataclass(slots=True)
class Watched:
    """One port: its open files, its rules, and what was seen last."""

    files: PortFiles
    key: tuple[str, RdmaPort | None, int | None]
    rules: PortRules
    driver: str
    guid: str
    last: PortLook | None = None
    told: Told = field(default_factory=Told)
    fresh: list[Sample] = field(default_factory=list)
    rest_until: float = 0.0
    missing: str = ""  # what the file names and isn't there
    gates: tuple[Gate, ...] | None = None  # as the latest look saw them


class Observing:
    """See the module's text. `facts` gives the reactor's facts of a port, `behind` the RDMA ports."""

    def __init__(
        self,
        names: Names,
        ports: Sequence[str],
        rules: Sequence[Rule],
        facts: Callable[[str], Facts],
        behind: Callable[[], Mapping[str, RdmaPort]],
        look_soon: Callable[[], None],
        events: EventLog,
        clock: Clock,
        exclude: Sequence[str] = (),
        *,
        counters: bool = True,
        infiniband: Path = rdma_ports.INFINIBAND,
        net: Path = rdma_ports.NET,
        door: Door = SYSTEM,
        past: Mapping[str, CountersPast] | None = None,
        expected: Callable[[str], Mapping[str, int]] = lambda port: {},
        gates: Gates = lambda port, rules, now, facts: None,
    ) -> None:
        self._gates = gates
        self._expected = expected  # what the manifest says of a port's rate, width, speed, MTU
        self._past = dict(past or {})
        self.names = names
        self._ports, self._facts, self._behind = tuple(ports), facts, behind
        self._rules = tuple(r for r in rules if r.watch not in AGENTS_OWN)
        self._look_soon, self._events, self._clock = look_soon, events, clock
        self._exclude, self._counters = frozenset(exclude), counters
        self._infiniband, self._net, self._door = infiniband, net, door
        self.watched: dict[str, Watched] = {}
        self._ethtool: Ethtool | None = None
        self._hinted: dict[tuple[str, str], float] = {}
        self._devices = DeviceEvents(self._device, look_soon)
        self._log = KernelLog(self._named, self._hint)
        self._rounds = 0

    # -- with each sweep --------------------------------------------------------------------------------------

    def look(self) -> list[Observation]:
        """Look at all ports now."""
        self.names.refresh()
        for moved in self.names.moves():
            self._events.add(EventKind.SEEN, moved.label, moved.text, data={"source": "sysfs"})
        behind = self._behind()
        seen: list[Observation] = []
        for port in self._ports:
            try:
                seen += self._look(port, behind.get(port))
            except Exception as e:  # one port's trouble hides no other
                log.exception("can't look at %s", port)
                seen.append(Observation(self._clock.now(), "sysfs", port, Signal.RULES, None, str(e)))
        return seen

    def _look(self, port: str, rdma: RdmaPort | None) -> list[Observation]:
        index = self.names.index(port)
        if index is None:
            return []  # gone: the sweep over netlink tells
        watched = self._watch(port, rdma, index)
        now = self._clock.now()
        look = watched.last = watched.files.look()
        if rdma is not None and (missing := self._known(rdma)):
            look.why["rdma"] = missing
        if look.why.get("rdma", "") != watched.missing:
            watched.missing = look.why.get("rdma", "")
            text_now = watched.missing or f"RDMA device {rdma.device if rdma else ''} is there"
            self._events.add(EventKind.SEEN, port, text_now, data={"source": "sysfs"})
        facts = self._facts(port)
        up = look.state in ("active", None) and facts.get(Signal.CARRIER) is not False
        values: dict[Signal, Value | None] = {
            Signal.RDMA: look.state,
            Signal.RDMA_PHYS: look.phys,
            Signal.RDMA_RATE: look.rate if up else None,
            Signal.RDMA_WIDTH: look.width if up else None,
            Signal.SPEED: look.speed,
            Signal.LINK_DETAIL: self._detail(port, watched, facts),
            Signal.LINK_LAYER: watched.files.link_layer or None,
            Signal.FIRMWARE: watched.files.firmware or None,
        }
        seen = [Observation(now, "sysfs", port, s, v) for s, v in values.items() if v is not None]
        mtu, admin = facts.get(Signal.MTU), facts.get(Signal.ADMIN)
        named: dict[str, Fact] = {
            # What a port without a link reads as its rate or width is a place holder.
            "rate": look.rate if up else None,
            "width": look.width if up else None,
            "speed": look.speed if up else None,
            "mtu": mtu if isinstance(mtu, int) else None,
            "phys": look.phys,
            "members": _members(look.members),
        }
        samples: list[Sample] = [*look.samples, *watched.fresh] if self._reads(port, watched, now) else []
        watched.fresh = []
        judged = watched.rules.look(now, named, samples, admin if isinstance(admin, bool) else None)
        for finding in judged.opened:
            self._tell(finding, f"{finding.rule} ({finding.act}): {finding.text}", "since")
        for finding in judged.closed:
            self._tell(finding, f"{finding.rule} is over", "was")
        seen.append(Observation(now, "rules", port, Signal.RULES, judged.state, judged.text))
        # The gates look at what this look saw, also where it could see nothing.
        facts = {**facts, **values}
        watched.gates = self._gates(port, watched.rules, now, facts)
        if watched.gates is not None:
            seen.append(Observation(now, "gates", port, Signal.GATE, shut(watched.gates)))
        return seen

    def accept(self, port: str) -> None:
        """An operator gave the port back: the rate and MTU that it has now are right from now on."""
        if port in self.watched:
            self.watched[port].rules.forget_best()

    def expect_anew(self) -> None:
        """The manifest says something else now."""
        for port, watched in self.watched.items():
            watched.rules.expect(self._expected(port))

    def past(self) -> dict[str, CountersPast]:
        """What a restart should remember of the counters."""
        now = self._clock.now()
        return {
            port: CountersPast(w.driver, w.guid, w.key[2], w.rules.baselines(now))
            for port, w in self.watched.items()
            if w.key[2] is not None
        }

    def _known(self, rdma: RdmaPort) -> str:
        """Why a device that the file names isn't there; "" if it is."""
        if (self._infiniband / rdma.device).exists():
            return ""
        try:
            there = ", ".join(sorted(e.name for e in self._infiniband.iterdir()))
        except OSError:
            there = ""
        return f"no RDMA device {rdma.device!r} here; there {'are ' + there if there else 'is none'}"

    def _reads(self, port: str, watched: Watched, now: float) -> bool:
        return self._counters and port not in self._exclude and now >= watched.rest_until

    def _tell(self, finding: Finding, what: str, word: str) -> None:
        evidence = "; ".join(f"{e.source} {e.text}" for e in finding.evidence)
        data: Data = {"rule": finding.rule, "act": finding.act, word: finding.since}
        self._events.add(EventKind.FINDING, finding.port, what, evidence, data)

    def _detail(self, port: str, watched: Watched, facts: Facts) -> str | None:
        """Why the link is down; "" once it isn't."""
        if facts.get(Signal.CARRIER) is not False:
            return "" if facts.get(Signal.LINK_DETAIL) else None
        link = watched.told.link
        return link.why if link is not None and not link.link and link.why else None

    def _watch(self, port: str, rdma: RdmaPort | None, index: int) -> Watched:
        device = self.names.device(port)
        key = (device, rdma, index)
        known = self.watched.get(port)
        if known is not None and known.key == key:
            return known
        files = PortFiles(device, rdma, self._infiniband, self._net, self._door, counters=port not in self._exclude)
        guid = text(self._infiniband / rdma.device / "node_guid") if rdma else None
        driver_name = files.driver.name
        if known is not None:
            known.files.close()
        if known is not None and known.driver == driver_name:
            rules = known.rules
            if known.key[2] != index or known.guid != (guid or known.guid):
                rules.device_came()
        else:
            rules = PortRules(port, for_driver(self._rules, driver_name), self._expected(port))
            past = self._past.pop(port, None)
            if past is not None and past.fits(driver_name, guid or "", index):
                rules.recall(past.baselines, self._clock.now())
        found = Watched(files, key, rules, driver_name, guid or (known.guid if known else ""))
        if known is not None:
            found.told, found.rest_until, found.missing = known.told, known.rest_until, known.missing
        self.watched[port] = found
        return found

    # -- beside the sweep -------------------------------------------------------------------------------------

    def open(self, *, kernel_log: bool) -> None:
        """Start to listen to device events and the kernel log."""
        self._devices.open()
        if kernel_log and (why := self._log.open()):
            log.info("the kernel log can't be read (%s): no hints from it", why)

    async def rounds(self, period: float) -> None:
        """Ask ethtool every `period` seconds until cancelled, in a thread."""
        self._ethtool = Ethtool()
        try:
            while True:
                asked = {p: w for p, w in self.watched.items() if p not in self._exclude}
                wanted = {p: (self.names.device(p), w.driver) for p, w in asked.items()}
                modules = self._rounds % MODULE_ROUNDS == 0
                self._rounds += 1
                told = await asyncio.to_thread(ask, self._ethtool, wanted, modules=modules)
                for port, answer in told.items():
                    watched = self.watched.get(port)
                    if watched is not None:
                        answer.module = answer.module if modules else watched.told.module
                        watched.told, watched.fresh = answer, list(answer.samples)
                await asyncio.sleep(period)
        finally:
            self._ethtool.close()

    def close(self) -> None:
        """Let go of everything."""
        self._devices.close()
        self._log.close()
        for watched in self.watched.values():
            watched.files.close()
        self.watched.clear()

    # -- what comes by itself ---------------------------------------------------------------------------------

    def _device(self, event: DeviceEvent) -> None:
        self._events.add(
            EventKind.SEEN, event.device or "RDMA", f"RDMA device {event.what}", data={"source": event.source}
        )
        self._look_soon()

    def _named(self) -> dict[str, str]:
        """Every word by which the kernel may speak of our ports."""
        found = {self.names.device(p): p for p in self._ports}
        for port in self._ports:
            place = self.names.place(port)
            if place:
                found.setdefault(place.split()[0], port)
        found |= {rdma.device: port for port, rdma in self._behind().items() if rdma.device not in found}
        return found

    def _hint(self, hint: Hint) -> None:
        now = self._clock.now()
        if hint.meaning == FLOODED and hint.port in self.watched:
            self.watched[hint.port].rest_until = now + REST
        last = self._hinted.get((hint.port, hint.meaning))
        if last is not None and now < last + HINT_AGAIN:
            return
        self._hinted[hint.port, hint.meaning] = now
        self._events.add(EventKind.HINT, hint.port, hint.meaning, hint.text, {"source": "kernel log"}, hint.at)


def of(
    settings: Settings,
    names: Names,
    reactor: Reactor,
    rdma: RdmaWatch,
    look_soon: Callable[[], None],
    events: EventLog,
    clock: Clock,
    past: Mapping[str, CountersPast],
    expected: Callable[[str], Mapping[str, int]],
    gates: Gates,
) -> Observing:
    """The daemon's own."""

    def anew() -> None:
        rdma.look_anew()
        look_soon()

    return Observing(
        names, [p.name for p in settings.ports], changed(settings.rules), lambda port: reactor.ports[port].facts,
        lambda: rdma.behind, anew, events, clock, settings.see.exclude, counters=settings.see.counters, past=past,
        expected=expected, gates=gates,
    )  # fmt: skip


def _members(members: Mapping[str, bool] | None) -> str | None:
    """A bond that carries on with fewer links than it has."""
    if members is None:
        return None
    down = sorted(name for name, up in members.items() if not up)
    return f"degraded: {', '.join(down)} down of {len(members)}" if down else "complete"


def ask(ethtool: Ethtool, wanted: Mapping[str, tuple[str, str]], *, modules: bool) -> dict[str, Told]:
    """Ask about each port (its device and driver); what can't be had is left out, with the reason in `why`."""
    return {port: _ask_one(ethtool, device, name, modules) for port, (device, name) in wanted.items()}


def _ask_one(ethtool: Ethtool, device: str, driver_name: str, modules: bool) -> Told:
    told = Told()
    kinds = {k.name: k for k in driver(driver_name).at("ethtool")}
    values: dict[str, int | None] = {}
    try:
        told.link = ethtool.link(device)
        values["link downs"] = told.link.downs
    except OSError as e:
        told.why["link"] = e.strerror or str(e)
    try:
        told.fec = ethtool.fec(device)
        values["FEC uncorrectable"] = told.fec.uncorrectable
    except OSError as e:
        told.why["fec"] = e.strerror or str(e)
    try:
        if own := [n for n in kinds if n not in ("link downs", "FEC uncorrectable")]:
            values |= ethtool.statistics(device, own)
    except OSError as e:
        told.why["statistics"] = e.strerror or str(e)
    try:
        told.module = ethtool.module(device) if modules else None
    except OSError as e:
        told.why["module"] = e.strerror or str(e)
    told.samples = [Sample(kinds[n], v) for n, v in values.items() if v is not None]
    return told
