"""linkpass run, linkpass env: start a job with the verbs shim attached, or print what attaches it.

    linkpass run [--rails rail0,rail1] [--job NAME] -- COMMAND [ARGUMENT...]
    linkpass env [--rails ...] [--job NAME] [--prefix FOLDER]

`run` says on standard error, in one line, whether the job will be protected and why not, and then *becomes* the
command: exit code, signals, standard streams are its own. A job that can't be protected runs as without LinkPass.
Only the standard library is used, and nothing of it is needed where the job runs: see docs/jobs.md for containers.
"""

import argparse
import os
import shlex
import shutil
import socket
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from linkpass import __version__
from linkpass.client import DEFAULT_SOCKET, Client
from linkpass.errors import LinkPassError

JOBS_SOCKET = "jobs.sock"
DEFAULT_JOBS_SOCKET = str(Path(DEFAULT_SOCKET).with_name(JOBS_SOCKET))
SHIM, NCCL_NAME = "libibverbs.so.1", "libibverbs.so"
NAME = 63  # characters of LINKPASS_JOB: lp_hello.job in abi.h, less the NUL
PT_INTERP, ELF_HEAD = 3, 64  # elf(5)
USAGE, NOT_EXECUTABLE, NOT_FOUND = 2, 126, 127  # as shells and env(1) have them


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line and the environment ask for."""

    socket: str
    folder: Path  # where the shim lies
    job: str
    rails: tuple[str, ...]


def shim_folder(environ: Mapping[str, str]) -> Path:
    """The folder with the shim under both its names: LINKPASS_SHIM, or the one of this installation."""
    named = environ.get("LINKPASS_SHIM")
    return Path(named) if named else Path(str(resources.files("linkpass.shim") / "verbs"))


def variables(wish: Wish, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that attach the shim. What the job has in the two lists already stays, behind ours."""

    def first(own: str, name: str) -> str:
        rest = [part for part in environ.get(name, "").split(":") if part and part != own]
        return ":".join([own, *rest])

    shim = str(wish.folder / SHIM)
    job = wish.job
    if wish.rails:
        rails = "@" + ",".join(wish.rails)
        job = job[: NAME - len(rails)] + rails
    return {
        "LD_PRELOAD": first(shim, "LD_PRELOAD"),
        "LD_LIBRARY_PATH": first(str(wish.folder), "LD_LIBRARY_PATH"),
        "NCCL_IBVERBS_LIB": shim,
        "LINKPASS_JOBS_SOCKET": wish.socket,
        "LINKPASS_JOB": job[:NAME],
    }


def hindrance(wish: Wish, command: str | None) -> str:
    """Why the job won't be protected; '' if, as far as can be told from here, it will."""
    for name in (SHIM, NCCL_NAME):
        if not (wish.folder / name).is_file():
            return f"the shim is not installed: there is no {wish.folder / name}"
    if command is not None and (why := _unattachable(Path(command))):
        return why
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(2.0)
        try:
            sock.connect(wish.socket)
        except OSError as e:
            return f"no agent lets jobs attach at {wish.socket} ({e.strerror or e})"
    return _agent_says(Path(wish.socket).with_name(Path(DEFAULT_SOCKET).name))


def _agent_says(control: Path) -> str:
    """What the agent itself has against it. Its control socket may not be within reach: then nothing is known."""
    try:
        status = Client(control, timeout=2.0).status()
        ports = Client(control, timeout=2.0).ports()
    except LinkPassError:
        return ""
    if status.get("mode") != "act":
        return "the agent is in shadow mode: it watches and does nothing"
    usable = [p for p in ports if p.get("state") in ("up", "suspect")]
    if len(usable) < 2:
        return f"only {len(usable)} of this host's {len(ports)} ports is usable: there is nowhere to move to"
    return ""


