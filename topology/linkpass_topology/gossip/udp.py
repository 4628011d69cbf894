"""The protocol core on real UDP sockets: one for the management network, one a rail, one timer, no logic.

The owner's callback runs synchronously when something was received, before anything else of the event loop, so that a
verdict is in the owner's hands as soon as it was read. Everything runs in the event loop's thread.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from linkpass.clock import Clock
from linkpass.model import HostRecord
from linkpass_topology.gossip.core import Gossip
from linkpass_topology.gossip.limits import TokenBucket
from linkpass_topology.gossip.outputs import Address, Dropped, Output, Send

log = logging.getLogger(__name__)

BUFFER = 4 << 20  # bytes asked of the kernel; 3,000 full datagrams, a whole fleet's records
READ_AT_ONCE = 256  # datagrams taken from one rail's socket before others get their turn
MAX_CAME = 4096  # addresses of which we remember the rail that they spoke to us on
UNSENT = 256 << 10  # bytes that may wait in the transport; more is dropped, the protocol repeats it
LOG_RATE, LOG_BURST = 1.0, 5.0  # lines a second about dropped input and failed sends


@dataclass(frozen=True, slots=True)
class RailEnd:
    """Where we are on a rail: an address, and the device to tie the socket to ('' for none)."""

    address: str
    device: str = ""


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
        self._port = 0
        self._rails: dict[str, tuple[RailEnd, socket.socket]] = {}
        self._refused: dict[str, tuple[RailEnd, int | None]] = {}  # told once
        self._came: OrderedDict[Address, str] = OrderedDict()

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
        self._port = bound[1]
        self._carry_out(self.core.start(self._clock.now(), bound))
        return bound

    def set_rails(self, ends: Mapping[str, RailEnd]) -> None:
        """Be reachable on these rails as well, on the port of the management address. Call after `open`.

        An address that can't be had is tried again with the next call. Where we listen on all addresses anyway,
        nothing needs to be done and nothing is.
        """
        for rail in [r for r, (end, _) in self._rails.items() if ends.get(r) != end]:
            self._drop_rail(rail)
        if self._transport is None or self._transport.get_extra_info("sockname")[0] in ("0.0.0.0", "::"):
            return
        for rail in ends.keys() - self._rails.keys():
            end = ends[rail]
            try:
                self._rails[rail] = (end, self._rail_socket(rail, end))
                self._refused.pop(rail, None)
            except OSError as e:
                if self._refused.get(rail) != (end, e.errno):
                    log.warning("can't share over %s from %s: %s", rail, end.address, e.strerror or e)
                self._refused[rail] = (end, e.errno)

    def close(self) -> None:
        """Stop; peers see silence."""
        for rail in list(self._rails):
            self._drop_rail(rail)
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

    def _rail_socket(self, rail: str, end: RailEnd) -> socket.socket:
        family = socket.AF_INET6 if ":" in end.address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if end.device:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, end.device.encode())
            sock.bind((end.address, self._port))
        except OSError:
            sock.close()
            raise
        asyncio.get_running_loop().add_reader(sock, self._read_rail, rail, sock)
        return sock

    def _drop_rail(self, rail: str) -> None:
        _, sock = self._rails.pop(rail)
        asyncio.get_running_loop().remove_reader(sock)
        sock.close()

    def _read_rail(self, rail: str, sock: socket.socket) -> None:
        for _ in range(READ_AT_ONCE):
            try:
                data, addr = sock.recvfrom(65_536)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as e:  # ICMP's word on an earlier send, or the device is gone
                self.send_errors[_errno_name(e)] += 1
                return
            source: Address = (addr[0], addr[1])
            self._came[source] = rail
            self._came.move_to_end(source)
            if len(self._came) > MAX_CAME:
                self._came.popitem(last=False)
            self._carry_out(self.core.on_datagram(data, source, self._clock.now()))
            if self._rails.get(rail, (None, None))[1] is not sock:
                return  # the owner closed it meanwhile

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
        rail = self._rails.get(output.road or self._came.get(output.addr, ""))
        if rail is not None:
            try:
                rail[1].sendto(output.data, output.addr)
            except OSError as e:
                self.error_received(e)
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
