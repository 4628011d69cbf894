"""KVM where it works, emulation where it doesn't: found out by trying, because /dev/kvm may exist and not boot.

The trial boots the guests' own kernel with KVM and waits for a word from its /init. A boot takes under a second where
KVM works. The answer holds for one boot of the host and one QEMU, and is kept in the cache.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from linkpass_lab.guests.kernel import Kernel, Say

TRIAL = 6.0  # seconds; several times what a KVM boot needs on a busy machine
WORD = "linkpass-probe-ok"


@dataclass(frozen=True, slots=True)
class Accel:
    """How guests run: `kvm` or emulated, and why."""

    kvm: bool
    why: str

    @property
    def arguments(self) -> tuple[str, ...]:
        if self.kvm:
            return ("-accel", "kvm", "-cpu", "host")
        return ("-accel", "tcg,thread=multi", "-cpu", "max")

    def __str__(self) -> str:
        return f"guests run {'with KVM' if self.kvm else 'emulated (TCG)'}: {self.why}"


def detect(kernel: Kernel, initramfs: Path, cache: Path, say: Say) -> Accel:
    """Which of the two works here. LINKPASS_ACCEL=kvm or tcg overrides the trial."""
    forced = os.environ.get("LINKPASS_ACCEL")
    if forced in ("kvm", "tcg"):
        return Accel(forced == "kvm", "LINKPASS_ACCEL says so")
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return Accel(False, "no usable /dev/kvm")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    note = cache / "accel.json"
    try:
        known = json.loads(note.read_text())
        if known["boot"] == boot:
            return Accel(bool(known["kvm"]), str(known["why"]))
    except (OSError, ValueError, KeyError):
        pass
    say("trying KVM")
    found = _trial(kernel, initramfs)
    note.write_text(json.dumps({"boot": boot, "kvm": found.kvm, "why": found.why}))
    return found


def _trial(kernel: Kernel, initramfs: Path) -> Accel:
    command = ["qemu-system-x86_64", "-M", "q35", "-accel", "kvm", "-cpu", "host", "-m", "256", "-nodefaults"]
    command += ["-display", "none", "-no-reboot", "-serial", "stdio", "-kernel", str(kernel.boots)]
    command += ["-initrd", str(initramfs), "-append", "console=ttyS0 quiet panic=-1 linkpass.probe"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL)
    except subprocess.TimeoutExpired as e:
        if WORD.encode() in (e.stdout or b""):
            return Accel(True, "a trial boot answered")
        return Accel(False, f"a trial boot with KVM said nothing for {TRIAL:.0f} s")
    if WORD.encode() in done.stdout:
        return Accel(True, "a trial boot answered")
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return Accel(False, f"a trial boot with KVM failed: {said[-1] if said else f'exit {done.returncode}'}")
