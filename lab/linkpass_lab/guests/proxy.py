"""A local process that stands for a command in a guest: its streams, its signals, its exit status.

    python -m linkpass_lab.guests.proxy [--tty] FOLDER GUEST COMMAND [ARGUMENT...]

So whoever can deal with a subprocess can deal with a command in a guest. It ends by the signal that ended the
command.
"""

import json
import os
import resource
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from linkpass_lab.guests.channel import open_command, resized
from linkpass_lab.guests.frames import WINDOW, Decoder, Kind, count_of, frame, frame_count
from linkpass_lab.lab import LabError

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
UNSTARTED = 127  # as shells have it
LOST = 255
# What the command's environment is to have, as a JSON object; the terminal's kind goes along by itself.
GUEST_ENVIRONMENT = "LINKPASS_GUEST_ENVIRONMENT"


def terminal_size() -> tuple[int, int]:
    size = os.get_terminal_size(0)
    return size.lines, size.columns


def proxy(folder: Path, guest: str, argv: Sequence[str], *, terminal: bool, env: dict[str, str]) -> int:
    """Run it; returns the exit status as subprocess has it (negative: ended by that signal)."""
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (*PASSED_ON, signal.SIGWINCH):
        signal.signal(number, lambda *_: None)
    size = terminal_size() if terminal else None
    with open_command(folder, guest, argv, env=env, tty=size) as link:
        decoder, room, reading = Decoder(), WINDOW, True
        while True:
            watched = [link.fileno(), wake, *([0] if reading and room > 0 else [])]
            ready = select.select(watched, [], [])[0]
            if wake in ready:
                for got in os.read(wake, 64):
                    if got == signal.SIGWINCH:
                        if terminal:
                            _send(link, resized(terminal_size()))
                    else:
                        _send(link, frame_count(0, Kind.SIGNAL, got))
            if 0 in ready:
                try:
                    data = os.read(0, min(room, 65_536))
                except OSError:
                    data = b""
                room -= len(data)
                reading = bool(data)
                _send(link, frame(0, Kind.STDIN, data) if data else frame(0, Kind.STDIN_END))
            if link.fileno() not in ready:
                continue
            data = link.recv(65_536)
            if not data:
                raise LabError(f"guest {guest}: the supervisor ended")
            for _, kind, payload in decoder.feed(data):
                if kind is Kind.STDOUT or kind is Kind.STDERR:
                    _write_all(1 if kind is Kind.STDOUT else 2, payload)
                    _send(link, frame_count(0, Kind.CREDIT, len(payload)))
                elif kind is Kind.CREDIT:
                    room += count_of(payload)
                elif kind is Kind.EXIT:
                    return int(json.loads(payload))
                elif kind is Kind.FAILED:
                    print(f"guest {guest}: {json.loads(payload)}", file=sys.stderr)
                    return LOST if "gone" in json.loads(payload) else UNSTARTED


def _send(link: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the command has ended; how is still to be read
        link.sendall(data)


def _write_all(fd: int, data: bytes) -> None:
    with suppress(BrokenPipeError):
        while data:
            data = data[os.write(fd, data) :]


def attach(folder: Path, guest: str, argv: Sequence[str], *, terminal: bool, env: dict[str, str]) -> int:
    """`proxy`, with our own terminal in raw mode while it lasts, so that the guest's does all the work."""
    if not terminal:
        return proxy(folder, guest, argv, terminal=False, env=env)
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        return proxy(folder, guest, argv, terminal=True, env=env)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def end_as(status: int) -> int:
    """The exit code to end with; for a signal, end by that very signal instead."""
    if status >= 0:
        return status
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    return 128 - status


def main() -> None:
    words = sys.argv[1:]
    terminal = words[:1] == ["--tty"]
    folder, guest, *argv = words[terminal:]
    env = {"TERM": os.environ.get("TERM", "dumb"), **json.loads(os.environ.get(GUEST_ENVIRONMENT, "{}"))}
    try:
        status = attach(Path(folder), guest, argv, terminal=terminal, env=env)
    except (LabError, OSError) as e:
        print(f"linkpass-lab: {e}", file=sys.stderr)
        status = LOST
    sys.exit(end_as(status))


if __name__ == "__main__":
    main()
