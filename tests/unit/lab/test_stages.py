"""The steps of a failover, read from stories written by hand."""

from linkpass_lab.guests import stages

STORY = [
    "  -0.200 b verdict b-rail0: up -> down (early)",
    "   0.010 b verdict a/rail1: up -> suspect (path: a probe wasn't answered)",
    "   0.026 b verdict b-rail0: up -> down (PORT_ERR)",
    "   0.040 b decided job rcflow/8: 1 queue pair ordered off a dead path: rail0 -> rail1",
    "   0.119 a learned b: b-rail0 up -> down (PORT_ERR)",
    "   0.130 a decided 10.255.0.2: a-rail0 via 10.10.0.2 -> a-rail1",
    "   0.135 a decided job rcflow/9: 1 queue pair ordered off a dead path: rail0 -> rail1",
    "   0.140 a acted 10.255.0.2: a-rail0 via 10.10.0.2 -> a-rail1 (routes, no job)",
    "   0.250 a acted job rcflow/9: 1 queue pair moved: rail0 -> rail1, gap 90.0 ms",
    "   4.250 a acted job rcflow/9: 1 queue pair moved: rail1 -> rail0, gap 9.0 ms",
]
SPLIT = {"seen": 0.026, "told": 0.119, "ordered there": 0.040, "ordered here": 0.135, "moved": 0.250}


def test_split_takes_the_first_of_each_step_after_the_fault():
    assert stages.split(STORY, "b") == SPLIT


def test_split_of_a_story_without_a_move_leaves_it_out():
    assert "moved" not in stages.split(STORY[:8], "b")
    assert stages.split(["a: the guest is dead"], "b") == {}


def test_split_reads_the_shim_s_stages_off_the_move():
    told = "; fenced after 20.0, settled after 45.5, all replayed after 50.0 ms"
    story = [line + told if "moved" in line else line for line in STORY]
    assert stages.split(story, "b") == {**SPLIT, "fenced": 0.220, "settled": 0.2455}


def test_table_has_median_and_maximum_of_those_that_survived():
    late = [line.replace("0.250", "0.350") for line in STORY]
    runs = [
        ("far carrier", "b", {"verdict": "survived", "story": STORY}),
        ("far carrier", "b", {"verdict": "survived", "story": late}),
        ("far carrier", "b", {"verdict": "died", "story": STORY}),
    ]
    assert (
        stages.table(runs)[2] == "| far carrier | 2 | 26 (26) | 119 (119) | 40 (40) | 135 (135) |  |  | 300 (350) |"
    )
    assert stages.table([]) == []
