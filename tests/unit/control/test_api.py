"""The control API over a real Unix socket, as root (the tests' own uid): answers, refusals, streams, description."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from linkpass import api as models
from linkpass.errors import LinkPassError
from linkpass.model import Event, EventKind
from linkpass.settings import Settings
from linkpass_agent.api import serve
from linkpass_agent.api_socket import Limits
from tests.fakes.facade import FakeFacade
from tests.unit.control.conftest import Ask, exchange

# Streams in these tests end by themselves, so the long heartbeat only keeps empty lines out of the way.
QUIET = Limits(heartbeat=3600.0)


def event(seq: int, text: str = "up -> down") -> Event:
    return Event(seq, seq / 10, 1.0e9 + seq, EventKind.VERDICT, "a-rail0", text, "no carrier")


class Follower:
    """The raw stream of /v1/events/follow, a chunk at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        self.reader = reader
        self.writer = writer
        self.head = head

    @classmethod
    async def come(cls, path: Path, query: str = "") -> "Follower":
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(f"GET /v1/events/follow{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return cls(reader, writer, await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60))

    async def chunk(self) -> bytes:
        size = int(await asyncio.wait_for(self.reader.readline(), 60), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def seqs(self) -> list[int]:
        """Numbers of the next chunk; an empty line has none."""
        return [json.loads(line)["seq"] for line in (await self.chunk()).splitlines() if line]


async def test_every_view_answers_with_its_model(settings: Settings, ask: Ask) -> None:
    facade = FakeFacade()
    facade.alarm_views = [
        models.AlarmView(
            port="p", rail="r", rule="x", act="alarm", text="t", evidence="", raised=1.0, cleared=2.0, over="gone"
        )
    ]
    facade.story.tell(event(1))
    async with serve(facade, settings):
        for target, model, many in (
            ("/v1/status", models.StatusView, False),
            ("/v1/ports", models.PortView, True),
            ("/v1/alarms?history=1", models.AlarmView, True),
            ("/v1/manifest", models.ManifestView, False),
            ("/v1/paths", models.PathView, True),
            ("/v1/peers", models.PeerView, True),
            ("/v1/plan", models.PlanView, False),
            ("/v1/events", models.EventView, True),
        ):
            status, answer = await ask("GET", target)
            assert status == 200, target
            items: list[Any] = answer if many else [answer]
            assert items, target
            for item in items:
                assert model.model_validate(item).model_dump(mode="json") == item


async def test_events_obey_since_and_limit(settings: Settings, ask: Ask) -> None:
    facade = FakeFacade()
    for n in (1, 2, 3, 4):
        facade.story.tell(event(n))
    async with serve(facade, settings):
        _, newest = await ask("GET", "/v1/events?limit=2")
        _, after = await ask("GET", "/v1/events?since=1&limit=2")
    assert [e["seq"] for e in newest] == [3, 4]
    assert [e["seq"] for e in after] == [2, 3]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("since=x", "since"),
        ("since=-1", "since"),
        ("since=" + "9" * 30, "since"),
        ("since=%D9%A1", "since"),  # an Arabic digit one, which int() would take
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
    ],
)
async def test_bad_query_is_a_problem_that_names_it(settings: Settings, ask: Ask, query: str, says: str) -> None:
    async with serve(FakeFacade(), settings):
        status, answer = await ask("GET", f"/v1/events?{query}")
    assert status == 400
    assert answer["error"].startswith(f"{says} should be a whole number")


async def test_root_drains_and_undrains(settings: Settings, ask: Ask) -> None:
    facade = FakeFacade()
    async with serve(facade, settings):
        status, answer = await ask("POST", "/v1/ports/a-rail0/drain", b'{"reason": "new optic"}')
        assert (status, answer["done"], answer["text"]) == (200, True, "a-rail0 is drained")
        assert answer["plan"]["steps"][0]["after"] == ["a-rail1"]
        status, answer = await ask("POST", "/v1/ports/a-rail0/undrain")
        assert (status, answer["done"]) == (200, True)
    assert facade.changes == [("drain", "a-rail0", "new optic", "root"), ("undrain", "a-rail0", "root")]


