"""pyroute2's sockets for routes and links, without the rest of that library.

`import pyroute2` loads all of its parts, among them a database of the network with SQLite, conntrack, Wi-Fi and a 9P
server: 6 MiB and half of the library's import time, in an agent that uses one part. Parts find one another by their
full names, so a package whose `__init__` hasn't run is enough to load one. Whoever imports pyroute2 later gets all.
"""

import importlib
import sys
from importlib.util import find_spec, module_from_spec
from typing import Any

PACKAGE, PART = "pyroute2", "pyroute2.iproute.linux"


def part() -> Any:
    """The module of `IPRoute` and `AsyncIPRoute`."""
    if PACKAGE in sys.modules or PART in sys.modules:
        return importlib.import_module(PART)
    spec = find_spec(PACKAGE)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {PACKAGE!r}", name=PACKAGE)
    sys.modules[PACKAGE] = module_from_spec(spec)  # made, not run
    try:
        return importlib.import_module(PART)
    finally:
        del sys.modules[PACKAGE]
