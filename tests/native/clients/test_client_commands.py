"""The clients' command lines, as far as they go without an RDMA device."""

import json
import socket
import subprocess
import time
from pathlib import Path

import pytest

from linkpass_lab.clients.build import build_clients

PROGRAMS = ["rcflow", "ncclflow"]


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_clients(tmp_path_factory.mktemp("clients"), "asan")


def run(program: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *args], capture_output=True, text=True, timeout=60, check=False)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_names_every_section_and_exits_zero(clients: Path, name: str) -> None:
    done = run(clients / f"{name}.asan", "--help")
    assert done.returncode == 0
    for section in ("SYNOPSIS", "CONNECTION", "TIME LIMITS", "OUTPUT", "RESULT", "--deadline"):
        assert section in done.stdout


@pytest.mark.parametrize(
    ("name", "args", "named"),
    [
        ("rcflow", ["--ops", "write,fly"], "'fly'"),
        ("rcflow", ["-s", "-5"], "'-5'"),
        ("rcflow", ["-s", "4k-1k"], "range of sizes"),
        ("rcflow", ["-s", "1,2-3"], "not both"),
        ("rcflow", ["--window", "4"], "window"),
        ("rcflow", ["--retry", "8"], "--retry"),
        ("rcflow", ["--mtu", "1500"], "'1500'"),
        ("rcflow", ["-n", "5", "-D", "5"], "exclude"),
        ("rcflow", ["-D", "nan"], "'nan'"),
        ("rcflow", ["-l", "64"], "post list"),
        ("rcflow", ["-n", "99999999999999999999"], "--iters"),
        ("rcflow", ["host", "other"], "'other'"),
        ("rcflow", ["--no-such-option"], "no-such-option"),
        ("rcflow", ["--log", "/no/such/folder/log", "-n", "1"], "/no/such/folder/log"),
        ("ncclflow", ["-q", "5"], "--qp"),
        ("ncclflow", ["-g", "9"], "--group"),
        ("ncclflow", ["-s", "9-3"], "sizes"),
        ("ncclflow", ["-n", "5", "-D", "5"], "exclude"),
    ],
)
def test_mistake_on_the_command_line_is_named_and_exits_two(
    clients: Path, name: str, args: list[str], named: str
) -> None:
    done = run(clients / f"{name}.asan", *args)
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", PROGRAMS)
def test_client_without_a_server_ends_with_no_peer(clients: Path, name: str) -> None:
    done = run(clients / f"{name}.asan", "--wait", "0", "-p", str(free_port()), "127.0.0.1")
    result = json.loads(done.stdout)
    assert done.returncode == 1
    assert (result["finished"], result["exit"], result["side"]) == (False, 1, "client")
    assert (result["error"]["name"], result["error"]["status"], result["error"]["side"]) == ("NO_PEER", 0, "client")
    assert "is the server running" in done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_server_without_a_client_ends_with_no_peer(clients: Path, name: str) -> None:
    done = run(clients / f"{name}.asan", "--wait", "0", "-p", str(free_port()))
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["name"] == "NO_PEER"


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    "spoken",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x01\x00\x00\x00\x02" + bytes(16),
        b"\x00\x00\x00\x01\xff\xff\xff\xff",
        b"\x00\x00\x00\x07\x00\x00\x00\x00",
        b"",
    ],
    ids=["http", "short_hello", "huge_message", "other_message", "silent_close"],
)
def test_server_hearing_nonsense_ends_with_an_error(clients: Path, name: str, spoken: bytes) -> None:
    port = free_port()
    server = subprocess.Popen(
        [clients / f"{name}.asan", "--wait", "20", "-p", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 20
    while True:
        try:
            peer = socket.create_connection(("127.0.0.1", port), timeout=5)
            break
        except OSError:
            assert server.poll() is None and time.monotonic() < until
    with peer:
        peer.sendall(spoken)
        peer.shutdown(socket.SHUT_WR)
        out, err = server.communicate(timeout=30)
    assert server.returncode == 1
    assert json.loads(out)["error"]["name"] in ("PEER_LOST", "PROTOCOL")
    assert "Sanitizer" not in err
