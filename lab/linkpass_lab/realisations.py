"""The ways to realise a fabric. The one place that knows them all: a new one (guests) is added here."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from linkpass_lab.fault import FaultKind
from linkpass_lab.lab import Lab, LabError
from linkpass_lab.ledger import Ledger
from linkpass_topology.fabric import Fabric

KIND_FILE = "kind"  # in the run folder: which realisation made it


def _namespaces_up(fabric: Fabric, options: Mapping[str, Any]) -> Lab:
    from linkpass_lab.namespaces import NamespaceLab

    if unknown := sorted(set(options) - {"label", "equal_ifindex"}):
        raise LabError(f"a lab of namespaces has no option {unknown[0]!r}; it has label, equal_ifindex")
    return NamespaceLab.up(fabric, **options)


def _namespaces_attach(ledger: Ledger) -> Lab:
    from linkpass_lab.namespaces import NamespaceLab

    return NamespaceLab.attach(ledger)


def _namespaces_faults() -> frozenset[FaultKind]:
    from linkpass_lab.namespaces import FAULTS

    return FAULTS


def _guests_up(fabric: Fabric, options: Mapping[str, Any]) -> Lab:
    from linkpass_lab.guests.lab import GuestLab

    if unknown := sorted(set(options) - {"label", "bond", "memory"}):
        raise LabError(f"a lab of guests has no option {unknown[0]!r}; it has label, bond, memory")
    return GuestLab.up(fabric, say=lambda text: print(text, file=sys.stderr, flush=True), **options)


def _guests_attach(ledger: Ledger) -> Lab:
    from linkpass_lab.guests.lab import GuestLab

    return GuestLab.attach(ledger)


def _guests_faults() -> frozenset[FaultKind]:
    from linkpass_lab.guests.faults import KINDS

    return KINDS


UP: dict[str, Callable[[Fabric, Mapping[str, Any]], Lab]] = {"namespaces": _namespaces_up, "guests": _guests_up}
ATTACH: dict[str, Callable[[Ledger], Lab]] = {"namespaces": _namespaces_attach, "guests": _guests_attach}
FAULTS: dict[str, Callable[[], frozenset[FaultKind]]] = {"namespaces": _namespaces_faults, "guests": _guests_faults}


def up(kind: str, fabric: Fabric, **options: Any) -> Lab:
    """Make a lab of that kind; `options` are the realisation's own."""
    if kind not in UP:
        raise LabError(f"no realisation {kind!r} here; there are {', '.join(UP)}")
    lab = UP[kind](fabric, options)
    try:
        (lab.folder / KIND_FILE).write_text(kind)
    except BaseException:
        lab.close()
        raise
    return lab


def attach(ledger: Ledger) -> Lab:
    """The lab of a run folder, made by whichever process."""
    file = ledger.folder / KIND_FILE
    kind = file.read_text() if file.exists() else ""
    if kind not in ATTACH:
        raise LabError(f"lab {ledger.folder.name} is not (or not yet) up; `linkpass-lab down {ledger.folder.name}`")
    return ATTACH[kind](ledger)
