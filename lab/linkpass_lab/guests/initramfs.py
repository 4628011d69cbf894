"""The initramfs: busybox, the modules that mounting the host's root needs, and a short /init.

It is written here, in the kernel's own "newc" form (Documentation/driver-api/early-userspace/buffer-format.rst),
uncompressed, which the guest needn't spend emulated time to unpack.
"""

import gzip
import hashlib
import lzma
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from linkpass.errors import LinkPassError
from linkpass_lab.guests.kernel import Kernel

# In the order of need: the bus, the root folder, then the rails and RDMA.
MODULES = (
    "virtio_pci",
    "virtio_console",
    "9p",
    "9pnet_virtio",
    "overlay",
    "virtio_net",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
)

INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
while read m; do $b insmod /mod/$m || echo "insmod $m failed"; done < /mod/list
if $b grep -q linkpass.probe /proc/cmdline; then echo linkpass-probe-ok; $b poweroff -f; fi
for w in $($b cat /proc/cmdline); do
  case $w in linkpass.run=*) run=${w#*=};; linkpass.node=*) node=${w#*=};; esac
done
o=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o $o,cache=loose,ro root /ro || { echo "can't mount the host's root"; $b poweroff -f; }
$b mount -t tmpfs -o size=60% tmpfs /rw
$b mkdir -p /rw/u /rw/w
$b mount -t overlay -o lowerdir=/ro,upperdir=/rw/u,workdir=/rw/w overlay /new
$b mount --move /proc /new/proc
$b mount --move /sys /new/sys
$b mount --move /dev /new/dev
$b mkdir -p /new/run /new/dev/pts /new/dev/shm /new/lib/modules
$b mount -t tmpfs tmpfs /new/run
$b mount -t tmpfs shm /new/dev/shm
$b mount -t devpts devpts /new/dev/pts
$b mkdir -p /new$run
$b mount -t 9p -o $o,cache=none run /new$run || { echo "can't mount the run folder"; $b poweroff -f; }
export LINKPASS_LAB_RUN=$run LINKPASS_NODE=$node
exec $b switch_root /new /bin/sh $run/guests/start
"""


class InitramfsError(LinkPassError):
    """Something that the initramfs needs is missing; names it."""


def cpio(entries: Iterable[tuple[str, int, bytes]]) -> bytes:
    """A newc archive of (path, mode with file type, content); parents must come before what they hold."""
    out = bytearray()
    for number, (path, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        name = path.encode() + b"\0"
        # ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        out += b"070701" + b"".join(b"%08x" % f for f in fields) + name
        out += bytes(-len(out) % 4) + content
        out += bytes(-len(out) % 4)
    return bytes(out)


def bare_module(name: str, content: bytes) -> tuple[str, bytes]:
    """A module's file name and content without compression: busybox insmod can't unpack."""
    if name.endswith(".xz"):
        return name[:-3], lzma.decompress(content)
    if name.endswith(".gz"):
        return name[:-3], gzip.decompress(content)
    if name.endswith(".zst"):
        done = subprocess.run(["zstd", "-dcq"], input=content, capture_output=True)
        if done.returncode:
            raise InitramfsError(f"{name}: zstd can't unpack it; install the package zstd")
        return name[:-4], done.stdout
    return name, content


def load_order(listings: Iterable[str]) -> tuple[Path, ...]:
    """Module files in the order to load them, each once, from `modprobe --show-depends` outputs."""
    files = (line.split()[1] for text in listings for line in text.splitlines() if line.startswith("insmod "))
    return tuple(Path(f) for f in dict.fromkeys(files))


def build(kernel: Kernel, cache: Path) -> Path:
    """The initramfs for `kernel`, made if the cache hasn't this very one. InitramfsError names what is missing."""
    box = shutil.which("busybox")
    if box is None:
        raise InitramfsError("busybox isn't there; install the package busybox-static")
    key = hashlib.sha256("\n".join((kernel.release, INIT, *MODULES)).encode()).hexdigest()[:12]
    target = cache / f"initramfs-{key}.cpio"
    if target.exists():
        return target
    modules = [bare_module(f.name, f.read_bytes()) for f in load_order(_listing(kernel, m) for m in MODULES)]
    folders = ("bin", "mod", "proc", "sys", "dev", "ro", "rw", "new")
    image = cpio(
        [
            *((f, 0o040755, b"") for f in folders),
            ("bin/busybox", 0o100755, Path(box).read_bytes()),
            *((f"mod/{name}", 0o100644, content) for name, content in modules),
            ("mod/list", 0o100644, "".join(f"{name}\n" for name, _ in modules).encode()),
            ("init", 0o100755, INIT.encode()),
        ]
    )
    part = target.with_suffix(".part")
    part.write_bytes(image)
    part.rename(target)
    return target


def _listing(kernel: Kernel, module: str) -> str:
    command = ["modprobe", "-d", str(kernel.root), "-S", kernel.release, "--show-depends", module]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise InitramfsError(f"kernel {kernel.release} has no module {module}: {done.stderr.strip()}")
    return done.stdout