async def test_dry_run_changes_nothing(settings: Settings, ask: Ask) -> None:
    facade = FakeFacade()
    async with serve(facade, settings):
        status, answer = await ask("POST", "/v1/ports/a-rail0/drain", b'{"reason": "x", "dry_run": true}')
    assert (status, answer["done"], facade.changes) == (200, False, [])


@pytest.mark.parametrize(
    ("target", "body", "status", "says"),
    [
        ("/v1/ports/a-rail1/drain", b'{"reason": "x"}', 409, "last usable port"),
        ("/v1/ports/nope/drain", b'{"reason": "x"}', 404, "no port 'nope'"),
        ("/v1/ports/nope/undrain", None, 404, "no port 'nope'"),
        ("/v1/ports/a-rail0/drain", b'{"reason": ""}', 400, "reason: "),
        ("/v1/ports/a-rail0/drain", b'{"reason": "' + b"x" * 501 + b'"}', 400, "reason: "),
        ("/v1/ports/a-rail0/drain", b'{"reason": "x", "force": true}', 400, "force: "),
        ("/v1/ports/a-rail0/drain", b'{"dry_run": true}', 400, "reason: "),
        ("/v1/ports/a-rail0/drain", b"reason", 400, "JSON"),
        ("/v1/ports/a-rail0/drain", b'"\xff"', 400, "JSON"),
        ("/v1/ports/a-rail0/drain", b"[" * 8000, 400, "JSON"),
        ("/v1/ports/a-rail0/drain", None, 400, "JSON"),
        ("/v1/ports/a-rail0/drain", b" " * 9000, 413, "8192 bytes"),
        ("/v1/nothing", b"", 404, "/v1/nothing"),
        ("/v1/status", b"", 405, "method"),
    ],
)
async def test_refused_change_is_a_problem_and_changes_nothing(
    settings: Settings, ask: Ask, target: str, body: bytes | None, status: int, says: str
) -> None:
    facade = FakeFacade(last_usable="a-rail1")
    async with serve(facade, settings):
        got, answer = await ask("POST", target, body)
    assert got == status
    assert set(answer) == {"error"}
    assert says in answer["error"]
    assert facade.changes == []


async def test_get_never_drains(settings: Settings, ask: Ask) -> None:
    facade = FakeFacade()
    async with serve(facade, settings):
        status, _ = await ask("GET", "/v1/ports/a-rail0/drain")
    assert (status, facade.changes) == (405, [])


