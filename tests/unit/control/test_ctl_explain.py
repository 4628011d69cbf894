"""linkpassctl explain, as a user runs it."""

import json
import re
from collections.abc import AsyncIterator

import pytest

from linkpass.model import Event, EventKind
from linkpass.settings import Settings
from linkpass_agent.api import serve
from tests.fakes.ctl import Ctl
from tests.fakes.facade import FakeFacade


@pytest.fixture
async def facade(settings: Settings) -> AsyncIterator[FakeFacade]:
    fake = FakeFacade()
    data = {"evidence": "carrier false (carrier, 0.00 s ago); carrier true (sweep, 0.40 s ago)"}
    fake.story.tell(Event(7, 0.7, 1.0e9, EventKind.VERDICT, "a-rail0", "up -> down", "carrier lost", {**data}))
    async with serve(fake, settings):
        yield fake


async def test_explain_tells_identity_facts_counters_findings_and_story(facade: FakeFacade, ctl: Ctl) -> None:
    code, out, err = await ctl("explain", "a-rail0")
    assert (code, err) == (0, "")
    head, identity, *rest = out.splitlines()
    assert head.startswith("a-rail0 on rail0 is suspect for 42s: rule symbol-errors: counters/symbol_error grew by")
    assert identity.startswith("device ens1f0, PCI 0000:17:00.0, RDMA mlx5_0/1, GUID 0c42:a103:0065:1a2e, driver ml")
    text = "\n".join(rest)
    assert "rdma-rate  can't observe  sysfs" in text
    assert "can't observe rate: Invalid argument" in text
    assert "counters/link_downed" in text and "saturated at 255" in text
    assert "port_rcv_errors" not in text  # it never grew, and can be read
    assert "symbol-errors (suspect) for 42s:" in text
    assert re.search(r"width +can't observe +-\n", text)
    assert re.search(r"probe +shut +queue pair probe: no answer from b by rail1 for 3 s\n", text)
    assert "    on: carrier false (carrier, 0.00 s ago); carrier true (sweep, 0.40 s ago)" in text
    order = [text.index(title) for title in ("seen now", "gates", "counters\n", "findings", "story")]
    assert order == sorted(order)


async def test_explain_shows_every_counter_on_request(facade: FakeFacade, ctl: Ctl) -> None:
    assert "counters/port_rcv_errors" in (await ctl("explain", "a-rail0", "--counters"))[1]


async def test_explain_as_json_is_the_agents_own(facade: FakeFacade, ctl: Ctl) -> None:
    told = json.loads((await ctl("explain", "a-rail0", "--json"))[1])
    assert [f["rule"] for f in told["findings"]] == ["symbol-errors"]
    assert [e["seq"] for e in told["story"]] == [7]


async def test_explain_of_no_port_is_refused_with_those_that_are_there(facade: FakeFacade, ctl: Ctl) -> None:
    code, out, err = await ctl("explain", "eth9")
    assert (code, out) == (1, "")
    assert "no port 'eth9'; there are a-rail0, a-rail1" in err


async def test_explain_with_a_limit_out_of_range_is_wrong_usage(facade: FakeFacade, ctl: Ctl) -> None:
    assert (await ctl("explain", "a-rail0", "--limit", "0"))[0] == 2
