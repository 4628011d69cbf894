"""linkpassctl as a user runs it: a process of its own, against a real socket."""

import argparse
import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from linkpass.api import AlarmView, PlanView
from linkpass.ctl.__main__ import parser
from linkpass.ctl.events import KINDS
from linkpass.model import Event, EventKind
from linkpass.settings import Settings
from linkpass_agent.api import serve
from tests.fakes.ctl import COMMAND, ROOT, Ctl
from tests.fakes.facade import STEP, FakeFacade, port


@pytest.fixture
async def facade(settings: Settings) -> AsyncIterator[FakeFacade]:
    fake = FakeFacade(last_usable="a-rail1")
    for n, kind in ((1, EventKind.SEEN), (2, EventKind.ACTED), (3, EventKind.SEEN)):
        fake.story.tell(Event(n, n / 10, 1.0e9 + n, kind, "a-rail0", f"text{n}", "cause" if n == 1 else ""))
    async with serve(fake, settings):
        yield fake


async def test_status_of_a_well_host(facade: FakeFacade, ctl: Ctl) -> None:
    assert await ctl("status") == (
        0,
        "host a, act mode, linkpass 0.1.0, running for 3m12s\nhealth: ok\n"
        "ports up: 2 of 2, paths up: 1 of 2, peers connected: 1 of 1\n",
        "",
    )


async def test_status_of_a_degraded_host_lists_its_problems_and_exits_1(facade: FakeFacade, ctl: Ctl) -> None:
    facade.health = "degraded"
    facade.problems = ["port a-rail0 is down: no carrier", "evil \x1b]0;title\x07"]
    code, out, _ = await ctl("status")
    assert code == 1
    assert out.splitlines()[1:4] == [
        "health: degraded",
        "  ! port a-rail0 is down: no carrier",
        "  ! evil \\x1b]0;title\\x07",
    ]
    assert (await ctl("status", "--json"))[0] == 1


async def test_tables_show_what_the_agent_says(facade: FakeFacade, ctl: Ctl) -> None:
    facade.port_views = [
        port(state="held", cause="carrier back", held_for=3.25, since=0.25, flaps=2, last_flap=75.0),
        port(
            "a-rail1", "rail1", "drained", cause="drained", drained="new optic", carrier=None, mtu=None, addresses=[]
        ),
    ]
    _, out, _ = await ctl("ports")
    header, first, second = (re.split(r" {2,}", line) for line in out.splitlines())
    assert header == ["PORT", "RAIL", "STATE", "FOR", "CARRIER", "MTU", "FLAPS", "LAST FLAP", "ADDRESSES", "CAUSE"]
    held = "carrier back (held for another 3.2s)"
    assert first == ["a-rail0", "rail0", "held", "250ms", "yes", "9000", "2", "1m15s ago", "10.10.0.1", held]
    reason = "drained (drained: new optic)"
    assert second == ["a-rail1", "rail1", "drained", "12s", "?", "?", "0", "-", "-", reason]
    _, out, _ = await ctl("paths")
    row = re.split(r" {2,}", out.splitlines()[1])
    assert row == [
        *("b", "rail0", "a-rail0", "down", "250ms", "up", "down", "up", "0.12ms", "no", "2"),
        "peer's port is down",
    ]
    assert len((await ctl("paths", "--peer", "c"))[1].splitlines()) == 1
    _, out, _ = await ctl("peers")
    row = re.split(r" {2,}", out.splitlines()[1])
    assert row == ["b", "connected", "500ms ago", "10.99.0.2:7471", "rail0 down, rail1 up", "10.255.0.2", "7.12"]


async def test_plan_shows_steps_and_refusals(facade: FakeFacade, ctl: Ctl) -> None:
    assert (await ctl("plan"))[1] == "no route to change\n"
    facade.plan_view = PlanView(steps=[STEP], refused=["10.255.0.3: no usable path to c"])
    _, out, _ = await ctl("plan")
    assert re.split(r" {2,}", out.splitlines()[1]) == [
        "10.255.0.2",
        "b",
        "a-rail0, a-rail1",
        "a-rail1",
        "a-rail0 drained",
    ]
    assert out.splitlines()[2] == "refused: 10.255.0.3: no usable path to c"


