"""A small synchronous client of the agent's socket: HTTP/1.1 by the standard library, no pydantic.

    Client().status()["health"]

Answers are the JSON as `linkpass.api` describes it. Errors are those of `linkpass.errors`: UnreachableError when
there is no agent to talk to, RefusedError when it says no, NotFoundError for an unknown port.
"""

import errno
import http.client
import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from linkpass.errors import LinkPassError, NotFoundError, RefusedError, UnreachableError

# As in linkpass.settings, which costs an import of pydantic.
DEFAULT_SOCKET = "/run/linkpass/agent.sock"
TIMEOUT = 5.0  # seconds; the agent answers within a few milliseconds
# The agent sends followers an empty line every 5 s (Limits.heartbeat of its API): three missing means it is gone.
SILENCE = 15.0
MAX_LINE = 1 << 20


class BadRequestError(LinkPassError):
    """The agent can't make sense of what was asked."""


class _Connection(http.client.HTTPConnection):
    """HTTP to a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("linkpass", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self.path)
        except OSError as e:
            # LINKPASS_SOCKET may name the jobs' socket; the control socket is beside it.
            if e.errno != errno.EPROTOTYPE:
                raise
            self.sock.connect(str(Path(self.path).parent / Path(DEFAULT_SOCKET).name))


class Client:
    """One agent. `path` is the socket's; without it, LINKPASS_SOCKET or the default. `timeout` is in seconds."""

    def __init__(self, path: str | os.PathLike[str] | None = None, timeout: float = TIMEOUT) -> None:
        self.path = os.fspath(path or os.environ.get("LINKPASS_SOCKET") or DEFAULT_SOCKET)
        self.timeout = timeout

    def status(self) -> dict[str, Any]:
        return dict(self.get("/v1/status"))

    def ports(self) -> list[dict[str, Any]]:
        return list(self.get("/v1/ports"))

    def alarms(self, history: bool = False) -> list[dict[str, Any]]:
        """The active alarms, or with `history` also those that are over."""
        return list(self.get("/v1/alarms" + _query(history=1 if history else None)))

    def manifest(self) -> dict[str, Any]:
        """The host as it is, and the path of its manifest."""
        return dict(self.get("/v1/manifest"))

    def paths(self) -> list[dict[str, Any]]:
        return list(self.get("/v1/paths"))

    def peers(self) -> list[dict[str, Any]]:
        return list(self.get("/v1/peers"))

    def plan(self) -> dict[str, Any]:
        return dict(self.get("/v1/plan"))

    def events(self, since: int | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Oldest first: the first `limit` after number `since`, or the newest."""
        return list(self.get("/v1/events" + _query(since=since, limit=limit)))

    def drain(self, port: str, reason: str, dry_run: bool = False) -> dict[str, Any]:
        """Take a port out of service; RefusedError when a guard says no or we may not."""
        body = {"reason": reason, "dry_run": dry_run}
        return dict(json.loads(self.request("POST", port_target(port, "drain"), body)))

    def undrain(self, port: str) -> dict[str, Any]:
        """Put it back into service."""
        return dict(json.loads(self.request("POST", port_target(port, "undrain"))))

    def quiet(self, port: str) -> dict[str, Any]:
        """Whether anything still uses a port."""
        return dict(self.get(port_target(port, "quiet")))

    def explain(self, port: str, limit: int | None = None) -> dict[str, Any]:
        """A port's story: facts, findings, counters and the newest `limit` events about it."""
        found: dict[str, Any] = self.get(port_target(port, "explain") + _query(limit=limit))
        return found

    def jobs(self) -> list[dict[str, Any]]:
        return list(self.get("/v1/jobs"))

    def qps(self, job: int | None = None) -> list[dict[str, Any]]:
        return list(self.get("/v1/qps" + _query(job=job)))

    def migrate(self, what: str, to: str) -> dict[str, Any]:
        """Move a queue pair (JOB.NUMBER), or all that use a port, to another port."""
        return dict(json.loads(self.request("POST", "/v1/migrate", {"what": what, "to": to})))

    def follow(self, since: int | None = None) -> Iterator[dict[str, Any]]:
        """Events as they happen, after those that came since number `since`. Never ends by itself: UnreachableError
        when the agent went away."""
        return (json.loads(line) for line in self.follow_lines(since))

    def follow_lines(self, since: int | None = None) -> Iterator[str]:
        """As `follow`, each event as the agent's JSON."""
        connection, response = self._send("GET", "/v1/events/follow" + _query(since=since), None)
        with closing(connection), response:
            if response.status != 200:
                self._fail(response.status, response.read(MAX_LINE))
            if connection.sock is not None:
                connection.sock.settimeout(SILENCE)
            while line := self._line(response):
                if line.strip():
                    yield line.decode().rstrip("\n")
        raise UnreachableError(f"the agent at {self.path} went away")

    def get(self, target: str) -> Any:
        """The parsed answer to a GET."""
        return json.loads(self.request("GET", target))

    def request(self, method: str, target: str, body: object = None) -> str:
        """The agent's JSON, as text."""
        connection, response = self._send(method, target, body)
        with closing(connection), response:
            try:
                raw = response.read()
            except (OSError, http.client.HTTPException) as e:
                raise UnreachableError(
                    f"the agent at {self.path} broke off its answer: {e or type(e).__name__}"
                ) from e
            if response.status != 200:
                self._fail(response.status, raw)
        try:
            text = raw.decode()
            json.loads(text)
        except ValueError:
            raise UnreachableError(f"what answers at {self.path} is no LinkPass agent") from None
        return text

    def _send(self, method: str, target: str, body: object) -> tuple[_Connection, http.client.HTTPResponse]:
        raw = None if body is None else json.dumps(body).encode()
        headers = (
            {"Connection": "close"} if raw is None else {"Connection": "close", "Content-Type": "application/json"}
        )
        connection = _Connection(self.path, self.timeout)
        try:
            connection.request(method, target, raw, headers)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as e:
            connection.close()
            raise self._unreachable(e) from e

    def _unreachable(self, e: Exception) -> UnreachableError:
        match e:
            case TimeoutError():
                return UnreachableError(f"the agent at {self.path} does not answer within {self.timeout:g} s")
            case PermissionError():
                return UnreachableError(f"no permission to open {self.path}; try as root")
            case FileNotFoundError() | ConnectionRefusedError() | NotADirectoryError():
                remedy = (
                    "start it with 'systemctl start linkpassd', or name its socket by --socket or LINKPASS_SOCKET"
                )
                return UnreachableError(f"no agent at {self.path} ({e.strerror}); {remedy}")
        return UnreachableError(f"can't talk to the agent at {self.path}: {e or type(e).__name__}")

    def _line(self, response: http.client.HTTPResponse) -> bytes:
        """The next line of a stream, empty at its end, however it ends."""
        try:
            return response.readline(MAX_LINE)
        except (OSError, http.client.HTTPException):
            return b""

    def _fail(self, status: int, raw: bytes) -> None:
        try:
            error = str(json.loads(raw)["error"])
        except (ValueError, KeyError, TypeError):
            raise UnreachableError(f"what answers at {self.path} is no LinkPass agent (status {status})") from None
        if status in (403, 409):
            raise RefusedError(error)
        if status == 404:
            raise NotFoundError(error)
        if 400 <= status < 500:
            raise BadRequestError(error)
        raise LinkPassError(error)


def port_target(port: str, verb: str) -> str:
    """The request target that changes a port; any name is taken, the agent says which exist."""
    return f"/v1/ports/{quote(os.fsencode(port), safe='')}/{verb}"


def _query(**values: int | None) -> str:
    given = "&".join(f"{name}={value}" for name, value in values.items() if value is not None)
    return f"?{given}" if given else ""
