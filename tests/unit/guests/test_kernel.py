"""Which kernel packages are meant, and how a vmlinux comes out of its vmlinuz."""

import bz2
import gzip
import lzma

import pytest

from linkpass_lab.guests.kernel import KernelMissingError, depended, unpack, wanted_packages

DEBIAN = """linux-image-amd64
  Depends: linux-image-6.12.48+deb13-amd64
"""
UBUNTU = """linux-image-generic
  Depends: linux-image-6.8.0-60-generic
 |Depends: linux-modules-extra-6.8.0-60-generic
  Depends: linux-firmware
  Depends: intel-microcode
"""
IMAGE = b"\x7fELF" + bytes(range(256)) * 40


def test_debian_wants_the_image_alone():
    assert wanted_packages("linux-image-amd64", depended(DEBIAN)) == ("linux-image-6.12.48+deb13-amd64",)


def test_ubuntu_wants_the_image_and_both_module_packages():
    assert wanted_packages("linux-image-generic", depended(UBUNTU)) == (
        "linux-image-6.8.0-60-generic",
        "linux-modules-6.8.0-60-generic",
        "linux-modules-extra-6.8.0-60-generic",
    )


def test_meta_package_without_kernel_is_an_error_that_names_it():
    with pytest.raises(KernelMissingError, match="linux-image-amd64 depends on no kernel"):
        wanted_packages("linux-image-amd64", depended("linux-image-amd64\n  Depends: linux-base\n"))


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress], ids=["gzip", "xz", "bzip2"])
def test_packed_image_comes_out_from_between_other_bytes(pack):
    decoy = b"\x1f\x8b\x08 not gzip \xfd7zXZ\x00 not xz BZh not bzip2"
    assert unpack(b"MZ" + bytes(512) + decoy + pack(IMAGE) + bytes(100)) == IMAGE


def test_packed_data_that_is_no_elf_is_not_taken_for_a_kernel():
    assert unpack(gzip.compress(b"#!/bin/sh")) is None
