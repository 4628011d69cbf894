"""What clients say of their end. The texts are theirs, shortened."""

import pytest

from linkpass_lab.guests import results
from linkpass_lab.guests.results import Amount

PERFTEST = """---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      1000             17.64              16.24  		   0.000260
---------------------------------------------------------------------------------------
"""


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (" Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n", "RETRY_EXC_ERR"),
        ("Failed status local QP operation error (2) for wr_id 2\n", "LOC_QP_OP_ERR"),
        ("parse WC failed 1\nFailed status transport retry counter exceeded (12) for wr_id 2", "RETRY_EXC_ERR"),
        ("cq completion with error: transport retry counter exceeded [qpn 0x11]", "RETRY_EXC_ERR"),
        ("cq completion failed status 5\n", "WR_FLUSH_ERR"),
        ("Failed status 2: wr_id 0\nFailed status 5: wr_id 1\n", "LOC_QP_OP_ERR"),
        ('{"exit": 1, "error": {"name": "RNR_RETRY_EXC_ERR", "status": 13}}', "RNR_RETRY_EXC_ERR"),
        ("500 iters in 0.74 seconds = 1472.23 usec/iter", ""),
        ("Failed status 0: wr_id 0", ""),
    ],
)
def test_status_is_the_first_that_is_named(text, status):
    assert results.status_of(text) == status


@pytest.mark.parametrize(
    ("reader", "text", "amount"),
    [
        (results.perftest, PERFTEST, Amount(1000, 65_536_000)),
        (results.perftest, "Couldn't connect\n", Amount()),
        (results.pingpong, "4096000 bytes in 0.74 seconds\n500 iters in 0.74 seconds\n", Amount(500, 4_096_000)),
        (results.ucx, "[thread 0]  186  1.0\nFinal:                   500      1.000\n", Amount(500)),
        (results.mpi, 'a warning\n{"iterations": 60, "ranks": 2}\n', Amount(60)),
        (results.nothing, "client DISCONNECT EVENT...\n", Amount()),
    ],
)
def test_amount_is_read_from_the_clients_own_words(reader, text, amount):
    assert reader(text) == amount


def test_statuses_stand_at_their_numbers():
    assert (results.STATUS[5], results.STATUS[12], results.STATUS[21]) == (
        "WR_FLUSH_ERR",
        "RETRY_EXC_ERR",
        "GENERAL_ERR",
    )
