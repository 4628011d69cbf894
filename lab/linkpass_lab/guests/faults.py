"""The fault verbs on guests. Where each strikes:

carrier, flap, rails, leaf   QEMU's monitor: set_link, which the guest sees as a cable pulled
silent, loss, acks           a filter on the guest's switch port (its tap), so the guest's carrier stays
rate                         a token bucket on the switch port
latency                      netem in the guest: on its own port for what it sends, on an ifb for what it gets
admin-down, gid, mtu         ip, in the guest
kill, freeze                 signals to QEMU; repairing a killed guest boots it again
"""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from linkpass_lab.fault import Fault, FaultError, FaultKind, unsupported
from linkpass_lab.guests import bpf
from linkpass_lab.guests.channel import in_lab, order, run
from linkpass_lab.guests.plan import GuestPlan, LabPlan, Nic, baseline_routes, cable_ends
from linkpass_lab.lab import LabError

# A port's filters are told apart by preference: each kind of fault has its own.
PREFERENCES = {FaultKind.SILENT: 10, FaultKind.ACKS: 15, FaultKind.LOSS: 20}
HOOKS = {"from": ("ingress",), "to": ("egress",), "both": ("ingress", "egress")}  # of the switch port
GIDS = "/sys/class/infiniband/{}/ports/1/gids"
FILLER = "198.18.{}.{}/32"  # RFC 2544 addresses, which take up the GID indexes that are to be passed over
GID_WAIT = 5.0  # s; the kernel fills the table in the background, some ms after the address is there
GID_TRIES = 4
MOST_GIDS = 32
QUEUE = 100_000  # packets that netem may hold, so that latency alone never drops any

KINDS = frozenset(FaultKind)  # guests can do all of them

Act = Callable[[Fault], None]


