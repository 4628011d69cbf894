"""The initramfs: archive form, modules without compression, order of loading."""

import gzip
import lzma
from pathlib import Path

from linkpass_lab.guests.initramfs import bare_module, cpio, load_order


def test_archive_has_the_kernels_newc_form():
    archive = cpio([("a", 0o100644, b"hello")])
    zero = b"00000000"
    head = b"070701" + b"00000001" + b"000081a4" + zero * 2 + b"00000001" + zero
    first = head + b"00000005" + zero * 4 + b"00000002" + zero + b"a\0" + b"hello" + bytes(3)
    assert archive.startswith(first)
    assert archive[len(first) :].startswith(b"070701")
    assert archive.rstrip(b"\0").endswith(b"TRAILER!!!")


def test_parts_of_the_archive_start_at_multiples_of_four():
    archive = cpio([("abc", 0o100644, b"x" * 7), ("de", 0o40755, b"")])
    starts = [i for i in range(len(archive)) if archive[i : i + 6] == b"070701"]
    assert len(starts) == 3
    assert all(at % 4 == 0 for at in starts)
    assert len(archive) % 4 == 0


def test_module_comes_out_of_its_compression_with_its_plain_name():
    assert bare_module("rdma_rxe.ko.xz", lzma.compress(b"code")) == ("rdma_rxe.ko", b"code")
    assert bare_module("rdma_rxe.ko.gz", gzip.compress(b"code")) == ("rdma_rxe.ko", b"code")
    assert bare_module("rdma_rxe.ko", b"code") == ("rdma_rxe.ko", b"code")


def test_modules_load_once_in_the_order_of_need_and_builtins_not_at_all():
    listings = [
        "builtin virtio\ninsmod /m/virtio_pci.ko \n",
        "insmod /m/9pnet.ko \ninsmod /m/9p.ko x=1\n",
        "insmod /m/9pnet.ko\n",
    ]
    assert load_order(listings) == (Path("/m/virtio_pci.ko"), Path("/m/9pnet.ko"), Path("/m/9p.ko"))
