"""Remote addresses from /proc/net, as the kernel prints them on a little-endian machine."""

from pathlib import Path

import pytest

from linkpass_agent.see.sockets import LOOK_AGAIN, Talking, remote_addresses
from tests.fakes.clock import FakeClock

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1001 1 0000000000000000 100
   1: 0100FF0A:A1B2 0200FF0A:1451 01 00000000:00000000 00:00000000 00000000     0        0 1002 1 0000000000000000 20
  12: 0100FF0A:A1B3 0300FF0A:1451 06 00000000:00000000 03:0000177B 00000000     0        0 0 3 0000000000000000
"""
UDP = """\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
 4711: 00000000:1D2F 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1003 2 0000000000000000 0
 4712: 0100FF0A:1D30 0400FF0A:12B5 01 00000000:00000000 00:00000000 00000000     0        0 1004 2 0000000000000000 0
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000
   1: 000000FD000000000000000001000000:A1B2 000000FD000000000000000002000000:1451 01 00000000:00000000 00:00000000
   2: 0000000000000000FFFF00000100FF0A:A1B2 0000000000000000FFFF00000500FF0A:1451 01 00000000:00000000 00:00000000
"""


def tables(tmp_path: Path, **text: str) -> Path:
    for name, content in text.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def test_connected_sockets_give_their_remote_addresses(tmp_path: Path) -> None:
    assert remote_addresses(tables(tmp_path, tcp=TCP, udp=UDP)) == {"10.255.0.2", "10.255.0.3", "10.255.0.4"}


def test_ipv6_addresses_are_read_and_mapped_ones_are_ipv4(tmp_path: Path) -> None:
    assert remote_addresses(tables(tmp_path, tcp6=TCP6)) == {"fd00::2", "10.255.0.5"}


def test_listening_and_unconnected_sockets_give_nothing(tmp_path: Path) -> None:
    listening = "\n".join(line for line in TCP.splitlines() if " 0A " in line)
    assert remote_addresses(tables(tmp_path, tcp=listening)) == frozenset()


@pytest.mark.parametrize(
    "text", ["", "sl\n", "garbage 1: 2\n", "0: 0100FF0A:A1B2 0200FF0A", "0: ZZ:A1B2 ZZ:0001 01\n"]
)
def test_tables_that_make_no_sense_give_nothing(tmp_path: Path, text: str) -> None:
    assert remote_addresses(tables(tmp_path, tcp=text, udp6=text)) == frozenset()


def test_missing_tables_give_nothing(tmp_path: Path) -> None:
    assert remote_addresses(tmp_path / "nowhere") == frozenset()


async def test_addresses_are_read_anew_only_after_a_while(tmp_path: Path) -> None:
    clock = FakeClock()
    talking = Talking(clock, tmp_path)
    assert talking.to() == frozenset()
    line = "   0: 0100007F:0016 0200000A:1234 01 rest\n"
    (tmp_path / "tcp").write_text(line)
    await talking.refresh()
    assert talking.to() == {"10.0.0.2"}
    (tmp_path / "tcp").write_text("")
    clock.advance(LOOK_AGAIN - 0.1)
    await talking.refresh()
    assert talking.to() == {"10.0.0.2"}
    clock.advance(0.1)
    await talking.refresh()
    assert talking.to() == frozenset()
