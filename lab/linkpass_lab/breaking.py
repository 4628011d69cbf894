"""Faults in force, in the run folder's ledger, so that any process can list and repair what another one broke."""

from collections.abc import Mapping

from linkpass_lab import fault as values
from linkpass_lab.fault import Fault
from linkpass_lab.lab import Lab
from linkpass_lab.ledger import Ledger


def strike(lab: Lab, fault: Fault) -> None:
    """Inject a fault and write it down."""
    noted = lab.ledger.add(
        "fault", str(fault), **_table(fault)
    )  # first: a crash in between leaves too much, not less
    try:
        lab.inject(fault)
    except BaseException:
        lab.ledger.undone(noted)
        raise


def mend(lab: Lab, fault: Fault) -> None:
    """Repair a fault and strike it off."""
    lab.repair(fault)
    for noted in lab.ledger.standing("fault"):
        if noted.data == _table(fault):
            lab.ledger.undone(noted)


def broken(ledger: Ledger) -> list[Fault]:
    """The faults in force, oldest first, each once."""
    return list(dict.fromkeys(_fault(m.data) for m in ledger.standing("fault")))


def _table(fault: Fault) -> dict[str, str | int]:
    """A fault as the ledger holds it: numbers as words, which `fault.parse` reads as well."""
    target = {k: v for k in ("host", "rail", "leaf") if (v := getattr(fault, k))}
    return {"verb": str(fault.kind), **target, **{k: str(v) for k, v in fault.parameters}}


def _fault(data: Mapping[str, str | int]) -> Fault:
    return values.parse({"kind": data["verb"], **{k: v for k, v in data.items() if k != "verb"}})
