"""ethtool over netlink: answers as the kernel lays them out, and its refusals."""

import errno
import struct
from collections.abc import Callable

import pytest

from linkpass_agent.see.attributes import NESTED, attribute, attributes
from linkpass_agent.see.ethtool import (
    CTRL_GETFAMILY,
    FEC_GET,
    LINKSTATE_GET,
    MODULE_EEPROM_GET,
    Ethtool,
    Fec,
    LinkState,
)

FAMILY = 21
Answer = bytes | int  # attributes, or an errno


class FakeKernel:
    """The other end of the netlink socket. Before each answer comes a late one, of a question that was given up."""

    def __init__(self, answers: dict[int, Callable[[dict[int, bytes]], Answer]]) -> None:
        self._answers, self._queue = answers, list[bytes]()
        self.asked: list[tuple[int, str]] = []

    def send(self, data: bytes) -> None:
        _, family, _, seq, _ = struct.unpack_from("=IHHII", data)
        command, fields = data[16], dict(attributes(data[20:]))
        if family == 16:
            assert command == CTRL_GETFAMILY
            answer: Answer = attribute(1, struct.pack("=H", FAMILY))
        else:
            assert family == FAMILY
            self.asked.append((command, dict(attributes(fields[1]))[2].rstrip(b"\0").decode()))
            answer = self._answers[command](fields)
        self._queue.append(struct.pack("=IHHII", 16, 2, 0, seq - 1, 0))
        if isinstance(answer, int):
            body = struct.pack("=i", -answer) + data[:16]
            self._queue.append(struct.pack("=IHHII", 16 + len(body), 2, 0, seq, 0) + body)
        else:
            body = struct.pack("=BBH", command, 1, 0) + answer
            self._queue.append(struct.pack("=IHHII", 16 + len(body), family, 0, seq, 0) + body)

    def recv(self, size: int) -> bytes:
        return self._queue.pop(0)

    def close(self) -> None: ...


def ethtool(answers: dict[int, Callable[[dict[int, bytes]], Answer]]) -> tuple[Ethtool, FakeKernel]:
    made, kernel = Ethtool(), FakeKernel(answers)
    made._netlink = kernel  # type: ignore[assignment]
    return made, kernel


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (attribute(2, b"\x01"), LinkState(True, "", None)),
        (attribute(2, b"\0") + attribute(5, b"\x03"), LinkState(False, "bad signal integrity", None)),
        (attribute(2, b"\0") + attribute(5, b"\x04") + attribute(7, u32(9)), LinkState(False, "no cable", 9)),
        (attribute(2, b"\0") + attribute(5, b"\x63"), LinkState(False, "extended state 99", None)),
        (b"", LinkState(False, "", None)),
    ],
)
def test_link_state_says_why_there_is_no_link_and_how_often_it_went(answer: bytes, state: LinkState) -> None:
    asked, kernel = ethtool({LINKSTATE_GET: lambda fields: answer})
    assert asked.link("eth1") == state
    assert kernel.asked == [(LINKSTATE_GET, "eth1")]
    asked.close()


def test_fec_gives_mode_and_totals_and_none_for_what_isnt_counted() -> None:
    lanes = struct.pack("=3Q", 700, 300, 400)  # the total, then each lane's
    stats = attribute(2, lanes) + attribute(3, struct.pack("=Q", (1 << 64) - 1))
    answer = attribute(4, u32(50)) + attribute(5 | NESTED, stats)

    def told(fields: dict[int, bytes]) -> Answer:
        assert dict(attributes(fields[1]))[3] == u32(4)  # ETHTOOL_FLAG_STATS
        return answer

    asked, _ = ethtool({FEC_GET: told})
    assert asked.fec("eth1") == Fec("RS", 700, None, None)
    asked.close()


def test_refusal_is_the_kernels_own_and_hides_no_later_answer() -> None:
    asked, _ = ethtool({
        FEC_GET: lambda fields: errno.EOPNOTSUPP,
        LINKSTATE_GET: lambda fields: attribute(2, b"\x01"),
    })  # fmt: skip
    with pytest.raises(OSError, match="Operation not supported"):
        asked.fec("eth1")
    assert asked.link("eth1").link
    asked.close()


def test_module_of_cmis_is_asked_for_its_upper_page_too() -> None:
    lower = bytearray(128)
    lower[0], lower[14:18] = 0x18, struct.pack(">hH", 40 * 256, 33_000)
    powers = bytes(58) + struct.pack(">8H", *[10_000] * 8) + bytes(54)

    def told(fields: dict[int, bytes]) -> Answer:
        return attribute(7, powers if fields[4] == b"\x11" else bytes(lower))

    asked, kernel = ethtool({MODULE_EEPROM_GET: told})
    found = asked.module("eth1")
    assert found is not None
    assert (found.temperature, found.voltage, found.received) == (40.0, 3.3, (1.0,) * 8)
    assert len(kernel.asked) == 2
    asked.close()
