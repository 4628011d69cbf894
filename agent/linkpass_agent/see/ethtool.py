"""What drivers tell of a link over ethtool: why it is down, FEC, their own statistics, the module's diagnostics.

The generic netlink family "ethtool" is asked with raw messages: pyroute2 0.9 knows neither FEC nor the count of link
downs, and importing it costs megabytes. A driver's own statistics (`ethtool -S`) aren't in netlink: the old ioctl has
them. Numbers: include/uapi/linux/{genetlink,ethtool_netlink,ethtool,sockios}.h. Each question fails by itself: an
OSError says why.
"""

import array
import fcntl
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from .attributes import NESTED, attribute, attributes

NETLINK_GENERIC, GENL_ID_CTRL, CTRL_GETFAMILY, FAMILY_ID, FAMILY_NAME = 16, 16, 3, 1, 2
LINKSTATE_GET, FEC_GET, MODULE_EEPROM_GET = 6, 29, 31
HEADER, HEADER_DEV_NAME, HEADER_FLAGS, FLAG_STATS = 1, 2, 3, 4
LINK, EXT_STATE, EXT_SUBSTATE, EXT_DOWN_CNT = 2, 5, 6, 7
FEC_ACTIVE, FEC_STATS, FEC_CORRECTED, FEC_UNCORRECTABLE, FEC_CORRECTED_BITS = 4, 5, 2, 3, 4
EEPROM_OFFSET, EEPROM_LENGTH, EEPROM_PAGE, EEPROM_BANK, EEPROM_I2C, EEPROM_DATA = 2, 3, 4, 5, 6, 7
REQUEST, ERROR = 1, 2
SIOCETHTOOL, GSTRINGS, GSTATS, GSSET_INFO, SS_STATS, NAME = 0x8946, 0x1B, 0x1D, 0x37, 1, 32
PATIENCE = 1.0  # s; the kernel answers within the call
MOST_STATS = 20_000  # mlx5 has some 2,000

_HEAD = struct.Struct("=IHHII")
_GENL = struct.Struct("=BBH")
# enum ethtool_link_ext_state
WHY_DOWN = {
    0: "no partner for autonegotiation", 1: "link training failed", 2: "logical mismatch with the partner",
    3: "bad signal integrity", 4: "no cable", 5: "cable unsupported or faulty", 6: "module EEPROM can't be read",
    7: "calibration failed", 8: "module needs too much power", 9: "overheated", 10: "module isn't ready",
}  # fmt: skip
# net/ethtool/common.c link_mode_names: ETHTOOL_LINK_MODE_FEC_*_BIT
FEC_MODES = {49: "none", 50: "RS", 51: "BASER", 74: "LLRS"}


@dataclass(frozen=True, slots=True)
class LinkState:
    """`why` says why there is no link ("" if the driver doesn't), `downs` how often it went (None: doesn't count)."""

    link: bool
    why: str
    downs: int | None


@dataclass(frozen=True, slots=True)
class Fec:
    """Forward error correction: the mode in use, and blocks corrected and beyond correction (None: not counted)."""

    mode: str
    corrected: int | None
    uncorrectable: int | None
    corrected_bits: int | None


@dataclass(frozen=True, slots=True)
class Module:
    """Diagnostics of a plugged module: degrees C, volts, received milliwatts by lane."""

    temperature: float
    voltage: float
    received: tuple[float, ...]