@pytest.mark.parametrize("args", [("--json", "ports"), ("ports", "--json"), ("--json", "ports", "--json")])
async def test_json_before_or_after_the_verb_is_the_agents_own(
    facade: FakeFacade, ctl: Ctl, args: tuple[str, ...]
) -> None:
    code, out, _ = await ctl(*args)
    assert (code, json.loads(out)) == (0, [p.model_dump(mode="json") for p in facade.port_views])


async def test_events_are_filtered_and_cut(facade: FakeFacade, ctl: Ctl) -> None:
    _, out, _ = await ctl("events")
    assert [line.split(" ", 2)[2].split() for line in out.splitlines()] == [
        ["1", "seen", "a-rail0:", "text1", "(cause)"],
        ["2", "acted", "a-rail0:", "text2"],
        ["3", "seen", "a-rail0:", "text3"],
    ]

    async def seqs(*args: str) -> list[int]:
        return [e["seq"] for e in json.loads((await ctl("events", "--json", *args))[1])]

    assert await seqs("--kind", "seen") == [1, 3]
    assert await seqs("--kind", "seen", "--kind", "acted", "--limit", "2") == [2, 3]
    assert await seqs("--since", "0", "--kind", "seen", "-n", "1") == [1]
    assert await seqs("--since", "1") == [2, 3]


def test_kinds_are_those_of_the_model() -> None:
    assert list(KINDS) == [k.value for k in EventKind]


async def test_drain_and_undrain_say_what_was_done(facade: FakeFacade, ctl: Ctl) -> None:
    code, out, _ = await ctl("drain", "a-rail0", "--reason", "new optic")
    assert (code, out.splitlines()[0]) == (0, "a-rail0 is drained")
    assert "a-rail0, a-rail1" in out
    assert (await ctl("undrain", "a-rail0"))[:2] == (0, "a-rail0 is back\nno route to change\n")
    assert facade.changes == [("drain", "a-rail0", "new optic", "root"), ("undrain", "a-rail0", "root")]


async def test_dry_run_and_refusal_change_nothing(facade: FakeFacade, ctl: Ctl) -> None:
    code, out, _ = await ctl("drain", "a-rail0", "--reason", "x", "--dry-run")
    assert (code, out.splitlines()[0]) == (0, "a-rail0 would be drained")
    code, out, err = await ctl("drain", "a-rail1", "--reason", "x")
    refusal = "linkpassctl: a-rail1 is the last usable port to b; repair another first\n"
    assert (code, out, err) == (1, "", refusal)
    assert (await ctl("drain", "eth9", "--reason", "x"))[0] == 1
    assert facade.changes == []


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("nope",),
        ("drain", "a-rail0"),
        ("drain", "--reason", "x"),
        ("drain", "a-rail0", "--reason", ""),
        ("events", "--since", "-1"),
        ("events", "--limit", "0"),
        ("events", "--limit", "1001"),
        ("events", "--kind", "other"),
        ("events", "--follow", "--limit", "5"),
        ("completion", "fish"),
        ("status", "--js"),
    ],
)
async def test_wrong_usage_exits_2_and_says_so(facade: FakeFacade, ctl: Ctl, args: tuple[str, ...]) -> None:
    code, out, err = await ctl(*args)
    assert (code, out) == (2, "")
    assert "linkpassctl" in err
    assert "Traceback" not in err
    assert facade.changes == []


async def test_no_agent_exits_3_for_every_verb_and_names_the_socket(ctl: Ctl, settings: Settings) -> None:
    for args in (["status"], ["ports", "--json"], ["events", "-f"], ["drain", "x", "--reason", "y"]):
        code, out, err = await ctl(*args)
        assert (code, out) == (3, "")
        assert str(settings.paths.socket) in err
    code, _, err = await ctl("--socket", "/elsewhere", "status")
    assert code == 3
    assert "no agent at /elsewhere" in err


