"""The control API: HTTP/JSON over a Unix socket. This is the outer face of a running agent.

    async with serve(facade, settings):
        ...

The agent gives a `Facade`; this module turns requests into its calls and answers into JSON. Reading is open to
everybody who can open the socket; changes are for root and members of `control.group` (`api_socket` knows the peer).
Nothing here decides anything about ports or paths.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from linkpass.api import (
    AlarmView,
    DrainAnswer,
    DrainRequest,
    EventView,
    ExplainView,
    JobView,
    KeyAnswer,
    KeyChangeRequest,
    KeyInstallRequest,
    KeyView,
    ManifestView,
    MigrateAnswer,
    MigrateRequest,
    PathView,
    PeerView,
    PlanView,
    PortView,
    Problem,
    QpView,
    QuietView,
    StatusView,
)
from linkpass.clock import SystemClock
from linkpass.errors import LinkPassError, NotFoundError, RefusedError
from linkpass.settings import Settings
from linkpass_agent.api_socket import Claim, Limits, Listener, Peer, claim, group_id, listening
from linkpass_agent.log import Held

log = logging.getLogger("linkpass.api")

MAX_EVENTS = 1000  # in one answer, about 400 KiB
EVENTS = 100  # unless the client says
MAX_SEQ = 2**63 - 1  # a signed 64-bit integer, as most languages have


class Following(Protocol):
    """Events as they happen; `story.Follower` is one."""

    async def next(self) -> EventView | None:
        """The next event; None when there will be none."""
        ...

    def close(self) -> None:
        """Follow no longer."""
        ...


class Facade(Protocol):
    """What the API asks of the agent. All calls return at once; they run on the agent's loop."""

    def status(self) -> StatusView: ...

    def ports(self) -> Sequence[PortView]: ...

    def manifest(self) -> ManifestView: ...

    def alarms(self, history: bool) -> Sequence[AlarmView]:
        """The active ones; with `history` those that are over before them."""
        ...

    def paths(self) -> Sequence[PathView]: ...

    def peers(self) -> Sequence[PeerView]: ...

    def plan(self) -> PlanView:
        """What would be done now, and why."""
        ...

    def events(self, since: int | None, limit: int) -> Sequence[EventView]:
        """Oldest first: the first `limit` after number `since`; without `since` the newest `limit`."""
        ...

    def explain(self, port: str, limit: int) -> ExplainView:
        """With the newest `limit` events about it. NotFoundError for an unknown port."""
        ...

    def subscribe(self) -> Following:
        """Events from the next one on. RefusedError when there are too many followers."""
        ...

    def drain(self, port: str, reason: str, dry_run: bool, who: str) -> DrainAnswer:
        """NotFoundError for an unknown port, RefusedError when a guard says no."""
        ...

    def undrain(self, port: str, who: str) -> DrainAnswer:
        """NotFoundError for an unknown port, RefusedError when it isn't drained."""
        ...

    def quiet(self, port: str) -> QuietView:
        """NotFoundError for an unknown port."""
        ...

    def jobs(self) -> Sequence[JobView]: ...

    def qps(self, job: int | None) -> Sequence[QpView]:
        """NotFoundError for an unknown job."""
        ...

    def migrate(self, what: str, to: str, who: str) -> MigrateAnswer:
        """NotFoundError for an unknown queue pair or port."""
        ...

    def keys(self) -> Sequence[KeyView]: ...

    def install_key(self, key: str, secret: str, who: str) -> KeyAnswer:
        """RefusedError when it isn't a key or its name is taken."""
        ...

    def change_key(self, key: str, act: str, force: bool, who: str) -> KeyAnswer:
        """`act`: use or remove. NotFoundError for an unknown key, RefusedError when members would be cut off."""
        ...


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that can be asked: the route table, from which routing and /openapi.json are made."""

    method: Literal["GET", "POST"]
    path: str
    name: str
    summary: str
    handler: str  # method of Api
    answer: type[BaseModel] | None
    shape: Literal["one", "list", "lines"] = "one"
    query: tuple[str, ...] = ()
    body: type[BaseModel] | None = None
    errors: tuple[int, ...] = field(default=(400,))


OPERATIONS = (
    Operation("GET", "/v1/status", "status", "The host at a glance", "status", StatusView),
    Operation("GET", "/v1/ports", "ports", "Local ports and their states", "ports", PortView, "list"),
    Operation("GET", "/v1/manifest", "manifest", "The host as its manifest would say", "manifest", ManifestView),
    Operation(
        "GET", "/v1/alarms", "alarms", "What needs somebody's hands", "alarms", AlarmView, "list", ("history",)
    ),
    Operation("GET", "/v1/paths", "paths", "Paths to all peers", "paths", PathView, "list"),
    Operation("GET", "/v1/peers", "peers", "Peer hosts, as their own records tell", "peers", PeerView, "list"),
    Operation("GET", "/v1/plan", "plan", "What would be done now, and why", "plan", PlanView),
    Operation(
        "GET", "/v1/events", "events", "Past events, oldest first", "events", EventView, "list", ("since", "limit")
    ),
    Operation(
        "GET",
        "/v1/events/follow",
        "follow",
        "Events as they happen, a JSON object a line; an empty line now and then says that the agent lives",
        "follow",
        EventView,
        "lines",
        ("since",),
        errors=(400, 409),
    ),
    Operation(
        "POST",
        "/v1/ports/{port}/drain",
        "drain",
        "Take a port out of service",
        "drain",
        DrainAnswer,
        body=DrainRequest,
        errors=(400, 403, 404, 408, 409, 413),
    ),
    Operation(
        "POST",
        "/v1/ports/{port}/undrain",
        "undrain",
        "Put a drained port back into service",
        "undrain",
        DrainAnswer,
        errors=(400, 403, 404, 408, 409, 413),
    ),
    Operation(
        "GET",
        "/v1/ports/{port}/quiet",
        "quiet",
        "Whether anything still uses a port",
        "quiet",
        QuietView,
        errors=(404,),
    ),
    Operation(
        "GET",
        "/v1/ports/{port}/explain",
        "explain",
        "A port's story: what is seen of it, what rules say, and what came of it",
        "explain",
        ExplainView,
        query=("limit",),
        errors=(400, 404),
    ),
    Operation("GET", "/v1/jobs", "jobs", "RDMA jobs that are attached", "jobs", JobView, "list"),
    Operation("GET", "/v1/qps", "qps", "Their queue pairs", "qps", QpView, "list", ("job",), errors=(400, 404)),
    Operation(
        "POST",
        "/v1/migrate",
        "migrate",
        "Move queue pairs to another port",
        "migrate",
        MigrateAnswer,
        body=MigrateRequest,
        errors=(400, 403, 404, 408, 413),
    ),
    Operation("GET", "/v1/keys", "keys", "The fleet's keys (root only)", "keys", KeyView, "list", errors=(403,)),
    Operation(
        "POST",
        "/v1/keys/{key}/install",
        "install_key",
        "Accept another key (root only)",
        "install_key",
        KeyAnswer,
        body=KeyInstallRequest,
        errors=(400, 403, 408, 409, 413),
    ),
    Operation(
        "POST",
        "/v1/keys/{key}/use",
        "use_key",
        "Send with another key (root only)",
        "use_key",
        KeyAnswer,
        body=KeyChangeRequest,
        errors=(400, 403, 404, 408, 409, 413),
    ),
    Operation(
        "POST",
        "/v1/keys/{key}/remove",
        "remove_key",
        "Accept a key no longer (root only)",
        "remove_key",
        KeyAnswer,
        body=KeyChangeRequest,
        errors=(400, 403, 404, 408, 409, 413),
    ),
    Operation("GET", "/openapi.json", "openapi", "This description", "openapi", None),
)


def _json(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json")


def _problem(error: str, status: int) -> Response:
    return _json(Problem(error=error).model_dump_json(), status)


def _list(views: Sequence[BaseModel]) -> Response:
    return _json("[" + ",".join(v.model_dump_json() for v in views) + "]")


def _number(request: Request, name: str, least: int, most: int) -> int | None:
    """A query parameter; None when it isn't there."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
        raise HTTPException(400, f"{name} should be a whole number from {least} to {most}, got {text[:40]!r}")
    return int(text)


