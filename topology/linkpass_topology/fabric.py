"""A fabric, described: hosts, rails, leaf and spine switches. Describing makes nothing; the lab realises it.

A rail is one broadcast domain: its leaves, and at most one spine that joins them (more would be a loop). Every host
has one port on each rail. Addresses follow from a host's place in the file, so that every part of LinkPass and every
reader can tell them by heart:

    management   10.99.H.L/16        rail R   10.(10+R).H.L/16        rail-independent   10.255.H.L/32

where H.L are the high and low byte of the host's number, counted from 1.

A fabric file:

    name = "two hosts, two rails"
    rails = ["rail0", "rail1"]
    mtu = 9000                        # bytes; 1500 unless said
    [[leaf]]
    name = "l0"
    rail = "rail0"
    [[spine]]                         # only where a rail has several leaves
    name = "s0"
    rail = "rail0"
    [[host]]
    name = "a"
    leaves = ["l0", "l1"]             # one for each rail, in the order of `rails`
"""

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linkpass.errors import ConfigError

# Interface names hold 15 characters (IFNAMSIZ in linux/if.h, less the NUL); the lab joins a switch's name, a host's
# name and a separator to name a switch port.
NAME = re.compile(r"[a-z][a-z0-9]{0,6}")
MAX_HOSTS = 65_000  # what H.L can count
MAX_RAILS = 16


@dataclass(frozen=True, slots=True)
class Switch:
    """A leaf or a spine of one rail."""

    name: str
    rail: str


@dataclass(frozen=True, slots=True)
class FabricHost:
    """A host: its number (from 1) and the leaf that each rail's port is plugged into."""

    name: str
    number: int
    leaves: dict[str, str]  # rail -> leaf

    def _last(self) -> str:
        return f"{self.number >> 8}.{self.number & 255}"

    @property
    def management(self) -> str:
        """Management address, without prefix length (/16)."""
        return f"10.99.{self._last()}"

    @property
    def service(self) -> str:
        """The rail-independent address (/32)."""
        return f"10.255.{self._last()}"

    def on_rail(self, index: int) -> str:
        """Address on the rail with this index, without prefix length (/16)."""
        return f"10.{10 + index}.{self._last()}"


@dataclass(frozen=True, slots=True)
class Fabric:
    """A whole fabric; see the module's text for the rules that `load` and `check` hold it to."""

    name: str
    rails: tuple[str, ...]
    leaves: tuple[Switch, ...]
    spines: tuple[Switch, ...]
    hosts: tuple[FabricHost, ...]
    mtu: int = 1500

    def host(self, name: str) -> FabricHost:
        """The host called `name`; KeyError names those that exist."""
        for h in self.hosts:
            if h.name == name:
                return h
        raise KeyError(f"no host {name!r} in fabric {self.name!r}; it has {', '.join(h.name for h in self.hosts)}")

    def spine_of(self, rail: str) -> Switch | None:
        """The switch that joins the leaves of `rail`, if it has one."""
        return next((s for s in self.spines if s.rail == rail), None)


def grid(hosts: int, rails: int, *, mtu: int = 1500, leaves: int = 1) -> Fabric:
    """A regular fabric: `leaves` leaves a rail (and a spine, if more than one), hosts dealt round-robin.

    Hosts are named a..z, then h27 and so on; rails rail0.., leaves l<rail> or l<rail>x<n>, spines s<rail>.
    """
    names = tuple(f"rail{r}" for r in range(rails))
    leaf = [[f"l{r}" if leaves == 1 else f"l{r}x{n}" for n in range(leaves)] for r in range(rails)]
    return Fabric(
        name=f"{hosts}x{rails}",
        rails=names,
        leaves=tuple(Switch(n, names[r]) for r in range(rails) for n in leaf[r]),
        spines=tuple(Switch(f"s{r}", names[r]) for r in range(rails)) if leaves > 1 else (),
        hosts=tuple(
            FabricHost(
                chr(96 + i) if i <= 26 else f"h{i}", i, {names[r]: leaf[r][(i - 1) % leaves] for r in range(rails)}
            )
            for i in range(1, hosts + 1)
        ),
        mtu=mtu,
    )


def load(path: Path) -> Fabric:
    """Read a fabric file. ConfigError names the file and, as far as TOML tells, line and key."""
    try:
        raw = tomllib.loads(path.read_text())
    except OSError as e:
        raise ConfigError(path, 0, "", e.strerror or str(e)) from e
    except tomllib.TOMLDecodeError as e:
        found = re.search(r"at line (\d+)", str(e))
        raise ConfigError(path, int(found[1]) if found else 0, "", str(e)) from e
    return _Reader(path).fabric(raw)


