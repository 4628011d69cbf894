"""Every scenario of the namespace lab holds."""

from pathlib import Path

import pytest

from linkpass_lab import commands, runner, scenario

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
NAMES = [name for name in scenario.names() if scenario.find(name).kind == "namespaces"]


@pytest.mark.parametrize("name", NAMES)
def test_scenario_played_holds(name: str, lab_root: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    report = runner.play(scenario.find(name), say=lines.append, keep=tmp_path)
    logs = [f"{f}\n{f.read_text(errors='replace')[-3000:]}" for f in sorted(tmp_path.rglob("agent.log"))]
    assert report.ok, "\n".join(["", *lines, commands.table(report), *logs])


def test_scenario_whose_promise_is_broken_does_not_hold(lab_root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    text = (scenario.SCENARIOS / "no-linkpass" / "scenario.toml").read_text()
    assert "least_ms = 2900" in text
    (folder / "scenario.toml").write_text(text.replace("least_ms = 2900", "most_ms = 100"))
    report = runner.play(scenario.load(folder))
    assert [what.split()[0] for what, outcome in report.verdicts if not outcome.ok] == ["gap"]
