"""The project's own verbs clients, built into the cache when their source is newer."""

import fcntl
import hashlib
import subprocess
from pathlib import Path

from linkpass_lab.guests import packages
from linkpass_lab.guests.prepare import cache_folder
from linkpass_lab.lab import LabError

SOURCE = Path(__file__).resolve().parents[1] / "clients"


def built(name: str) -> Path:
    """The folder that holds the client `name`, built if need be (make knows). LabError in the compiler's words."""
    packages.require(packages.BUILD)
    # One folder for each checkout: objects of one must not be taken for the other's.
    out = cache_folder() / f"clients-{hashlib.sha256(str(SOURCE).encode()).hexdigest()[:8]}"
    out.mkdir(exist_ok=True)
    with (out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["make", "-s", "-C", str(SOURCE), f"OUT={out}", str(out / name)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"{name} can't be built: {' '.join(command)}: {done.stderr.strip()[-600:]}")
    return out
