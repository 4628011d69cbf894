"""The figures of the RDMA demonstration, from values worked out by hand."""

import pytest

from linkpass_lab.guests import demo

STEADY = [(t / 10, 10 * t) for t in range(200)]  # 100 packets a second from 0 s to 19.9 s
STOPS = [(0.0, 0), (5.0, 500), (20.0, 500)]  # 100 a second until 5 s, then nothing


def test_rate_of_steady_traffic_is_the_same_in_each_bin():
    points = demo.rates(STEADY, zero=2.0)
    assert len(points) == 90
    assert points[0][0] == pytest.approx(-0.95)
    assert [rate for _, rate in points] == pytest.approx([100.0] * 90)


def test_rate_after_traffic_stopped_is_zero():
    points = demo.rates(STOPS, zero=5.0)
    assert [rate for at, rate in points if at < 0] == pytest.approx([100.0] * 10)
    assert {rate for at, rate in points if at > 0} == {0.0}


def test_rate_after_the_last_look_is_zero():
    assert demo.rates([(0.0, 0), (2.0, 200)], zero=2.0)[-1][1] == 0.0


def test_mean_takes_the_bins_between_two_times_only():
    points = [(-0.5, 8.0), (0.5, 1.0), (1.5, 3.0), (2.5, 9.0)]
    assert demo.mean(points, 0.0, 2.0) == 2.0
    assert demo.mean(points, 7.0, 8.0) == 0.0


def test_bars_run_from_blank_to_full():
    assert demo.bars([(0.0, 0.0), (0.1, 50.0), (0.2, 100.0)], 100.0) == " =@"
    assert demo.bars([(0.0, 0.0)], 0.0) == " "


def test_only_a_doubt_that_changes_nothing_is_left_out_of_the_story():
    assert demo.is_doubt("  14.005 b verdict a/rail0: up -> suspect (path: a probe wasn't answered)")
    assert demo.is_doubt("  14.082 b verdict a/rail0: suspect -> up (both ports are up)")
    assert not demo.is_doubt("   0.026 b verdict a/rail0: suspect -> down (probes lost)")
    assert not demo.is_doubt("   0.026 b decided job: up -> suspect")


def test_summary_says_when_the_job_did_not_survive():
    lost = demo.Figures(survived=False, without="died")
    assert any("DID NOT SURVIVE" in line and "unknown" in line for line in demo.summary(lost))
    kept = demo.Figures(survived=True, gap=0.25, before=100.0, after=90.0)
    lines = "\n".join(demo.summary(kept))
    assert "gap 250 ms" in lines and "0.90 of before" in lines
