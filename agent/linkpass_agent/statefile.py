"""One file of remembered values: replaced in one step, and believed as a whole or not at all.

    {"schema": N, "digest": BLAKE2b of the body, "body": {...}}

A torn write, a flipped bit or another version's file is set aside as `NAME.corrupt-<n>` and never believed in part:
half a memory would be worse than none.
"""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter

from linkpass import durable

T = TypeVar("T")
STRICT = ConfigDict(allow_inf_nan=False, extra="forbid", strict=True)
# What reading a damaged file may raise: bad UTF-8 or JSON, wrong shapes, numbers without end, a million brackets.
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
KEPT = 9  # damaged files that are kept; the last place is used again


class StateFile(Generic[T]):
    """`kind` is a dataclass of the standard library. `lost`: what a reader does without when the file is damaged."""

    def __init__(self, path: Path, schema: int, kind: type[T], lost: str) -> None:
        self.path, self._schema, self._lost = path, schema, lost
        self._adapter = TypeAdapter(kind)

    def load(self) -> tuple[T | None, str]:
        """What was saved (None: nothing that can be believed), and a complaint ('' if there is none)."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None, ""
        except OSError as e:
            return None, f"{self.path}: {e.strerror}; {self._lost} of earlier runs are unknown"
        try:
            return self._decode(data), ""
        except DAMAGE as e:
            why = str(e).split("\n")[0]
            return None, f"{self.path} is damaged ({why}); {self._aside()}, its {self._lost} are lost"

    def encode(self, value: T) -> bytes:
        """The file's bytes."""
        body = self._adapter.dump_python(value, mode="json")
        return (json.dumps({"schema": self._schema, "digest": _digest(body), "body": body}, indent=1) + "\n").encode()

    def write(self, data: bytes) -> None:
        """Put these bytes in the file's place and make that durable. OSError if it can't be done."""
        durable.replace(self.path, data)

    # -- inside -----------------------------------------------------------------------------------------------

    def _decode(self, data: bytes) -> T:
        raw = json.loads(data)
        if raw["schema"] != self._schema:
            raise ValueError(f"schema {str(raw['schema'])[:40]}, this version of LinkPass writes {self._schema}")
        if raw["digest"] != _digest(raw["body"]):
            raise ValueError("its digest doesn't fit")
        return self._adapter.validate_json(json.dumps(raw["body"]))

    def _aside(self) -> str:
        names = [self.path.with_name(f"{self.path.name}.corrupt-{n}") for n in range(1, KEPT + 1)]
        aside = next((n for n in names if not n.exists()), names[-1])
        try:
            self.path.replace(aside)
        except OSError as e:
            return f"it can't be set aside ({e.strerror})"
        return f"set aside as {aside.name}"


def _digest(body: object) -> str:
    return blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()
