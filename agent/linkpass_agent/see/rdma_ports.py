"""What sysfs tells of one port: the RDMA port's state, rate and counters, and the net device's counters and speed.

All files of a port stay open between looks; a look at 8 ports costs half a millisecond (`bench/sweep.py`).
Every value that can't be read is None with a reason, and hides no other: "N/A (no PMA)", EINVAL, a missing file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from linkpass_agent.judge.counting import CounterKind, Sample

from .counters import Driver, driver
from .files import SYSTEM, Door, SmallFile, text
from .rdma_devices import RdmaPort

INFINIBAND, NET = Path("/sys/class/infiniband"), Path("/sys/class/net")
# drivers/infiniband/core/sysfs.c state_show, phys_state_show: "NUMBER: NAME"; our names are those of `verbs.py`
STATES = {b"0": "nop", b"1": "down", b"2": "init", b"3": "armed", b"4": "active", b"5": "active-defer"}
PHYS = {
    b"1": "sleep", b"2": "polling", b"3": "disabled", b"4": "training", b"5": "linkup", b"6": "recovery",
    b"7": "phy-test",
}  # fmt: skip
RATE = re.compile(rb"([0-9]+(?:\.[0-9]+)?) Gb/sec \(([0-9]+)X ?([A-Z0-9]*)\)")
# The net device's speed needs the kernel's RTNL lock: it is read when the carrier moved, else now and then.
SPEED_LOOKS = 10


@dataclass(frozen=True, slots=True)
class PortLook:
    """What one look at a port gave. `rate` and `speed` in Mbit/s, `width` in lanes; `why` by file, for the Nones."""

    driver: str
    state: str | None
    phys: str | None
    rate: int | None
    width: int | None
    speed: int | None
    samples: tuple[Sample, ...]
    why: dict[str, str]
    members: dict[str, bool] | None = None  # of a bond: does each have a link; None: no bond


def port_folder(rdma: RdmaPort, infiniband: Path = INFINIBAND) -> Path:
    """Where sysfs keeps an RDMA port's files."""
    return infiniband / rdma.device / "ports" / str(rdma.number)


class PortFiles:
    """The open files of one port. `rdma` None: a net device without an RDMA device."""

    def __init__(
        self,
        netdev: str,
        rdma: RdmaPort | None,
        infiniband: Path = INFINIBAND,
        net: Path = NET,
        door: Door = SYSTEM,
        *,
        counters: bool = True,
    ) -> None:
        self.netdev, self.rdma = netdev, rdma
        self._door = door
        self.link_layer = (text(port_folder(rdma, infiniband) / "link_layer") or "").lower() if rdma else ""
        self.firmware = (text(infiniband / rdma.device / "fw_ver") or "") if rdma else ""
        self.driver = module(netdev, rdma, infiniband, net)
        port = port_folder(rdma, infiniband) if rdma else None
        self._state, self._phys, self._rate = (self._file(port / n if port else None) for n in _FACTS)
        self._speed = self._file(net / netdev / "speed")
        self._changes = self._file(net / netdev / "carrier_changes")
        self._counters = list(self._found(port, net / netdev)) if counters else []
        self._net = net
        bond = net / netdev / "bonding"
        self._slaves = SmallFile(str(bond / "slaves"), door) if bond.exists() else None
        self._seen_changes: bytes | None = None
        self._last_speed: int | None = None
        self._looks = 0

    def look(self) -> PortLook:
        """Read everything once."""
        why: dict[str, str] = {}
        changes = self._changes.read() if self._changes else None
        if changes != self._seen_changes or self._looks % SPEED_LOOKS == 0:
            self._last_speed = _speed(self._speed, why)
            self._seen_changes = changes
        self._looks += 1
        rate, width = _rate(self._rate, self._last_speed, why)
        own = self.driver.state == "port"
        return PortLook(
            self.driver.name,
            _named(self._state, STATES, why) if own else None,
            _named(self._phys, PHYS, why) if own else None,
            rate,
            width,
            self._last_speed,
            tuple([_sample(kind, file) for kind, file in self._counters]),
            why,
            self._members(),
        )

    def _members(self) -> dict[str, bool] | None:
        """A bond's own carrier is up while any member is: Documentation/networking/bonding.rst, mii_status."""
        names = self._slaves.read() if self._slaves else None
        if names is None:
            return None
        found = {n: text(self._net / n / "bonding_slave" / "mii_status") for n in names.decode().split()}
        return {name: status == "up" for name, status in found.items() if status is not None}

    def close(self) -> None:
        """Let go of all files."""
        for file in (self._state, self._phys, self._rate, self._speed, self._changes, self._slaves):
            if file:
                file.close()
        for _, file in self._counters:
            file.close()

    def _file(self, path: Path | None) -> SmallFile | None:
        return SmallFile(str(path), self._door) if path else None

    def _found(self, port: Path | None, netdev: Path) -> Iterator[tuple[CounterKind, SmallFile]]:
        """Only counters whose files are there: which ones a device has depends on its firmware."""
        for kind in self.driver.kinds:
            if kind.place == "ethtool":
                continue
            folder = netdev if kind.place == "netdev" else port / kind.place if port else None
            if folder and (folder / kind.name).exists():
                yield kind, SmallFile(str(folder / kind.name), self._door)


