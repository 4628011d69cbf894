"""The verbs shim as it stands in the source tree, built into the cache, for jobs in guests."""

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

from linkpass_lab.guests import packages
from linkpass_lab.guests.prepare import cache_folder
from linkpass_lab.lab import LabError
from linkpass_lab.scenario import TREE

SOURCE = TREE / "linkpass" / "shim"
FILES = ("libibverbs.so.1", "libibverbs.so")


def built() -> Path:
    """The folder for LINKPASS_SHIM, built if need be. LabError in the words of cmake or the compiler.

    It is named for what is in it: a guest's cache of the host's files isn't told of changes.
    """
    packages.require(packages.BUILD)
    if shutil.which("cmake") is None:
        raise LabError("cmake isn't installed; scripts/setup brings it")
    out = cache_folder() / f"shim-{hashlib.sha256(str(SOURCE).encode()).hexdigest()[:8]}"
    out.mkdir(exist_ok=True)
    with (out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tree = out / "build"
        for command in (
            ["cmake", "-S", str(SOURCE), "-B", str(tree), "-DCMAKE_BUILD_TYPE=Release"],
            ["cmake", "--build", str(tree), "--target", "linkpass_verbs_name"],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                said = (done.stderr or done.stdout).strip()[-600:]
                raise LabError(f"the shim can't be built: {' '.join(command)}: {said}")
        made = hashlib.sha256(b"".join((tree / "verbs" / f).read_bytes() for f in FILES)).hexdigest()[:12]
        folder = out / made
        if not folder.exists():
            part = out / "part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            for name in FILES:
                shutil.copy2(tree / "verbs" / name, part / name)
            part.rename(folder)
    return folder