class Api:
    """The handlers, one for each operation."""

    def __init__(self, facade: Facade, group: int | None, group_name: str | None, limits: Limits) -> None:
        self.facade = facade
        self.group = group
        self.group_name = group_name
        self.limits = limits
        self.held = Held(SystemClock())
        self.closing = asyncio.Event()
        self.follows: dict[int, int] = {}  # uid -> how many

    def app(self) -> Starlette:
        """The ASGI application, with every error as a Problem."""
        return Starlette(
            routes=[Route(o.path, getattr(self, o.handler), methods=[o.method], name=o.name) for o in OPERATIONS],
            exception_handlers={
                HTTPException: self.on_http,
                NotFoundError: self.on_refusal(404),
                RefusedError: self.on_refusal(409),
                LinkPassError: self.on_refusal(500),
                Exception: self.on_crash,
            },
        )

    async def on_http(self, request: Request, e: Exception) -> Response:
        assert isinstance(e, HTTPException)
        details = {404: f"no such thing: {request.url.path[:200]}; see /openapi.json", 405: "not by this method"}
        return _problem(details.get(e.status_code, e.detail), e.status_code)

    def on_refusal(self, status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
        async def answer(request: Request, e: Exception) -> Response:
            return _problem(str(e), status)

        return answer

    async def on_crash(self, request: Request, e: Exception) -> Response:
        return _problem("the agent failed to answer; its log says why", 500)

    async def status(self, request: Request) -> Response:
        return _json(self.facade.status().model_dump_json())

    async def ports(self, request: Request) -> Response:
        return _list(self.facade.ports())

    async def alarms(self, request: Request) -> Response:
        return _list(self.facade.alarms(bool(_number(request, "history", 0, 1))))

    async def manifest(self, request: Request) -> Response:
        return _json(self.facade.manifest().model_dump_json())

    async def paths(self, request: Request) -> Response:
        return _list(self.facade.paths())

    async def peers(self, request: Request) -> Response:
        return _list(self.facade.peers())

    async def plan(self, request: Request) -> Response:
        return _json(self.facade.plan().model_dump_json())

    async def events(self, request: Request) -> Response:
        since = _number(request, "since", 0, MAX_SEQ)
        limit = _number(request, "limit", 1, MAX_EVENTS) or EVENTS
        return _list(self.facade.events(since, limit))

    async def follow(self, request: Request) -> Response:
        peer: Peer = request.state.peer
        since = _number(request, "since", 0, MAX_SEQ)
        if self.follows.get(peer.uid, 0) >= self.limits.follows:
            raise RefusedError(f"{peer} has {self.limits.follows} followers already; end one of them first")
        return Follow(self, peer, since)

    async def drain(self, request: Request) -> Response:
        who = self.allow(request)
        try:
            asked = DrainRequest.model_validate_json(await self.body(request))
        except ValidationError as e:
            raise HTTPException(400, _first_problem(e)) from e
        answer = self.facade.drain(request.path_params["port"], asked.reason, asked.dry_run, who)
        return _json(answer.model_dump_json())

    async def undrain(self, request: Request) -> Response:
        who = self.allow(request)
        await self.body(request)  # nothing is in it, but a request that breaks off changes nothing
        return _json(self.facade.undrain(request.path_params["port"], who).model_dump_json())

    async def quiet(self, request: Request) -> Response:
        return _json(self.facade.quiet(request.path_params["port"]).model_dump_json())

    async def explain(self, request: Request) -> Response:
        limit = _number(request, "limit", 1, MAX_EVENTS) or EVENTS
        return _json(self.facade.explain(request.path_params["port"], limit).model_dump_json())

    async def jobs(self, request: Request) -> Response:
        return _list(self.facade.jobs())

    async def qps(self, request: Request) -> Response:
        return _list(self.facade.qps(_number(request, "job", 0, MAX_SEQ)))

    async def migrate(self, request: Request) -> Response:
        who = self.allow(request)
        try:
            asked = MigrateRequest.model_validate_json(await self.body(request))
        except ValidationError as e:
            raise HTTPException(400, _first_problem(e)) from e
        return _json(self.facade.migrate(asked.what, asked.to, who).model_dump_json())

    async def keys(self, request: Request) -> Response:
        self.root(request)
        return _list(self.facade.keys())

    async def install_key(self, request: Request) -> Response:
        who = self.root(request)
        try:
            asked = KeyInstallRequest.model_validate_json(await self.body(request))
        except ValidationError as e:
            raise HTTPException(400, _first_problem(e)) from None  # the cause would show the secret
        return _json(self.facade.install_key(request.path_params["key"], asked.secret, who).model_dump_json())

    async def use_key(self, request: Request) -> Response:
        return await self.change_key(request, "use")

    async def remove_key(self, request: Request) -> Response:
        return await self.change_key(request, "remove")

    async def change_key(self, request: Request, act: str) -> Response:
        who = self.root(request)
        try:
            asked = KeyChangeRequest.model_validate_json(await self.body(request))
        except ValidationError as e:
            raise HTTPException(400, _first_problem(e)) from e
        return _json(self.facade.change_key(request.path_params["key"], act, asked.force, who).model_dump_json())

    async def openapi(self, request: Request) -> Response:
        from linkpass_agent.api_doc import document  # rarely asked for

        return _json(document())

    def allow(self, request: Request) -> str:
        """Who wants the change; refuses those who may not."""
        peer: Peer = request.state.peer
        if not peer.may_change(self.group):
            group = f" and members of group {self.group_name!r}" if self.group_name else ""
            said = {"peer": str(peer), "path": request.url.path[:200]}
            self.held.say(log, logging.WARNING, "refused a change", key="change", **said)
            raise HTTPException(403, f"{peer} may not change anything: only root{group} may")
        return str(peer)

    def root(self, request: Request) -> str:
        """Keys are for root alone: who has one may claim to be any host."""
        peer: Peer = request.state.peer
        if peer.uid != 0:
            said = {"peer": str(peer), "path": request.url.path[:200]}
            self.held.say(log, logging.WARNING, "refused the keys", key="keys", **said)
            raise HTTPException(403, f"{peer} may not look at or change keys: only root may")
        return str(peer)

    async def body(self, request: Request) -> bytes:
        """The request's body, bounded in size and time."""
        whole = bytearray()
        try:
            async with asyncio.timeout(self.limits.patience):
                async for part in request.stream():
                    whole += part
                    if len(whole) > self.limits.body:
                        raise HTTPException(413, f"a request's body holds at most {self.limits.body} bytes")
        except TimeoutError:
            raise HTTPException(408, "the request's body did not come in time") from None
        except ClientDisconnect:
            raise HTTPException(400, "the request broke off") from None
        return bytes(whole)


def _first_problem(error: ValidationError) -> str:
    detail = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in detail["loc"])
    return f"{where}: {detail['msg']}" if where else detail["msg"]


