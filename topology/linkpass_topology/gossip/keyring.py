"""The fleet's keys. Who holds one is a member of the fleet and is believed; see docs/sharing.md.

A keyring file has one key a line, `KEYID HEX`: up to 16 letters, digits, '.', '_' or '-', then 32 bytes in hex.
Empty lines and lines that start with '#' don't count. The first key is used to send, all are accepted. Only the owner
may have access to the file.
"""

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from linkpass.errors import ConfigError

KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,15}")
KEY_SIZE = 32  # bytes; ChaCha20-Poly1305 has 256-bit keys
MAX_KEYS = 16  # two are enough to rotate
MAX_FILE = 65_536  # bytes


@dataclass(frozen=True, slots=True)
class Key:
    """One fleet key. Its secret never shows in logs."""

    id: str
    secret: bytes = field(repr=False)

    @property
    def mark(self) -> bytes:
        """4 bytes that tell keys of one name apart, and tell nothing of a random secret."""
        return blake2b(self.secret, digest_size=4, person=b"lp-key-mark").digest()


@dataclass(frozen=True, slots=True)
class Keyring:
    """At least one key; the first is used to send."""

    keys: tuple[Key, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.keys) <= MAX_KEYS or len({k.id for k in self.keys}) != len(self.keys):
            raise ValueError(f"a keyring has 1 to {MAX_KEYS} keys with different names")
        if not all(KEY_ID.fullmatch(k.id) and len(k.secret) == KEY_SIZE for k in self.keys):
            raise ValueError(f"a key has a name and {KEY_SIZE} bytes")

    @property
    def sending(self) -> Key:
        """The key for what we start ourselves."""
        return self.keys[0]

    @property
    def ring(self) -> tuple[tuple[str, bytes], ...]:
        """Names and marks, as they are told to the fleet."""
        return tuple((k.id, k.mark) for k in self.keys)

    def find(self, key_id: str) -> Key | None:
        """The key of that name, if accepted."""
        return next((k for k in self.keys if k.id == key_id), None)


def load(path: Path) -> Keyring:
    """Read a keyring file; ConfigError names file, line and problem, never a secret."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:  # noqa: PTH123 - the mode must be that of the opened file, not of its name
            _check_access(path, os.fstat(fd))
            data = file.read(MAX_FILE + 1)
    except OSError as e:
        raise ConfigError(path, 0, "", f"keyring can't be read: {e.strerror or e}") from e
    if len(data) > MAX_FILE:
        raise ConfigError(path, 0, "", f"keyring is larger than {MAX_FILE} bytes")
    return parse(data.decode("utf-8", "replace"), path)


def parse(text: str, path: Path) -> Keyring:
    """The keyring that a file's text holds; `path` is for messages only."""
    keys: dict[str, Key] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise ConfigError(path, number, "", "a key is written as KEYID HEX")
        key_id, secret = words
        if not KEY_ID.fullmatch(key_id):
            raise ConfigError(path, number, "", "a key's name has 1 to 16 letters, digits, '.', '_' or '-'")
        if not re.fullmatch(r"[0-9A-Fa-f]{64}", secret):
            raise ConfigError(path, number, key_id, f"a key is {KEY_SIZE} bytes, written as 64 hexadecimal digits")
        if len(set(bytes.fromhex(secret))) < 8:
            raise ConfigError(path, number, key_id, "is no random key; make one with `openssl rand -hex 32`")
        if key_id in keys:
            raise ConfigError(path, number, key_id, "is there twice")
        if len(keys) == MAX_KEYS:
            raise ConfigError(path, number, key_id, f"more than {MAX_KEYS} keys")
        keys[key_id] = Key(key_id, bytes.fromhex(secret))
    if not keys:
        raise ConfigError(path, 0, "", "holds no key; write one as KEYID HEX, with HEX from `openssl rand -hex 32`")
    return Keyring(tuple(keys.values()))


def generate_line(key_id: str, entropy: Callable[[int], bytes] = os.urandom) -> str:
    """A line for a keyring file with a fresh key."""
    if not KEY_ID.fullmatch(key_id):
        raise ValueError(f"{key_id!r} is not a key's name: 1 to 16 letters, digits, '.', '_' or '-'")
    return f"{key_id} {entropy(KEY_SIZE).hex()}"


def _check_access(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(path, 0, "", "is not a file")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(path, 0, "", f"mode {mode:04o} gives others access to the keys; do `chmod 600 {path}`")
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(path, 0, "", f"belongs to uid {status.st_uid}; do `chown {os.geteuid()} {path}`")
