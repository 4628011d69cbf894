"""linkpass run and linkpass env, as processes of their own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from linkpass import run
from linkpass.errors import LinkPassError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    """A folder like the installed one. The library is a real, empty one: a job must start with it."""
    folder = tmp_path / "verbs"
    folder.mkdir()
    source = tmp_path / "empty.c"
    source.write_text("int linkpass_nothing;\n")
    for name in (run.SHIM, run.NCCL_NAME):
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / name, source], check=True)
    return folder


def linkpass(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LINKPASS", "LD_", "NCCL"))}
    return subprocess.run(
        [sys.executable, "-m", "linkpass.run", *args],
        env={**env, "PYTHONPATH": str(ROOT), **environ}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """A socket where something listens, as an agent's would."""
    path = tmp_path / "jobs.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(path))
        sock.listen(8)
        yield path


def wish(shim: Path, path: Path, **other: object) -> run.Wish:
    return run.Wish(str(path), shim, "train", **{"rails": (), **other})  # type: ignore[arg-type]


def test_command_gets_the_variables_and_the_line_says_protected(shim: Path, agent: Path) -> None:
    script = (
        "for v in LD_PRELOAD LD_LIBRARY_PATH NCCL_IBVERBS_LIB LINKPASS_JOBS_SOCKET LINKPASS_JOB; "
        "do eval echo \\$$v; done"
    )
    done = linkpass(
        "run", "--rails", "rail0,rail1", "--socket", str(agent), "--", "/bin/sh", "-c", script,
        LINKPASS_SHIM=str(shim), LD_LIBRARY_PATH="/opt/lib", LD_PRELOAD="",
    )  # fmt: skip
    assert done.stderr == "linkpass: protected\n"
    assert done.stdout.splitlines() == [
        str(shim / "libibverbs.so.1"),
        f"{shim}:/opt/lib",
        str(shim / "libibverbs.so.1"),
        str(agent),
        "sh@rail0,rail1",
    ]


def test_nested_run_attaches_once(shim: Path, agent: Path) -> None:
    once = run.variables(wish(shim, agent), {})
    assert run.variables(wish(shim, agent), once) == once


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_code_is_the_command_s_own(shim: Path, code: int) -> None:
    done = linkpass("run", "-q", "--", "/bin/sh", "-c", f"exit {code}", LINKPASS_SHIM=str(shim))
    assert (done.returncode, done.stderr) == (code, "")


def test_signals_are_the_command_s_own(shim: Path) -> None:
    done = linkpass("run", "-q", "--", "/bin/sh", "-c", "kill -SEGV $$", LINKPASS_SHIM=str(shim))
    assert done.returncode == -signal.SIGSEGV


def test_run_becomes_the_command(shim: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LINKPASS_SHIM": str(shim)}
    child = subprocess.Popen(
        [sys.executable, "-m", "linkpass.run", "run", "-q", "--", "/bin/sh", "-c", "echo $$"],
        env=env, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    out, _ = child.communicate(timeout=60)
    assert int(out) == child.pid


def test_unknown_command_is_127_as_in_a_shell(shim: Path) -> None:
    done = linkpass("run", "-q", "--", "no-such-command-here", LINKPASS_SHIM=str(shim))
    assert (done.returncode, done.stderr) == (127, "linkpass: no-such-command-here: no such command\n")


def test_without_a_command_usage_is_told() -> None:
    done = linkpass("run")
    assert (done.returncode, done.stderr) == (
        2,
        "linkpass: what shall be run? linkpass run -- COMMAND [ARGUMENT...]\n",
    )


def test_job_runs_without_agent_and_the_line_says_so(shim: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.sock"
    done = linkpass("run", "--", "/bin/true", LINKPASS_SHIM=str(shim), LINKPASS_JOBS_SOCKET=str(nowhere))
    assert done.returncode == 0
    assert done.stderr == (
        f"linkpass: not protected: no agent lets jobs attach at {nowhere} (No such file or directory)\n"
    )


@pytest.mark.parametrize(
    ("environ", "socket_path"),
    [
        ({}, "/run/linkpass/jobs.sock"),
        ({"LINKPASS_SOCKET": "/run/lab/agent.sock"}, "/run/lab/jobs.sock"),
        ({"LINKPASS_SOCKET": "/run/lab/agent.sock", "LINKPASS_JOBS_SOCKET": "/opt/j"}, "/opt/j"),
    ],
)
def test_jobs_socket_is_beside_the_one_that_linkpassctl_uses(environ: dict[str, str], socket_path: str) -> None:
    assert run._wish(run.parser().parse_args(["run", "--", "x"]), environ, "x").socket == socket_path


def test_job_runs_untouched_without_the_library(agent: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    done = linkpass(
        "run", "--socket", str(agent), "--", "/bin/sh", "-c", 'echo "[$LD_PRELOAD]"', LINKPASS_SHIM=str(gone)
    )
    assert (done.returncode, done.stdout) == (0, "[]\n")
    assert f"not protected: the shim is not installed: there is no {gone / 'libibverbs.so.1'}" in done.stderr


def test_static_program_is_recognised(shim: Path, agent: Path, tmp_path: Path) -> None:
    source = tmp_path / "static.c"
    source.write_text("void _start(void) { for (;;) ; }\n")
    binary = tmp_path / "static"
    subprocess.run(["cc", "-static", "-nostdlib", "-o", binary, source], check=True)
    assert "is linked statically" in run.hindrance(wish(shim, agent), str(binary))
    assert run.hindrance(wish(shim, agent), "/bin/true") == ""


def test_damaged_program_is_left_to_the_kernel(shim: Path, agent: Path, tmp_path: Path) -> None:
    for content in (b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(20), b"#!/bin/sh\n", bytes(range(64))):
        (tmp_path / "odd").write_bytes(content)
        assert run.hindrance(wish(shim, agent), str(tmp_path / "odd")) == ""


def test_job_s_name_and_rails_fit_the_hello_frame(shim: Path, agent: Path) -> None:
    long = run.Wish(str(agent), shim, "j" * 100, ("rail0", "rail1"))
    name = run.variables(long, {})["LINKPASS_JOB"]
    assert len(name) == 63 and name.endswith("@rail0,rail1")
    with pytest.raises(LinkPassError, match="--rails"):
        run._wish(run.parser().parse_args(["run", "--rails", "r" * 70, "--", "x"]), {}, "x")


def test_env_is_for_any_shell_and_keeps_what_it_has(shim: Path, agent: Path) -> None:
    done = linkpass(
        "env", "--prefix", "/opt/link pass", "--socket", str(agent), "--job", "it's", LINKPASS_SHIM=str(shim)
    )
    script = done.stdout + 'printf "%s\\n" "$LD_LIBRARY_PATH" "$LD_PRELOAD" "$LINKPASS_JOB"'
    for before, rest in (({}, ""), ({"LD_LIBRARY_PATH": "/a:/b"}, ":/a:/b")):
        got = subprocess.run(["/bin/dash", "-c", script], env=before, capture_output=True, text=True, check=True)
        lines = got.stdout.splitlines()
        assert lines[0] == f"/opt/link pass{rest}"
        assert lines[2] == "it's"


def test_run_imports_nothing_but_the_standard_library() -> None:
    heavy = "('pydantic', 'cffi', 'starlette', 'pyroute2')"
    code = f"import sys; import linkpass.run; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
