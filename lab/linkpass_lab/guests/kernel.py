"""The guests' kernel: the distribution's own, downloaded and unpacked into the cache, never installed.

The stock kernel has rdma_rxe, 9p and netem as modules; Debian's -cloud- flavour doesn't. An uncompressed vmlinux
boots about 2.5 s faster under emulation than the compressed vmlinuz, because the guest needn't unpack it.
"""

import bz2
import lzma
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from linkpass.errors import LinkPassError

Say = Callable[[str], None]
# The package that always depends on the current kernel: Debian's name first, then Ubuntu's.
META_PACKAGES = ("linux-image-amd64", "linux-image-generic")
DEPENDS = re.compile(r"^\s*\|?Depends:\s*(\S+)", re.MULTILINE)
ELF = b"\x7fELF"
NEEDED = "rdma_rxe"


class KernelMissingError(LinkPassError):
    """No kernel can be brought; the message says which step failed."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """An unpacked kernel. `boots` is what QEMU is given: a vmlinux, or the vmlinuz where unpacking it failed."""

    release: str  # as `uname -r` will say
    root: Path  # holds lib/modules/<release>
    boots: Path

    @property
    def modules(self) -> Path:
        return self.root / "lib" / "modules"


def depended(text: str) -> tuple[str, ...]:
    """The packages that `apt-cache depends NAME` output says NAME depends on."""
    return tuple(DEPENDS.findall(text))


def wanted_packages(meta: str, depends: tuple[str, ...]) -> tuple[str, ...]:
    """The kernel packages to unpack. Ubuntu keeps modules in packages of their own, named after the image's."""
    images = [name for name in depends if re.fullmatch(r"linux-image-(unsigned-)?\d.*", name)]
    if not images:
        raise KernelMissingError(f"{meta} depends on no kernel package (it names {', '.join(depends) or 'nothing'})")
    image = images[0]
    if meta == "linux-image-amd64":
        return (image,)
    release = re.sub(r"^linux-image-(unsigned-)?", "", image)
    return (image, f"linux-modules-{release}", f"linux-modules-extra-{release}")


def bring(cache: Path, say: Say) -> Kernel:
    """The kernel from the cache, or downloaded into it. KernelMissingError with the reason when neither works."""
    here = cache / "kernel"
    found = _unpacked(here)
    if found is not None:
        return found
    meta, names = _choose()
    say(f"downloading {names[0]}")
    fresh = here.with_name("kernel.new")
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / "debs").mkdir(parents=True)
    _run(["apt-get", "-qq", "download", *names], fresh / "debs", f"kernel of {meta}")
    for deb in sorted((fresh / "debs").glob("*.deb")):
        say(f"unpacking {deb.name.split('_')[0]}")
        _run(["dpkg", "-x", str(deb), str(fresh)], fresh, deb.name)
    shutil.rmtree(fresh / "debs")
    usr = fresh / "usr" / "lib" / "modules"  # where merged-usr packages may put them
    if usr.is_dir() and not (fresh / "lib" / "modules").is_dir():
        (fresh / "lib").mkdir(exist_ok=True)
        usr.rename(fresh / "lib" / "modules")
    for release in sorted(p.name for p in (fresh / "lib" / "modules").iterdir()):
        say(f"indexing modules of {release}")
        _run(["depmod", "-b", str(fresh), release], fresh, "depmod")
        uncompressed = unpack((fresh / "boot" / f"vmlinuz-{release}").read_bytes())
        if uncompressed is None:
            say("its vmlinuz can't be unpacked here: guests boot the compressed one, some seconds slower each")
        else:
            (fresh / "boot" / f"vmlinux-{release}").write_bytes(uncompressed)
    shutil.rmtree(here, ignore_errors=True)
    fresh.rename(here)
    found = _unpacked(here)
    if found is None:
        raise KernelMissingError(f"{meta}: its packages hold no {NEEDED} module")
    return found


def _unpacked(root: Path) -> Kernel | None:
    for folder in sorted((root / "lib" / "modules").glob("*")) if root.is_dir() else []:
        boots = [root / "boot" / f"{kind}-{folder.name}" for kind in ("vmlinux", "vmlinuz")]
        there = [b for b in boots if b.exists()]
        dep = folder / "modules.dep"
        if there and dep.exists() and f"/{NEEDED}.ko" in dep.read_text():
            return Kernel(folder.name, root, there[0])
    return None


def _choose() -> tuple[str, tuple[str, ...]]:
    for meta in META_PACKAGES:
        said = subprocess.run(["apt-cache", "depends", meta], capture_output=True, text=True)
        if said.returncode == 0 and depended(said.stdout):
            return meta, wanted_packages(meta, depended(said.stdout))
    raise KernelMissingError(
        f"apt knows neither {' nor '.join(META_PACKAGES)}: run `apt-get update` (guests need Debian or Ubuntu, amd64)"
    )


def _run(command: list[str], folder: Path, what: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise KernelMissingError(f"{what}: {' '.join(command)}: {done.stderr.strip()[-400:]}")


def unpack(vmlinuz: bytes) -> bytes | None:
    """The ELF image inside a bzImage, or None. Tries every place where a known compression's magic occurs."""
    for magic, decoder in _DECODERS.items():
        for at in _places(vmlinuz, magic):
            try:
                image = decoder(vmlinuz[at:])
            except (lzma.LZMAError, zlib.error, OSError, ValueError, EOFError):
                continue
            if image[:4] == ELF:
                return image
    return None


def _places(data: bytes, magic: bytes) -> Iterator[int]:
    at = data.find(magic)
    while at >= 0:
        yield at
        at = data.find(magic, at + 1)


def _tool(name: str) -> Callable[[bytes], bytes]:
    """A decoder that pipes through a command; what follows the packed stream makes it complain after the output."""

    def decode(data: bytes) -> bytes:
        return subprocess.run([name, "-dcq"], input=data, capture_output=True).stdout

    return decode


_DECODERS: dict[bytes, Callable[[bytes], bytes]] = {
    b"\xfd7zXZ\x00": lambda d: lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(d),
    b"\x28\xb5\x2f\xfd": _tool("zstd"),
    b"\x1f\x8b\x08": lambda d: zlib.decompressobj(31).decompress(d),
    b"\x02\x21\x4c\x18": _tool("lz4"),
    b"BZh": lambda d: bz2.BZ2Decompressor().decompress(d),
    b"\x5d\x00\x00": lambda d: lzma.LZMADecompressor(lzma.FORMAT_ALONE).decompress(d),
}
