"""What a verbs job's own words say of how it ended: pure, so that a log can be read again later."""

import itertools
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

# enum ibv_wc_status of infiniband/verbs.h, in its order.
STATUS = (
    "SUCCESS",
    "LOC_LEN_ERR",
    "LOC_QP_OP_ERR",
    "LOC_EEC_OP_ERR",
    "LOC_PROT_ERR",
    "WR_FLUSH_ERR",
    "MW_BIND_ERR",
    "BAD_RESP_ERR",
    "LOC_ACCESS_ERR",
    "REM_INV_REQ_ERR",
    "REM_ACCESS_ERR",
    "REM_OP_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "LOC_RDD_VIOL_ERR",
    "REM_INV_RD_REQ_ERR",
    "REM_ABORT_ERR",
    "INV_EECN_ERR",
    "INV_EEC_STATE_ERR",
    "FATAL_ERR",
    "RESP_TIMEOUT_ERR",
    "GENERAL_ERR",
    "TM_ERR",
    "TM_RNDV_INCOMPLETE",
)
# What ibv_wc_status_str says (libibverbs/verbs.c), and UCX, which has words of its own for some.
WORDS = {
    "local length error": "LOC_LEN_ERR",
    "local qp operation error": "LOC_QP_OP_ERR",
    "local protection error": "LOC_PROT_ERR",
    "work request flushed error": "WR_FLUSH_ERR",
    "remote invalid request error": "REM_INV_REQ_ERR",
    "remote access error": "REM_ACCESS_ERR",
    "remote operation error": "REM_OP_ERR",
    "transport retry counter exceeded": "RETRY_EXC_ERR",
    "transport retry count exceeded": "RETRY_EXC_ERR",
    "rnr retry counter exceeded": "RNR_RETRY_EXC_ERR",
    "rnr retry count exceeded": "RNR_RETRY_EXC_ERR",
}
# perftest: "Failed status 12: wr_id 0 ..."; rping: "cq completion failed status 5"; others give the words' number.
NUMBERED = re.compile(r"[Ff]ailed status:? (\d+)\b|completion with error.*?status (\d+)\b")


@dataclass(frozen=True, slots=True)
class Amount:
    """How much a job says it did; 0 where it doesn't say."""

    iterations: int = 0
    bytes: int = 0


def status_of(text: str) -> str:
    """The first verbs completion status that a job names, '' when it names none.

    The first one is the cause: what follows is mostly WR_FLUSH_ERR, which every error brings.
    """
    error = json_object(text).get("error")
    if isinstance(error, dict) and error.get("name") in STATUS[1:]:
        return str(error["name"])
    found: list[tuple[int, str]] = []
    for match in NUMBERED.finditer(text):
        number = int(match[1] or match[2])
        if 0 < number < len(STATUS):
            found.append((match.start(), STATUS[number]))
    lower = text.lower()
    for words, name in WORDS.items():
        at = lower.find(words)
        if at >= 0:
            found.append((at, name))
    return min(found)[1] if found else ""


def perftest(text: str) -> Amount:
    """The result row below the head `#bytes #iterations`."""
    lines = text.splitlines()
    for head, row in itertools.pairwise(lines):
        if head.split()[:2] == ["#bytes", "#iterations"]:
            numbers = row.split()
            with suppress(ValueError, IndexError):
                size, count = int(numbers[0]), int(numbers[1])
                return Amount(count, size * count)
    return Amount()


def pingpong(text: str) -> Amount:
    """`4096000 bytes in 0.74 seconds`, `500 iters in 0.74 seconds`."""
    moved = re.search(r"(\d+) bytes in [\d.]+ seconds", text)
    times = re.search(r"(\d+) iters in [\d.]+ seconds", text)
    return Amount(int(times[1]) if times else 0, int(moved[1]) if moved else 0)


def ucx(text: str) -> Amount:
    """`Final:   500 ...`."""
    found = re.search(r"^Final:\s+(\d+)", text, re.MULTILINE)
    return Amount(int(found[1])) if found else Amount()


def json_object(text: str) -> dict[str, Any]:
    """The last JSON object that stands on a line, or the whole text; {} when there is none."""
    for candidate in (text, *reversed(text.splitlines())):
        with suppress(ValueError):
            value = json.loads(candidate)
            if isinstance(value, dict):
                return value
    return {}


def nothing(_: str) -> Amount:
    """For clients that don't say how much they did."""
    return Amount()


def mpi(text: str) -> Amount:
    """`mpi_job`'s JSON line."""
    return Amount(int(json_object(text).get("iterations", 0)))


def flow(text: str) -> Amount:
    """The JSON of rcflow and ncclflow."""
    said = json_object(text)
    return Amount(int(said.get("completions", 0)), int(said.get("bytes", 0)))


Reader = Callable[[str], Amount]