async def test_follow_prints_at_once_and_ctrl_c_is_quiet(facade: FakeFacade, ctl: Ctl) -> None:
    child = await ctl.start("events", "--follow", "--since", "2")
    assert child.stdout
    assert b"text3" in await asyncio.wait_for(child.stdout.readline(), 60)
    child.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(child.communicate(), 60)
    assert (child.returncode, out, err) == (130, b"", b"")


async def test_follow_ends_with_3_when_the_agent_goes_away(settings: Settings, ctl: Ctl) -> None:
    facade = FakeFacade()
    facade.story.tell(Event(1, 0.1, 1.0e9, EventKind.SEEN, "a", "text1"))
    async with serve(facade, settings):
        child = await ctl.start("--json", "events", "--follow", "--since", "0")
        assert child.stdout
        assert json.loads(await asyncio.wait_for(child.stdout.readline(), 30))["seq"] == 1
    _, err = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode == 3
    assert err.decode() == f"linkpassctl: the agent at {settings.paths.socket} went away\n"


async def test_reader_that_has_enough_is_no_error_message(facade: FakeFacade, ctl: Ctl) -> None:
    for args in (["events"], ["events", "--follow", "--since", "0"]):
        read, write = os.pipe()
        os.close(read)
        child = await ctl.start(*args, stdout=write)
        os.close(write)
        _, err = await asyncio.wait_for(child.communicate(), 60)
        assert (child.returncode, err) == (1, b"")


async def test_full_disk_is_told(facade: FakeFacade, ctl: Ctl) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    child = await ctl.start("status", stdout=full)
    os.close(full)
    _, err = await asyncio.wait_for(child.communicate(), 60)
    assert (child.returncode, err) == (1, b"linkpassctl: can't write the answer: No space left on device\n")


async def test_terminal_gets_colour_unless_no_color(facade: FakeFacade, ctl: Ctl) -> None:
    async def on_terminal(**env: str) -> str:
        ours, theirs = pty.openpty()
        child = await ctl.start("ports", stdout=theirs, **env)
        os.close(theirs)
        await asyncio.wait_for(child.wait(), 60)
        text = os.read(ours, 65536).decode()
        os.close(ours)
        return text

    assert "\x1b[32mup\x1b[0m" in await on_terminal()
    assert "\x1b" not in await on_terminal(NO_COLOR="1")


async def test_odd_characters_survive_an_ascii_terminal(facade: FakeFacade, ctl: Ctl) -> None:
    facade.problems = ["Zürich"]
    child = await ctl.start("status", PYTHONIOENCODING="ascii")
    out, err = await asyncio.wait_for(child.communicate(), 60)
    assert (b"Z\\xfcrich" in out, err) == (True, b"")


def test_bash_completes_verbs_and_options(tmp_path: Path) -> None:
    """The script runs in a real bash, as pressing Tab would run it."""
    made = subprocess.run([*COMMAND, "completion", "bash"], cwd=ROOT, capture_output=True, text=True, check=True)
    asks = """
tab() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_linkpassctl; echo "${COMPREPLY[*]}"; }
tab linkpassctl und
tab linkpassctl drain --dr
tab linkpassctl events --kind ac
"""
    done = subprocess.run(["bash", "--norc"], input=made.stdout + asks, capture_output=True, text=True, check=True)
    assert [line.split() for line in done.stdout.splitlines()] == [["undrain"], ["--dry-run"], ["acted"]]


