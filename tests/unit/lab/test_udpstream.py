"""The stream's arithmetic, and sender and receiver over the loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from linkpass_lab.udpstream import Gap, analyse, read

MS = 1_000_000


def test_stream_that_lost_nothing_has_no_gap() -> None:
    sent = [n * MS for n in range(10)]
    result = analyse(sent, [(n, n * MS) for n in range(10)])
    assert (result.sent, result.received, result.lost, result.duplicates) == (10, 10, 0, 0)
    assert result.longest_ms == 1.0
    assert result.gaps == ()


def test_gap_counts_what_was_sent_in_it_and_lost() -> None:
    sent = [n * MS for n in range(100)]
    result = analyse(sent, [(n, n * MS) for n in range(100) if not 20 <= n < 50])
    # The last arrival before is 19, the first after is 50: 31 ms; numbers 20 to 49 are missing.
    assert result.gaps == (Gap(0.019, 0.050, 30),)
    assert result.longest_ms == 31.0
    assert result.lost == 30


def test_outage_that_never_ended_lasts_until_the_sender_stopped() -> None:
    sent = [n * MS for n in range(100)]
    result = analyse(sent, [(n, n * MS) for n in range(40)], ended=120 * MS)
    assert result.gaps == (Gap(0.039, 0.120, 60),)


def test_stream_of_which_nothing_arrived_is_one_gap() -> None:
    result = analyse([0, 10 * MS], [], ended=20 * MS)
    assert result.longest_ms == 20.0
    assert (result.lost, result.received) == (2, 0)


def test_stream_never_sent_is_empty() -> None:
    result = analyse([], [])
    assert (result.sent, result.longest_ms, result.gaps) == (0, 0.0, ())


def test_packet_that_came_twice_is_a_duplicate_and_not_a_loss() -> None:
    result = analyse([0, MS, 2 * MS], [(0, 0), (1, MS), (1, MS + 1), (2, 2 * MS)])
    assert (result.received, result.lost, result.duplicates) == (3, 0, 1)


def test_packets_that_overtook_each_other_make_no_gap() -> None:
    result = analyse([0, MS, 2 * MS], [(0, 0), (2, 2 * MS), (1, 2 * MS + 1)])
    assert (result.lost, result.longest_ms) == (0, 2.0)


def test_gap_before_the_fault_is_not_the_faults() -> None:
    sent = [n * MS for n in range(100)]
    arrivals = [(n, n * MS) for n in range(100) if not 10 <= n < 40 and not 60 <= n < 70]
    assert analyse(sent, arrivals, after=50 * MS).gaps == (Gap(0.059, 0.070, 10),)


@given(st.sets(st.integers(0, 199)), st.lists(st.integers(0, 199), max_size=20))
def test_sent_is_always_received_plus_lost(dropped: set[int], again: list[int]) -> None:
    sent = [n * MS for n in range(200)]
    arrivals = [(n, n * MS) for n in range(200) if n not in dropped]
    arrivals += [(n, n * MS + 1) for n in again if n not in dropped]
    result = analyse(sent, arrivals, threshold_ms=0.0)
    assert result.received + result.lost == result.sent == 200
    assert result.lost == len(dropped)
    assert sum(g.lost for g in result.gaps) == len(dropped)
    assert result.duplicates == len([n for n in again if n not in dropped])


def test_sender_and_receiver_over_the_loopback_lose_nothing(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    packages = os.pathsep.join(sys.path)
    run = [sys.executable, "-m", "linkpass_lab.udpstream"]
    env = {**os.environ, "PYTHONPATH": packages}
    receiver = subprocess.Popen(
        [*run, "receive", "--bind", f"127.0.0.1:{port}", "--log", str(tmp_path / "received")],
        env=env,
        stdout=subprocess.PIPE,
    )
    assert receiver.stdout is not None
    assert "ready" in json.loads(receiver.stdout.readline())
    target = ["--bind", "127.0.0.1:0", "--to", f"127.0.0.1:{port}", "--seconds", "0.2"]
    subprocess.run(
        [*run, "send", *target, "--log", str(tmp_path / "sent")], env=env, check=True, stdout=subprocess.DEVNULL
    )
    receiver.send_signal(signal.SIGTERM)
    assert receiver.wait(10) == 0
    result = read(tmp_path)
    assert result.sent > 0
    assert (result.lost, result.duplicates, result.errors) == (0, 0, 0)
