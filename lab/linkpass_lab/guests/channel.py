"""The caller's end of the exec channel: run commands in guests, and give orders to their supervisor.

done = run(folder, "a", ["ip", "link"])
with GuestProcess(folder, "b", ["ib_write_bw", "-d", "rxe0"]) as server: ...
"""

import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from linkpass_lab.guests.frames import Decoder, Kind, count_of, frame, frame_count, frame_json
from linkpass_lab.lab import LabError

SOCKET = "guests.sock"
ORDER = 120.0  # s for the answer to an order; booting a guest is the longest


def _connect(folder: Path, order: Mapping[str, Any]) -> socket.socket:
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect(str(folder / "guests" / SOCKET))
        s.sendall(json.dumps(order).encode() + b"\n")
    except OSError as e:
        s.close()
        raise LabError(f"the guests of {folder.name} aren't running ({e.strerror}): `linkpass-lab up --rdma`") from e
    return s


def order(folder: Path, op: str, **what: Any) -> Any:
    """Give the supervisor an order and return its answer. LabError in its own words."""
    with _connect(folder, {"op": op, **what}) as s:
        s.settimeout(ORDER)
        try:
            answer = json.loads(s.makefile().readline() or '{"error": "the supervisor ended"}')
        except OSError as e:
            raise LabError(f"order {op}: {e}") from e
    if "error" in answer:
        raise LabError(str(answer["error"]))
    return answer["ok"]


def in_lab(folder: Path, argv: Sequence[str]) -> str:
    """Run a command in the lab's own namespace, where bridges and taps are; returns its output."""
    done = order(folder, "host", argv=list(argv))
    if done["code"]:
        raise LabError(f"{' '.join(argv)}: {done['err'].strip()}")
    return str(done["out"])


def open_command(
    folder: Path,
    guest: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    tty: tuple[int, int] | None = None,
    log: Path | None = None,
) -> socket.socket:
    """Ask for a command; the socket carries its frames (channel 0). With `log` it runs detached, writing there."""
    what = {"argv": list(argv), "env": dict(env or {}), "cwd": cwd, "tty": tty, "log": str(log) if log else None}
    return _connect(folder, {"op": "exec", "guest": guest, "open": what})


