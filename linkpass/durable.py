"""Files that are there as a whole or not at all, whatever happens while they are written."""

import os
from contextlib import suppress
from pathlib import Path


def replace(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Put `data` in the file's place in one step, and make that durable. A new file, `NAME.new` until it is whole, is
    never readable by more than `mode` says. OSError if it can't be done; the old file stays then."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(fd, "wb") as file:  # noqa: PTH123 - made with its mode
            file.write(data)
            file.flush()
            os.fsync(fd)
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