def _unattachable(command: Path) -> str:
    """Why the loader won't take a preloaded library into that program (ld.so(8))."""
    try:
        mode = command.stat().st_mode
        with command.open("rb") as f:
            head = f.read(ELF_HEAD)
            if len(head) < ELF_HEAD or head[:4] != b"\x7fELF":
                return ""  # a script, or something that the kernel will complain about
            if mode & (stat.S_ISUID | stat.S_ISGID) and os.geteuid() != 0:
                return f"{command} is set-uid: the loader preloads nothing into it"
            if head[4] != 2 or head[5] != 1:
                return f"{command} is no 64-bit little-endian program"
            offset = int.from_bytes(head[32:40], "little")
            size, count = int.from_bytes(head[54:56], "little"), int.from_bytes(head[56:58], "little")
            f.seek(offset)
            table = f.read(size * count)
    except OSError:
        return ""
    kinds = {int.from_bytes(table[i * size : i * size + 4], "little") for i in range(count)}
    return "" if PT_INTERP in kinds else f"{command} is linked statically: nothing can be preloaded into it"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    whole = argparse.ArgumentParser(prog="linkpass", description="Start jobs that survive link failures.")
    whole.add_argument("--version", action="version", version=f"linkpass {__version__}")
    verbs = whole.add_subparsers(dest="verb", metavar="VERB", required=True)
    run = verbs.add_parser("run", help="start a command with the shim attached", description="Start a job.")
    env = verbs.add_parser("env", help="print the variables that attach the shim, for a shell", description="Print.")
    for verb in (run, env):
        verb.add_argument("--rails", metavar="RAIL,...", help="only these rails may serve as spares")
        verb.add_argument("--job", metavar="NAME", help="what 'linkpassctl jobs' calls it (default: the command)")
        verb.add_argument(
            "--socket", metavar="PATH",
            help=f"the agent's socket for jobs (default: $LINKPASS_JOBS_SOCKET or {DEFAULT_JOBS_SOCKET})",
        )  # fmt: skip
    env.add_argument("--prefix", metavar="FOLDER", type=Path, help="where the shim's folder is mounted for the job")
    run.add_argument("--quiet", "-q", action="store_true", help="say nothing, not even that it isn't protected")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return whole


def _wish(args: argparse.Namespace, environ: Mapping[str, str], command: str) -> Wish:
    rails = tuple(r for r in (args.rails or "").split(",") if r)
    if args.rails is not None and (not rails or len("@" + ",".join(rails)) >= NAME):
        raise LinkPassError(f"--rails {args.rails!r}: give rails, separated by commas, {NAME - 2} characters at most")
    job = (args.job or environ.get("LINKPASS_JOB", "").partition("@")[0] or command).replace("@", "_")
    return Wish(args.socket or _jobs_socket(environ), shim_folder(environ), job, rails)


def _jobs_socket(environ: Mapping[str, str]) -> str:
    """LINKPASS_JOBS_SOCKET, or beside the control socket that LINKPASS_SOCKET names for `linkpassctl`."""
    if named := environ.get("LINKPASS_JOBS_SOCKET"):
        return named
    control = environ.get("LINKPASS_SOCKET")
    return str(Path(control).with_name(JOBS_SOCKET)) if control else DEFAULT_JOBS_SOCKET


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. `run` doesn't come back unless the command can't be started."""
    args = parser().parse_args(argv)
    try:
        return _env(args) if args.verb == "env" else _run(args)
    except LinkPassError as e:
        print(f"linkpass: {e}", file=sys.stderr)
        return USAGE


def _env(args: argparse.Namespace) -> int:
    wish = _wish(args, os.environ, "job")
    if args.prefix is not None:
        wish = Wish(wish.socket, args.prefix, wish.job, wish.rails)
    for name, value in variables(wish, {}).items():
        if name.startswith("LD_"):  # keep what the shell that reads this has
            print(f'export {name}={shlex.quote(value)}"${{{name}:+:${name}}}"')
        else:
            print(f"export {name}={shlex.quote(value)}")
    return 0


def _run(args: argparse.Namespace) -> int:
    command: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise LinkPassError("what shall be run? linkpass run -- COMMAND [ARGUMENT...]")
    found = shutil.which(command[0])
    wish = _wish(args, os.environ, Path(command[0]).name)
    why = hindrance(wish, found)
    if not args.quiet:
        print(f"linkpass: {f'not protected: {why}' if why else 'protected'}", file=sys.stderr, flush=True)
    environ = dict(os.environ)
    if (wish.folder / SHIM).is_file():  # a preload that isn't there would only make the loader complain
        environ |= variables(wish, os.environ)
    try:
        os.execvpe(command[0], command, environ)
    except FileNotFoundError:
        print(f"linkpass: {command[0]}: no such command", file=sys.stderr)
        return NOT_FOUND
    except OSError as e:
        print(f"linkpass: {command[0]}: {e.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main())
