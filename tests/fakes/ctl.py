"""linkpassctl as a process of its own, against a given socket."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "linkpass.ctl"]


class Ctl:
    """Runs linkpassctl with the fixture's socket in its environment."""

    def __init__(self, socket: Path) -> None:
        self.environment = {**os.environ, "LINKPASS_SOCKET": str(socket), "PYTHONPATH": str(ROOT), "TERM": "xterm"}
        self.environment.pop("NO_COLOR", None)

    async def start(self, *args: str, stdout: int = subprocess.PIPE, **env: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *COMMAND, *args, stdout=stdout, stderr=subprocess.PIPE, env=self.environment | env, cwd="/"
        )

    async def __call__(self, *args: str) -> tuple[int | None, str, str]:
        child = await self.start(*args)
        out, err = await asyncio.wait_for(child.communicate(), 60)
        return child.returncode, out.decode(), err.decode()
