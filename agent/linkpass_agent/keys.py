"""Rotating the fleet's keys, host by host: install everywhere, use everywhere, remove everywhere.

A change is made on this host alone: its keyring file is replaced, and what uses the keys goes on with the new ones at
once. Secrets never travel between agents; so a key that somebody stole can't give away its successor. What travels is
which keys (name and a mark of the secret) each member accepts and which one it sends with; that is what the guards
against cutting somebody off look at. `force` overrules them, for hosts that are gone for good.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from linkpass import durable
from linkpass.api import KeyAnswer, KeyView
from linkpass.errors import ConfigError, NotFoundError, RefusedError
from linkpass.model import EventKind
from linkpass_topology.gossip.keyring import MAX_KEYS, Key, Keyring, load, parse
from linkpass_topology.gossip.row import Ring, Row

from .events import EventLog

NAMED = 5  # hosts that a refusal names


class KeyDesk:
    """The keyring in use and its file. `apply` makes the rest of the agent use another one; `rows`: the members."""

    def __init__(
        self,
        path: Path,
        host: str,
        apply: Callable[[Keyring], None],
        rows: Callable[[], Iterable[Row]],
        events: EventLog,
    ) -> None:
        self._path, self._host, self._apply, self._rows, self._events = path, host, apply, rows, events
        self.keyring = load(path)

    def views(self) -> list[KeyView]:
        """Ours in their order, then those that only others have."""
        rings = self._rings()
        ours = self.keyring.ring
        others = sorted({key for ring in rings.values() for key in ring} - set(ours))
        return [
            KeyView(
                key=name,
                mark=mark.hex(),
                here=(name, mark) in ours,
                sends=(name, mark) == ours[0],
                accepted_by=sum((name, mark) in ring for ring in rings.values()),
                sent_by=sum((name, mark) == ring[0] for ring in rings.values()),
                members=len(rings),
            )
            for name, mark in [*ours, *others]
        ]

    def install(self, name: str, secret: str, who: str) -> KeyAnswer:
        """Accept another key. RefusedError if the name is taken, the secret no random key, or there is no room."""
        try:
            key = parse(f"{name} {secret}", self._path).keys[0]
        except ConfigError as e:
            raise RefusedError(f"key {name}: {e.problem}") from None
        held = self.keyring.find(name)
        if held == key:
            return self._answer(name, f"{name} was installed already")
        if held is not None:
            raise RefusedError(f"another key is called {name} here (mark {held.mark.hex()}); choose another name")
        if len(self.keyring.keys) >= MAX_KEYS:
            raise RefusedError(f"{MAX_KEYS} keys are installed; remove one that nobody sends with")
        self._change(Keyring((*self.keyring.keys, key)), f"key {name} installed", who)
        return self._answer(name, f"{name} is accepted from now on; install it everywhere, then use it")

    def use(self, name: str, who: str, *, force: bool) -> KeyAnswer:
        """Send with the key. RefusedError while a member wouldn't accept it."""
        key = self._key(name)
        if key == self.keyring.sending:
            return self._answer(name, f"{name} is in use already")
        lacking = [host for host, ring in self._rings().items() if (name, key.mark) not in ring]
        if lacking and not force:
            raise RefusedError(f"{name} isn't accepted yet by {_some(lacking)}; install it there first, or --force")
        rest = tuple(k for k in self.keyring.keys if k != key)
        self._change(Keyring((key, *rest)), f"key {name} in use", who)
        return self._answer(name, f"{name} is used to send from now on; use it everywhere, then remove the old one")

    def remove(self, name: str, who: str, *, force: bool) -> KeyAnswer:
        """Accept the key no longer. RefusedError while we or a member send with it."""
        key = self._key(name)
        if key == self.keyring.sending:
            raise RefusedError(f"{name} is what we send with; use another one first")
        sending = [host for host, ring in self._rings().items() if ring[0] == (name, key.mark)]
        if sending and not force:
            raise RefusedError(f"{name} is still used to send by {_some(sending)}; use another one there, or --force")
        rest = tuple(k for k in self.keyring.keys if k != key)
        self._change(Keyring(rest), f"key {name} removed", who)
        return self._answer(name, f"{name} isn't accepted any more")

    def _key(self, name: str) -> Key:
        found = self.keyring.find(name)
        if found is None:
            known = ", ".join(k.id for k in self.keyring.keys)
            raise NotFoundError(f"no key {name!r} here; there are {known}")
        return found

    def _rings(self) -> dict[str, Ring]:
        """Of the members that live, ourselves included."""
        found = {row.host: row.ring for row in self._rows() if row.status.here and row.ring}
        return {**found, self._host: self.keyring.ring}

    def _change(self, keyring: Keyring, text: str, who: str) -> None:
        # On disk first: what was acknowledged holds after a restart as well.
        self._write(keyring)
        self.keyring = keyring
        self._apply(keyring)
        self._events.add(EventKind.OPERATOR, self._host, text, f"by {who}")

    def _answer(self, name: str, text: str) -> KeyAnswer:
        return KeyAnswer(key=name, text=text, keys=self.views())

    def _write(self, keyring: Keyring) -> None:
        """Replace the file in one step. Comments stay, on top. RefusedError if it can't be written."""
        try:
            old = self._path.read_text().splitlines()
            notes = [line for line in old if not line.strip() or line.lstrip().startswith("#")]
            lines = [*notes, *(f"{k.id} {k.secret.hex()}" for k in keyring.keys)]
            durable.replace(self._path, ("\n".join(lines) + "\n").encode(), 0o600)
        except OSError as e:
            raise RefusedError(
                f"{self._path} can't be written: {e.strerror}; let the agent write there, or edit it and restart"
            ) from e


def _some(hosts: list[str]) -> str:
    """The first few by name, and how many more."""
    hosts = sorted(hosts)
    return ", ".join(hosts[:NAMED]) + (f" and {len(hosts) - NAMED} more" if len(hosts) > NAMED else "")
