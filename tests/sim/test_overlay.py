"""Tables that simulated hosts share until they differ."""

import pytest

from linkpass_agent.simulate.overlay import Overlay


def test_change_in_one_table_stays_out_of_the_others_and_of_the_base() -> None:
    base = {"a": 1, "b": 2}
    one, other = (Overlay[str, list[int]](base, lambda n: [n]) for _ in range(2))
    one["a"].append(7)
    one["b"] = [9]
    one["c"] = [3]
    assert (one["a"], one["b"], one.get("c")) == ([1, 7], [9], [3])
    assert (other["a"], other["b"], other.get("c")) == ([1], [2], None)
    assert (list(one), len(one), len(other)) == (["a", "b", "c"], 3, 2)
    assert base == {"a": 1, "b": 2}


def test_key_of_the_base_cannot_go() -> None:
    table = Overlay[str, int]({"a": 1}, lambda n: n)
    for take in (lambda: table.pop("a"), lambda: table.__delitem__("a")):
        with pytest.raises(TypeError, match="can't be taken out"):
            take()