def test_zsh_gets_a_script_for_the_command() -> None:
    made = subprocess.run([*COMMAND, "completion", "zsh"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert made.stdout.startswith("#compdef linkpassctl")
    assert "undrain" in made.stdout


async def test_keys_are_listed_installed_used_and_removed(facade: FakeFacade, ctl: Ctl, tmp_path: Path) -> None:
    secret = "0123456789abcdef" * 4
    file = tmp_path / "key"
    file.write_text(f"2026b {secret}\n")
    code, out, _ = await ctl("keys", "list")
    assert code == 0 and out.splitlines()[1].split() == ["2026a", "0a1b2c3d", "sends", "3", "of", "3", "2", "of", "3"]
    code, out, _ = await ctl("keys", "install", "2026b", "--file", str(file))
    assert code == 0 and secret not in out
    assert (await ctl("keys", "use", "2026a"))[0] == 0
    assert (await ctl("keys", "remove", "2026a", "--force"))[0] == 0
    assert facade.changes == [
        ("install", "2026b", secret, "root"),
        ("use", "2026a", False, "root"),
        ("remove", "2026a", True, "root"),
    ]
    assert (await ctl("keys", "use", "x"))[::2] == (1, "linkpassctl: no key 'x'\n")
    assert (await ctl("keys", "use"))[0] == 2
    file.write_text(f"other {secret}")
    code, _, err = await ctl("keys", "install", "2026c", "--file", str(file))
    assert code == 1 and "should hold '2026c HEX'" in err and secret not in err


def test_every_verb_has_help_with_an_example() -> None:
    actions = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    verbs: dict[str, argparse.ArgumentParser] = actions[0].choices
    expected = {"status", "ports", "paths", "peers", "events", "plan", "drain", "undrain", "completion"}
    expected |= {"jobs", "qps", "migrate", "keys", "explain", "alarms", "manifest", "check"}
    assert set(verbs) == expected
    for name, own in verbs.items():
        assert f"linkpassctl {name}" in own.format_help().split("examples:")[1], name


def test_command_starts_without_the_heavy_packages() -> None:
    """What makes `linkpassctl status` quick: none of these is imported for it."""
    code = "import sys, linkpass.ctl.__main__; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert "linkpass.client" in loaded
    assert not loaded & {"pydantic", "asyncio", "shtab", "linkpass.settings", "linkpass.api", "starlette", "uvicorn"}


RAISED = AlarmView(
    port="a-rail0", rail="rail0", rule="port-flaps", act="alarm", text="agent/flaps grew by 3 in 600 s, more than 2",
    evidence="", raised=1.0e9, cleared=None, over="",
)  # fmt: skip
OVER = RAISED.model_copy(update={"rule": "port-outage", "cleared": 1.0e9 + 60, "over": "the cause is gone"})


async def test_alarms_that_are_active_are_shown_and_give_exit_code_1(facade: FakeFacade, ctl: Ctl) -> None:
    assert await ctl("alarms") == (0, "no active alarms\n", "")
    facade.alarm_views = [OVER]
    assert (await ctl("alarms"))[:2] == (0, "no active alarms\n")
    facade.alarm_views = [OVER, RAISED]
    code, out, _ = await ctl("alarms")
    assert code == 1
    row = re.split(r" {2,}", out.splitlines()[1])
    assert row[1:] == ["active", "a-rail0", "rail0", "port-flaps", RAISED.text, "-"] and len(out.splitlines()) == 2
    assert "alarm a-rail0: port-flaps: agent/flaps grew" in (await ctl("status"))[1]


async def test_alarms_history_shows_why_one_is_over_and_json_is_what_the_agent_says(
    facade: FakeFacade, ctl: Ctl
) -> None:
    facade.alarm_views = [OVER]
    code, out, _ = await ctl("alarms", "--history")
    assert code == 0 and "(the cause is gone)" in out
    facade.alarm_views = [OVER, RAISED]
    code, out, _ = await ctl("alarms", "--history", "--json")
    assert code == 1 and [a["rule"] for a in json.loads(out)] == ["port-outage", "port-flaps"]
    assert [a["rule"] for a in json.loads((await ctl("--json", "alarms"))[1])] == ["port-flaps"]
