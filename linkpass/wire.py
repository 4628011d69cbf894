"""Host records as bytes: one canonical form, every length bounded, everything else a `WireError`.

A record is a JSON array (UTF-8, no spaces), so that one record has exactly one encoding:

    [host, incarnation, version, [address...], [[port, rail, state, cause, [address...], mtu, [gid...]]...]]

Two hosts that hold the same record compute the same 8-byte digest of it. A `Stamp` (incarnation, version, digest)
orders all records of one host totally: newer wins, and of two that claim the same age, the greater digest.

A delta says how a record differs from an earlier one of the same host, port by port:

    [host, incarnation, version, base incarnation, base version, base digest,
     [address...] or null, [port name...] or null, [changed port...]]
"""

import json
import re
import sys
from hashlib import blake2b
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any, NamedTuple

from linkpass.errors import WireError
from linkpass.model import HostRecord, PortRecord, PortState

MAX_HOST = 64  # characters; HOST_NAME_MAX of Linux
MAX_NAME = 64  # characters of a port's or rail's name; IB_DEVICE_NAME_MAX, interface names are shorter
MAX_CAUSE = 160  # characters; a cause is one short line for people
MAX_PORTS = 64
MAX_ADDRESSES = 32  # of a host, or of a port
MAX_GIDS = 128  # of a port; a RoCE port has two for each address and VLAN
MAX_MTU = 1 << 17  # bytes; loopback has 65,536
MAX_NUMBER = (1 << 63) - 1  # of incarnation and version
MAX_RECORD = 48 * 1024  # bytes; 64 ports with 10 addresses and GIDs each need 32 KiB

HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_STATES = {s.value: s for s in PortState}


class Stamp(NamedTuple):
    """How old a record is, and which one: records of one host are ordered by it. `digest` has 8 bytes."""

    incarnation: int
    version: int
    digest: bytes


def encode(record: HostRecord) -> bytes:
    """The one encoding of `record`; WireError names the field that breaks a bound."""
    return encode_checked(check(record))


def encode_checked(record: HostRecord) -> bytes:
    """As `encode`, for a record that came out of `check`, `decode` or `apply_delta`; saves half of the time."""
    return _dump([*_head(record), list(record.addresses), [_port(p) for p in record.ports]])


def decode(data: bytes) -> HostRecord:
    """The record that `data` encodes; WireError for anything that `encode` would not have made."""
    host, incarnation, version, addresses, ports = _array(_load(data), 5, "record")
    record = _record(host, incarnation, version, addresses, _list(ports, MAX_PORTS, "ports"))
    if _dump([*_head(record), addresses, ports]) != data:
        raise WireError("record: not in canonical form")
    return record


def digest(encoded: bytes) -> bytes:
    """The 8 bytes that stand for an encoded record. Not a defence against holders of the fleet key."""
    return blake2b(encoded, digest_size=8).digest()


def stamp(record: HostRecord) -> Stamp:
    """The record's place in the order of all records of its host."""
    return stamp_of(record, encode(record))


def stamp_of(record: HostRecord, encoded: bytes) -> Stamp:
    """As `stamp`, when the encoding is at hand."""
    return Stamp(record.incarnation, record.version, digest(encoded))


def encode_delta(base: HostRecord, base_digest: bytes, record: HostRecord) -> bytes:
    """What makes `record` of `base`, an earlier record of the same host."""
    before = {p.name: p for p in base.ports}
    names = [p.name for p in record.ports]
    return _dump(
        [
            *_head(record),
            base.incarnation,
            base.version,
            base_digest.hex(),
            None if record.addresses == base.addresses else list(record.addresses),
            None if names == list(before) else names,
            [_port(p) for p in record.ports if before.get(p.name) != p],
        ]
    )


def delta_base(data: bytes) -> tuple[str, Stamp]:
    """The host and the stamp of the record that a delta builds upon."""
    fields = _array(_load(data), 9, "delta")
    found = _text(fields[5], 16, "base digest")
    if not re.fullmatch(r"[0-9a-f]{16}", found):
        raise WireError("delta: base digest is not 16 hexadecimal digits")
    base = Stamp(_number(fields[3], "base incarnation"), _number(fields[4], "base version"), bytes.fromhex(found))
    return _host(fields[0]), base


def apply_delta(base: HostRecord, data: bytes) -> HostRecord:
    """The record that the delta makes of `base`, which must be a checked one.

    The caller compares the record's digest with the announced one.
    """
    host, incarnation, version, _, _, _, addresses, names, changed = _array(_load(data), 9, "delta")
    if host != base.host:
        raise WireError("delta: of another host")
    ports: dict[str, Any] = {p.name: p for p in base.ports}
    for raw in _list(changed, MAX_PORTS, "ports"):
        port = _read_port(raw)
        ports[port.name] = port
    order = list(ports) if names is None else _names(names)
    try:
        kept = tuple(ports[name] for name in order)
    except KeyError as e:
        raise WireError("delta: names a port that neither side has") from e
    if len(kept) > MAX_PORTS:
        raise WireError(f"ports: {len(kept)}, more than {MAX_PORTS}")
    return HostRecord(
        base.host,
        _number(incarnation, "incarnation"),
        _number(version, "version"),
        base.addresses if addresses is None else _addresses(addresses, MAX_ADDRESSES, "addresses"),
        kept,
    )


