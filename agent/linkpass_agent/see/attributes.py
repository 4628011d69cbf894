"""Netlink attributes: length, kind, value, padded to four bytes (include/uapi/linux/netlink.h, struct nlattr)."""

import struct
from collections.abc import Iterator

NESTED = 0x8000  # NLA_F_NESTED: the value is itself a row of attributes
_HEAD = struct.Struct("=HH")


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes of a message, one level deep, kinds without NESTED; ends at the first that is malformed."""
    at = 0
    while at + _HEAD.size <= len(data):
        length, kind = _HEAD.unpack_from(data, at)
        if length < _HEAD.size or at + length > len(data):
            return
        yield kind & ~NESTED, data[at + _HEAD.size : at + length]
        at += (length + 3) & ~3


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute as the kernel takes it."""
    return _HEAD.pack(_HEAD.size + len(value), kind) + value + bytes(-len(value) % 4)
