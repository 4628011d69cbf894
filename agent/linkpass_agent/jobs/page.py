"""The page that agent and shims share: one memfd for all shims, written here, readable there and nothing more.

Its layout is `struct lp_page` of abi.h. F_SEAL_FUTURE_WRITE (Linux 5.1) keeps everybody but us from writing, and the
other seals keep its size, so that no job can touch what another one reads, nor make us fault.
"""

import contextlib
import fcntl
import mmap
import os
from typing import Any

from linkpass.model import PortState
from linkpass.shim import abi
from linkpass_agent.see.rdma_devices import RdmaPort

F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h; the fcntl module lacks it before Python 3.13
STATES: dict[PortState, int] = {
    PortState.UNKNOWN: abi.C.LP_NIC_UNKNOWN,
    PortState.UP: abi.C.LP_NIC_UP,
    PortState.SUSPECT: abi.C.LP_NIC_SUSPECT,
    PortState.HELD: abi.C.LP_NIC_HELD,
    PortState.DRAINED: abi.C.LP_NIC_DRAINED,
    PortState.DOWN: abi.C.LP_NIC_DOWN,
    PortState.ABSENT: abi.C.LP_NIC_ABSENT,
}


class Page:
    """Entries are added as devices are seen and never removed. `fd` is what shims get."""

    def __init__(self, incarnation: int) -> None:
        size = abi.size_of("lp_page")
        self.fd = os.memfd_create("linkpass-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        self._memory = mmap.mmap(self.fd, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        self._page: Any = abi.ffi.from_buffer("struct lp_page *", self._memory, require_writable=True)
        self._page.version = abi.C.LP_ABI_VERSION
        self._page.agent_incarnation = incarnation
        self._page.magic = abi.C.LP_PAGE_MAGIC
        self._entries: dict[RdmaPort, int] = {}
        self._again = False

    def show(self, states: dict[RdmaPort, PortState], now: float) -> bool:
        """Write the states that differ; `now` is CLOCK_MONOTONIC in seconds. True if any did."""
        changed = False
        for nic, state in states.items():
            entry = self._entry(nic)
            if entry is None or entry.state == STATES[state]:
                continue
            entry.since_ns = int(now * 1e9)
            entry.changes += 1
            entry.state = STATES[state]
            changed = True
        if changed:
            self._page.generation += 1
            self._again = True
        self._page.beat_ns = int(now * 1e9)
        return changed

    def beat(self, now: float) -> None:
        """The agent lives. After a change the generation grows once more: Python has no release store, and on a
        machine that reorders stores a reader may have seen the generation before the entries."""
        self._page.beat_ns = int(now * 1e9)
        if self._again:
            self._again = False
            self._page.generation += 1

    def close(self) -> None:
        """Shims keep their mapping; it just has no beat any more."""
        del self._page
        with contextlib.suppress(BufferError):  # cffi still holds a view; the garbage collector ends it
            self._memory.close()
        os.close(self.fd)

    def _entry(self, nic: RdmaPort) -> Any:
        index = self._entries.get(nic)
        if index is None:
            name = nic.device.encode()
            index = self._page.nic_count
            if index >= abi.C.LP_PAGE_NICS or len(name) >= abi.C.LP_NIC_NAME or not 0 < nic.number < 256:
                return None
            self._entries[nic] = index
            entry = self._page.nics[index]
            abi.ffi.memmove(entry.name, name, len(name))
            entry.port = nic.number
            self._page.nic_count = index + 1
        return self._page.nics[index]
