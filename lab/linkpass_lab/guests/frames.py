"""The language of the exec channel: frames that carry many commands over one byte stream.

A frame is a header of 9 bytes (channel u32, kind u8, length u32, network order) and a payload. The side that wants a
command run picks a channel number and sends OPEN; STARTED or FAILED answers; then data flows both ways until EXIT.

Neither side may have more than WINDOW bytes of a channel's data under way: CREDIT gives back what has been consumed.
So a command that nobody reads from stops by itself, and never holds up the others.
"""

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

HEADER = struct.Struct("!IBI")
COUNT = struct.Struct("!I")
WINDOW = 262_144  # bytes; several times what one emulated guest moves in 10 ms
LARGEST = 1 << 20  # no side sends larger payloads; more means that the stream is broken


class Kind(IntEnum):
    """What a frame says. The first group goes to the guest, the second comes from it; CREDIT goes both ways."""

    OPEN = 1  # JSON: argv, env, cwd, tty (null or [rows, columns]), log (null, or file: run detached)
    STDIN = 2  # bytes
    STDIN_END = 3
    SIGNAL = 4  # COUNT: signal number, for the command's whole process group
    RESIZE = 5  # JSON: [rows, columns]
    CLOSE = 6  # nobody listens any more: end the command
    CREDIT = 7  # COUNT: bytes consumed
    HELLO = 16  # JSON: the guest is set up; channel 0
    STARTED = 17  # COUNT: pid
    STDOUT = 18  # bytes
    STDERR = 19  # bytes
    EXIT = 20  # JSON: exit status as subprocess has it, negative for a signal
    FAILED = 21  # JSON: why the command couldn't be started


class BrokenStreamError(Exception):
    """What came isn't a frame."""


def frame(channel: int, kind: Kind, payload: bytes = b"") -> bytes:
    return HEADER.pack(channel, kind, len(payload)) + payload


def frame_json(channel: int, kind: Kind, value: Any) -> bytes:
    return frame(channel, kind, json.dumps(value).encode())


def frame_count(channel: int, kind: Kind, number: int) -> bytes:
    return frame(channel, kind, COUNT.pack(number))


def count_of(payload: bytes) -> int:
    number: int = COUNT.unpack(payload)[0]
    return number


class Decoder:
    """Cuts a byte stream into frames, however it arrives."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, Kind, bytes]]:
        """The frames completed by `data`. BrokenStreamError when it can't be one."""
        self._held += data
        while len(self._held) >= HEADER.size:
            channel, kind, length = HEADER.unpack_from(self._held)
            if length > LARGEST or kind not in _KINDS:
                raise BrokenStreamError(f"frame of kind {kind} with {length} bytes")
            end = HEADER.size + length
            if len(self._held) < end:
                return
            payload = bytes(self._held[HEADER.size : end])
            del self._held[:end]
            yield channel, Kind(kind), payload


_KINDS = frozenset(int(k) for k in Kind)
