"""The protocol core on a real UDP socket: one datagram endpoint, one timer, no logic.

The owner's callback runs synchronously when something was received, before anything else of the event loop, so that a
verdict is in the owner's hands as soon as it was read. Everything runs in the event loop's thread.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

from linkpass.clock import Clock
from linkpass.model import HostRecord
from linkpass_topology.gossip.core import Gossip
from linkpass_topology.gossip.limits import TokenBucket
from linkpass_topology.gossip.outputs import Address, Dropped, Output, Send

log = logging.getLogger(__name__)

BUFFER = 4 << 20  # bytes asked of the kernel; 3,000 full datagrams, a whole fleet's records
UNSENT = 256 << 10  # bytes that may wait in the transport; more is dropped, the protocol repeats it
LOG_RATE, LOG_BURST = 1.0, 5.0  # lines a second about dropped input and failed sends


class GossipUdp(asyncio.DatagramProtocol):
    """Drives a `Gossip` over UDP. `send_errors` counts by errno's name what the kernel didn't take.

    `owner` gets every output but `Send`, which is carried out, and `Dropped`, which is counted in `core.dropped` and
    logged at a bounded rate: a flood from outside must not become work for the owner.
    """

    def __init__(self, core: Gossip, clock: Clock, owner: Callable[[Output], None]) -> None:
        self.core = core
        self.send_errors: Counter[str] = Counter()
        self._clock = clock
        self._owner = owner
        self._transport: asyncio.DatagramTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        self._log = TokenBucket(LOG_RATE, LOG_BURST)
        self._unlogged = 0

    async def open(self, listen: Address) -> Address:
        """Bind and start; returns the bound address. OSError names the address if it can't be had."""
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            for forced, asked in (("SO_RCVBUFFORCE", socket.SO_RCVBUF), ("SO_SNDBUFFORCE", socket.SO_SNDBUF)):
                _size(sock, getattr(socket, forced, 33 if asked == socket.SO_RCVBUF else 32), asked)
            try:
                sock.bind(listen)
            except OSError as e:
                raise OSError(e.errno, f"{listen[0]}:{listen[1]}: {e.strerror}") from e
            transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=sock)
        except BaseException:
            sock.close()
            raise
        self._transport = transport
        bound: Address = transport.get_extra_info("sockname")[:2]
        self._carry_out(self.core.start(self._clock.now(), bound))
        return bound

    def close(self) -> None:
        """Stop; peers see silence."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def publish(self, record: HostRecord) -> None:
        """Send our new record to every peer, now. Raises what `Gossip.publish` raises."""
        self._carry_out(self.core.publish(record, self._clock.now()))

    def post(self, host: str, lane: tuple[int, int], payloads: Iterable[bytes]) -> bool:
        """Send letters to a peer's owner, now. False if there is no room for them to wait."""
        taken, outputs = self.core.post(host, lane, payloads, self._clock.now())
        self._carry_out(outputs)
        return taken

    def run(self, act: Callable[[Gossip, float], Iterable[Output]]) -> None:
        """Do anything else with the core, such as setting its keyring, and carry out what it answers."""
        self._carry_out(act(self.core, self._clock.now()))

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        """Called by the event loop."""
        self._carry_out(self.core.on_datagram(data, (addr[0], addr[1]), self._clock.now()))

    def error_received(self, exc: Exception) -> None:
        """Called by the event loop: a send failed, now or (ICMP) earlier."""
        name = _errno_name(exc)
        self.send_errors[name] += 1
        self._tell("sending failed: %s", name)

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self.core.on_timer(self._clock.now()))

    def _carry_out(self, outputs: Iterable[Output]) -> None:
        rest: list[Output] = []
        for output in outputs:
            if isinstance(output, Send):
                self._send(output)
            else:
                rest.append(output)
        self._arm()
        for output in rest:
            if isinstance(output, Dropped):
                self._tell(
                    "dropped input that claims to be from %s: %s", f"{output.addr[0]}:{output.addr[1]}", output.reason
                )
                continue
            try:
                self._owner(output)
            except Exception:
                log.exception("the owner failed on %s", type(output).__name__)

    def _send(self, output: Send) -> None:
        transport = self._transport
        if transport is None:
            return
        # The selector loop's datagram transport has this method; its declared type lacks it.
        if cast(asyncio.WriteTransport, transport).get_write_buffer_size() > UNSENT:
            self.send_errors["EAGAIN"] += 1
            return
        try:
            transport.sendto(output.data, output.addr)
        except (OSError, ValueError) as e:  # ValueError: an address of the other family
            self.error_received(e)

    def _arm(self) -> None:
        at = self.core.next_timer()
        if self._transport is None or at is None or (self._timer is not None and at == self._due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self._clock.now()), self._tick)

    def _tell(self, text: str, *args: object) -> None:
        if not self._log.allow(self._clock.now()):
            self._unlogged += 1
            return
        if self._unlogged:
            text += f" (and {self._unlogged} more, not logged)"
            self._unlogged = 0
        log.warning(text, *args)


def _size(sock: socket.socket, forced: int, asked: int) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, forced, BUFFER)  # beyond net.core.[rw]mem_max, for root only
    except OSError:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, asked, BUFFER)


def _errno_name(exc: Exception) -> str:

    number = exc.errno if isinstance(exc, OSError) else None
    return errno.errorcode.get(number, str(number)) if number is not None else type(exc).__name__
