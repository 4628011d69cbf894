"""Where the verbs shim lies. The library itself is C (see docs/shim.md); Python only finds it and reads its ABI."""

from importlib import resources
from pathlib import Path

from linkpass.errors import NotFoundError

LIBRARY = "liblinkpass_shim.so"

_BEGIN = "/* LP_ABI_BEGIN */"
_END = "/* LP_ABI_END */"


class ShimMissingError(NotFoundError):
    """The shim's library isn't in this installation."""


def library_path() -> Path:
    """The path of the shim's shared library. Raises ShimMissingError when this installation was made without it."""
    found = resources.files("linkpass.shim").joinpath(LIBRARY)
    with resources.as_file(found) as path:  # an installed package lies in a folder, so the path stays valid
        if path.is_file():
            return path
    raise ShimMissingError(f"{LIBRARY} isn't part of this installation of linkpass: install it with `pip install .`")


def abi_source() -> str:
    """The part of abi.h that cffi's cdef can read: fixed-width types, no include, no conditional."""
    text = resources.files("linkpass.shim").joinpath("abi.h").read_text(encoding="utf-8")
    return text.partition(_BEGIN)[2].partition(_END)[0]
