"""Where each key of a TOML text stands: lines counted by hand, and structure checked against tomllib."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass.toml_lines import Path, line_map, line_of


def test_keys_under_tables_and_dotted_keys_have_their_own_lines() -> None:
    text = "\n".join(
        [
            "# comment with [brackets] and = signs",  # 1
            "top = 1",  # 2
            "",  # 3
            "  [a . b]  # header",  # 4
            "x.y = 2 # dotted",  # 5
            "x.z = 3",  # 6
            "[a]",  # 7
            '"quo.ted" = 4',  # 8
            "'lit eral'=5",  # 9
        ]
    )
    assert line_map(text) == {
        ("top",): 2,
        ("a",): 7,
        ("a", "b"): 4,
        ("a", "b", "x"): 5,
        ("a", "b", "x", "y"): 5,
        ("a", "b", "x", "z"): 6,
        ("a", "quo.ted"): 8,
        ("a", "lit eral"): 9,
    }


def test_arrays_of_tables_count_their_elements_also_below_each_other() -> None:
    text = "[[p]]\nn = 1\n[[p]]\nn = 2\n[[p.q]]\nm = 3\n[[p.q]]\n[p.q.r]\nk = 4\n[[p]]\n[[p.q]]\n"
    assert line_map(text) == {
        ("p",): 1,
        ("p", 0): 1,
        ("p", 0, "n"): 2,
        ("p", 1): 3,
        ("p", 1, "n"): 4,
        ("p", 1, "q"): 5,
        ("p", 1, "q", 0): 5,
        ("p", 1, "q", 0, "m"): 6,
        ("p", 1, "q", 1): 7,
        ("p", 1, "q", 1, "r"): 8,
        ("p", 1, "q", 1, "r", "k"): 9,
        ("p", 2): 10,
        ("p", 2, "q"): 11,
        ("p", 2, "q", 0): 11,
    }


def test_lists_and_inline_tables_tell_the_line_of_each_element() -> None:
    text = 'l = [ # ]\n  1, # one\n  [2,\n 3],\n  {a = "}", b.c = [\n4]},\n]\nend = 1979-05-27 07:32:00 # date\nz = 1'
    assert line_map(text) == {
        ("l",): 1,
        ("l", 0): 2,
        ("l", 1): 3,
        ("l", 1, 0): 3,
        ("l", 1, 1): 4,
        ("l", 2): 5,
        ("l", 2, "a"): 5,
        ("l", 2, "b"): 5,
        ("l", 2, "b", "c"): 5,
        ("l", 2, "b", "c", 0): 6,
        ("end",): 8,
        ("z",): 9,
    }


@pytest.mark.parametrize(
    "value",
    [
        '"""\n[no]\nx = 1 \\"""" # """',
        '""""two quotes\n\nfirst"""""',
        "'''\nit's\n# no comment'''''",
        '""""""\n\n',
        r'"\"# ="' + "\n\n",
        "'\\'\n\n",
    ],
)
def test_strings_of_all_kinds_hide_what_looks_like_toml(value: str) -> None:
    text = f"a = {value}\nb = 1\n"
    assert set(tomllib.loads(text)) == {"a", "b"}  # the text is what it should be
    expected = len(text.splitlines())
    assert line_map(text) == {("a",): 1, ("b",): expected}


def test_windows_line_ends_count_once() -> None:
    assert line_map("a = 1\r\n\r\n[t]\r\nb = [\r\n1]\r\n") == {
        ("a",): 1,
        ("t",): 3,
        ("t", "b"): 4,
        ("t", "b", 0): 5,
    }


def test_line_of_a_missing_key_is_its_table_and_of_a_missing_table_zero() -> None:
    lines = line_map("\n[t]\na = 1\n")
    assert line_of(lines, ("t", "b", "c")) == 2
    assert line_of(lines, ("u", "b")) == 0
    assert line_of(lines, ()) == 0


def paths_of(value: Any, at: Path = ()) -> set[Path]:
    """Every path of a parsed value, from the value alone."""
    pairs: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    return {(*at, k) for k, _ in pairs}.union(*(paths_of(v, (*at, k)) for k, v in pairs))


WORDS = st.text(alphabet="ab.\"'#[]{}=,\\ é\n", max_size=6)
SCALARS = st.one_of(st.integers(), st.booleans(), WORDS)
VALUES = st.recursive(
    SCALARS, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(WORDS, v, max_size=3)), max_leaves=8
)


def quoted(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}
    return '"' + "".join(escapes.get(c, c) for c in text) + '"'


def spelled(value: Any) -> str:
    """TOML of one value, lists spread over lines."""
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case str():
            return quoted(value)
        case list():
            return "[ # [\n" + "".join(f"{spelled(v)}, # {{\n" for v in value) + "]"
    return "{" + ", ".join(f"{quoted(k)} = {spelled(v)}" for k, v in value.items()) + "}"


@given(st.dictionaries(WORDS, st.dictionaries(WORDS, VALUES, max_size=4), max_size=4))
def test_any_document_yields_exactly_the_paths_that_tomllib_parses(document: dict[str, dict[str, Any]]) -> None:
    text = ""
    expected_header: dict[Path, int] = {}
    for name, table in document.items():
        expected_header[(name,)] = text.count("\n") + 1
        text += f"[ {quoted(name)} ]\n"
        for key, value in table.items():
            expected_header[(name, key)] = text.count("\n") + 1
            text += f"{quoted(key)} = {spelled(value)} # end\n"
    assert tomllib.loads(text) == document
    lines = line_map(text)
    assert set(lines) == paths_of(document)
    assert {p: n for p, n in lines.items() if len(p) < 3 and p in expected_header} == expected_header
