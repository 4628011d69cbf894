"""The ledger: what it writes, what it ends, and what it leaves alone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from linkpass.errors import NotFoundError
from linkpass_lab import ledger as ledgers
from linkpass_lab.ledger import Ledger, LedgerError, end, marked, started


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ledgers.ROOT_VARIABLE, str(tmp_path))
    return tmp_path


def sleeper(**env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env={**os.environ, **env})


def stubborn() -> subprocess.Popen[bytes]:
    """Ignores SIGTERM, and has said so."""
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('x', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_ledger_created_has_a_folder_and_knows_its_owner(root: Path) -> None:
    made = Ledger.create("x")
    assert made.folder.parent == root
    assert made.alive()
    assert [m.kind for m in made.standing()] == ["folder", "owner"]


def test_ledger_read_again_lists_what_is_standing() -> None:
    made = Ledger.create("x")
    first, second = made.add("fault", "one", host="a"), made.add("fault", "two", host="b")
    made.undone(first)
    again = Ledger(made.folder)
    assert again.standing("fault") == [second]
    assert again.standing("fault")[0].data == {"host": "b"}


def test_ledger_with_a_torn_last_line_is_still_read() -> None:
    made = Ledger.create("x")
    made.add("fault", "whole")
    with made.file.open("a") as f:
        f.write('{"seq": 12, "kind": "fau')
    assert [m.name for m in Ledger(made.folder).standing("fault")] == ["whole"]


def test_undo_ends_processes_and_removes_the_folder() -> None:
    made = Ledger.create("x")
    process = sleeper()
    made.process(process.pid, "sleeper")
    made.undo()
    assert process.wait(5) is not None
    assert started(process.pid) is None
    assert not made.folder.exists()


def test_undo_repeated_does_nothing_more() -> None:
    made = Ledger.create("x")
    made.undo()
    made.undo()
    assert not made.folder.exists()


def test_undo_leaves_a_recycled_pid_alone() -> None:
    made = Ledger.create("x")
    process = sleeper()
    start = started(process.pid)
    assert start is not None
    made.add("process", "one that has ended; the pid is another's now", pid=process.pid, start=start - 1)
    made.undo()
    try:
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_undo_finds_processes_that_carry_the_mark() -> None:
    made = Ledger.create("x")
    process = sleeper(**{ledgers.RUN_VARIABLE: str(made.folder)})
    made.undo()
    assert process.wait(5) is not None


def test_marked_ignores_the_mark_of_another_lab() -> None:
    made = Ledger.create("x")
    process = sleeper(**{ledgers.RUN_VARIABLE: f"{made.folder}0"})
    try:
        assert marked(made.folder) == []
        assert marked(Path(f"{made.folder}0")) == [process.pid]
    finally:
        process.kill()
        process.wait()


def test_end_kills_what_ignores_sigterm() -> None:
    process = stubborn()
    start = started(process.pid)
    assert start is not None
    assert end([(process.pid, start)], grace=0.05) == []
    assert started(process.pid) is None


def test_undo_of_an_unknown_kind_says_so_and_keeps_the_folder() -> None:
    made = Ledger.create("x")
    made.add("volcano", "a hill")
    with pytest.raises(LedgerError, match="volcano"):
        made.undo()
    assert made.folder.exists()


def test_undo_of_a_link_that_is_gone_is_fine() -> None:
    made = Ledger.create("x")
    made.add("link", "gone", link="lplab-none", index=999_999)
    made.add("netns", "gone", netns="lplab-none")
    made.add("mount", "gone", path=str(made.folder / "none"))
    made.undo()
    assert not made.folder.exists()


def test_undo_of_a_link_with_another_index_leaves_it_alone() -> None:
    made = Ledger.create("x")
    made.add("link", "lo, but not that one", link="lo", index=999_999)
    made.undo()
    assert Path("/sys/class/net/lo").exists()


def test_find_without_a_name_takes_the_only_lab() -> None:
    made = Ledger.create("x")
    assert Ledger.find().folder == made.folder


def test_find_among_several_asks_for_a_name() -> None:
    first, second = Ledger.create("x"), Ledger.create("y")
    with pytest.raises(NotFoundError, match=rf"{first.folder.name}, {second.folder.name}; name one"):
        Ledger.find()
    assert Ledger.find(second.folder.name).folder == second.folder


def test_find_of_an_unknown_name_lists_what_is_there() -> None:
    made = Ledger.create("x")
    with pytest.raises(NotFoundError, match=made.folder.name):
        Ledger.find("other")


def test_take_over_ends_the_process_that_holds_the_lab() -> None:
    made = Ledger.create("x")
    for own in made.standing("owner"):
        made.undone(own)
    process = sleeper()
    made.process(process.pid, "the lab itself", kind="owner")
    made.take_over()
    assert process.wait(5) in (0, -signal.SIGTERM)  # 0: the ledger has collected it first


def test_started_of_this_process_is_what_the_kernel_says() -> None:
    stat = Path("/proc/self/stat").read_text()
    assert started(os.getpid()) == int(stat.rsplit(")", 1)[1].split()[19])


def test_started_of_a_zombie_is_none() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert started(process.pid) is None
    process.wait()
