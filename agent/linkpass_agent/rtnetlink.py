"""Raw rtnetlink, as far as the agent needs it: a socket, messages in a datagram, and dumps.

pyroute2 does all of this and more, but importing it costs an agent 10 MiB and a quarter of a second, and each of its
looks at the links costs milliseconds. Layouts: include/uapi/linux/netlink.h.
"""

import os
import socket
import struct
from collections.abc import Iterator

ERROR, DONE = 2, 3  # NLMSG_*
F_REQUEST, F_DUMP = 0x1, 0x300
HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
SIZE = 1 << 18  # B; the kernel's own dumps come in pieces of at most 32 KiB


def open_socket(groups: int = 0) -> socket.socket:
    """A socket for requests, and for the events of these groups."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    try:
        sock.bind((0, groups))
    except OSError:
        sock.close()
        raise
    return sock


def split(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Type, sequence number and body of each message; ends at the first that is malformed."""
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, _, seq, _ = HEADER.unpack_from(data, at)
        if length < HEADER.size or at + length > len(data):
            return
        yield kind, seq, data[at + HEADER.size : at + length]
        at += (length + 3) & ~3


def dump(sock: socket.socket, kind: int, payload: bytes, seq: int) -> Iterator[bytes]:
    """The bodies of the answers to a dump request. OSError if the kernel refuses; blocks while it answers."""
    sock.send(HEADER.pack(HEADER.size + len(payload), kind, F_REQUEST | F_DUMP, seq, 0) + payload)
    while True:
        for answer, answer_seq, body in split(sock.recv(SIZE)):
            if answer_seq != seq:
                continue
            if answer == DONE:
                return
            if answer == ERROR:
                errno = -struct.unpack_from("=i", body)[0]
                raise OSError(errno, os.strerror(errno))
            yield body