_FACTS = ("state", "phys_state", "rate")


def module(netdev: str, rdma: RdmaPort | None, infiniband: Path = INFINIBAND, net: Path = NET) -> Driver:
    """The table for a device, by the kernel module that drives it. A software device says so itself: whatever drives
    the net device below it counts for that one only."""
    if rdma and text(infiniband / rdma.device / "parent") is not None:
        return driver("rxe" if "rxe" in rdma.device else _software(infiniband / rdma.device))
    places = [infiniband / rdma.device] if rdma else []
    for place in (*places, net / netdev):
        try:
            return driver((place / "device" / "driver").resolve(strict=True).name)
        except OSError:
            continue
    return driver("")


def _software(device: Path) -> str:
    """rxe and siw may have any name; rxe alone has hw_counters."""
    try:
        ports = sorted((device / "ports").iterdir())
        return "rxe" if any((p / "hw_counters" / "completer_retry_err").exists() for p in ports) else ""
    except OSError:
        return ""


def _sample(kind: CounterKind, file: SmallFile) -> Sample:
    data = file.read()
    if data is None:
        return Sample(kind, None, file.why)
    try:
        return Sample(kind, int(data))
    except ValueError:
        file.refused(data[:40].decode("ascii", "replace") or "empty")  # "N/A (no PMA)"
        return Sample(kind, None, file.why)


def _named(file: SmallFile | None, names: dict[bytes, str], why: dict[str, str]) -> str | None:
    if file is None:
        return None
    data = file.read()
    name = names.get(data.partition(b":")[0]) if data is not None else None
    if name is None:
        why[Path(file.path).name] = file.why if data is None else data[:40].decode("ascii", "replace")
    return name


def _rate(file: SmallFile | None, speed: int | None, why: dict[str, str]) -> tuple[int | None, int | None]:
    """Mbit/s and lanes. The kernel shows a speed that it doesn't know as SDR: the net device knows better."""
    if file is None:
        return None, None
    data = file.read()
    found = RATE.fullmatch(data) if data is not None else None
    if found is None:
        why["rate"] = file.why if data is None else data[:40].decode("ascii", "replace")
        return None, None
    rate, width = round(float(found[1]) * 1000), int(found[2])
    if found[3] == b"SDR" and speed is not None and speed > rate:
        why["rate"] = f"{found[0].decode()}, but the net device runs at {speed} Mbit/s"
        return None, None
    return rate, width


def _speed(file: SmallFile | None, why: dict[str, str]) -> int | None:
    """Mbit/s; EINVAL without carrier, and -1 where the driver doesn't know."""
    data = file.read() if file else None
    try:
        speed = int(data) if data is not None else -1
    except ValueError:
        speed = -1
    if speed <= 0:
        why["speed"] = (file.why if file else "") or "unknown"
        return None
    return speed