class Follow(Response):
    """The stream of events to one follower. It ends when the follower leaves, when it doesn't read, or when the
    agent stops."""

    def __init__(self, api: Api, peer: Peer, since: int | None) -> None:
        super().__init__(media_type="application/x-ndjson")
        del self.headers["content-length"]
        self.api = api
        self.peer = peer
        self.since = since

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = self.api.limits
        uid = self.peer.uid
        following = self.api.facade.subscribe()
        self.api.follows[uid] = self.api.follows.get(uid, 0) + 1
        leaving = asyncio.create_task(self.left(receive))
        closing = asyncio.create_task(self.api.closing.wait())
        for ending in (leaving, closing):
            ending.add_done_callback(lambda _: following.close())
        try:
            async with asyncio.timeout(None) as deadline:

                async def put(data: bytes, more: bool = True) -> None:
                    deadline.reschedule(asyncio.get_running_loop().time() + limits.patience)
                    await send({"type": "http.response.body", "body": data, "more_body": more})
                    deadline.reschedule(None)

                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                last = await self.past(put)
                await self.present(following, last, put)
                if not leaving.done():
                    await put(b"", more=False)
        except TimeoutError:
            log.info("let a follower go that does not read", extra={"peer": str(self.peer)})
            scope["state"]["abort"]()
        finally:
            following.close()
            leaving.cancel()
            closing.cancel()
            self.api.follows[uid] -= 1
            if not self.api.follows[uid]:
                del self.api.follows[uid]

    async def past(self, put: Callable[[bytes], Awaitable[None]]) -> int:
        """What the follower missed since the number that it gave; the last number sent, -1 for none."""
        sent = -1
        while self.since is not None:
            events = self.api.facade.events(max(self.since, sent), MAX_EVENTS)
            if not events:
                break
            await put(b"".join(_line(e) for e in events))
            sent = events[-1].seq
        await put(b"\n")  # so that the client knows that it follows
        return sent

    async def present(self, following: Following, last: int, put: Callable[[bytes], Awaitable[None]]) -> None:
        coming: asyncio.Task[EventView | None] | None = None
        try:
            while True:
                coming = coming or asyncio.create_task(following.next())
                await asyncio.wait({coming}, timeout=self.api.limits.heartbeat)
                if not coming.done():
                    await put(b"\n")
                    continue
                event = coming.result()
                coming = None
                if event is None:
                    return
                if event.seq > last:
                    await put(_line(event))
        finally:
            if coming:
                coming.cancel()

    async def left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


def _line(event: EventView) -> bytes:
    return event.model_dump_json().encode() + b"\n"


@asynccontextmanager
async def serve(
    facade: Facade, settings: Settings, limits: Limits | None = None, claimed: Claim | None = None
) -> AsyncIterator[Listener]:
    """Answer on `paths.socket` while the block runs. LinkPassError when a living agent has the socket already; to
    know that before anything else is touched, `claim` the path first."""
    limits = limits or Limits()
    claimed = claimed or claim(settings.paths.socket)
    api = Api(facade, group_id(settings.control.group), settings.control.group, limits)
    async with listening(api.app(), claimed, limits) as listener:
        log.info("listening on %s", settings.paths.socket)
        try:
            yield listener
        finally:
            api.closing.set()
