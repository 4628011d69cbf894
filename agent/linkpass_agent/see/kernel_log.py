"""The kernel log as a hint: lines of the network and RDMA drivers that speak of our ports.

A hint is told and kept with the port's story; no verdict rests on it, because lines are rate-limited, worded as the
driver's release likes, and missing in containers. /dev/kmsg: Documentation/ABI/testing/dev-kmsg.
"""

import asyncio
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

KMSG = Path("/dev/kmsg")
SIZE = 8192  # CONSOLE_EXT_LOG_MAX; a read of less than a record fails with EINVAL
RECORD = re.compile(rb"(\d+),(\d+),(\d+),([^;]*);([^\n]*)")
# What a line means; the first that fits. Drivers: mlx5_core, bnxt_en, ice, irdma, ionic, ena/efa.
MEANINGS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (meaning, re.compile(pattern, re.IGNORECASE))
    for meaning, pattern in (
        ("cable unplugged", r"cable unplugged"),
        ("bad or unshielded cable", r"bad/unshielded|unsupported cable|bad cable|bus stuck"),
        ("high temperature", r"high temperature|over ?temperature|overheat"),
        ("cable plugged", r"cable plugged"),
        ("device health", r"health (poll failed|compromised|syndrome)|fw_ver|assert_var|device.*(removed|fatal)"),
        ("firmware commands fail", r"ACCESS_REG|timeout\. will cause a leak|cmd_work_handler"),
        ("transmit timeout", r"tx timeout|transmit queue \d+ timed out"),
        ("PCIe errors", r"AER:|pcie bus error|bandwidth, limited"),
        ("link up", r"link (is )?up\b|link becomes ready"),
        ("link down", r"link (is )?down\b"),
    )
)
FLOODED = "firmware commands fail"  # reading counters makes such lines: leave the device alone for a while


@dataclass(frozen=True, slots=True)
class Hint:
    """A line about one of our ports. `at` is monotonic seconds."""

    at: float
    port: str
    meaning: str
    text: str


def parse(record: bytes) -> tuple[float, str] | None:
    """Time (seconds since boot, as CLOCK_MONOTONIC) and text of a record; None for what is none."""
    found = RECORD.match(record)
    return (int(found[3]) / 1e6, found[5].decode("utf-8", "replace")) if found else None


def hint(at: float, text: str, ports: dict[str, str]) -> Hint | None:
    """What a line says of our ports. `ports`: a device's name or PCI address -> the port."""
    meaning = next((m for m, pattern in MEANINGS if pattern.search(text)), None)
    if meaning is None:
        return None
    return next((Hint(at, ports[name], meaning, text[:200]) for name in ports if _names(text, name)), None)


def _names(text: str, name: str) -> bool:
    """The name as a whole word: eth1 isn't in eth11."""
    return re.search(rf"(?<![\w.:-]){re.escape(name)}(?![\w-]|[.:]\w)", text) is not None


class KernelLog:
    """Reads new lines and emits hints. `ports` is asked anew for each line, because names change."""

    def __init__(self, ports: Callable[[], dict[str, str]], emit: Callable[[Hint], None], path: Path = KMSG) -> None:
        self._ports, self._emit, self._path = ports, emit, path
        self._fd = -1

    def open(self) -> str:
        """Start at the end; '' or why it can't be read."""
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
            asyncio.get_running_loop().add_reader(self._fd, self._readable)
        except OSError as e:  # PermissionError too: epoll takes no plain file
            self.close()
            return e.strerror or str(e)
        return ""

    def close(self) -> None:
        """Stop."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _readable(self) -> None:
        for _ in range(64):  # a flood must not hold the loop up
            try:
                record = os.read(self._fd, SIZE)
            except BlockingIOError:
                return
            except BrokenPipeError:  # lines were overwritten before we read them
                continue
            except OSError as e:
                log.warning("the kernel log can't be read any more: %s", e.strerror)
                self.close()
                return
            line = parse(record)
            found = hint(*line, self._ports()) if line else None
            if found:
                self._emit(found)
