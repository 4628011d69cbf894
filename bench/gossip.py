"""What sharing costs: `python bench/gossip.py`. Prints one line a figure.

- time from publish() in one process to Learned in another, over UDP on loopback (both read CLOCK_MONOTONIC)
- sealing and opening a datagram, making and reading a record, a handshake
- resident memory of a view of 2,048 hosts with 8 ports each
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from linkpass import wire
from linkpass.clock import SystemClock
from linkpass.model import HostRecord, PortRecord, PortState
from linkpass_topology.gossip import seal
from linkpass_topology.gossip.core import Gossip
from linkpass_topology.gossip.keyring import Key, Keyring
from linkpass_topology.gossip.outputs import Address, Learned, Output
from linkpass_topology.gossip.udp import GossipUdp
from linkpass_topology.view import View

KEYRING = Keyring((Key("bench", bytes(range(32))),))
PAUSE = 0.01  # s between two publications


def record(host: str, number: int, ports: int, version: int = 1) -> HostRecord:
    """A host with an IPv4 address and four GIDs on each port."""
    high, low = number >> 8, number & 255
    return HostRecord(
        host,
        1,
        version,
        (f"10.255.{high}.{low}",),
        tuple(
            PortRecord(
                f"mlx5_{i}",
                f"rail{i}",
                PortState.UP,
                "carrier is up",
                (f"10.{10 + i}.{high}.{low}",),
                9000,
                (
                    f"fe80:0000:0000:0000:0000:00ff:fe{i:02x}:{number:04x}",
                    f"fe80:0000:0000:0000:0000:00ff:fe{i:02x}:{number:04x}",
                    f"0000:0000:0000:0000:0000:ffff:0a{10 + i:02x}:{number:04x}",
                    f"0000:0000:0000:0000:0000:ffff:0a{10 + i:02x}:{number:04x}",
                ),
            )
            for i in range(ports)
        ),
    )


def node(host: str, seeds: list[Address], owner: Callable[[Output], None]) -> GossipUdp:
    """A host on loopback."""
    core = Gossip(host, KEYRING, seeds, rng=Random(host), entropy=os.urandom)
    return GossipUdp(core, SystemClock(), owner)


def listen(pipe: Connection, count: int) -> None:
    """The other process: collects how long each publication took, in seconds."""

    async def main() -> None:
        took: list[float] = []
        done = asyncio.Event()

        def owner(output: Output) -> None:
            if isinstance(output, Learned) and output.record.version > 1:
                took.append(time.monotonic() - int(output.record.ports[0].cause) / 1e9)
                if output.record.version == count + 1:  # one may be overtaken by the next, and is never learned then
                    done.set()

        b = node("b", [], owner)
        pipe.send(await b.open(("127.0.0.1", 0)))
        async with asyncio.timeout(60 + count * PAUSE):
            await done.wait()
        pipe.send(took)
        b.close()

    asyncio.run(main())


def latency(count: int, ports: int) -> list[float]:
    """Seconds from publish() to Learned, of `count` publications of a host with `ports` ports."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=listen, args=(theirs, count))
    process.start()
    theirs.close()
    address: Address = ours.recv()

    async def main() -> None:
        a = node("a", [address], lambda output: None)
        await a.open(("127.0.0.1", 0))
        held = record("a", 1, ports)
        a.publish(held)
        await asyncio.sleep(1.0)
        for version in range(2, count + 2):
            # The time goes in as the cause of the first port's state.
            first = replace(held.ports[0], cause=str(time.monotonic_ns()))
            a.publish(replace(held, version=version, ports=(first, *held.ports[1:])))
            await asyncio.sleep(PAUSE)
        await asyncio.sleep(2.0)  # should the last one have to be repeated
        a.close()

    asyncio.run(main())
    took: list[float] = ours.recv()
    process.join()
    return took


