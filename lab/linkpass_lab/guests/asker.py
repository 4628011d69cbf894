"""Runs in a guest: asks its agent over the control socket for whoever writes lines to it.

    python3 -I -S asker.py SOCKET

A line in is `NUMBER PATH`, or `NUMBER clock`; a line out is JSON: {"n": NUMBER, "ok": ...} or {"n": NUMBER, "error":
TEXT}. A program's start takes seconds in an emulated guest: this one starts once. Only the standard library.
"""

import json
import socket
import sys
import time

ANSWER = 10.0  # s that the agent may take


def get(path: str, what: str) -> object:
    """The JSON that the agent answers to a GET (HTTP/1.1, RFC 9112, with a Content-Length or to the end)."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(ANSWER)
        sock.connect(path)
        sock.sendall(f"GET {what} HTTP/1.1\r\nHost: linkpass\r\nConnection: close\r\n\r\n".encode())
        data = b""
        while part := sock.recv(65_536):
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if status != 200:
        raise ValueError(f"{what}: status {status}: {body.decode(errors='replace')[:200]}")
    found: object = json.loads(body)
    return found


def main(path: str) -> None:
    """Until standard input ends."""
    for line in sys.stdin:
        number, _, what = line.strip().partition(" ")
        answer: dict[str, object] = {"n": int(number)}
        try:
            answer["ok"] = time.monotonic() if what == "clock" else get(path, what)
        except (OSError, ValueError, IndexError) as e:
            answer["error"] = str(e) or type(e).__name__
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