class Ethtool:
    """One socket to ask with. `close` releases it."""

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        self._plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._family = 0
        self._seq = 0
        self._names: dict[str, dict[str, int]] = {}  # device -> statistic -> its place

    def close(self) -> None:
        """Release the sockets."""
        self._plain.close()
        if self._netlink:
            self._netlink.close()

    def link(self, device: str) -> LinkState:
        """Is there a link, and if not, why."""
        fields = dict(attributes(self._ask(LINKSTATE_GET, device)))
        link = fields.get(LINK, b"\0")[0] != 0
        state = fields.get(EXT_STATE)
        return LinkState(
            link,
            WHY_DOWN.get(state[0], f"extended state {state[0]}") if state else "",
            _number(fields[EXT_DOWN_CNT]) if EXT_DOWN_CNT in fields else None,
        )

    def fec(self, device: str) -> Fec:
        """FEC mode and counts."""
        fields = dict(attributes(self._ask(FEC_GET, device, flags=FLAG_STATS)))
        active = _number(fields.get(FEC_ACTIVE, b""))
        counts = dict(attributes(fields.get(FEC_STATS, b"")))
        return Fec(
            FEC_MODES.get(active, f"mode {active}") if FEC_ACTIVE in fields else "unknown",
            *(_first64(counts.get(k)) for k in (FEC_CORRECTED, FEC_UNCORRECTABLE, FEC_CORRECTED_BITS)),
        )

    def module(self, device: str) -> Module | None:
        """The module's diagnostics; None for a kind that has none that we know (SFF-8636, CMIS)."""
        lower = self._eeprom(device, 0, 0, 128)
        upper = b""
        if lower and lower[0] in CMIS and not lower[2] & CMIS_FLAT:
            upper = self._eeprom(device, 0x11, 128, 128)
        return module(lower, upper)

    def statistics(self, device: str, wanted: Iterable[str]) -> dict[str, int]:
        """Those of the driver's statistics that it has. The names are asked for once, and again when their number
        has changed."""
        count = self._count(device)
        names = self._names.get(device)
        if names is None or len(names) != count:
            names = self._names[device] = {n: i for i, n in enumerate(self._strings(device, count))}
        data = bytearray(struct.pack("=II", GSTATS, count) + bytes(8 * count))
        self._ioctl(device, data)
        values = memoryview(data)[8:].cast("Q")
        return {name: values[names[name]] for name in wanted if name in names}

    # -- netlink ----------------------------------------------------------------------------------------------

    def _ask(self, command: int, device: str, extra: bytes = b"", flags: int = 0) -> bytes:
        if not self._family:
            self._family = self._find_family()
        header = attribute(HEADER_DEV_NAME, device.encode() + b"\0")
        if flags:
            header += attribute(HEADER_FLAGS, struct.pack("=I", flags))
        return self._exchange(self._family, command, attribute(HEADER | NESTED, header) + extra)

    def _find_family(self) -> int:
        if self._netlink is None:
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_GENERIC)
            self._netlink.settimeout(PATIENCE)
        answer = self._exchange(GENL_ID_CTRL, CTRL_GETFAMILY, attribute(FAMILY_NAME, b"ethtool\0"))
        return int(struct.unpack_from("=H", dict(attributes(answer))[FAMILY_ID])[0])

    def _exchange(self, family: int, command: int, payload: bytes) -> bytes:
        """The attributes of the answer; OSError as the kernel says."""
        assert self._netlink is not None
        self._seq += 1
        body = _GENL.pack(command, 1, 0) + payload
        self._netlink.send(_HEAD.pack(_HEAD.size + len(body), family, REQUEST, self._seq, 0) + body)
        while True:
            data = self._netlink.recv(1 << 16)
            length, kind, _, seq, _ = _HEAD.unpack_from(data)
            if seq != self._seq:
                continue  # of a question that was given up
            if kind == ERROR:
                number = -int(struct.unpack_from("=i", data, _HEAD.size)[0])
                raise OSError(number, os.strerror(number))
            return data[_HEAD.size + _GENL.size : length]

    def _eeprom(self, device: str, page: int, offset: int, length: int) -> bytes:
        extra = b"".join(
            attribute(kind, struct.pack(form, value))
            for kind, form, value in (
                (EEPROM_OFFSET, "=I", offset), (EEPROM_LENGTH, "=I", length), (EEPROM_PAGE, "=B", page),
                (EEPROM_BANK, "=B", 0), (EEPROM_I2C, "=B", 0x50),
            )
        )  # fmt: skip
        return dict(attributes(self._ask(MODULE_EEPROM_GET, device, extra))).get(EEPROM_DATA, b"")

    # -- ioctl ------------------------------------------------------------------------------------------------

    def _count(self, device: str) -> int:
        data = bytearray(struct.pack("=IIQI", GSSET_INFO, 0, 1 << SS_STATS, 0))
        self._ioctl(device, data)
        _, _, mask, count = struct.unpack_from("=IIQI", data)
        return min(count, MOST_STATS) if mask else 0

    def _strings(self, device: str, count: int) -> list[str]:
        data = bytearray(struct.pack("=III", GSTRINGS, SS_STATS, count) + bytes(NAME * count))
        self._ioctl(device, data)
        whole = bytes(data[12:])
        return [
            whole[i : i + NAME].split(b"\0", 1)[0].decode("ascii", "replace") for i in range(0, NAME * count, NAME)
        ]

    def _ioctl(self, device: str, data: bytearray) -> None:
        buffer = array.array("B", data)
        request = struct.pack("16sP16x", device.encode(), buffer.buffer_info()[0])  # struct ifreq with ifr_data
        fcntl.ioctl(self._plain, SIOCETHTOOL, request)
        data[:] = buffer.tobytes()


# SFF-8024 identifiers with the memory map of SFF-8636 and of CMIS
SFF_8636 = (0x0C, 0x0D, 0x11)  # QSFP, QSFP+, QSFP28
CMIS = (0x18, 0x19, 0x1B, 0x1E, 0x1F)  # QSFP-DD, OSFP, DSFP, QSFP+ with CMIS, SFP-DD with CMIS
CMIS_FLAT = 0x80  # lower page, byte 2: no upper pages but page 0


def module(lower: bytes, upper: bytes = b"") -> Module | None:
    """Diagnostics out of the lower page and, for CMIS, of page 11h (SFF-8636 6.2, CMIS 8.2.5 and 8.8.2).

    Temperatures are 1/256 degree, voltages 100 microvolts, powers 0.1 microwatt.
    """
    if len(lower) < 128:
        return None
    if lower[0] in SFF_8636:
        temperature, voltage = struct.unpack_from(">h2xH", lower, 22)
        powers: tuple[int, ...] = struct.unpack_from(">4H", lower, 34)
    elif lower[0] in CMIS:
        temperature, voltage = struct.unpack_from(">hH", lower, 14)
        powers = struct.unpack_from(">8H", upper, 186 - 128) if len(upper) == 128 else ()
    else:
        return None
    return Module(temperature / 256, voltage / 10_000, tuple(p / 10_000 for p in powers))


def _number(data: bytes) -> int:
    return int.from_bytes(data[:4], "little" if struct.pack("=H", 1)[0] else "big")


def _first64(data: bytes | None) -> int | None:
    """The total of a statistic: the first of its 64-bit numbers; all ones means that it isn't counted."""
    if data is None or len(data) < 8:
        return None
    value = int(struct.unpack_from("=Q", data)[0])
    return None if value == (1 << 64) - 1 else value
