"""Everything that guests need before they can start: packages, kernel, initramfs, and whether KVM works.

Idempotent, and quick once the cache is filled. Nothing is installed but packages, and those only when asked. The
cache is $LINKPASS_CACHE, or ~/.cache/linkpass; it holds about 500 MB.
"""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from linkpass_lab.guests import accel, initramfs, kernel, packages


@dataclass(frozen=True, slots=True)
class Prepared:
    """What QEMU is started with."""

    kernel: kernel.Kernel
    initramfs: Path
    accel: accel.Accel


def cache_folder() -> Path:
    """Where downloads and what is built from them are kept; made if it isn't there."""
    folder = Path(os.environ.get("LINKPASS_CACHE") or Path.home() / ".cache" / "linkpass")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def prepare(say: kernel.Say, *, install: bool = False) -> Prepared:
    """Bring what is missing, saying each step. The errors of `packages`, `kernel`, `initramfs` say what can't be."""
    if install:
        absent = packages.missing()
        if absent:
            say(f"installing {' '.join(absent)}")
            packages.install(absent)
    packages.require((*packages.HOST, *packages.INSIDE))
    cache = cache_folder()
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        brought = kernel.bring(cache, say)
        image = initramfs.build(brought, cache)
        how = accel.detect(brought, image, cache, say)
    say(str(how))
    return Prepared(brought, image, how)
