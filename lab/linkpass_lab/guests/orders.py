"""What a supervisor is told when it starts, as files: the fabric, the variant, and what QEMU is started with."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from linkpass_lab.guests.accel import Accel
from linkpass_lab.guests.kernel import Kernel
from linkpass_lab.guests.plan import LabPlan, plan
from linkpass_lab.guests.prepare import Prepared
from linkpass_topology.fabric import dump, load

FABRIC = "fabric.toml"
ORDERS = "orders.json"


def write(folder: Path, lab: LabPlan, made: Prepared, memory: int) -> None:
    """Write the orders down; `memory` is each guest's, in MiB."""
    (folder / FABRIC).write_text(dump(lab.fabric))
    orders = {
        "bond": lab.bond,
        "memory": memory,
        "kernel": {"release": made.kernel.release, "root": str(made.kernel.root), "boots": str(made.kernel.boots)},
        "initramfs": str(made.initramfs),
        "accel": asdict(made.accel),
    }
    (folder / ORDERS).write_text(json.dumps(orders))


def read(folder: Path) -> tuple[LabPlan, Prepared, int]:
    """The orders: plan, what QEMU is started with, MiB of memory a guest."""
    raw: dict[str, Any] = json.loads((folder / ORDERS).read_text())
    kernel = Kernel(raw["kernel"]["release"], Path(raw["kernel"]["root"]), Path(raw["kernel"]["boots"]))
    made = Prepared(kernel, Path(raw["initramfs"]), Accel(**raw["accel"]))
    return plan(load(folder / FABRIC), bond=raw["bond"]), made, raw["memory"]
