"""What a verb of linkpassctl is, and what it gets to work with."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from linkpass.client import Client

OK, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3


@dataclass(frozen=True)
class Context:
    """One call of linkpassctl. `out` is where answers go."""

    args: argparse.Namespace
    client: Client
    out: TextIO
    parser: argparse.ArgumentParser

    def ask(self, method: str, target: str, body: object = None) -> Any:
        """The agent's answer, parsed; None when --json has printed it as it came."""
        text = self.client.request(method, target, body)
        if self.args.json:
            print(text, file=self.out)
        return json.loads(text)

    def say(self, text: str = "") -> None:
        """A line for people."""
        print(text, file=self.out)


@dataclass(frozen=True)
class Verb:
    """`run` gives the exit code; `options` adds arguments to the verb's own parser."""

    name: str
    help: str
    examples: str
    run: Callable[[Context], int]
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
