"""Sends and answers path probes: one UDP socket per port and address, tied to the port's device."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from linkpass.clock import Clock
from linkpass.model import PathId
from linkpass_agent.judge.probing import Probing

from .probe_wire import ANSWER, REQUEST, SIZE, Probe, ProbeCodec, rail_mark

log = logging.getLogger(__name__)

READ_AT_ONCE = 256  # datagrams taken from one socket before others get their turn
LATE = 3600.0  # s, the timer's longest sleep when nothing is due


@dataclass(frozen=True, slots=True)
class Ear:
    """One bound socket."""

    port: str
    rail: str
    mark: bytes
    sock: socket.socket
    version: int  # of IP
    interface: int  # index of the device that the socket is tied to


@dataclass(frozen=True, slots=True)
class Target:
    """A peer's end of a path."""

    at: tuple[str, int]  # address and UDP port
    version: int  # of IP


class Prober:
    """The doer around `Probing`. `changed` is called with the paths whose state changed."""

    def __init__(
        self,
        probing: Probing,
        codec: ProbeCodec,
        rails: Mapping[str, str],
        udp_port: int,
        session: int,
        answer_rate: float,
        changed: Callable[[list[PathId]], None],
        clock: Clock,
        device: Callable[[str], str] = str,
    ) -> None:
        self._device = device  # a port's name -> what its device is called now
        self._probing, self._codec, self._rails = probing, codec, rails
        self._udp_port, self._session, self._changed, self._clock = udp_port, session, changed, clock
        self._answer_rate = answer_rate
        self._allowance, self._allowance_at = answer_rate, clock.now()
        self._ears: dict[tuple[str, str], Ear] = {}
        self._refused: dict[tuple[str, str], int | None] = {}  # errno of the latest try, told once
        self._targets: dict[PathId, Target] = {}
        self._asked: dict[int, PathId] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.dropped: Counter[str] = Counter()

    def listen(self, port: str, addresses: tuple[str, ...]) -> None:
        """Have one socket on each address of `port`, and no other; new ones if the device was made anew."""
        wanted = {(port, a) for a in addresses}
        for key, ear in [(k, e) for k, e in self._ears.items() if k[0] == port]:
            if key not in wanted or ear.interface != _index(self._device(port)):
                self._drop_ear(key)
        for key in wanted - set(self._ears):
            try:
                self._add_ear(*key)
                self._refused.pop(key, None)
            except OSError as e:
                if self._refused.get(key) != e.errno:
                    log.warning("can't probe from %s on %s: %s", key[1], port, e.strerror or e)
                self._refused[key] = e.errno

    def set_codec(self, codec: ProbeCodec) -> None:
        """Use other keys from now on."""
        self._codec = codec

    def set_targets(self, targets: Mapping[PathId, str], in_use: frozenset[PathId]) -> None:
        """The peers' addresses to probe, by path, and the paths in use."""
        self._targets = {p: Target((a, self._udp_port), ip_address(a).version) for p, a in targets.items()}
        self._probing.set_paths(self._targets, in_use, self._clock.now())
        self._arm()

    def close(self) -> None:
        """Stop and release all sockets."""
        if self._timer:
            self._timer.cancel()
        for key in list(self._ears):
            self._drop_ear(key)

    # -- inside -----------------------------------------------------------------------------------------------

    def _add_ear(self, port: str, address: str) -> None:
        version = ip_address(address).version
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._device(port).encode())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 6)  # network control, linux/pkt_sched.h
            sock.bind((address, self._udp_port))
        except OSError:
            sock.close()
            raise
        rail = self._rails[port]
        ear = Ear(port, rail, rail_mark(rail), sock, version, _index(self._device(port)))
        self._ears[port, address] = ear
        self._loop.add_reader(sock, self._readable, ear)

    def _drop_ear(self, key: tuple[str, str]) -> None:
        ear = self._ears.pop(key)
        self._loop.remove_reader(ear.sock)
        ear.sock.close()

    def _readable(self, ear: Ear) -> None:
        changed = self._read(ear)
        try:
            if changed:
                self._changed(changed)
        finally:
            self._arm()  # also without a change: an answer may prove another path's silence

    def _read(self, ear: Ear) -> list[PathId]:
        changed = []
        for _ in range(READ_AT_ONCE):
            try:
                data, source = ear.sock.recvfrom(SIZE + 1)
            except BlockingIOError:
                break
            except OSError as e:
                self.dropped[f"probe-{e.errno}"] += 1  # e.g. ECONNREFUSED from an ICMP error
                continue
            probe = self._codec.unpack(data)
            if probe is None:
                self.dropped["probe-garbage"] += 1
            elif probe.kind == REQUEST:
                self._answer(ear, probe, source)
            elif probe.kind == ANSWER and probe.session == self._session:
                path = self._asked.pop(probe.seq, None)
                if path is not None and path.rail == ear.rail:
                    if self._probing.answered(path, probe.seq, self._clock.now()):
                        changed.append(path)
                else:
                    self.dropped["probe-unasked"] += 1
            else:
                self.dropped["probe-stale"] += 1
        return changed

    def _answer(self, ear: Ear, probe: Probe, source: tuple[Any, ...]) -> None:
        if probe.rail != ear.mark:
            self.dropped["probe-wrong-rail"] += 1
            return
        now = self._clock.now()
        earned = (now - self._allowance_at) * self._answer_rate
        self._allowance = min(self._answer_rate, self._allowance + earned)
        self._allowance_at = now
        if self._allowance < 1:
            self.dropped["probe-rate"] += 1
            return
        self._allowance -= 1
        self._send(ear, Probe(ANSWER, probe.session, probe.seq, probe.rail), source)

    def _send(self, ear: Ear, probe: Probe, to: tuple[Any, ...]) -> bool:
        try:
            ear.sock.sendto(self._codec.pack(probe), to)
        except OSError:
            return False  # no route, no carrier, no buffer: it didn't leave, so it can't be lost
        return True

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._probe()
        finally:
            self._arm()  # whatever happened: a prober that stops finds no path dead any more

    def _probe(self) -> None:
        # First take in all that has arrived: our own lateness must not look like a lost probe.
        changed = [p for ear in list(self._ears.values()) for p in self._read(ear)]
        now = self._clock.now()
        changed += self._probing.tick(now)
        for path, seq in self._probing.due(now):
            target = self._targets[path]
            ear = next((e for e in self._ears.values() if e.port == path.port and e.version == target.version), None)
            if ear and self._send(ear, Probe(REQUEST, self._session, seq, ear.mark), target.at):
                self._probing.sent(path, seq, now)
                self._asked[seq] = path
        while len(self._asked) > 65536:
            del self._asked[next(iter(self._asked))]
        if changed:
            self._changed(changed)

    def _arm(self) -> None:
        at = self._probing.next_at()
        fires = self._loop.time() + (LATE if at is None else max(0.0, at - self._clock.now()))
        if self._timer:
            if self._timer.when() <= fires:
                return  # early is fine: it arms itself again
            self._timer.cancel()
        self._timer = self._loop.call_at(fires, self._on_timer)


def _index(port: str) -> int:
    """The device's interface index, 0 if there is none."""
    try:
        return socket.if_nametoindex(port)
    except OSError:
        return 0
