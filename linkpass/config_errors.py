"""Turns pydantic's errors about a config file into lines for whoever edits it: FILE:LINE: key: problem and remedy."""

import difflib
import re
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from linkpass import toml_lines
from linkpass.errors import ConfigError


def first_of(error: ValidationError, model: type[BaseModel], text: str, path: Path) -> ConfigError:
    """The first error of the file; all others follow it in `problem`, a line each."""
    lines = toml_lines.line_map(text)
    end = max(1, len(text.splitlines()))
    found = []
    for detail in error.errors(include_url=False):
        at = _path_of(detail)
        line = toml_lines.line_of(lines, at) or end  # nothing of it is there: to be added at the end
        found.append(ConfigError(path, line, _dotted(at), _problem(detail, model)))
    first, *rest = sorted(found, key=lambda e: (e.line, e.problem.startswith("missing")))
    return ConfigError(path, first.line, first.key, "\n".join([first.problem, *map(str, rest)]))


def _path_of(detail: ErrorDetails) -> toml_lines.Path:
    extra = str(detail.get("ctx", {}).get("key", ""))
    return (*detail["loc"], *(int(p) if p.isdigit() else p for p in extra.split(".") if p))


def _dotted(path: toml_lines.Path) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else repr(part)
            text += f".{shown}" if text else shown
    return text


def _problem(detail: ErrorDetails, model: type[BaseModel]) -> str:
    """One error of pydantic in words for whoever edits the file."""
    match detail["type"]:
        case "linkpass":
            return detail["msg"]
        case "extra_forbidden":
            return "unknown key" + _suggestion(detail["loc"], model)
        case "missing":
            return "missing" + _remedy(detail["loc"])
        case "model_type":
            return f"should be a table: [{_dotted(detail['loc'])}]"
        case "tuple_type" if detail["loc"] == ("port",):
            return "should be an array of tables: write [[port]], once for each fabric port"
        case "tuple_type" if detail["loc"] == ("rule",):
            return "should be an array of tables: write [[rule]], once for each change"
        case "tuple_type":
            return "should be a list"
    problem = detail["msg"].replace("Input should", "should").replace("String should", "should")
    value = detail["input"]
    return f"{problem}, got {value!r}" if isinstance(value, str | int | float) else problem


def _remedy(loc: toml_lines.Path) -> str:
    hints: dict[toml_lines.Path, str] = {
        ("port",): "; add a [[port]] with name and rail for each fabric port",
        ("share",): "; add a [share] with listen and keyring",
        ("share", "listen"): '; give our management address, like "10.99.0.1:7471"',
        ("share", "keyring"): "; give the path of the fleet's keys",
    }
    return hints.get(loc, "")


def _suggestion(loc: toml_lines.Path, whole: type[BaseModel]) -> str:
    """A known key that looks like the unknown one, or the table where it belongs."""
    *parents, unknown = loc
    known = _keys_at(tuple(parents), whole)
    tables = [t for t in _keys_at((), whole) if t not in ("port", "rule") and unknown in _keys_at((t,), whole)]
    if tables:
        return f"; it belongs into [{'] or ['.join(tables)}]"
    near = difflib.get_close_matches(str(unknown), known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known here: {', '.join(known)}"


def _keys_at(path: toml_lines.Path, whole: type[BaseModel]) -> list[str]:
    model: type[BaseModel] | None = whole
    for part in path:
        if isinstance(part, int):
            continue
        fields = {f.alias or n: f.annotation for n, f in (model.model_fields if model else {}).items()}
        candidates = [fields.get(part), *get_args(fields.get(part))]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return [f.alias or n for n, f in model.model_fields.items()] if model else []
