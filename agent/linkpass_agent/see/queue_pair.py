"""An unreliable-datagram queue pair on one of our RDMA ports: the only door through which the agent sends by verbs.

It carries a few small datagrams while a port waits for re-admission, so it is polled and not waited for. Everything
here returns at once, except that a first `send` to a GID has the kernel look up the neighbour's hardware address,
which may take a second where nobody answers (`rdma_addr_find_l2_eth_by_grh`): send only where IP answered just now.
"""

import secrets
from collections import OrderedDict
from ipaddress import IPv6Address
from typing import Any

from linkpass_agent.judge.pairs import Address

from .rdma_devices import RdmaPort
from .verbs import pyverbs

SLOT = 256  # bytes of a receive: 40 of the global routing header, which UD puts in front, and the datagram
GRH = 40
DATAGRAM = SLOT - GRH  # bytes, the largest
RECEIVES = 32  # outstanding; what comes beyond them is lost, as UD may
SENDS = 32
HANDLES = 16  # address handles that are kept
HOPS = 64  # usual IP time to live: rails may be routed

UD, SEND, SIGNALED, LOCAL_WRITE = 4, 2, 2, 1  # ibv_qp_type, ibv_wr_opcode, ibv_send_flags, ibv_access_flags


class QueuePair:
    """Ready to send and receive. Making one raises pyverbs' own errors; after an OSError `close` it."""

    def __init__(self, port: RdmaPort, index: int, gid: str) -> None:
        """`index` is that of `gid` in the port's table."""
        self._port, self._index = port.number, index
        self._open: list[Any] = []
        self._handles: OrderedDict[str, Any] = OrderedDict()
        self._next_send = 0
        try:
            self._make(port, gid)
        except BaseException:
            self.close()
            raise

    def _make(self, port: RdmaPort, gid: str) -> None:
        qp, wr = pyverbs("qp"), pyverbs("wr")
        self._wr, self._addr = wr, pyverbs("addr")
        self._refusal = pyverbs("pyverbs_error").PyverbsError
        context = self._keep(pyverbs("device").Context(name=port.device))
        self._pd = self._keep(pyverbs("pd").PD(context))
        self._cq = self._keep(pyverbs("cq").CQ(context, RECEIVES + SENDS))
        self._memory = self._keep(pyverbs("mr").MR(self._pd, SLOT * (RECEIVES + SENDS), LOCAL_WRITE))
        caps = qp.QPCap(max_send_wr=SENDS, max_recv_wr=RECEIVES, max_send_sge=1, max_recv_sge=1)
        attributes = qp.QPAttr(port_num=port.number)
        key = attributes.qkey = secrets.randbits(31)  # a key with the top bit is for privileged senders only
        init = qp.QPInitAttr(qp_type=UD, scq=self._cq, rcq=self._cq, cap=caps)
        self._pair = self._keep(qp.QP(self._pd, init, attributes))
        self.address = Address(gid, self._pair.qp_num, key)
        for slot in range(RECEIVES):
            self._receive(slot)

    def send(self, to: Address, datagram: bytes) -> None:
        """Send at most `DATAGRAM` bytes. OSError when the device refuses."""
        try:
            self._send(to, datagram)
        except self._refusal as e:
            raise OSError(str(e)) from e

    def _send(self, to: Address, datagram: bytes) -> None:
        slot = RECEIVES + self._next_send
        self._next_send = (self._next_send + 1) % SENDS
        self._memory.write(datagram, len(datagram), slot * SLOT)
        place = self._wr.SGE(self._memory.buf + slot * SLOT, len(datagram), self._memory.lkey)
        request = self._wr.SendWR(slot, opcode=SEND, num_sge=1, sg=[place], send_flags=SIGNALED)
        request.set_wr_ud(self._handle(to.gid), to.number, to.key)
        self._pair.post_send(request)

    def take(self) -> list[bytes]:
        """The datagrams that came since. OSError when one couldn't be sent or received."""
        try:
            return self._take()
        except self._refusal as e:
            raise OSError(str(e)) from e

    def _take(self) -> list[bytes]:
        found = []
        _, done = self._cq.poll(RECEIVES + SENDS)
        for completion in done:
            slot = completion.wr_id
            if completion.status:
                raise OSError(f"{'receive' if slot < RECEIVES else 'send'} ended with status {completion.status}")
            if slot < RECEIVES:
                found.append(self._memory.read(max(0, completion.byte_len - GRH), slot * SLOT + GRH))
                self._receive(slot)
        return found

    def close(self) -> None:
        """Let go of everything on the device, the last made first."""
        while self._handles:
            self._handles.popitem()[1].close()
        while self._open:
            self._open.pop().close()

    def _keep(self, made: Any) -> Any:
        self._open.append(made)
        return made

    def _receive(self, slot: int) -> None:
        place = self._wr.SGE(self._memory.buf + slot * SLOT, SLOT, self._memory.lkey)
        self._pair.post_recv(self._wr.RecvWR(slot, num_sge=1, sg=[place]))

    def _handle(self, gid: str) -> Any:
        known = self._handles.get(gid)
        if known is None:
            if len(self._handles) >= HANDLES:
                self._handles.popitem(last=False)[1].close()
            route = self._addr.GlobalRoute(
                self._addr.GID(IPv6Address(gid).exploded), sgid_index=self._index, hop_limit=HOPS
            )
            attributes = self._addr.AHAttr(gr=route, is_global=1, port_num=self._port)
            known = self._handles[gid] = self._addr.AH(self._pd, attr=attributes)
        return known
