"""Which peers does this host talk to now: the remote addresses of its open TCP and connected UDP sockets."""

import asyncio
import re
import struct
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from linkpass.clock import Clock

LOOK_AGAIN = 5.0  # s: the kernel walks its whole table for each reading, some milliseconds on a busy host
TABLES = ("tcp", "udp", "tcp6", "udp6")
# sl  local_address:port  rem_address:port  state ... (proc(5)); addresses are words in host byte order
LINE = re.compile(r"^\s*\d+: [0-9A-F]+:[0-9A-F]{4} ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) ", re.MULTILINE)


class Talking:
    """The remote addresses as they were when they were last read."""

    def __init__(self, clock: Clock, root: Path = Path("/proc/self/net")) -> None:
        self._clock, self._root = clock, root
        self._found: frozenset[str] = frozenset()
        self._read_at = float("-inf")

    async def refresh(self) -> None:
        """Read them anew if the last reading is older than `LOOK_AGAIN`; in a thread, so that probes don't wait."""
        now = self._clock.now()
        if now >= self._read_at + LOOK_AGAIN:
            self._read_at = now
            self._found = await asyncio.to_thread(remote_addresses, self._root)

    def to(self) -> frozenset[str]:
        """All of them."""
        return self._found


def remote_addresses(root: Path = Path("/proc/self/net")) -> frozenset[str]:
    """Remote addresses of all sockets that have one. A table that can't be read counts as empty."""
    found: set[str] = set()
    for table in TABLES:
        try:
            text = (root / table).read_text()
        except OSError:
            continue
        found |= {_address(word) for word, port in LINE.findall(text) if port != "0000"}
    return frozenset(found)


def _address(word: str) -> str:
    words = [int(word[i : i + 8], 16) for i in range(0, len(word), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    if len(packed) == 4:
        return str(IPv4Address(packed))
    v6 = IPv6Address(packed)
    return str(v6.ipv4_mapped or v6)
