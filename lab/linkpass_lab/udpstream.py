"""A stream of small UDP packets at a steady rate, and what the receiver missed of it.

    python -m linkpass_lab.udpstream receive --bind 10.255.0.2:5201 --log FILE
    python -m linkpass_lab.udpstream send --bind 10.255.0.1:0 --to 10.255.0.2:5201 --rate 1000 --log FILE

Both run until SIGTERM (the sender also ends after --seconds), then write their log: the sender when each packet
left, the receiver when each came in, by the kernel's receive time, so that a busy machine's scheduling isn't taken
for an outage. All times are CLOCK_MONOTONIC nanoseconds, common to all hosts of one machine. The sender's socket is
connected, as most programs' are, and it works to absolute deadlines. The receiver prints a JSON line for each gap of
more than --report ms as soon as it has ended.

`analyse` joins the two logs. A gap is the time between two arrivals that follow each other; the stream's start and
the sender's end count as arrivals, so an outage that never ended shows as well.
"""

import argparse
import array
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

SO_TIMESTAMPNS = 35  # asm-generic/socket.h
PACKET = struct.Struct("!Q")  # the sequence number, from 0
SIZE = 64  # bytes a packet
PRIORITY = 10  # of SCHED_FIFO, with --realtime
NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Gap:
    """No packet arrived between `start` and `end` (monotonic s); `lost` packets went missing in it."""

    start: float
    end: float
    lost: int

    @property
    def ms(self) -> float:
        return (self.end - self.start) * 1e3


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a stream. `gaps` holds those above the threshold, longest first."""

    sent: int
    errors: int  # sends that the kernel refused
    received: int
    lost: int
    duplicates: int
    longest_ms: float
    gaps: tuple[Gap, ...]

    def json(self) -> dict[str, object]:
        gaps = [{"start": g.start, "end": g.end, "ms": round(g.ms, 3), "lost": g.lost} for g in self.gaps]
        return {**{k: getattr(self, k) for k in self.__slots__ if k != "gaps"}, "gaps": gaps}


def analyse(
    sent: Sequence[int],
    arrivals: Sequence[tuple[int, int]],
    *,
    errors: int = 0,
    ended: int | None = None,
    threshold_ms: float = 5.0,
    after: int = 0,
) -> Result:
    """Join the send times (ns, by sequence number) with the arrivals (sequence number, ns).

    `ended` is when the sender stopped (ns), just after the last send unless given. With `after` (ns), only gaps that
    end after it count: what came before the fault isn't the fault's.
    """
    seen: set[int] = set()
    times = []
    for number, at in arrivals:
        times.append(at)
        seen.add(number)
    marks = [sent[0], *sorted(times), max(ended or sent[-1] + 1, max(times, default=0))] if sent else []
    lost = sorted(set(range(len(sent))) - seen)
    gaps = []
    for start, end in pairwise(marks):
        if end > after:
            missing = 0
            if end - start >= threshold_ms * 1e6:
                missing = sum(1 for n in lost if start <= sent[n] < end)
            gaps.append(Gap(start / NS, end / NS, missing))
    gaps.sort(key=lambda g: g.start - g.end)
    return Result(
        sent=len(sent),
        errors=errors,
        received=len(seen),
        lost=len(lost),
        duplicates=len(times) - len(seen),
        longest_ms=round(gaps[0].ms, 3) if gaps else 0.0,
        gaps=tuple(g for g in gaps if g.ms >= threshold_ms),
    )


def read(folder: Path, *, threshold_ms: float = 5.0, after: int = 0) -> Result:
    """Analyse `sent` and `received` of a folder."""
    sent, errors, ended = array.array("q"), 0, 0
    raw = (folder / "sent").read_bytes()
    errors, ended = struct.unpack_from("qq", raw)
    sent.frombytes(raw[16:])
    pairs = array.array("q")
    pairs.frombytes((folder / "received").read_bytes())
    arrivals = list(zip(pairs[::2], pairs[1::2], strict=True))
    return analyse(sent, arrivals, errors=errors, ended=ended, threshold_ms=threshold_ms, after=after)


def send(to: tuple[str, int], bind: tuple[str, int], rate: float, seconds: float, log: Path) -> None:
    """Send until SIGTERM or for `seconds`; then write the log: errors, end, send times."""
    stop = _on_term()
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(bind)
    s.connect(to)
    s.setblocking(False)
    times, errors = array.array("q"), 0
    padding = bytes(SIZE - PACKET.size)
    start, period = time.monotonic_ns(), NS / rate
    end = start + int(seconds * NS)
    print(json.dumps({"start": start / NS}), flush=True)
    while not stop and (now := time.monotonic_ns()) < end:
        due = start + int(len(times) * period)
        if now < due:
            time.sleep((due - now) / NS)
        times.append(time.monotonic_ns())
        try:
            s.send(PACKET.pack(len(times) - 1) + padding)
        except OSError:  # no route, no neighbour, or an ICMP error of an earlier packet: lost like any other
            errors += 1
    _write(log, struct.pack("qq", errors, time.monotonic_ns()) + times.tobytes())


def receive(bind: tuple[str, int], log: Path, report_ms: float) -> None:
    """Receive until SIGTERM; then write the log: pairs of sequence number and arrival."""
    stop = _on_term()
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    s.bind(bind)
    s.setblocking(False)
    offset = time.monotonic_ns() - time.time_ns()
    pairs, last = array.array("q"), 0
    print(json.dumps({"ready": time.monotonic()}), flush=True)
    while not stop:
        select.select([s], [], [], 0.1)
        with suppress(BlockingIOError):
            while True:
                data, extra, _, _ = s.recvmsg(SIZE, 64)
                stamp = [struct.unpack_from("qq", d) for _, kind, d in extra if kind == SO_TIMESTAMPNS]
                at = stamp[0][0] * NS + stamp[0][1] + offset if stamp else time.monotonic_ns()
                pairs.append(PACKET.unpack_from(data)[0])
                pairs.append(at)
                if last and at - last > report_ms * 1e6:
                    print(json.dumps({"gap": (at - last) / 1e6, "start": last / NS, "end": at / NS}), flush=True)
                last = at
    _write(log, pairs.tobytes())


def _on_term() -> list[int]:
    """A list that is no longer empty once SIGTERM has come."""
    got: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    return got


def _write(path: Path, data: bytes) -> None:
    """All or nothing: a reader never finds half a log."""
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.rename(path)


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="udpstream", description="a steady stream of small UDP packets")
    parser.add_argument("role", choices=("send", "receive"))
    parser.add_argument("--bind", type=_endpoint, required=True, metavar="ADDRESS:PORT")
    parser.add_argument("--to", type=_endpoint, metavar="ADDRESS:PORT", help="send: where to")
    parser.add_argument("--rate", type=float, default=1000.0, help="send: packets a second")
    parser.add_argument("--seconds", type=float, default=3600.0, help="send: end by itself after so long")
    parser.add_argument("--report", type=float, default=20.0, help="receive: print gaps longer than this many ms")
    parser.add_argument("--realtime", action="store_true", help="run at real-time priority (needs root)")
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args(argv)
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    if options.role == "receive":
        receive(options.bind, options.log, options.report)
    elif options.to is None:
        parser.error("send needs --to")
    else:
        send(options.to, options.bind, options.rate, options.seconds, options.log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
