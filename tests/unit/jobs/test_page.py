"""The shared page, read back as a shim would: through its descriptor."""

import errno
import mmap
import os
import struct

import pytest

from linkpass.model import PortState
from linkpass_agent.jobs.page import STATES, Page
from linkpass_agent.see.rdma_devices import RdmaPort

ONE, TWO = RdmaPort("mlx5_0", 1), RdmaPort("mlx5_1", 1)


class Reader:
    """By the offsets of abi.h: magic 0, version 4, count 6, generation 8, beat 16, incarnation 24, entries 64."""

    def __init__(self, page: Page) -> None:
        self._map = mmap.mmap(page.fd, 4096, prot=mmap.PROT_READ)

    def head(self) -> tuple[int, ...]:
        return struct.unpack_from("<IHHQQQ", self._map)

    def entry(self, index: int) -> tuple[str, int, int, int, int]:
        name, port, state, _, since, changes = struct.unpack_from("<28sBBHQQ", self._map, 64 + 64 * index)
        return name.rstrip(b"\0").decode(), port, state, since, changes


def test_page_tells_states_and_counts_changes() -> None:
    page = Page(incarnation=77)
    reader = Reader(page)
    assert reader.head() == (0x4750504C, 3, 0, 0, 0, 77)
    assert page.show({ONE: PortState.UP, TWO: PortState.DOWN}, 1.5)
    assert reader.head()[2:5] == (2, 1, 1_500_000_000)
    assert reader.entry(0) == ("mlx5_0", 1, 1, 1_500_000_000, 1)
    assert reader.entry(1) == ("mlx5_1", 1, 5, 1_500_000_000, 1)
    assert not page.show({ONE: PortState.UP, TWO: PortState.DOWN}, 2.0)
    assert reader.head()[3:5] == (1, 2_000_000_000)
    assert page.show({ONE: PortState.DRAINED}, 3.0)
    assert reader.head()[3] == 2
    assert reader.entry(0) == ("mlx5_0", 1, 4, 3_000_000_000, 2)
    page.close()


def test_generation_grows_once_more_with_the_beat_after_a_change() -> None:
    page = Page(1)
    reader = Reader(page)
    page.show({ONE: PortState.UP}, 1.0)
    page.beat(1.1)
    page.beat(1.2)
    assert reader.head()[3:5] == (2, 1_200_000_000)
    page.close()


def test_every_state_has_a_number_of_its_own() -> None:
    assert set(STATES) == set(PortState)
    assert sorted(STATES.values()) == list(range(7))


def test_reader_can_t_write_shrink_or_grow_the_page() -> None:
    page = Page(1)
    with pytest.raises(PermissionError):
        mmap.mmap(page.fd, 4096)
    for change in (
        lambda: os.pwrite(page.fd, b"x", 0),
        lambda: os.ftruncate(page.fd, 0),
        lambda: os.ftruncate(page.fd, 8192),
    ):
        with pytest.raises(OSError) as e:
            change()
        assert e.value.errno == errno.EPERM
    page.close()


def test_page_has_room_for_63_and_leaves_the_rest_out() -> None:
    page = Page(1)
    page.show({RdmaPort(f"dev{n}", 1): PortState.UP for n in range(70)}, 1.0)
    assert Reader(page).head()[2] == 63
    page.show({RdmaPort("n" * 28, 1): PortState.UP}, 1.0)
    assert Reader(page).head()[2] == 63
    page.close()
