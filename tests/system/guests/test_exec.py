"""The exec channel of a guest."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from linkpass_lab.guests.channel import GuestProcess, open_command
from linkpass_lab.guests.frames import WINDOW, Kind
from linkpass_lab.lab import LabError


def until(true, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.05)


def test_streams_arrive_apart_with_the_exit_code(lab):
    done = lab.run("a", ["sh", "-c", "echo out; echo err >&2; exit 7"], check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


def test_output_streams_while_the_command_runs(lab):
    with lab.start("a", ["sh", "-c", "echo first; read line; echo $line"], input=None) as process:
        process.wait_for("first", 20)
        assert process.running
        process.write(b"second\n")
        assert process.wait(20) == 0
        assert process.stdout_bytes == b"first\nsecond\n"


def test_commands_at_the_same_time_do_not_wait_for_each_other(lab):
    with lab.start("a", ["cat"], input=None) as waiting:
        others = [lab.start("a", ["echo", str(n)]) for n in range(5)]
        assert [p.wait(20) for p in others] == [0] * 5
        assert [p.stdout_bytes for p in others] == [f"{n}\n".encode() for n in range(5)]
        assert waiting.running
        waiting.close_stdin()
        assert waiting.wait(20) == 0


def test_more_than_the_window_passes_unchanged_both_ways(lab):
    data = bytes(range(256)) * (4 * WINDOW // 256)
    with lab.start("a", ["cat"], input=data) as process:
        assert process.wait(60) == 0
        assert process.stdout_bytes == data


def test_command_that_nobody_reads_from_stops_and_holds_up_nobody(lab):
    with open_command(lab.folder, "a", ["yes", "unread-output"]):
        until(lambda: lab.run("a", ["pgrep", "-f", "unread-output"], check=False).returncode == 0)
        assert lab.run("a", ["echo", "through"]).stdout == "through\n"
    until(lambda: lab.run("a", ["pgrep", "-f", "unread-output"], check=False).returncode == 1)


def test_signal_reaches_the_command_and_its_children(lab):
    with lab.start("a", ["sh", "-c", "sleep 987 & echo up; wait"]) as process:
        process.wait_for("up", 20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM
    until(lambda: lab.run("a", ["pgrep", "-f", "sleep 987"], check=False).returncode == 1)


def test_unknown_command_is_an_error_that_names_it(lab):
    with pytest.raises(LabError, match="no-such-thing: No such file"):
        lab.run("a", ["no-such-thing"])


def test_stand_in_process_has_the_commands_streams_and_exit_code(lab):
    program = ["sh", "-c", "cat; echo done >&2; exit 5"]
    pipe = subprocess.PIPE
    with lab.popen("b", program, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.communicate(b"hello", timeout=60) == (b"hello", b"done\n")
    assert process.returncode == 5


def test_stand_in_process_passes_signals_on_and_ends_by_the_same(lab):
    program = ["sh", "-c", "trap 'echo hup' HUP; echo up; while true; do sleep 0.05; done"]
    with lab.popen("b", program, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == b"hup\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


def test_killed_stand_in_takes_the_command_along(lab):
    with lab.popen("b", ["sleep", "876"]) as process:
        until(lambda: lab.run("b", ["pgrep", "-f", "sleep 876"], check=False).returncode == 0)
        process.kill()
    until(lambda: lab.run("b", ["pgrep", "-f", "sleep 876"], check=False).returncode == 1)


def test_shell_has_a_terminal_of_the_callers_size(lab):
    ours, theirs = os.openpty()
    module = [sys.executable, "-m", "linkpass_lab.guests.proxy", "--tty", str(lab.folder), "a"]
    env = {**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p)}
    process = subprocess.Popen([*module, "sh", "-c", "tty; stty size"], stdin=theirs, stdout=theirs, env=env)
    os.close(theirs)
    assert process.wait(60) == 0
    said = os.read(ours, 4096).decode()
    os.close(ours)
    assert said.splitlines()[0].startswith("/dev/pts/")
    assert said.splitlines()[1] == "0 0"


def test_project_and_pyverbs_are_usable_inside(lab):
    words = "import linkpass_agent, json, pyverbs.device as d\n"
    words += "print(json.dumps([x.name.decode() for x in d.get_device_list()]))"
    done = lab.run("a", [sys.executable, "-c", words], timeout=120)
    assert sorted(json.loads(done.stdout.splitlines()[-1])) == ["rxe0", "rxe1"]


def test_run_folder_is_shared_for_writing(lab):
    lab.run("a", ["sh", "-c", f"echo hello > {lab.folder}/note"])
    assert (lab.folder / "note").read_text() == "hello\n"
    assert lab.run("b", ["cat", str(lab.folder / "note")]).stdout == "hello\n"


def test_root_of_the_host_cannot_be_written_to(lab, tmp_path):
    victim = tmp_path / "file"
    victim.write_text("mine")
    lab.run("a", ["sh", "-c", f"echo theirs > {victim}"])
    assert victim.read_text() == "mine"


def test_detached_command_outlives_its_caller(lab):
    log = lab.folder / "detached.log"
    pid = lab.detach("a", ["sh", "-c", "echo begun; exec sleep 765"], log)
    until(lambda: log.exists() and log.read_text() == "begun\n")
    assert lab.run("a", ["kill", str(pid)]).returncode == 0


def test_guests_reach_each_other_by_gx(lab):
    done = lab.run("a", ["gx", "b", "hostname;", "exit", "9"], check=False, timeout=60)
    assert (done.returncode, done.stdout) == (9, "b\n")


def test_frames_of_a_gone_guest_fail_and_name_it(lab):
    with pytest.raises(KeyError, match="no guest 'z'"):
        lab.run("z", ["true"])
    with GuestProcess(lab.folder, "z", ["true"]) as process, pytest.raises(LabError, match="no guest 'z'"):
        process.wait(20)
    assert process.output[Kind.STDOUT] == b""
