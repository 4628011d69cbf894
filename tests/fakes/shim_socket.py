"""A shim as far as the agent can see one: the ABI over the real socket, in Python. Blocking calls run in threads."""

import array
import asyncio
import mmap
import os
import socket
import struct
from pathlib import Path

from linkpass.shim import abi


class SocketShim:
    """One session. `page` is the mapping of what came with the welcome."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(20.0)
        self.sock.connect(str(path))
        self.page: mmap.mmap | None = None
        self.seq = 0

    def send(self, message: abi.Message) -> None:
        self.seq += 1
        self.sock.send(abi.pack(message, self.seq))

    async def get(self) -> abi.Message | None:
        """The next frame; None at the session's end."""
        return await asyncio.to_thread(self._get)

    def _get(self) -> abi.Message | None:
        try:
            data, ancillary, _, _ = self.sock.recvmsg(2048, socket.CMSG_SPACE(4 * 4))
        except ConnectionResetError:
            return None
        for level, kind, raw in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i", raw)
                self.page = mmap.mmap(fds[0], 4096, prot=mmap.PROT_READ)
                for fd in fds:
                    os.close(fd)
        return abi.read(data) if data else None

    async def hello(self, job: str = "train") -> abi.Welcome:
        self.send(abi.Hello(0, "test", job))
        welcome = await self.get()
        assert isinstance(welcome, abi.Welcome)
        return welcome

    def nics(self) -> dict[str, int]:
        """Device -> state, by the offsets of abi.h."""
        assert self.page is not None
        (count,) = struct.unpack_from("<H", self.page, 6)
        found = (struct.unpack_from("<28sBB", self.page, 64 + 64 * n) for n in range(count))
        return {name.rstrip(b"\0").decode(): state for name, _, state in found}

    def close(self) -> None:
        self.sock.close()

    def __del__(self) -> None:
        self.sock.close()
