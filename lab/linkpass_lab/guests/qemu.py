"""QEMU's command line for one guest. A value; starting it is the supervisor's."""

from dataclasses import dataclass
from pathlib import Path

from linkpass_lab.guests.plan import GuestPlan
from linkpass_lab.guests.prepare import Prepared

MEMORY = 384  # MiB; 256 is enough for verbs, MPI over UCX wants more
NICE = 5  # guests must not starve the machine's other work


@dataclass(frozen=True, slots=True)
class Descriptors:
    """File descriptors that QEMU inherits: one tap per card in the plan's order, the exec channel, QMP."""

    taps: tuple[int, ...]
    channel: int
    monitor: int


def command(guest: GuestPlan, made: Prepared, fds: Descriptors, run: Path, log: Path, memory: int) -> list[str]:
    """The arguments. One CPU: with more, an emulated guest falls back to a slow clock (HPET)."""
    args = ["qemu-system-x86_64", "-name", f"linkpass-{guest.name}", "-M", "q35", *made.accel.arguments]
    args += ["-smp", "1", "-m", str(memory), "-nodefaults", "-display", "none", "-no-reboot"]
    args += ["-kernel", str(made.kernel.boots), "-initrd", str(made.initramfs)]
    args += ["-append", f"console=ttyS0 quiet loglevel=4 panic=-1 linkpass.node={guest.name} linkpass.run={run}"]
    args += ["-serial", f"file:{log}", "-device", "virtio-serial-pci"]
    args += ["-chardev", f"socket,id=ctl,fd={fds.channel}", "-device", "virtserialport,chardev=ctl,name=linkpass"]
    args += ["-chardev", f"socket,id=mon,fd={fds.monitor}", "-mon", "chardev=mon,mode=control"]
    for tag, folder, more in (("root", Path("/"), ",readonly=on,multidevs=remap"), ("run", run, "")):
        args += ["-fsdev", f"local,id={tag},path={_escaped(folder)},security_model=none{more}"]
        args += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    for nic, fd in zip(guest.nics, fds.taps, strict=True):
        args += ["-netdev", f"tap,id={nic.name},fd={fd}"]
        args += ["-device", f"virtio-net-pci,netdev={nic.name},mac={nic.mac},romfile=,host_mtu={nic.mtu}"]
    return args


def _escaped(path: Path) -> str:
    """QEMU's options end at a comma, unless it is doubled."""
    return str(path).replace(",", ",,")
