"""Every error that LinkPass raises on purpose.

    LinkPassError
    ├── ConfigError        a file or option is wrong: names file, line, key and remedy
    ├── RefusedError       a guard said no: the last usable path, a missing permission
    ├── NotFoundError      a port, peer or object that isn't there
    ├── UnreachableError   the agent can't be reached over its socket
    ├── WireError          bytes or values that the wire format doesn't allow
    └── KernelError        the kernel refused a request (carries errno)

The message is one line that names the thing and the remedy.
"""

import os
from dataclasses import dataclass
from pathlib import Path


class LinkPassError(Exception):
    """Root of all deliberate errors."""


@dataclass
class ConfigError(LinkPassError):
    """Bad configuration. `line` is 1-based, 0 when it is unknown; `key` is the dotted path, '' for syntax errors."""

    path: Path
    line: int
    key: str
    problem: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{where}: {self.key}: {self.problem}" if self.key else f"{where}: {self.problem}"


class RefusedError(LinkPassError):
    """A guard refused; the message says which one."""


class NotFoundError(LinkPassError):
    """No such port, peer or object."""


class UnreachableError(LinkPassError):
    """The agent can't be reached."""


class WireError(LinkPassError):
    """Input from the network, or a value bound for it, that breaks a rule of the wire format."""


class KernelError(LinkPassError):
    """The kernel answered a request with an error."""

    def __init__(self, request: str, errno: int) -> None:
        super().__init__(f"{request}: {os.strerror(errno)} (errno {errno})")
        self.errno = errno
