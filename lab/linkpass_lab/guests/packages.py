"""Which Debian or Ubuntu packages the guests need, which are missing, and how to bring them."""

import os
import subprocess
from collections.abc import Iterable

from linkpass.errors import LinkPassError

# What runs on the host to make and start guests.
HOST = ("qemu-system-x86", "seabios", "busybox-static", "kmod", "iproute2", "zstd")
# What runs inside; guests see the host's root folder, so it has to be installed on the host.
INSIDE = (
    "rdma-core",
    "ibverbs-providers",
    "ibverbs-utils",
    "rdmacm-utils",
    "librdmacm1",
    "perftest",
    "python3-pyverbs",
    "ethtool",
    "iputils-ping",
)
# Needed by some workloads only.
WORKLOADS = ("ucx-utils", "libucx0", "openmpi-bin", "python3-mpi4py")
# What building our own verbs clients needs.
BUILD = ("gcc", "make", "libibverbs-dev", "librdmacm-dev")
ALL = (*HOST, *INSIDE, *WORKLOADS, *BUILD)


class PackagesError(LinkPassError):
    """Packages are missing, or can't be installed; the message names them and the command that brings them."""


def installed(dpkg_status: str) -> frozenset[str]:
    """Names in `dpkg-query -W -f '${Package} ${db:Status-Status}\\n'` output whose state is "installed"."""
    pairs = (line.split() for line in dpkg_status.splitlines())
    return frozenset(pair[0] for pair in pairs if len(pair) == 2 and pair[1] == "installed")


def missing(wanted: Iterable[str] = ALL) -> tuple[str, ...]:
    """Those of `wanted` that dpkg doesn't have installed, in the order asked. PackagesError without dpkg."""
    try:
        said = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as e:
        raise PackagesError(f"dpkg-query can't list packages ({e}): RDMA guests need Debian or Ubuntu") from e
    have = installed(said.stdout)
    return tuple(name for name in wanted if name not in have)


def install(names: Iterable[str]) -> None:
    """Install packages with apt-get. PackagesError if that fails."""
    names = tuple(names)
    if not names:
        return
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=600", "-qq"]
    for command in ([*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", *names]):
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            raise PackagesError(f"{' '.join(command)}: {done.stderr.strip()[-600:]}")


def require(wanted: Iterable[str]) -> None:
    """PackagesError, naming the remedy, unless all of `wanted` are installed."""
    absent = missing(wanted)
    if absent:
        raise PackagesError(
            f"packages missing: {' '.join(absent)}; `linkpass-lab prepare --install` "
            f"or `apt-get install --no-install-recommends {' '.join(absent)}` brings them"
        )
