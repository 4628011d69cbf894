"""Run a shell command on another guest, from a guest: `gx GUEST COMMAND...`, as `rsh` would.

It speaks the exec channel's frames over TCP to the other guest's guestd (see there). For mpirun's plm_rsh_agent.
"""

import json
import os
import select
import socket
import sys
from contextlib import suppress

from linkpass_lab.guests.frames import WINDOW, Decoder, Kind, count_of, frame, frame_count, frame_json

PORT = 7499  # guestd's; importing it would cost more than the whole rest
CONNECT = 10.0  # s


def run(guest: str, command: str) -> int:
    """Run it with our own streams; returns an exit code (128 + N for signal N)."""
    with socket.create_connection((guest, PORT), CONNECT) as link:
        link.settimeout(None)
        link.sendall(frame_json(1, Kind.OPEN, {"argv": ["/bin/sh", "-c", command]}))
        decoder, room, reading = Decoder(), WINDOW, True
        while True:
            watched = [link.fileno(), *([0] if reading and room > 0 else [])]
            ready = select.select(watched, [], [])[0]
            if 0 in ready:
                data = os.read(0, min(room, 65_536))
                room, reading = room - len(data), bool(data)
                link.sendall(frame(1, Kind.STDIN, data) if data else frame(1, Kind.STDIN_END))
            if link.fileno() not in ready:
                continue
            data = link.recv(65_536)
            if not data:
                print(f"gx: guest {guest} is gone", file=sys.stderr)
                return 255
            for _, kind, payload in decoder.feed(data):
                match kind:
                    case Kind.STDOUT | Kind.STDERR:
                        out = 1 if kind is Kind.STDOUT else 2
                        rest = payload
                        while rest:
                            rest = rest[os.write(out, rest) :]
                        with suppress(OSError):  # it has ended; how is still to be read
                            link.sendall(frame_count(1, Kind.CREDIT, len(payload)))
                    case Kind.CREDIT:
                        room += count_of(payload)
                    case Kind.EXIT:
                        status = int(json.loads(payload))
                        return status if status >= 0 else 128 - status
                    case Kind.FAILED:
                        print(f"gx: {json.loads(payload)}", file=sys.stderr)
                        return 127


def main() -> None:
    try:
        sys.exit(run(sys.argv[1], " ".join(sys.argv[2:])))
    except OSError as e:
        sys.exit(f"gx: {sys.argv[1]}: {e}")