def hear(pipe: Connection, count: int) -> None:
    """The other process of `floor`."""

    class Heard(asyncio.DatagramProtocol):
        def __init__(self) -> None:
            self.took: list[float] = []

        def datagram_received(self, data: bytes, addr: object) -> None:
            self.took.append(time.monotonic() - int(data) / 1e9)

    async def main() -> None:
        transport, heard = await asyncio.get_running_loop().create_datagram_endpoint(
            Heard, local_addr=("127.0.0.1", 0)
        )
        pipe.send(transport.get_extra_info("sockname"))
        async with asyncio.timeout(60 + count * PAUSE):
            while len(heard.took) < count:
                await asyncio.sleep(0.1)
        pipe.send(heard.took)
        transport.close()

    asyncio.run(main())


def floor(count: int) -> list[float]:
    """Seconds that a bare datagram takes between two asyncio processes: what no protocol can beat on this machine."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=hear, args=(theirs, count))
    process.start()
    theirs.close()
    address = ours.recv()

    async def main() -> None:
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=address
        )
        for _ in range(count):
            transport.sendto(str(time.monotonic_ns()).encode())
            await asyncio.sleep(PAUSE)
        transport.close()

    asyncio.run(main())
    took: list[float] = ours.recv()
    process.join()
    return took


def cost(act: Callable[[], object], times: int = 3000) -> float:
    """Median microseconds of a call, over five rounds."""
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(times):
            act()
        rounds.append((time.perf_counter() - start) / times * 1e6)
    return statistics.median(rounds)


def resident() -> int:
    """Bytes of memory that this process holds (statm's second field, in pages)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(count: int) -> dict[str, float]:
    """All figures, by name."""
    took = sorted(floor(count))
    found = {"bare datagram, median, us": statistics.median(took) * 1e6}
    found["bare datagram, p95, us"] = took[int(0.95 * len(took))] * 1e6
    for ports in (2, 16):
        took = sorted(latency(count, ports))
        found[f"publish to learned, {ports} ports, median, us"] = statistics.median(took) * 1e6
        found[f"publish to learned, {ports} ports, p95, us"] = took[int(0.95 * len(took))] * 1e6
    asked, answered = seal.End(b"i" * 16, b"session1", "a"), seal.End(b"r" * 16, b"session2", "b")
    a = seal.Session(KEYRING.sending, asked, answered, asking=True)
    b = seal.Session(KEYRING.sending, asked, answered, asking=False)
    for size in (126, 600, 1366):
        payload = bytes(size)
        found[f"seal {size} bytes, us"] = cost(lambda payload=payload: a.seal(payload))  # type: ignore[misc]
        sealed = iter([a.seal(payload) for _ in range(15_000)])
        found[f"open {size} bytes, us"] = cost(lambda sealed=sealed: b.open(next(sealed)))  # type: ignore[misc]
    hello = seal.make_hello(KEYRING.sending, bytes(16), bytes(8), "a")
    found["read a hello and answer it, us"] = cost(
        lambda: seal.make_ack(seal.open_hello(KEYRING.sending, hello), bytes(16), bytes(8), "b"), 500
    )
    found["refuse a forged hello, us"] = cost(lambda: refused(hello[:-60] + bytes(60)), 500)
    for ports in (2, 8, 16):
        one = record("host-0001", 1, ports)
        data = wire.encode(one)
        found[f"record of {ports} ports, bytes"] = len(data)
        found[f"encode {ports} ports, us"] = cost(lambda one=one: wire.encode(one), 300)  # type: ignore[misc]
        found[f"decode {ports} ports, us"] = cost(lambda data=data: wire.decode(data), 300)  # type: ignore[misc]
    gc.collect()
    before, view = resident(), View()
    for n in range(2048):
        view.merge(wire.decode(wire.encode(record(f"host-{n:04}", n, 8))))
    gc.collect()
    found["view of 2048 hosts x 8 ports, MiB"] = (resident() - before) / (1 << 20)
    found["summary of that view, us"] = cost(lambda: view.summary)
    return found


def refused(hello: bytes) -> None:
    """Open a hello that isn't genuine."""
    try:
        seal.open_hello(KEYRING.sending, hello)
    except seal.Refused:
        return
    raise AssertionError("a forged hello was believed")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="publications to time (default 500)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    found = measure(args.count)
    if args.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"{name:45} {value:10.1f}")


if __name__ == "__main__":
    main()
