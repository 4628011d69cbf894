"""Which lab the matrix goes on with when a cell couldn't be run."""

from types import SimpleNamespace

import pytest

from linkpass_lab.guests import survival
from linkpass_lab.guests.baseline import Book
from linkpass_lab.guests.protected import Result
from linkpass_lab.lab import LabError


class Bench:
    """A lab that counts; `heals` says whether it can be made whole."""

    def __init__(self, heals):
        self.heals, self.closed = heals, 0
        self.lab = SimpleNamespace(made=SimpleNamespace(accel=SimpleNamespace(kvm=False)))

    def heal(self):
        if not self.heals:
            raise LabError("a guest is dead")

    def close(self):
        self.closed += 1


@pytest.fixture
def matrix(monkeypatch, tmp_path):
    """Run two cells with given labs; `ends` says of each try how it ends."""

    def run(heals, ends):
        labs, outcomes = [], iter(ends)

        def up(**_):
            labs.append(Bench(heals))
            return labs[-1]

        def cell(_, wanted):
            if next(outcomes) == "fails":
                raise LabError("its server doesn't listen")
            return Result(wanted.workload, wanted.fault, "survived", {"status": ""})

        monkeypatch.setattr(survival.Protected, "up", up)
        monkeypatch.setattr(survival, "_cell", cell)
        todo = survival.cells(["rcflow"], ["own carrier", "far carrier"])
        book = Book(tmp_path / "matrix.json")
        failed = survival.run(book, todo, lambda _: None, page=tmp_path / "page.md", baseline=tmp_path / "none")
        assert [lab.closed for lab in labs] == [1] * len(labs)
        return failed, len(labs), [book.cells[c.key]["verdict"] for c in todo]

    return run


def test_lab_that_heals_is_kept_for_the_second_try(matrix):
    assert matrix(True, ["fails", "ends", "ends"]) == (0, 1, ["survived", "survived"])


def test_lab_that_does_not_heal_is_made_anew(matrix):
    assert matrix(False, ["fails", "ends", "ends"]) == (0, 2, ["survived", "survived"])


def test_lab_in_which_a_cell_failed_twice_is_made_anew(matrix):
    assert matrix(True, ["fails", "fails", "ends"]) == (1, 2, ["not run", "survived"])
