"""What a supervisor is told when it starts, as a file: the fabric, the variant, and what QEMU is started with."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from linkpass_lab.guests.accel import Accel
from linkpass_lab.guests.kernel import Kernel
from linkpass_lab.guests.plan import LabPlan, plan
from linkpass_lab.guests.prepare import Prepared
from linkpass_topology.fabric import Fabric, FabricHost, Switch


def write(file: Path, lab: LabPlan, made: Prepared, memory: int) -> None:
    """Write the orders down."""
    orders = {
        "fabric": asdict(lab.fabric),
        "bond": lab.bond,
        "memory": memory,
        "kernel": {"release": made.kernel.release, "root": str(made.kernel.root), "boots": str(made.kernel.boots)},
        "initramfs": str(made.initramfs),
        "accel": asdict(made.accel),
    }
    file.write_text(json.dumps(orders))


def read(file: Path) -> tuple[LabPlan, Prepared, int]:
    """The orders: plan, what QEMU is started with, MiB of memory a guest."""
    raw: dict[str, Any] = json.loads(file.read_text())
    f = raw["fabric"]
    fabric = Fabric(
        name=f["name"],
        rails=tuple(f["rails"]),
        leaves=tuple(Switch(**s) for s in f["leaves"]),
        spines=tuple(Switch(**s) for s in f["spines"]),
        hosts=tuple(FabricHost(**h) for h in f["hosts"]),
        mtu=f["mtu"],
    )
    kernel = Kernel(raw["kernel"]["release"], Path(raw["kernel"]["root"]), Path(raw["kernel"]["boots"]))
    made = Prepared(kernel, Path(raw["initramfs"]), Accel(**raw["accel"]))
    return plan(fabric, bond=raw["bond"]), made, raw["memory"]
