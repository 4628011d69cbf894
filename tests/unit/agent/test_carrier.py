"""The fast carrier read, on files of our own in sysfs's place."""

import shutil
from pathlib import Path

import pytest

from linkpass.model import PortState, Signal
from linkpass_agent.see.carrier import CarrierFiles
from tests.fakes.agent import FakeAgent


class Sysfs:
    """A folder that looks like /sys/class/net."""

    def __init__(self, root: Path) -> None:
        self.root, self.count = root, 1

    def set(self, port: str, *carriers: bool) -> None:
        """The carrier takes these values, one after the other; the last one stays."""
        (self.root / port).mkdir(exist_ok=True)
        self.count += len(carriers)
        (self.root / port / "carrier").write_text(f"{int(carriers[-1])}\n")
        (self.root / port / "carrier_changes").write_text(f"{self.count}\n")


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    made = Sysfs(tmp_path)
    made.set("p0", True)
    return made


def test_first_read_tells_all_and_the_next_nothing(sysfs: Sysfs) -> None:
    files = CarrierFiles(["p0", "missing0"], sysfs.root)
    assert files.changes(1.0) == [("p0", True)]
    assert files.changes(1.01) == []


def test_change_is_told_once(sysfs: Sysfs) -> None:
    files = CarrierFiles(["p0"], sysfs.root)
    files.changes(1.0)
    sysfs.set("p0", False)
    assert files.changes(1.01) == [("p0", False)]
    assert files.changes(1.02) == []


def test_link_that_went_and_came_between_two_reads_is_told_both(sysfs: Sysfs) -> None:
    files = CarrierFiles(["p0"], sysfs.root)
    files.changes(1.0)
    sysfs.set("p0", False, True)
    assert files.changes(1.01) == [("p0", False), ("p0", True)]
    sysfs.set("p0", False)
    files.changes(1.02)
    sysfs.set("p0", True, False)
    assert files.changes(1.03) == [("p0", True), ("p0", False)]


def test_readings_are_told_again_every_tenth_of_a_second(sysfs: Sysfs) -> None:
    files = CarrierFiles(["p0"], sysfs.root)
    told = [bool(files.changes(1.0 + n / 100)) for n in range(25)]
    assert [n for n, t in enumerate(told) if t] in ([0, 10, 20], [0, 10, 21], [0, 11, 21])


def test_device_that_came_is_found_by_reopen(sysfs: Sysfs) -> None:
    files = CarrierFiles(["p0", "p1"], sysfs.root)
    files.changes(1.0)
    sysfs.set("p1", False)
    assert files.changes(1.01) == []
    files.reopen()
    assert files.changes(1.02) == [("p1", False)]


def test_device_that_took_the_name_is_found_by_reopen(sysfs: Sysfs) -> None:
    files = CarrierFiles(["p0"], sysfs.root)
    files.changes(1.0)
    (sysfs.root / "p0").rename(sysfs.root / "old")
    sysfs.set("p0", False)
    assert files.changes(1.01) == []  # the open files are still the old device's
    files.reopen()
    assert files.changes(1.02) == [("p0", False)]


def test_reopen_keeps_files_that_are_still_right(sysfs: Sysfs) -> None:
    files = CarrierFiles(["p0"], sysfs.root)
    files.changes(1.0)
    files.reopen()
    assert files.changes(1.01) == []


def test_folder_that_disappears_between_two_looks_stops_nothing(sysfs: Sysfs) -> None:
    files = CarrierFiles(["p0"], sysfs.root)
    shutil.rmtree(sysfs.root / "p0")
    files.reopen()
    files.close()
    files.close()
    assert files.changes(1.0) == []


def test_older_news_of_another_source_is_set_right_within_a_tenth_of_a_second(tmp_path: Path) -> None:
    # A sweep reads "carrier", the link fails and we see it, and only then the sweep tells what it had read.
    sysfs, agent = Sysfs(tmp_path), FakeAgent(tmp_path).start("b")
    sysfs.set("a-rail0", True)
    files = CarrierFiles(["a-rail0"], sysfs.root)

    def poll() -> None:
        for _, reading in files.changes(agent.clock.now()):
            agent.see("a-rail0", carrier=reading)

    poll()
    sysfs.set("a-rail0", False)
    agent.kernel.carrier("a-rail0", False)
    agent.clock.advance(0.01)
    poll()
    agent.see("a-rail0", carrier=True)  # the sweep
    for _ in range(11):
        agent.clock.advance(0.01)
        poll()
    assert agent.reactor.ports["a-rail0"].state == PortState.DOWN
    assert agent.reactor.ports["a-rail0"].facts[Signal.CARRIER] is False
