"""Reads the completion log that `rcflow --log` and `ncclflow --log` write (layout: common/completion_log.h)."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"LPCLOG1\n"
_RECORD = struct.Struct("<QQIIBBHI")


@dataclass(frozen=True)
class Completion:
    """One completion as the client saw it.

    `at_ns` is CLOCK_MONOTONIC of that host. `sequence` is the request's number (of a failed receive: its slot).
    `queue_pair` is the index of the queue pair, for ncclflow of the connection. `operation` is rcflow's operation
    number (0 WRITE, 1 WRITE_WITH_IMM, 2 SEND, 3 SEND_WITH_IMM, 4 READ, 5 FETCH_ADD, 6 CMP_SWP; 255 unknown) or
    ncclflow's kind (1 data, 2 receive, 3 clear-to-send, 4 flush). `status` is the ibv_wc_status: 0 is success.
    """

    at_ns: int
    sequence: int
    queue_pair: int
    byte_len: int
    is_receive: bool
    operation: int
    status: int


def read_completions(path: Path) -> Iterator[Completion]:
    """Yield the records in order of completion.

    Raises ValueError when the file isn't a completion log. A last record that is cut short is left out: the client
    was killed while it wrote.
    """
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        raise ValueError(f"{path} is not a completion log: it doesn't start with {MAGIC!r}")
    whole = len(MAGIC) + (len(data) - len(MAGIC)) // _RECORD.size * _RECORD.size
    for at_ns, sequence, qp, byte_len, kind, operation, status, _ in _RECORD.iter_unpack(data[len(MAGIC) : whole]):
        yield Completion(at_ns, sequence, qp, byte_len, bool(kind), operation, status)
