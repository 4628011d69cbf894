"""Runs the C tests of the clients' checkers: each case is one process, under AddressSanitizer and UBSan."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from linkpass_lab.clients.build import build_clients

HERE = Path(__file__).parent
CASES = [
    (source.stem, case)
    for source in sorted(HERE.glob("test_*.c"))
    for case in re.findall(r"CASE\((\w+)\)", source.read_text())
    if case != "f"
]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_clients(tmp_path_factory.mktemp("clients"), "tests")


@pytest.mark.parametrize(("program", "case"), CASES, ids=[case for _, case in CASES])
def test_checker(programs: Path, program: str, case: str) -> None:
    done = subprocess.run([programs / program, case], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("program", sorted({program for program, _ in CASES}))
def test_program_lists_every_case_that_is_run_here(programs: Path, program: str) -> None:
    done = subprocess.run([programs / program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [case for owner, case in CASES if owner == program]


def test_json_written_in_c_is_read_as_meant(programs: Path) -> None:
    done = subprocess.run(
        [programs / "test_ncclflow", "json_is_what_a_parser_reads"], capture_output=True, check=True
    )
    assert json.loads(done.stdout) == {
        "text": 'a"b\\c\n\x01\x7f\xff',
        "none": None,
        "big": 2**64 - 1,
        "small": -(2**63),
        "seconds": 12.000000034,
        "nan": None,
        "half": 0.5,
        "empty": [],
        "list": [True, {}, None],
        "last": False,
    }