def dump(fabric: Fabric) -> str:
    """The text of a fabric file that `load` reads back as the same fabric."""
    lines = [
        f"name = {json.dumps(fabric.name)}",
        f"rails = {json.dumps(fabric.rails)}",
        f"mtu = {fabric.mtu}",
    ]
    for kind, switches in (("leaf", fabric.leaves), ("spine", fabric.spines)):
        for s in switches:
            lines += [f"[[{kind}]]", f'name = "{s.name}"', f'rail = "{s.rail}"']
    for h in fabric.hosts:
        lines += ["[[host]]", f'name = "{h.name}"', f"leaves = {json.dumps([h.leaves[r] for r in fabric.rails])}"]
    return "\n".join(lines) + "\n"


class _Reader:
    """Checks a parsed file, value by value."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def bad(self, key: str, problem: str) -> ConfigError:
        return ConfigError(self.path, 0, key, problem)

    def name(self, value: Any, key: str) -> str:
        if not isinstance(value, str) or not NAME.fullmatch(value):
            raise self.bad(key, f"{value!r} is not a name: a lower-case letter, then up to 6 letters or digits")
        return value

    def tables(self, raw: dict[str, Any], key: str, keys: set[str]) -> list[dict[str, Any]]:
        found = raw.get(key, [])
        if not isinstance(found, list) or not all(isinstance(t, dict) for t in found):
            raise self.bad(key, f"must be tables: [[{key}]]")
        for i, table in enumerate(found):
            if set(table) != keys:
                raise self.bad(f"{key}[{i}]", f"has {sorted(table)}, needs {sorted(keys)}")
        return found

    def fabric(self, raw: dict[str, Any]) -> Fabric:
        unknown = set(raw) - {"name", "rails", "mtu", "leaf", "spine", "host"}
        if unknown:
            raise self.bad(sorted(unknown)[0], "unknown key")
        rails = raw.get("rails")
        if not isinstance(rails, list) or not 1 <= len(rails) <= MAX_RAILS:
            raise self.bad("rails", f"must list 1 to {MAX_RAILS} names")
        rails = [self.name(r, "rails") for r in rails]
        mtu = raw.get("mtu", 1500)
        if not isinstance(mtu, int) or isinstance(mtu, bool) or not 576 <= mtu <= 9216:
            raise self.bad("mtu", f"{mtu!r} is not a size between 576 and 9216 bytes")
        fabric = Fabric(
            name=str(raw.get("name", self.path.stem)),
            rails=tuple(rails),
            leaves=self.switches(raw, "leaf", rails),
            spines=self.switches(raw, "spine", rails),
            hosts=self.hosts(raw, rails),
            mtu=mtu,
        )
        self.check(fabric)
        return fabric

    def switches(self, raw: dict[str, Any], key: str, rails: list[str]) -> tuple[Switch, ...]:
        made = []
        for i, t in enumerate(self.tables(raw, key, {"name", "rail"})):
            if t["rail"] not in rails:
                raise self.bad(f"{key}[{i}].rail", f"{t['rail']!r} is not one of rails {rails}")
            made.append(Switch(self.name(t["name"], f"{key}[{i}].name"), t["rail"]))
        return tuple(made)

    def hosts(self, raw: dict[str, Any], rails: list[str]) -> tuple[FabricHost, ...]:
        made = []
        for i, t in enumerate(self.tables(raw, "host", {"name", "leaves"})):
            if not isinstance(t["leaves"], list) or len(t["leaves"]) != len(rails):
                raise self.bad(f"host[{i}].leaves", f"must name one leaf for each of {rails}")
            made.append(
                FabricHost(self.name(t["name"], f"host[{i}].name"), i + 1, dict(zip(rails, t["leaves"], strict=True)))
            )
        if not 1 <= len(made) <= MAX_HOSTS:
            raise self.bad("host", f"needs 1 to {MAX_HOSTS} hosts")
        return tuple(made)

    def check(self, fabric: Fabric) -> None:
        names = [*fabric.rails, *(s.name for s in (*fabric.leaves, *fabric.spines)), *(h.name for h in fabric.hosts)]
        twice = {n for n in names if names.count(n) > 1} if len(names) < 1000 else set()
        if twice or len(set(names)) != len(names):
            raise self.bad("name", f"used twice: {', '.join(sorted(twice))}")
        rail_of = {s.name: s.rail for s in fabric.leaves}
        for h in fabric.hosts:
            for rail, leaf in h.leaves.items():
                if rail_of.get(leaf) != rail:
                    raise self.bad(f"host {h.name}", f"{leaf!r} is not a leaf of {rail}")
        for rail in fabric.rails:
            leaves = [s for s in fabric.leaves if s.rail == rail]
            spines = [s for s in fabric.spines if s.rail == rail]
            if len(spines) > 1:
                raise self.bad("spine", f"{rail} has {len(spines)}; a second one would be a loop")
            if len(leaves) > 1 and not spines:
                raise self.bad("spine", f"{rail} has {len(leaves)} leaves and nothing that joins them")