class GuestProcess:
    """A command in a guest, much like subprocess.Popen. Output is collected, and given to `listen` as it comes.

    LabError from `wait` when it can't be started, or when its guest ends.
    """

    def __init__(
        self,
        folder: Path,
        guest: str,
        argv: Sequence[str],
        *,
        input: bytes | None = b"",
        listen: Callable[[Kind, bytes], None] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        """`input` None leaves standard input open for `write`; else it is given that and then closed."""
        self.guest, self.argv = guest, list(argv)
        self.pid: int | None = None
        self.returncode: int | None = None
        self.failure: str | None = None
        self.ended_at: float | None = None  # monotonic
        self.output: dict[Kind, bytearray] = {Kind.STDOUT: bytearray(), Kind.STDERR: bytearray()}
        self._listen = listen
        self._grew = threading.Condition()
        self._credit = 0
        self._sending = threading.Lock()
        self._socket = open_command(folder, guest, argv, env=env, cwd=cwd)
        self._reader = threading.Thread(target=self._read, name=f"guest {guest}: {self.argv[0]}", daemon=True)
        self._reader.start()
        if input is not None:
            if input:
                self.write(input)
            self.close_stdin()

    def _send(self, data: bytes) -> None:
        # A command that has ended takes no more; how it ended may still be on its way to us, so the reader tells.
        with self._sending, suppress(OSError):
            self._socket.sendall(data)

    def _read(self) -> None:
        decoder = Decoder()
        try:
            while self.returncode is None and self.failure is None:
                data = self._socket.recv(65_536)
                if not data:
                    self.failure = f"guest {self.guest}: {self.argv[0]}: the supervisor ended"
                for _, kind, payload in decoder.feed(data):
                    self._got(kind, payload)
        except OSError as e:
            self.failure = self.failure or f"guest {self.guest}: {self.argv[0]}: {e}"
        finally:
            with self._grew:
                if self.returncode is None and self.failure is None:
                    self.failure = f"guest {self.guest}: {self.argv[0]}: reader stopped"
                self.ended_at = self.ended_at or time.monotonic()
                self._grew.notify_all()

    def _got(self, kind: Kind, payload: bytes) -> None:
        if kind in self.output:
            if self._listen is not None:
                self._listen(kind, payload)
            with self._grew:
                self.output[kind] += payload
                self._grew.notify_all()
            self._send(frame_count(0, Kind.CREDIT, len(payload)))
            return
        with self._grew:
            match kind:
                case Kind.STARTED:
                    self.pid = count_of(payload)
                case Kind.EXIT:
                    self.ended_at = time.monotonic()
                    self.returncode = json.loads(payload)
                case Kind.FAILED:
                    self.ended_at = time.monotonic()
                    self.failure = f"guest {self.guest}: {json.loads(payload)}"
            self._grew.notify_all()

    def write(self, data: bytes) -> None:
        """Give it input."""
        for at in range(0, len(data), 65_536):
            self._send(frame(0, Kind.STDIN, data[at : at + 65_536]))

    def close_stdin(self) -> None:
        self._send(frame(0, Kind.STDIN_END))

    def send_signal(self, number: int) -> None:
        """A signal to the command and all in its process group."""
        self._send(frame_count(0, Kind.SIGNAL, number))

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, negative for a signal. TimeoutExpired after `timeout` s; it runs on then."""
        with self._grew:
            if not self._grew.wait_for(lambda: self.returncode is not None or self.failure is not None, timeout):
                raise subprocess.TimeoutExpired(self.argv, timeout or 0, self.stdout_bytes, self.stderr_bytes)
        if self.returncode is None:
            raise LabError(self.failure or "unknown")
        return self.returncode

    def wait_for(self, text: str, timeout: float) -> None:
        """Wait until it has said `text` on either stream. LabError when it ends or `timeout` s pass without."""
        wanted = text.encode()

        def there() -> bool:
            said = any(wanted in o for o in self.output.values())
            return said or self.returncode is not None or self.failure is not None

        with self._grew:
            self._grew.wait_for(there, timeout)
            if not any(wanted in o for o in self.output.values()):
                said = (self.stdout_bytes + self.stderr_bytes).decode(errors="replace").strip()[-400:]
                raise LabError(f"guest {self.guest}: {self.argv[0]} never said {text!r}; it said {said!r}")

    @property
    def stdout_bytes(self) -> bytes:
        return bytes(self.output[Kind.STDOUT])

    @property
    def stderr_bytes(self) -> bytes:
        return bytes(self.output[Kind.STDERR])

    @property
    def running(self) -> bool:
        return self.returncode is None and self.failure is None

    def close(self) -> None:
        """Stop listening; a command that still runs is ended by its guest."""
        self._socket.close() if not self.running else self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(5)
        self._socket.close()

    def __enter__(self) -> "GuestProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run(
    folder: Path,
    guest: str,
    argv: Sequence[str],
    *,
    timeout: float = 30.0,
    input: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. TimeoutExpired after `timeout` s (it is killed then); LabError if it can't run."""
    with GuestProcess(folder, guest, argv, input=input, env=env, cwd=cwd) as process:
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            raise
        out, err = (b.decode(errors="replace") for b in (process.stdout_bytes, process.stderr_bytes))
        return subprocess.CompletedProcess(list(argv), code, out, err)


def detach(folder: Path, guest: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> int:
    """Start a command that outlives the caller and writes to `log` (a path in the guest); returns its pid there."""
    with open_command(folder, guest, argv, env=env, log=log) as s:
        s.settimeout(ORDER)
        decoder, until = Decoder(), time.monotonic() + ORDER
        while time.monotonic() < until and (data := s.recv(4096)):
            for _, kind, payload in decoder.feed(data):
                if kind is Kind.STARTED:
                    return count_of(payload)
                if kind is Kind.FAILED:
                    raise LabError(f"guest {guest}: {json.loads(payload)}")
    raise LabError(f"guest {guest}: {argv[0]}: the supervisor ended")


def resized(size: tuple[int, int]) -> bytes:
    """The frame that tells a terminal's new size."""
    return frame_json(0, Kind.RESIZE, size)