class GuestFaults:
    """Carries faults out on the guests of a run folder, whichever process made them."""

    def __init__(self, folder: Path, lab: LabPlan) -> None:
        self.folder, self.lab = folder, lab
        self._verbs: dict[FaultKind, tuple[Act, Act]] = {
            FaultKind.CARRIER: (lambda f: self._carrier(f, up=False), lambda f: self._carrier(f, up=True)),
            FaultKind.RAILS: (lambda f: self._rails(f, up=False), lambda f: self._rails(f, up=True)),
            FaultKind.LEAF: (lambda f: self._leaf(f, up=False), lambda f: self._leaf(f, up=True)),
            FaultKind.FLAP: (self._flap, self._steady),
            FaultKind.SILENT: (lambda f: self._filter(f, bpf.everything()), self._unfilter),
            FaultKind.LOSS: (lambda f: self._filter(f, bpf.some(f.number("percent"))), self._unfilter),
            FaultKind.ACKS: (lambda f: self._filter(f, bpf.acknowledgements()), self._unfilter),
            FaultKind.RATE: (self._slow, self._fast),
            FaultKind.LATENCY: (self._late, self._prompt),
            FaultKind.ADMIN_DOWN: (self._admin_down, self._admin_up),
            FaultKind.GID: (self._move_gid, self._restore_gid),
            FaultKind.MTU: (self._resize, self._restore_size),
            FaultKind.KILL: (lambda f: self._signal(f, signal.SIGKILL), self._boot),
            FaultKind.FREEZE: (lambda f: self._signal(f, signal.SIGSTOP), lambda f: self._signal(f, signal.SIGCONT)),
        }

    def inject(self, fault: Fault) -> None:
        """Strike. FaultError for a target that doesn't exist, LabError when the guest or QEMU refuses."""
        self._act(fault, 0)

    def repair(self, fault: Fault) -> None:
        """Take a fault back; fine if it isn't there."""
        self._act(fault, 1)

    def _act(self, fault: Fault, which: int) -> None:
        if fault.kind not in self._verbs:
            raise unsupported(fault.kind, "guests")
        try:
            self._verbs[fault.kind][which](fault)
        except KeyError as e:
            raise FaultError(f"{fault}: {e.args[0]}") from e

    # -- where things are

    def _guest(self, fault: Fault) -> GuestPlan:
        return self.lab.guest(fault.host)

    def _nic(self, fault: Fault) -> Nic:
        return self._guest(fault).nic(fault.rail)

    def _in_guest(self, guest: str, *argv: str, text: str = "", check: bool = True) -> str:
        done = run(self.folder, guest, argv, input=text.encode())
        if check and done.returncode:
            raise LabError(f"guest {guest}: {' '.join(argv)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def _ip(self, guest: str, lines: list[str], *, check: bool = True) -> None:
        force = [] if check else ["-force"]
        self._in_guest(guest, "ip", *force, "-batch", "-", text="".join(f"{x}\n" for x in lines), check=check)

    def _routes(self, guest: GuestPlan) -> list[str]:
        """The kernel drops routes with their last hop, and doesn't bring them back."""
        return [f"route replace {r}" for r in baseline_routes(self.lab, guest)]

    # -- carrier

    def _set_link(self, guest: str, nic: str, *, up: bool) -> None:
        order(self.folder, "monitor", guest=guest, execute="set_link", arguments={"name": nic, "up": up})

    def _carrier(self, fault: Fault, *, up: bool) -> None:
        self._set_link(fault.host, self._nic(fault).name, up=up)

    def _rails(self, fault: Fault, *, up: bool) -> None:
        for nic in self._guest(fault).nics:
            if nic.rail is not None:
                self._set_link(fault.host, nic.name, up=up)

    def _leaf(self, fault: Fault, *, up: bool) -> None:
        leaf = next((s for s in self.lab.fabric.leaves if s.name == fault.leaf), None)
        if leaf is None:
            raise KeyError(f"no leaf {fault.leaf!r}; there are {', '.join(s.name for s in self.lab.fabric.leaves)}")
        spine = self.lab.fabric.spine_of(leaf.rail)
        if spine is not None:
            in_lab(self.folder, ["ip", "link", "set", cable_ends(leaf.name, spine.name)[0], "up" if up else "down"])
        for guest in self.lab.guests:
            for nic in guest.nics:
                if nic.bridge == leaf.name:
                    with suppress(LabError):  # a dead guest has no link to lose
                        self._set_link(guest.name, nic.name, up=up)

    def _flap(self, fault: Fault) -> None:
        timing = {name: fault.number(name) for name in ("count", "down", "up")}
        order(self.folder, "flap", guest=fault.host, nic=self._nic(fault).name, **timing)

    def _steady(self, fault: Fault) -> None:
        order(self.folder, "steady", guest=fault.host, nic=self._nic(fault).name)

    # -- the switch port

    def _filter(self, fault: Fault, program: list[bpf.Instruction]) -> None:
        port = self._nic(fault).name
        self._unfilter(fault)  # another way of the same kind would stay behind
        self._clsact(port)
        for hook in HOOKS["from" if fault.kind is FaultKind.ACKS else fault.text("way")]:
            where = [
                "tc",
                "filter",
                "add",
                "dev",
                port,
                hook,
                "pref",
                str(PREFERENCES[fault.kind]),
                "protocol",
                "all",
            ]
            in_lab(self.folder, [*where, "bpf", "da", "bytecode", bpf.text(program)])

    def _clsact(self, port: str) -> None:
        try:
            in_lab(self.folder, ["tc", "qdisc", "add", "dev", port, "clsact"])
        except LabError as e:
            if "Exclusivity" not in str(e) and "exists" not in str(e):
                raise

    def _unfilter(self, fault: Fault) -> None:
        port = self._nic(fault).name
        for hook in HOOKS["both"]:
            with suppress(LabError):  # there is none
                in_lab(self.folder, ["tc", "filter", "del", "dev", port, hook, "pref", str(PREFERENCES[fault.kind])])

    def _slow(self, fault: Fault) -> None:
        shape = ["rate", f"{int(fault.number('mbit') * 1e6)}bit", "burst", "32kb", "latency", "20ms"]
        in_lab(self.folder, ["tc", "qdisc", "replace", "dev", self._nic(fault).name, "root", "tbf", *shape])

    def _fast(self, fault: Fault) -> None:
        with suppress(LabError):
            in_lab(self.folder, ["tc", "qdisc", "del", "dev", self._nic(fault).name, "root"])

    # -- in the guest

    def _late(self, fault: Fault) -> None:
        nic, delay, way = self._nic(fault).name, f"{fault.number('ms'):g}ms", fault.text("way")
        self._prompt(fault)
        netem = f"netem delay {delay} limit {QUEUE}"
        lines = []
        if way in ("from", "both"):
            lines.append(f"qdisc replace dev {nic} root {netem}")
        if way in ("to", "both"):
            mirror = f"ifb-{fault.rail}"
            self._in_guest(fault.host, "modprobe", "ifb", "numifbs=0")
            self._ip(fault.host, [f"link add {mirror} type ifb", f"link set {mirror} up"])
            lines += [f"qdisc add dev {nic} ingress", f"qdisc add dev {mirror} root {netem}"]
            lines.append(
                f"filter add dev {nic} ingress protocol all matchall action mirred egress redirect dev {mirror}"
            )
        self._in_guest(fault.host, "tc", "-batch", "-", text="".join(f"{x}\n" for x in lines))

    def _prompt(self, fault: Fault) -> None:
        nic = self._nic(fault).name
        lines = f"qdisc del dev {nic} root\nqdisc del dev {nic} ingress\n"
        self._in_guest(fault.host, "tc", "-force", "-batch", "-", text=lines, check=False)
        self._in_guest(fault.host, "ip", "link", "del", f"ifb-{fault.rail}", check=False)

    def _admin_down(self, fault: Fault) -> None:
        self._ip(fault.host, [f"link set {self._nic(fault).name} down"])

    def _admin_up(self, fault: Fault) -> None:
        self._ip(fault.host, [f"link set {self._nic(fault).name} up", *self._routes(self._guest(fault))])

    def _resize(self, fault: Fault) -> None:
        self._ip(fault.host, [f"link set {self._nic(fault).name} mtu {int(fault.number('bytes'))}"])

    def _restore_size(self, fault: Fault) -> None:
        nic = self._nic(fault)
        self._ip(fault.host, [f"link set {nic.name} mtu {nic.mtu}"])

    def _move_gid(self, fault: Fault) -> None:
        """Take the address away, have others fill the indexes below the wanted one, put it back, drop the others."""
        rxe, device, address = self.lab.holder(fault.host, fault.rail)
        wanted = int(fault.number("index"))
        if not 1 <= wanted < MOST_GIDS:
            raise FaultError(f"{fault}: index must lie between 1 and {MOST_GIDS - 1}")
        own = gid_of(address)
        table = self.gids(fault.host, rxe)
        if wanted in table.values() and table.get(own) != wanted:
            raise FaultError(f"{fault}: index {wanted} is in use")
        fillers: list[str] = []
        for _ in range(GID_TRIES):
            if table.get(own) == wanted:
                break
            self._refill(fault, rxe, device, table, wanted, address, fillers)
            table = self._wait_gids(fault, rxe, [own])
        rest = [f"addr del {f} dev {device}" for f in fillers]
        self._ip(fault.host, [*rest, *self._routes(self._guest(fault))])
        if table.get(own) != wanted:
            raise LabError(f"{fault}: the GID came back at index {table.get(own)}")

    def _refill(
        self,
        fault: Fault,
        rxe: str,
        device: str,
        table: dict[str, int],
        wanted: int,
        address: str,
        fillers: list[str],
    ) -> None:
        """One go at it. A queue pair keeps the index of a GID that went from being used again, until it is destroyed.

        So one filler may be too many now, or one too few when that happens in between: then there is another go.
        """
        own = gid_of(address)
        holes = [i for i in range(wanted) if i not in table.values() or i == table.get(own)]
        more = [FILLER.format(n >> 8, n & 255) for n in range(len(fillers) + 1, len(fillers) + len(holes) + 1)]
        lines = [f"addr del {address} dev {device}"] if own in table else []
        self._ip(fault.host, [*lines, *(f"addr add {f} dev {device}" for f in more)])
        there = self._wait_gids(fault, rxe, [gid_of(f) for f in more])
        beyond = [f for f in more if there[gid_of(f)] >= wanted]
        if beyond:
            self._ip(fault.host, [f"addr del {f} dev {device}" for f in beyond])
            self._wait_gids(fault, rxe, [], gone=[gid_of(f) for f in beyond])
        fillers += [f for f in more if f not in beyond]
        self._ip(fault.host, [f"addr add {address} dev {device}"])

    def _restore_gid(self, fault: Fault) -> None:
        """Take it away and put it back: it gets the lowest free index, as at the start."""
        rxe, device, address = self.lab.holder(fault.host, fault.rail)
        now = self.gids(fault.host, rxe)
        lowest = next(i for i in range(MOST_GIDS) if i not in now.values())
        own = now.get(gid_of(address))
        if own is not None and own < lowest:
            return
        if own is not None:
            self._ip(fault.host, [f"addr del {address} dev {device}"])
            self._wait_gids(fault, rxe, [], gone=[gid_of(address)])
        self._ip(fault.host, [f"addr add {address} dev {device}", *self._routes(self._guest(fault))])
        self._wait_gids(fault, rxe, [gid_of(address)])

    def gids(self, guest: str, rxe: str) -> dict[str, int]:
        """The port's GIDs and their indexes."""
        files = f"cd {GIDS.format(rxe)} && grep -v 0000:0000:0000:0000:0000:0000:0000:0000 $(seq 0 {MOST_GIDS - 1})"
        said = self._in_guest(guest, "sh", "-c", files, check=False)
        pairs = (line.split(":", 1) for line in said.splitlines())
        return {gid: int(index) for index, gid in pairs}

    def _wait_gids(self, fault: Fault, rxe: str, come: list[str], gone: Sequence[str] = ()) -> dict[str, int]:
        """Wait until these are in the port's table, and those aren't; returns the table."""
        until = time.monotonic() + GID_WAIT
        while True:
            there = self.gids(fault.host, rxe)
            if all(g in there for g in come) and not any(g in there for g in gone):
                return there
            if time.monotonic() > until:
                raise LabError(f"{fault}: the GID table of {rxe} didn't follow in {GID_WAIT:g} s: {there}")
            time.sleep(0.02)

    # -- the machine

    def _signal(self, fault: Fault, number: int) -> None:
        order(self.folder, "signal", guest=self._guest(fault).name, signal=int(number))

    def _boot(self, fault: Fault) -> None:
        if order(self.folder, "status")[self._guest(fault).name]["state"] == "dead":
            order(self.folder, "start", guest=fault.host)


def gid_of(address: str) -> str:
    """The GID of an IPv4 address (with or without prefix length), as sysfs spells it."""
    a, b, c, d = (int(x) for x in address.partition("/")[0].split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"
