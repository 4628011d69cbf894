"""The ABI as Python reads it, against C's own view of the header, and against bytes that no honest shim sends."""

import re
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass.errors import WireError
from linkpass.shim import abi

SHIM = Path(abi.__file__).parent
WHO = abi.Identity(bytes(range(16)), bytes(range(16, 32)), 0x111111, 0x222222, 0x333333, 0x444444)
SPARE = abi.Spare(bytes(range(32, 48)), 2**63, 2**62, 2**31, 2**30, 5, 6, 3, 7, 1, 2**32 - 1)
MESSAGES: list[abi.Message] = [
    abi.Hello(0, "0.1", "train"),
    abi.Welcome(60_000, 1_000),
    abi.Refused("no"),
    abi.ConnUp(2**64 - 1, WHO, "mlx5_0", 2, 5, 7, 128, 256),
    abi.ConnDown(1, 2, 12),
    abi.ConnState(1, 5, 2, 1, 8, 10**10, 10**9, 10**8, 10**11, 10**13, 10**12, 3, 4),
    abi.SpareHere(1, WHO, SPARE),
    abi.SparePeer(1, WHO, SPARE),
    abi.SpareWant(1, "mlx5_1", 1, 7, 9),
    abi.SpareDrop(1, "mlx5_1", 1, 7, 9),
    abi.Order(0, 1, 8, "mlx5_0", 1, "carrier is down"),
    abi.Relay(1, WHO, abi.Tell(1, 2, 1, 8)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_frame_comes_back_as_it_was(message: abi.Message) -> None:
    assert abi.read(abi.pack(message, 7)) == message


def test_frame_of_a_connection_has_the_bytes_that_c_has(tmp_path: Path) -> None:
    """The same frame, made by a C compiler from the same header."""
    program = tmp_path / "frame.c"
    program.write_text(
        f"""#include <stdio.h>
#include <string.h>
#include "{SHIM / "abi.h"}"
int main(void) {{
    struct lp_conn_up up = {{.head = {{LP_FRAME_MAGIC, LP_ABI_VERSION, LP_CONN_UP, sizeof(up), 7}}, .conn = 77,
        .who = {{.local_qpn = 0x111111, .remote_qpn = 0x222222, .local_psn = 0x333333, .remote_psn = 0x444444}},
        .device = "mlx5_0", .port = 2, .mtu = 5, .flags = 7, .max_send_wr = 128, .max_recv_wr = 256}};
    for (int i = 0; i < 16; i++) {{ up.who.local_gid[i] = i; up.who.remote_gid[i] = 16 + i; }}
    return fwrite(&up, sizeof(up), 1, stdout) != 1;
}}
"""
    )
    binary = tmp_path / "frame"
    subprocess.run(["cc", "-std=c11", "-o", binary, program], check=True)
    made = subprocess.run([binary], capture_output=True, check=True).stdout
    assert abi.pack(abi.ConnUp(77, WHO, "mlx5_0", 2, 5, 7, 128, 256), seq=7) == made


def test_head_is_where_the_header_says() -> None:
    assert abi.pack(abi.Welcome(5, 6), seq=9)[:16] == b"LPFR" + struct.pack("<HHII", abi.C.LP_ABI_VERSION, 64, 40, 9)


def test_states_are_those_of_the_state_machine() -> None:
    found = re.search(r"enum lp_state \{(.*?)\n\};", (SHIM / "migrate.h").read_text(), re.DOTALL)
    assert found is not None
    names = re.findall(r"\bLP_([A-Z]+)\b(?=[ ,=\n])", re.sub(r"/\*.*?\*/", "", found[1], flags=re.DOTALL))
    assert [n.lower() for n in names if n != "STATES"] == list(abi.STATES)


def test_leader_is_the_end_with_the_smaller_gid_then_queue_pair() -> None:
    assert WHO.leads is True and WHO.mirror.leads is False
    assert WHO._replace(remote_gid=WHO.local_gid).leads is True
    assert WHO._replace(remote_gid=WHO.local_gid, remote_qpn=WHO.local_qpn).leads is None
    assert WHO.mirror.mirror == WHO


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (abi.ConnUp(0, WHO, "mlx5_0", 1, 3, 0, 1, 1), "no connection"),
        (abi.ConnUp(1, WHO._replace(local_qpn=1 << 24), "mlx5_0", 1, 3, 0, 1, 1), "local_qpn"),
        (abi.ConnUp(1, WHO, "../mlx5", 1, 3, 0, 1, 1), "no device's name"),
        (abi.ConnUp(1, WHO, "", 1, 3, 0, 1, 1), "no device's name"),
        (abi.ConnUp(1, WHO, "mlx5_0", 0, 3, 0, 1, 1), "port"),
        (abi.ConnUp(1, WHO, "mlx5_0", 1, 6, 0, 1, 1), "mtu"),
        (abi.ConnDown(1, 4, 0), "reason"),
        (abi.ConnState(1, 99, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0), "state"),
        (abi.ConnState(1, 1, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0), "spare"),
        (abi.Relay(1, WHO, abi.Tell(5, 0, 0, 0)), "kind"),
        (abi.Relay(1, WHO, abi.Tell(1, 0, 2, 0)), "hard"),
        (abi.Welcome(0, 1), "give_up_ms"),
        (abi.Order(1, 0, 8, "", 0, ""), "why"),
    ],
)
def test_value_out_of_bounds_is_named(message: abi.Message, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        abi.read(abi.pack(message))


def test_text_without_an_end_is_refused() -> None:
    frame = bytearray(abi.pack(abi.Hello(0, "1", "train")))
    frame[-64:] = b"x" * 64
    with pytest.raises(WireError, match="no NUL"):
        abi.read(bytes(frame))


def test_other_version_is_refused_by_name() -> None:
    frame = bytearray(abi.pack(abi.Hello(0, "1", "train")))
    frame[4] = 1
    with pytest.raises(WireError, match="ABI version 1, this agent speaks 3"):
        abi.read(bytes(frame))


def test_device_name_too_long_for_the_frame_is_refused_not_cut() -> None:
    with pytest.raises(WireError, match="longer than 27"):
        abi.pack(abi.SpareWant(1, "d" * 28, 1, 0, 0))


@given(st.binary(max_size=300))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        abi.read(data)


@given(st.sampled_from(MESSAGES), st.data())
def test_damaged_frame_is_refused_or_read_within_bounds(message: abi.Message, data: st.DataObject) -> None:
    frame = bytearray(abi.pack(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    for candidate in (bytes(frame), bytes(frame[:cut]), bytes(frame) + b"\0"):
        try:
            got = abi.read(candidate)
        except WireError:
            continue
        assert abi.read(abi.pack(got)) == got


@given(st.binary(min_size=48, max_size=48))
def test_identity_of_any_bytes_is_refused_or_survives(data: bytes) -> None:
    try:
        who = abi.load(abi.Identity, data)
    except WireError:
        return
    assert abi.dump(who) == data
