"""What a host is installed with: unit, container and handbook say the same as the code."""

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from linkpass.settings import Settings

ROOT = Path(__file__).parents[3]


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)  # DeviceAllow comes twice
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((ROOT / "agent" / "linkpassd.service").read_text())
    return parser


def test_units_folders_are_the_settings_defaults() -> None:
    service = unit()["Service"]
    paths = Settings.model_fields["paths"].default
    assert Path("/run") / service["RuntimeDirectory"] == paths.run
    assert Path("/var/lib") / service["StateDirectory"] == paths.state
    assert service["ExecStart"].endswith("/linkpassd --config /etc/linkpass/linkpass.toml")


def test_unit_restarts_after_a_crash_but_not_on_a_bad_config_and_keeps_the_ledger() -> None:
    service = unit()["Service"]
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "2"
    assert service["RuntimeDirectoryPreserve"] == "yes"
    assert unit()["Unit"]["StartLimitIntervalSec"] == "0"


def test_unit_gives_the_agent_no_more_than_it_needs() -> None:
    service = unit()["Service"]
    assert set(service["CapabilityBoundingSet"].split()) == {"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYSLOG"}
    families = {"AF_UNIX", "AF_NETLINK", "AF_INET", "AF_INET6"}
    assert set(service["RestrictAddressFamilies"].split()) == families
    assert service["ProtectSystem"] == "strict"
    assert service["DevicePolicy"] == "closed"
    assert service["NoNewPrivileges"] == "yes"


def test_dockerfile_has_nothing_that_hadolint_minds() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def leaves(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Every key of the config file and its default, from the models alone."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        inner = [a for a in (field.annotation, *getattr(field.annotation, "__args__", ())) if isinstance(a, type)]
        table = next((a for a in inner if issubclass(a, BaseModel)), None)
        found.update(leaves(table, f"{key}.") if table else {key: field.default})
    return found


def test_handbook_has_every_key_with_its_default() -> None:
    handbook = (ROOT / "docs" / "operating.md").read_text().split("## Config file")[1].split("\n## ")[0]
    rows: dict[str, str] = {}
    for line in handbook.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        for key in re.findall(r"`([a-z_.]+)`", cells[0]) if line.startswith("| `") else []:
            rows[key] = cells[1].strip("`")
    expected = leaves(Settings)
    assert set(rows) == set(expected)
    in_words = {
        "host": "the hostname", "paths.socket": "<run>/agent.sock", "paths.jobs_socket": "<run>/jobs.sock",
        "control.group": "none", "fabric": "none", "manifest": "none", "port.pci": "none",
    }  # fmt: skip
    for key, default in expected.items():
        if key in in_words:
            assert rows[key] == in_words[key]
        elif default is PydanticUndefined:
            assert rows[key] == "required", key
        else:
            assert json.loads(rows[key]) == (
                str(default) if isinstance(default, Path) else json.loads(json.dumps(default))
            )


def test_handbook_names_every_verb() -> None:
    from linkpass.ctl.__main__ import VERBS

    handbook = (ROOT / "docs" / "operating.md").read_text()
    table = handbook.split("## linkpassctl")[1].split("\n## ")[0]
    assert {v.name for v in VERBS} == set(
        re.findall(
            r"`([a-z]+)(?: [^`]*)?`",
            "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `")),
        )
    )
