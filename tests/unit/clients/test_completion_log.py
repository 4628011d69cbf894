"""The reader of completion logs, against bytes laid out by hand after common/completion_log.h."""

from pathlib import Path

import pytest

from linkpass_lab.clients.completion_log import Completion, read_completions

ONE = bytes.fromhex(
    "0500000000000000"  # 5 ns
    "0201000000000000"  # sequence 258
    "03000000"  # queue pair 3
    "00100000"  # 4096 bytes
    "01"  # a receive
    "02"  # SEND
    "0c00"  # RETRY_EXC_ERR
    "00000000"
)


def test_log_record_is_read_field_by_field(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"LPCLOG1\n" + ONE + ONE)
    expected = Completion(at_ns=5, sequence=258, queue_pair=3, byte_len=4096, is_receive=True, operation=2, status=12)
    assert list(read_completions(log)) == [expected, expected]


def test_log_cut_short_loses_only_its_last_record(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"LPCLOG1\n" + ONE + ONE[:31])
    assert len(list(read_completions(log))) == 1


def test_log_without_records_is_empty(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"LPCLOG1\n")
    assert list(read_completions(log)) == []


def test_other_file_is_refused_with_its_name(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"{}")
    with pytest.raises(ValueError, match="other is not a completion log"):
        list(read_completions(other))
