"""What a host can read off the fabric's file instead of its own: ports, management address, seeds, addresses.

With `fabric = "/etc/linkpass/fabric.toml"` one file serves the whole fleet; what the host's own file says wins.
"""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from linkpass.errors import ConfigError
from linkpass_topology.fabric import Fabric, FabricHost, load

from .see import pyroute

SHARE_PORT = 7471

Interfaces = Callable[[], Mapping[str, str]]  # address -> interface that has it


def interfaces() -> Mapping[str, str]:
    """The addresses of this host's interfaces."""
    with pyroute.part().IPRoute() as kernel:
        names = {link["index"]: link.get("IFLA_IFNAME") for link in kernel.get_links()}
        return {a.get("IFA_LOCAL") or a.get("IFA_ADDRESS"): names[a["index"]] for a in kernel.get_addr()}


def fill(data: dict[str, Any], config: Path, own: Interfaces = interfaces) -> dict[str, Any]:
    """The host's configuration with what the fabric's file adds to it. ConfigError names file and key."""
    file = data.get("fabric")
    if not isinstance(file, str) or not Path(file).is_absolute():
        return data  # nothing to fill in, or for the settings' own checks to refuse
    fabric = load(Path(file))
    name = data.get("host", socket.gethostname())
    host = next((h for h in fabric.hosts if h.name == name), None)
    if host is None:
        known = ", ".join(h.name for h in fabric.hosts[:8]) + (", ..." if len(fabric.hosts) > 8 else "")
        raise ConfigError(config, 0, "host", f"{name!r} isn't in {file}; it has {known}")
    made = {**data, "host": name}
    if "port" not in data:
        made["port"] = _ports(fabric, host, own(), config)
    made["share"] = {
        "listen": f"{host.management}:{SHARE_PORT}",
        "seeds": [f"{h.management}:{SHARE_PORT}" for h in fabric.hosts if h.name != name],
        **_table(data, "share"),
    }
    made["routes"] = {"addresses": [host.service], **_table(data, "routes")}
    return made


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    table = data.get(key, {})
    return table if isinstance(table, dict) else {}


def _ports(fabric: Fabric, host: FabricHost, own: Mapping[str, str], config: Path) -> list[dict[str, str]]:
    """A port for each rail whose address one of our interfaces has."""
    places = {rail: host.on_rail(index) for index, rail in enumerate(fabric.rails)}
    ports = [{"name": own[address], "rail": rail} for rail, address in places.items() if address in own]
    if not ports:
        wanted = ", ".join(f"{address} on {rail}" for rail, address in places.items())
        problem = (
            f"no interface has an address that the fabric gives {host.name}: {wanted}; set them, or write [[port]]"
        )
        raise ConfigError(config, 0, "fabric", problem)
    return ports
