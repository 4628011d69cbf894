"""Reading the kernel's answers about queue pairs. That it gives them is tested in guests."""

import struct
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from linkpass_agent.see import rdma_owner as r


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


# As Linux 6.1 answered a dump of rxe0's queue pairs: 17 of process 137, and the kernel's own 1.
TABLE = bytes.fromhex(
    "4c001400080015001100000008003c000100000008001c0089000000080016000000000008001700000000000800180000000000"
    "050019000000000005001a000200000005001b000000000038001400080003000100000008001500010000000c001d0069625f63"
    "6f726500080018000000000005001a000100000005001b0003000000"
)
DUMP = number(r.DEV_INDEX, 0) + attribute(r.DEV_NAME, b"rxe0\0") + attribute(r.RES_QP, TABLE)


def test_pid_is_found_beside_the_number_and_in_a_table() -> None:
    flat = number(r.DEV_INDEX, 0) + number(r.RES_LQPN, 17) + number(r.RES_PID, 137)
    assert r._pid_of(flat, 17) == 137
    assert r._pid_of(flat, 18) is None
    assert r._pid_of(DUMP, 17) == 137


def test_kernel_s_own_queue_pair_has_no_process() -> None:
    assert r._pid_of(number(r.RES_LQPN, 1) + attribute(29, b"ib_core\0"), 1) is None


def test_thread_is_traced_to_its_process(tmp_path: Path) -> None:
    (tmp_path / "138").mkdir()
    (tmp_path / "138" / "status").write_text("Name:\tpython3\nTgid:\t137\nPid:\t138\n")
    assert r.process_of(138, tmp_path) == 137
    assert r.process_of(139, tmp_path) is None


@given(st.binary(max_size=200), st.integers(0, 2**24 - 1))
def test_damaged_answer_gives_no_error(data: bytes, qpn: int) -> None:
    found = r._pid_of(data, qpn)
    assert found is None or 0 <= found < 2**32


def test_kernel_without_rdma_tells_nothing() -> None:
    owners = r.QueuePairOwners()
    assert owners.owner("no-such-device", 1, 17) is None
    owners.close()
    assert owners.owner("no-such-device", 1, 17) is None
