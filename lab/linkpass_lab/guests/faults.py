from pathlib import Path

from linkpass_lab.fault import Fault, FaultKind
from linkpass_lab.guests.plan import LabPlan


class GuestFaults:
    kinds: frozenset[FaultKind] = frozenset()

    def __init__(self, folder: Path, lab: LabPlan) -> None: ...
    def inject(self, fault: Fault) -> None: ...
    def repair(self, fault: Fault) -> None: ...
