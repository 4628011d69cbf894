"""When a finding is worth waking somebody: alarms, apart from rerouting, which never waits for them. Pure.

An alarm is raised for a finding that is open while nothing explains it away (`Quiet`), and cleared by itself when the
finding is over or is explained. What a counter grew by in a quiet time is never an alarm later; what still holds when
the quiet time ends, like a port that is down, is one then.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from linkpass.model import Finding

# s that alarms from before the agent's restart wait for their findings to open again: the longest shipped fact
# window is 30 s.
RESUME = 60.0


@dataclass(frozen=True, slots=True)
class PastAlarm:
    """An alarm: `raised` and `cleared` (None while active) are Unix seconds; `over` says why it is over."""

    port: str
    rule: str
    act: str
    text: str
    evidence: str
    raised: float
    cleared: float | None = None
    over: str = ""


@dataclass(frozen=True, slots=True)
class Graces:
    """Seconds after the host's boot and after an undrain without alarms."""

    boot: float = 1800.0
    undrain: float = 120.0

    def quiet(
        self, now: float, *, booted: float, undrained: float | None, drained: bool, admin_up: bool | None
    ) -> str:
        """What explains a port's trouble now; "" for nothing. Times are monotonic seconds."""
        if drained:
            return "drained"
        if admin_up is False:
            return "administratively down"
        if now < booted + self.boot:
            return f"the host booted less than {self.boot:g} s ago"
        if undrained is not None and now < undrained + self.undrain:
            return f"undrained less than {self.undrain:g} s ago"
        return ""


@dataclass(frozen=True, slots=True)
class Turn:
    """An alarm was raised (`alarm.cleared` None) or cleared."""

    alarm: PastAlarm


class Alarms:
    """All alarms of a host. `growth`: names of the rules that count what has been, not what is."""

    def __init__(self, growth: Collection[str], kept: int, past: Iterable[PastAlarm], now: float) -> None:
        self._growth = frozenset(growth)
        self.history: deque[PastAlarm] = deque((a for a in past if a.cleared is not None), maxlen=kept)
        self.active: dict[tuple[str, str], PastAlarm] = {(a.port, a.rule): a for a in past if a.cleared is None}
        self._waiting = set(self.active)  # from before a restart, their findings not seen yet
        self._until = now + RESUME
        self._quiet_at: dict[str, float] = {}

    def look(
        self, now: float, wall: float, findings: Mapping[str, Iterable[Finding]], quiet: Mapping[str, str]
    ) -> list[Turn]:
        """Every port's open findings and what explains them now. What came of it, in order."""
        turns: list[Turn] = []
        seen: set[tuple[str, str]] = set()
        for port, found in findings.items():
            explained = quiet.get(port, "")
            if explained:
                self._quiet_at[port] = now
            for finding in found:
                key = (port, finding.rule)
                old_news = finding.rule in self._growth and finding.since <= self._quiet_at.get(port, float("-inf"))
                if explained or (old_news and key not in self.active):
                    continue
                seen.add(key)
                self._waiting.discard(key)
                if key in self.active:
                    self.active[key] = replace(self.active[key], text=finding.text, evidence=_evidence(finding))
                    continue
                alarm = PastAlarm(port, finding.rule, finding.act, finding.text, _evidence(finding), wall)
                self.active[key] = alarm
                turns.append(Turn(alarm))
        if now >= self._until:
            self._waiting.clear()
        for key in [k for k in self.active if k not in seen]:
            why = quiet.get(key[0], "")
            if key in self._waiting and not why:
                continue
            over = replace(self.active.pop(key), cleared=wall, over=why or "the cause is gone")
            self._waiting.discard(key)
            self.history.append(over)
            turns.append(Turn(over))
        return turns

    def past(self) -> tuple[PastAlarm, ...]:
        """What a restart should remember: history, then the active ones."""
        return (*self.history, *self.active.values())


def _evidence(finding: Finding) -> str:
    return "; ".join(f"{e.source} {e.text}" for e in finding.evidence)