async def test_failing_facade_is_answered_plainly_and_logged(
    settings: Settings, ask: Ask, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    facade = FakeFacade()

    def broken() -> models.PlanView:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(facade, "plan", broken)
    async with serve(facade, settings):
        status, answer = await ask("GET", "/v1/plan")
        again, _ = await ask("GET", "/v1/status")
    assert (status, answer["error"]) == (500, "the agent failed to answer; its log says why")
    assert again == 200
    assert "secret detail" in caplog.text


async def test_follower_gets_the_past_since_a_number_then_the_present_once(settings: Settings) -> None:
    facade = FakeFacade()
    for n in (1, 2, 3):
        facade.story.tell(event(n))
    async with serve(facade, settings, QUIET):
        follower = await Follower.come(settings.paths.socket, "?since=1")
        assert b"content-type: application/x-ndjson" in follower.head.lower()
        assert await follower.seqs() == [2, 3]
        assert await follower.seqs() == []  # the empty line that says: from here on it is live
        facade.story.tell(event(4))
        assert await follower.seqs() == [4]
        follower.writer.close()


async def test_follower_with_a_number_from_before_a_restart_still_gets_the_present(settings: Settings) -> None:
    facade = FakeFacade()
    facade.story.tell(event(1))
    async with serve(facade, settings, QUIET):
        follower = await Follower.come(settings.paths.socket, "?since=5000")
        assert await follower.seqs() == []
        facade.story.tell(event(2))
        assert await follower.seqs() == [2]
        follower.writer.close()


async def test_quiet_story_still_beats(settings: Settings) -> None:
    async with serve(FakeFacade(), settings, Limits(heartbeat=0.01)):
        follower = await Follower.come(settings.paths.socket)
        assert [await follower.chunk() for _ in range(4)] == [b"\n"] * 4
        follower.writer.close()


async def test_follower_that_hangs_up_is_forgotten(settings: Settings) -> None:
    facade = FakeFacade()
    async with serve(facade, settings, QUIET):
        follower = await Follower.come(settings.paths.socket)
        await follower.chunk()
        assert len(facade.story.followers) == 1
        follower.writer.close()
        async with asyncio.timeout(60):
            while facade.story.followers:
                await asyncio.sleep(0.001)
        assert facade.story.followers == set()


async def test_follower_that_does_not_read_is_dropped(settings: Settings) -> None:
    facade = FakeFacade()
    async with serve(facade, settings, Limits(patience=0.05, heartbeat=3600.0)) as listener:
        follower = await Follower.come(settings.paths.socket)
        await follower.chunk()
        follower.writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            n = 0
            while facade.story.followers:  # more than the socket's buffers hold
                n += 1
                facade.story.tell(event(n, "x" * 20_000))
                await asyncio.sleep(0.001)
            while listener.connected:
                await asyncio.sleep(0.001)
        assert not listener.connected
        follower.writer.transport.abort()


async def test_one_uid_has_only_so_many_followers(settings: Settings, ask: Ask) -> None:
    async with serve(FakeFacade(), settings, Limits(follows=2, heartbeat=3600.0)):
        two = [await Follower.come(settings.paths.socket) for _ in range(2)]
        for follower in two:
            await follower.chunk()
        status, answer = await ask("GET", "/v1/events/follow")
        assert (status, answer["error"]) == (409, "root has 2 followers already; end one of them first")
        for follower in two:
            follower.writer.close()


async def test_stopping_ends_the_streams_tidily_and_removes_the_socket(settings: Settings) -> None:
    async with serve(FakeFacade(), settings, QUIET):
        follower = await Follower.come(settings.paths.socket)
        await follower.chunk()
    assert await follower.reader.read() == b"0\r\n\r\n"  # the last chunk: ended, not broken off
    follower.writer.close()
    assert list(settings.paths.run.iterdir()) == []


async def test_description_is_valid_openapi_and_covers_the_routes(settings: Settings, ask: Ask) -> None:
    async with serve(FakeFacade(), settings):
        status, document = await ask("GET", "/openapi.json")
    assert status == 200
    OpenAPIV31SpecValidator(document).validate()
    assert {(m.upper(), p) for p, item in document["paths"].items() for m in item} == {
        ("GET", "/v1/status"),
        ("GET", "/v1/ports"),
        ("GET", "/v1/alarms"),
        ("GET", "/v1/manifest"),
        ("GET", "/v1/paths"),
        ("GET", "/v1/peers"),
        ("GET", "/v1/plan"),
        ("GET", "/v1/events"),
        ("GET", "/v1/events/follow"),
        ("POST", "/v1/ports/{port}/drain"),
        ("POST", "/v1/ports/{port}/undrain"),
        ("GET", "/v1/ports/{port}/quiet"),
        ("GET", "/v1/ports/{port}/explain"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/qps"),
        ("POST", "/v1/migrate"),
        ("GET", "/v1/keys"),
        ("POST", "/v1/keys/{key}/install"),
        ("POST", "/v1/keys/{key}/use"),
        ("POST", "/v1/keys/{key}/remove"),
        ("GET", "/openapi.json"),
    }
    drain = document["paths"]["/v1/ports/{port}/drain"]["post"]
    assert set(drain["responses"]) >= {"200", "403", "404", "409"}
    body = drain["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/DrainRequest"}
    assert set(document["components"]["schemas"]["DrainRequest"]["required"]) == {"reason"}


async def test_answers_hold_to_the_description(settings: Settings, ask: Ask) -> None:
    """A JSON Schema validator, which knows nothing of pydantic, checks real answers against the published schemas."""
    from openapi_schema_validator import OAS31Validator

    facade = FakeFacade()
    facade.story.tell(event(1))
    async with serve(facade, settings):
        _, document = await ask("GET", "/openapi.json")
        for target in ("status", "ports", "paths", "peers", "plan", "events", "ports/a-rail0/explain"):
            operation = document["paths"][f"/v1/{target}".replace("a-rail0", "{port}")]["get"]
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            validator = OAS31Validator({**schema, "components": document["components"]})
            _, answer = await ask("GET", f"/v1/{target}")
            validator.validate(answer)
            assert not validator.is_valid("something else")


async def test_second_agent_on_a_living_socket_is_refused_and_the_first_unharmed(
    settings: Settings, ask: Ask
) -> None:
    async with serve(FakeFacade(), settings):
        with pytest.raises(LinkPassError, match=r"another agent answers on .*agent\.sock"):
            async with serve(FakeFacade(), settings):
                pass
        status, _ = await ask("GET", "/v1/status")
    assert status == 200


async def test_garbage_changes_nothing(settings: Settings, ask: Ask) -> None:
    facade = FakeFacade()
    async with serve(facade, settings):
        for raw in (
            b"\x00" * 100 + b"\r\n\r\n",
            b"POST /v1/ports/a-rail0/drain\r\n\r\n",
            b"POST /v1/ports/a-rail0/drain HTTP/9.9\r\nHost: x\r\nConnection: close\r\n\r\n",
            b"POST /v1/ports/a-rail0/undrain HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
            b"POST /v1/ports/a-rail0/undrain HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            b"POST /v1/ports/a-rail0/undrain HTTP/1.1\r\nHost : x\r\n\r\n",
            b"POST /v1/ports/a-rail0/undrain HTTP/1.1\r\n\r\n",  # no Host
            b"POST /v1/ports/\xc3\xa4/undrain HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000,  # a header past all bounds
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x01" * 200 + b"\r\n\r\n",  # a TLS hello
        ):
            answer = await exchange(settings.paths.socket, raw)
            assert answer.startswith(b"HTTP/1.1 400 "), raw
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        status, _ = await ask("GET", "/v1/status")
    assert (status, facade.changes) == (200, [])


@pytest.mark.parametrize("line", ["POST /v1/ports/a-rail0/drain", "POST /v1/ports/a-rail0/undrain", "GET /v1/status"])
@pytest.mark.parametrize(
    "rest",
    [
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b'Transfer-Encoding: chunked\r\n\r\n10\r\n{"reason": "x"}\r\n\r\n0\r\n\r\n',  # 16 announced, 15 sent
        b"Content-Length: 100\r\n\r\n{",  # and then hung up
    ],
)
async def test_request_whose_body_is_broken_changes_nothing_and_is_no_failure_of_ours(
    settings: Settings, ask: Ask, caplog: pytest.LogCaptureFixture, line: str, rest: bytes
) -> None:
    facade = FakeFacade()
    async with serve(facade, settings) as listener:
        _, writer = await asyncio.open_unix_connection(str(settings.paths.socket))
        writer.write(f"{line} HTTP/1.1\r\nHost: x\r\n".encode() + rest)
        await writer.drain()
        writer.close()
        status, _ = await ask("GET", "/v1/status")  # accepted later, so the other one has been by now
        async with asyncio.timeout(60):
            while listener.connected or listener.state.tasks:
                await asyncio.sleep(0.001)
    assert (status, facade.changes) == (200, [])
    assert "Traceback" not in caplog.text
