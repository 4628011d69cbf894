"""A device tree of sysfs out of a text file (tests/fixtures/trees), to be changed as time goes by.

PATH = CONTENT       a file
PATH -> TARGET       a link
PATH ! ERRNO         a file that opens and fails to be read, as EINVAL does in sysfs
"""

import errno
import os
import shutil
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures" / "trees"


class Tree:
    """A copy of a tree in `root`; also the `Door` that gives its errors."""

    def __init__(self, root: Path, name: str, file: str = "tree.txt") -> None:
        self.root = root
        self.errors: dict[str, int] = {}
        self.opened = 0
        self._names: dict[int, str] = {}
        self.infiniband, self.net = root / "class" / "infiniband", root / "class" / "net"
        self.load(self.fixture(name, file))
        for folder in (self.infiniband, self.net):
            folder.mkdir(parents=True, exist_ok=True)

    def load(self, text: str) -> None:
        """Lay the lines of a tree file over what is there."""
        for line in text.splitlines():
            if not line or line.startswith("#"):
                continue
            path, kind, rest = self._parts(line)
            place = self.root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "->":
                place.unlink(missing_ok=True)
                place.symlink_to(rest)
            elif kind == "=":
                self.errors.pop(os.path.realpath(place), None)
                place.write_text(rest + "\n")
            else:
                place.touch()
                self.errors[os.path.realpath(place)] = getattr(errno, rest)

    @staticmethod
    def fixture(name: str, file: str = "tree.txt") -> str:
        """The text of a tree, or of what differs later."""
        return (FIXTURES / name / file).read_text()

    @staticmethod
    def _parts(line: str) -> tuple[str, str, str]:
        if " -> " in line:
            path, _, rest = line.partition(" -> ")
            return path, "->", rest
        path, _, rest = line.partition(" ")
        return path, rest[:1], rest[2:]

    # -- what happens to it -----------------------------------------------------------------------------------

    def put(self, path: str, value: object) -> None:
        """A file of the class folders, like "infiniband/mlx5_0/ports/1/state"."""
        place = self.root / "class" / path
        self.errors.pop(os.path.realpath(place), None)
        place.write_text(f"{value}\n")

    def value(self, path: str) -> str:
        return (self.root / "class" / path).read_text().strip()

    def fail(self, path: str, number: int = errno.EINVAL) -> None:
        """Reading it fails from now on."""
        self.errors[os.path.realpath(self.root / "class" / path)] = number

    def lose(self, path: str) -> None:
        """A file that isn't there any more; an open one fails as the kernel's does."""
        place = Path(os.path.realpath(self.root / "class" / path))
        self.errors[str(place)] = errno.ENODEV
        place.unlink()

    def vanish(self, kind: str, name: str) -> None:
        """A whole device goes."""
        link = self.root / "class" / kind / name
        real = Path(os.path.realpath(link))
        for path in real.rglob("*"):
            self.errors[str(path)] = errno.ENODEV
        shutil.rmtree(real)
        link.unlink()

    def rename(self, kind: str, name: str, new: str) -> None:
        """The kernel gives a device another name; open files go on."""
        link = self.root / "class" / kind / name
        real = Path(os.path.realpath(link))
        real.rename(real.with_name(new))
        (link.parent / new).symlink_to(os.path.relpath(real.with_name(new), link.parent))
        link.unlink()

    def links(self) -> dict[str, int]:
        """Net devices and their indexes."""
        return {e.name: int((e / "ifindex").read_text()) for e in self.net.iterdir()}

    # -- the door ---------------------------------------------------------------------------------------------

    def open(self, path: str) -> int:
        self.opened += 1
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._names[fd] = os.path.realpath(path)
        return fd

    def read(self, fd: int, size: int) -> bytes:
        number = self.errors.get(self._names[fd])
        if number:
            raise OSError(number, os.strerror(number))
        return os.pread(fd, size, 0)

    def close(self, fd: int) -> None:
        self._names.pop(fd, None)
        os.close(fd)
