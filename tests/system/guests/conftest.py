"""One lab of two guests with two rails for all tests here; where guests can't run, they fail with the reason."""

import pytest

from linkpass_lab.guests.lab import GuestLab
from linkpass_topology.fabric import grid


def pytest_collection_modifyitems(items):
    """An emulated guest boots in 5 s on a quiet machine and in a minute on a crowded one."""
    for item in items:
        if "system/guests" in item.path.as_posix():
            item.add_marker(pytest.mark.guests)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def shared_lab():
    with GuestLab.up(grid(2, 2, mtu=9000), label="test", say=print) as lab:
        yield lab


@pytest.fixture
def lab(shared_lab):
    """The shared lab, whole: whatever a test broke is repaired after it."""
    yield shared_lab
    for fault in shared_lab.broken():
        shared_lab.repair(fault)
