"""linkpassctl jobs, qps, migrate and drain --wait, against a fake agent on a real socket."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from linkpass.api import JobView, QpView
from linkpass.ctl.jobs import gap, size, why_not
from linkpass.settings import Settings
from linkpass_agent.api import serve
from tests.fakes.facade import FakeFacade

ROOT = Path(__file__).parents[3]
Ctl = Callable[..., Coroutine[object, object, tuple[int | None, str, str]]]
Asking = Callable[..., Coroutine[object, object, tuple[int, object]]]


@pytest.fixture
def ctl(settings: Settings, facade: FakeFacade) -> Ctl:
    env = {**os.environ, "LINKPASS_SOCKET": str(settings.paths.socket), "PYTHONPATH": str(ROOT)}

    async def run(*args: str) -> tuple[int | None, str, str]:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "linkpass.ctl", *args,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd="/",
        )  # fmt: skip
        out, err = await asyncio.wait_for(child.communicate(), 60)
        return child.returncode, out.decode(), err.decode()

    return run


def job(number: int = 3, protected: int = 63, **other: object) -> JobView:
    fields: dict[str, object] = {
        "name": "train", "pid": 4711, "uid": 1000, "since": 75.0, "queue_pairs": 64,
        "why_not": {"no spare": 1} if protected < 64 else {}, "rails": {"rail1": 64}, "peers": ["b"],
        "migrations": 128, "last_gap": 0.00234, "replayed_bytes": 1_234_567,
    }  # fmt: skip
    return JobView.model_validate({"job": number, "protected": protected, **fields, **other})


def qp(number: int = 17, protected: bool = True) -> QpView:
    return QpView(
        qp=f"3.{number}", job=3, number=0x1F, device="mlx5_0", peer="b", address="10.10.0.2", remote_number=0x2F,
        port="a-rail1", rail="rail1", home="rail0", state="active", protected=protected,
        why_not="" if protected else "no spare", spares={"rail0": "ready"}, leads=True, migrations=2,
        last_gap=None, replayed=3, replayed_bytes=0, executed=1,
    )  # fmt: skip


async def test_jobs_are_shown_with_what_they_went_through(facade: FakeFacade, ctl: Ctl) -> None:
    facade.job_views = [job()]
    code, out, _ = await ctl("jobs")
    head, row = (line.split("  ") for line in out.splitlines())
    assert code == 0
    cells = [c.strip() for c in row if c.strip()]
    assert [h.strip() for h in head if h.strip()][:3] == ["JOB", "NAME", "PID"]
    assert cells[:5] == ["3", "train", "4711", "1000", "1m15s"]
    assert cells[5:] == ["64", "63 of 64", "rail1 64", "b", "128", "2.3ms", "1.23 MB", "no spare"]


async def test_no_jobs_is_said_with_the_way_to_one(ctl: Ctl) -> None:
    assert (await ctl("jobs"))[:2] == (0, "no job is attached; start one with 'linkpass run -- COMMAND'\n")


async def test_json_is_the_agent_s(facade: FakeFacade, ctl: Ctl) -> None:
    facade.job_views, facade.qp_views = [job()], [qp()]
    assert json.loads((await ctl("jobs", "--json"))[1])[0]["last_gap"] == 0.00234
    assert json.loads((await ctl("qps", "3", "--json"))[1])[0]["spares"] == {"rail0": "ready"}


async def test_qps_of_one_job_or_all(facade: FakeFacade, ctl: Ctl) -> None:
    facade.job_views, facade.qp_views = [job()], [qp(), qp(18, protected=False)]
    code, out, _ = await ctl("qps", "3")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["QP", "3.17", "3.18"]
    assert "0x00001f" in out and "no: no spare" in out and "rail0 ready" in out
    code, _, err = await ctl("qps", "9")
    assert (code, err) == (1, "linkpassctl: no job 9 here\n")


async def test_migrate_tells_who_stays_and_fails_for_them(facade: FakeFacade, ctl: Ctl) -> None:
    assert (await ctl("migrate", "3.17", "--to", "a-rail1"))[:2] == (0, "ordered 1 of 1 queue pairs to a-rail1\n")
    assert facade.changes == [("migrate", "3.17", "a-rail1", "root")]
    facade.stay = {"3.18": "it has no spare on rail1 yet"}
    code, out, _ = await ctl("migrate", "3.18", "--to", "a-rail1")
    assert code == 1
    assert out.splitlines()[1] == "stays: 3.18: it has no spare on rail1 yet"
    assert (await ctl("migrate", "3.18"))[0] == 2


async def test_drain_waits_until_the_port_is_quiet(facade: FakeFacade, ctl: Ctl) -> None:
    facade.busy = [64, 3]
    code, out, _ = await ctl("drain", "a-rail0", "--reason", "optic", "--wait")
    assert (code, out.splitlines()[0], out.splitlines()[-1]) == (0, "a-rail0 is drained", "a-rail0: safe to pull")
    assert facade.busy == []


async def test_drain_gives_up_waiting_and_names_who_stays(facade: FakeFacade, ctl: Ctl) -> None:
    facade.busy, facade.stay = [2] * 100, {"3.9": "no shim there"}
    code, out, _ = await ctl("drain", "a-rail0", "--reason", "optic", "--wait", "0.01")
    assert code == 1
    assert out.splitlines()[-2:] == [
        "a-rail0 is still used by 2 queue pairs: not safe to pull",
        "stays: 3.9: no shim there",
    ]
    assert (await ctl("drain", "a-rail0", "--reason", "optic", "--wait", "never"))[0] == 2


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "-"), (999, "999 B"), (1000, "1 kB"), (1_234_567, "1.23 MB"), (10**18, "1 EB")]
)
def test_bytes_have_three_digits_and_a_unit(count: int, shown: str) -> None:
    assert size(count) == shown


def test_gap_is_told_to_a_tenth_of_a_millisecond_while_it_is_short() -> None:
    assert [gap(s) for s in (None, 0.0023, 0.25, 3.2)] == ["-", "2.3ms", "250.0ms", "3.2s"]


def test_reasons_come_with_their_numbers_the_most_frequent_first() -> None:
    assert why_not({"why_not": {"b": 1, "a": 7}}) == "7: a; 1: b"


async def test_bad_requests_change_nothing(settings: Settings, ask: Asking) -> None:
    facade = FakeFacade()
    async with serve(facade, settings):
        assert (await ask("POST", "/v1/migrate", b'{"what": "3.17"}'))[0] == 400
        assert (await ask("POST", "/v1/migrate", b'{"what": "3.17", "to": "eth9"}'))[0] == 404
        assert (await ask("GET", "/v1/qps?job=x"))[0] == 400
        assert (await ask("GET", "/v1/ports/eth9/quiet"))[0] == 404
    assert facade.changes == []