def fit(record: HostRecord) -> HostRecord:
    """The record with causes made fit for the wire: one printable line of at most MAX_CAUSE characters."""
    if all(_fits(p.cause) for p in record.ports):
        return record
    ports = tuple(
        PortRecord(p.name, p.rail, p.state, _fitted(p.cause), p.addresses, p.mtu, p.gids) for p in record.ports
    )
    return HostRecord(record.host, record.incarnation, record.version, record.addresses, ports)


def check(record: HostRecord) -> HostRecord:
    """The record itself, if it keeps every bound; WireError names the field that doesn't."""
    return _record(
        record.host,
        record.incarnation,
        record.version,
        list(record.addresses),
        [_port(p) for p in record.ports],
    )


def _fits(cause: str) -> bool:
    return len(cause) <= MAX_CAUSE and cause.isprintable()


def _fitted(cause: str) -> str:
    line = "".join(c if c.isprintable() else " " for c in cause[: MAX_CAUSE + 1])
    return line if len(line) <= MAX_CAUSE else line[: MAX_CAUSE - 1] + "…"


def _head(record: HostRecord) -> list[Any]:
    return [record.host, record.incarnation, record.version]


def _port(p: PortRecord) -> list[Any]:
    return [p.name, p.rail, p.state.value, p.cause, list(p.addresses), p.mtu, list(p.gids)]


def _dump(value: list[Any]) -> bytes:
    try:
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":"), check_circular=False).encode()
    except (ValueError, TypeError) as e:  # UnicodeEncodeError is a ValueError
        raise WireError(f"record: can't be encoded: {e}") from e
    if len(data) > MAX_RECORD:
        raise WireError(f"record: {len(data)} bytes, more than {MAX_RECORD}")
    return data


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _load(data: bytes) -> Any:
    if len(data) > MAX_RECORD:
        raise WireError(f"record: {len(data)} bytes, more than {MAX_RECORD}")
    try:
        return json.loads(data.decode(), parse_constant=_constant)
    except (ValueError, RecursionError) as e:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise WireError(f"record: not JSON: {type(e).__name__}") from e


def _array(value: Any, length: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != length:
        raise WireError(f"{what}: not an array of {length}")
    return value


def _list(value: Any, most: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise WireError(f"{what}: not an array of at most {most}")
    return value


def _text(value: Any, most: int, what: str) -> str:
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise WireError(f"{what}: not printable text of at most {most} characters")
    return value


def _name(value: Any, what: str) -> str:
    name = _text(value, MAX_NAME, what)
    if not name:
        raise WireError(f"{what}: empty")
    return sys.intern(name)  # a fleet's rails and port names repeat in every record


def _host(value: Any) -> str:
    if not isinstance(value, str) or not HOST.fullmatch(value):
        raise WireError(f"host: not a name of 1 to {MAX_HOST} letters, digits, '.', '_' and '-'")
    return value


def _number(value: Any, what: str, most: int = MAX_NUMBER) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise WireError(f"{what}: not a whole number from 0 to {most}")
    return value


def _names(value: Any) -> list[str]:
    names = [_name(n, "port name") for n in _list(value, MAX_PORTS, "port names")]
    if len(set(names)) != len(names):
        raise WireError("port names: one is there twice")
    return names


def _addresses(value: Any, most: int, what: str) -> tuple[str, ...]:
    found = _list(value, most, what)
    for text in found:
        try:
            inet_pton(AF_INET6 if ":" in text else AF_INET, text)
        except (OSError, ValueError, TypeError) as e:
            raise WireError(f"{what}: not an IP address") from e
    return tuple(found)


def _read_port(raw: Any) -> PortRecord:
    name, rail, state, cause, addresses, mtu, gids = _array(raw, 7, "port")
    if not isinstance(state, str) or state not in _STATES:
        raise WireError("port: unknown state")
    return PortRecord(
        _name(name, "port name"),
        _name(rail, "rail"),
        _STATES[state],
        _text(cause, MAX_CAUSE, "cause"),
        _addresses(addresses, MAX_ADDRESSES, "port addresses"),
        _number(mtu, "mtu", MAX_MTU),
        _addresses(gids, MAX_GIDS, "gids"),
    )


def _record(host: Any, incarnation: Any, version: Any, addresses: Any, ports: list[Any]) -> HostRecord:
    if len(ports) > MAX_PORTS:
        raise WireError(f"ports: {len(ports)}, more than {MAX_PORTS}")
    made = tuple(_read_port(p) for p in ports)
    if len({p.name for p in made}) != len(made):
        raise WireError("port names: one is there twice")
    return HostRecord(
        _host(host),
        _number(incarnation, "incarnation"),
        _number(version, "version"),
        _addresses(addresses, MAX_ADDRESSES, "addresses"),
        made,
    )
