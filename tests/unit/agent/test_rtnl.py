"""The very bytes of the requests, and reading the kernel's answers.

Expected bytes are written down by hand from include/uapi/linux/{netlink,rtnetlink,nexthop}.h, in pieces.
"""

import pytest

from linkpass_agent.act import rtnl
from linkpass_agent.act.rtnl import KernelRoute, NextHop


def h(text: str) -> bytes:
    """Bytes from hexadecimal text with comments and blanks."""
    return bytes.fromhex("".join(line.split("#")[0] for line in text.splitlines()))


def test_ipv4_next_hop_request_has_the_kernels_layout() -> None:
    message = rtnl.set_nexthop(0x4C500000, 3, "10.10.0.2", 76)
    assert (message.kind, message.flags) == (104, 0x001 | 0x004 | 0x400 | 0x100)  # REQUEST ACK CREATE REPLACE
    assert message.payload == h("""
        02 00 4c 00 00000000        # nhmsg: AF_INET, universe, protocol 76, no flags
        0800 0100 0000504c          # NHA_ID
        0800 0500 03000000          # NHA_OIF
        0800 0600 0a0a0002          # NHA_GATEWAY
    """)


def test_ipv6_next_hop_request_has_the_kernels_layout() -> None:
    assert rtnl.set_nexthop(1, 2, "fd10::2", 76).payload == h("""
        0a 00 4c 00 00000000
        0800 0100 01000000
        0800 0500 02000000
        1400 0600 fd100000000000000000000000000002
    """)


def test_group_request_has_the_kernels_layout() -> None:
    message = rtnl.set_group(9, [7, 8], 76)
    assert (message.kind, message.flags) == (104, 0x505)
    assert message.payload == h("""
        00 00 4c 00 00000000        # AF_UNSPEC
        0800 0100 09000000          # NHA_ID
        1400 0200                   # NHA_GROUP
          07000000 00 00 0000       # nexthop_grp: id, weight - 1, reserved
          08000000 00 00 0000
    """)


def test_delete_request_has_the_kernels_layout() -> None:
    message = rtnl.delete_nexthop(9)
    assert (message.kind, message.flags) == (105, 0x005)
    assert message.payload == h("00 00 00 00 00000000  0800 0100 09000000")


def test_route_request_has_the_kernels_layout() -> None:
    message = rtnl.set_route("10.255.0.2", "10.255.0.1", 9, 254, 50, 76, replace=True)
    assert (message.kind, message.flags) == (24, 0x505)
    assert message.payload == h("""
        02 20 00 00 fe 4c 00 01 00000000   # rtmsg: AF_INET, /32, table 254, protocol 76, universe, unicast
        0800 0100 0aff0002                 # RTA_DST
        0800 0600 32000000                 # RTA_PRIORITY
        0800 0f00 fe000000                 # RTA_TABLE
        0800 0700 0aff0001                 # RTA_PREFSRC
        0800 1e00 09000000                 # RTA_NH_ID
    """)


def test_route_request_that_may_not_replace_is_exclusive() -> None:
    assert rtnl.set_route("10.255.0.2", "10.255.0.1", 9, 254, 50, 76, replace=False).flags == 0x605


def test_route_in_a_table_past_255_is_named_in_full_only() -> None:
    message = rtnl.delete_route("fd00::2", 1000, 50, 76)
    assert (message.kind, message.flags) == (25, 0x005)
    assert message.payload == h("""
        0a 80 00 00 00 4c 00 01 00000000   # AF_INET6, /128, table in the attribute
        1400 0100 fd000000000000000000000000000002
        0800 0600 32000000
        0800 0f00 e8030000
    """)


def test_next_hop_answer_is_read() -> None:
    body = h("""
        02 00 4c 00 00000000
        0800 0100 07000000
        0800 0500 03000000
        0800 0600 0a0a0002
    """)
    assert rtnl.parse_nexthop(body) == NextHop(7, 76, 3, "10.10.0.2")


def test_group_answer_with_attributes_that_we_do_not_know_is_read() -> None:
    body = h("""
        00 00 4c 00 00000000
        0800 0100 09000000
        0600 0300 0000 0000                # NHA_GROUP_TYPE, padded
        0400 0b80                          # a nested, unknown one (NLA_F_NESTED)
        1400 0200 07000000 00 00 0000 08000000 00 00 0000
    """)
    assert rtnl.parse_nexthop(body) == NextHop(9, 76, members=(7, 8))


def test_route_answers_are_read() -> None:
    ours = h("""
        02 20 00 00 fe 4c 00 01 00000000
        0800 0f00 fe000000
        0800 0100 0aff0002
        0800 0600 32000000
        0800 1e00 09000000
    """)
    assert rtnl.parse_route(ours) == KernelRoute("10.255.0.2", 76, 254, 50, 9)
    connected = h("02 10 00 00 fe 02 fd 01 00000000  0800 0100 0a0a0000")
    assert rtnl.parse_route(connected) == KernelRoute("10.10.0.0/16", 2, 254, 0, 0)


@pytest.mark.parametrize(
    "body",
    [
        h("02 00 00 00 fe 04 00 01 00000000  0800 0500 0a0a0001"),  # a default route: no destination
        h("02 20 00 00 ff 02 fe 02 00000000  0800 0100 0a0a0001"),  # RTN_LOCAL
        h("02 20 00"),
        b"",
    ],
)
def test_answers_that_are_no_unicast_routes_to_an_address_are_passed_over(body: bytes) -> None:
    assert rtnl.parse_route(body) is None


def test_short_next_hop_answer_is_passed_over() -> None:
    assert rtnl.parse_nexthop(b"\2\0\0") is None
