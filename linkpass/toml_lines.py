"""Where in a TOML file each key stands.

`tomllib` forgets lines, yet a message about a bad value must name one. `line_map` reads a text that tomllib has
already accepted and gives the 1-based line of every table, array element and key, under the path that leads to it
in the parsed value: ("port", 0, "name"). It checks nothing: that is tomllib's part.
"""

import re
import tomllib
from bisect import bisect_right

Path = tuple[str | int, ...]

_BLANK = re.compile(r"[ \t]*")
_FILLER = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\\n])*"'),
    re.compile(r"'[^'\n]*'"),
)
_SCALAR = re.compile(r"[^,\]}#\n]+")  # numbers, booleans, dates (which may hold one space)


def line_map(text: str) -> dict[Path, int]:
    """The line of every path of `text`, which must be valid TOML. The empty path is not in it."""
    return _Scanner(text).run()


def line_of(lines: dict[Path, int], path: Path) -> int:
    """The line of `path`, or of the nearest enclosing table that is written down; 0 when nothing of it is."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return 0


class _Scanner:
    """One pass over the text; `lines` fills up as it goes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.newlines = [m.start() for m in re.finditer("\n", text)]
        self.lines: dict[Path, int] = {}
        self.elements: dict[Path, int] = {}  # array of tables -> how many elements so far

    def run(self) -> dict[Path, int]:
        table: Path = ()
        self.skip(_FILLER)
        while self.pos < len(self.text):
            table = self.header() if self.text[self.pos] == "[" else self.assignment(table)
            self.skip(_FILLER)
        return self.lines

    def here(self) -> int:
        return bisect_right(self.newlines, self.pos - 1) + 1

    def skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.pos)
        assert found is not None, f"not TOML at line {self.here()}"
        self.pos = found.end()
        return found.group()

    def header(self) -> Path:
        """`[a.b]` or `[[a.b]]`; gives the path of the table that begins here."""
        line = self.here()
        brackets = 2 if self.text.startswith("[[", self.pos) else 1
        self.pos += brackets
        names = self.key()
        self.pos += brackets
        path: Path = ()
        for i, name in enumerate(names):
            path = (*path, name)
            self.lines.setdefault(path, line)
            if i < len(names) - 1 and path in self.elements:
                path = (*path, self.elements[path] - 1)
        if brackets == 2:
            count = self.elements.get(path, 0)
            self.elements[path] = count + 1
            path = (*path, count)
        self.lines[path] = line
        return path

    def assignment(self, table: Path) -> Path:
        """`key = value`; gives `table` back, which goes on."""
        line = self.here()
        path = table
        for name in self.key():
            path = (*path, name)
            self.lines.setdefault(path, line)
        self.pos += 1  # the "="
        self.skip(_BLANK)
        self.value(path)
        return table

    def key(self) -> list[str]:
        """A dotted key, bare or quoted, with the blanks around it."""
        names = []
        while True:
            self.skip(_BLANK)
            names.append(self.simple_key())
            self.skip(_BLANK)
            if not self.text.startswith(".", self.pos):
                return names
            self.pos += 1

    def simple_key(self) -> str:
        if self.text[self.pos] in "\"'":
            raw = self.string()
            return str(tomllib.loads(f"k = {raw}")["k"])
        return self.skip(_BARE_KEY)

    def string(self) -> str:
        for pattern in _STRINGS:
            found = pattern.match(self.text, self.pos)
            if found:
                self.pos = found.end()
                return found.group()
        raise AssertionError(f"not TOML at line {self.here()}")

    def value(self, path: Path) -> None:
        first = self.text[self.pos]
        if first in "\"'":
            self.string()
        elif first == "[":
            self.array(path)
        elif first == "{":
            self.inline_table(path)
        else:
            self.skip(_SCALAR)

    def array(self, path: Path) -> None:
        self.pos += 1
        index = 0
        while True:
            self.skip(_FILLER)
            if self.text[self.pos] == "]":
                break
            self.lines[(*path, index)] = self.here()
            self.value((*path, index))
            self.skip(_FILLER)
            if self.text[self.pos] == ",":
                self.pos += 1
            index += 1
        self.pos += 1

    def inline_table(self, path: Path) -> None:
        self.pos += 1
        while True:
            self.skip(_FILLER)
            if self.text[self.pos] == "}":
                break
            self.assignment(path)
            self.skip(_FILLER)
            if self.text[self.pos] == ",":
                self.pos += 1
        self.pos += 1
