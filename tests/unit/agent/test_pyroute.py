"""pyroute2 is loaded in part, and stays whole for others."""

import subprocess
import sys


def said(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_agent_loads_no_database_of_the_network() -> None:
    loaded = "[m for m in ('sqlite3', 'pyroute2.ndb', 'pyroute2.conntrack', 'scapy') if m in sys.modules]"
    assert said(f"import sys, linkpass_agent.wiring; print({loaded})") == "[]"


def test_whoever_imports_the_library_later_gets_all_of_it_with_the_same_parts() -> None:
    code = (
        "from linkpass_agent.see import pyroute; part = pyroute.part();"
        "import pyroute2; print(pyroute2.NDB.__name__, pyroute2.AsyncIPRoute is part.AsyncIPRoute,"
        " pyroute.part() is part)"
    )
    assert said(code) == "NDB True True"


def test_library_that_is_there_already_is_used_as_it_is() -> None:
    code = (
        "import pyroute2; from linkpass_agent.see import pyroute;"
        "print(pyroute.part().IPRoute is pyroute2.IPRoute, 'pyroute2' in __import__('sys').modules)"
    )
    assert said(code) == "True True"
