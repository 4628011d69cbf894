"""A fabric as guests: what is plugged into what, and what each guest has to set up. Values only; makes nothing.

In the lab's own network namespace every leaf and spine is a bridge with its name, and every guest port a tap with the
name that the interface has inside the guest (`<host>-<rail>`, `<host>-mgmt`).

In the bond variant each guest has one active-backup bond over its first two rails in place of two rail ports, and
the two rails are joined (as a pair of leaves with a peer link would be), or after a fail-over guests couldn't talk.
"""

from dataclasses import dataclass
from typing import Any

from linkpass_topology.fabric import Fabric, FabricHost

MANAGEMENT_BRIDGE = "br.mgmt"  # no name of a fabric holds a dot
LAB_ADDRESS = "10.99.255.254/16"  # the lab's own, on the management network
MANAGEMENT_MTU = 1500
MIIMON = 100  # ms; what the baseline table is about
BONDED = 2


@dataclass(frozen=True, slots=True)
class Nic:
    """One network card of a guest. `name` is the tap's and the guest interface's; it is plugged into `bridge`."""

    name: str
    rail: str | None  # None: management
    mac: str
    bridge: str
    mtu: int
    address: str  # with prefix length; in the bond variant the bond holds it


@dataclass(frozen=True, slots=True)
class GuestPlan:
    """One guest."""

    name: str
    host: FabricHost
    nics: tuple[Nic, ...]  # the rails in the fabric's order, then management

    def nic(self, rail: str) -> Nic:
        """The card on `rail`; KeyError names the rails that there are."""
        for nic in self.nics:
            if nic.rail == rail:
                return nic
        raise KeyError(
            f"{self.name} has no port on {rail!r}; it has {', '.join(n.rail for n in self.nics if n.rail)}"
        )


@dataclass(frozen=True, slots=True)
class LabPlan:
    """All guests of a fabric."""

    fabric: Fabric
    bond: bool
    guests: tuple[GuestPlan, ...]

    def guest(self, name: str) -> GuestPlan:
        """The guest of the host `name`; KeyError names those that there are."""
        for guest in self.guests:
            if guest.name == name:
                return guest
        raise KeyError(f"no guest {name!r}; there are {', '.join(g.name for g in self.guests)}")

    def holder(self, guest: str, rail: str) -> tuple[str, str, str]:
        """What carries the guest's traffic on `rail`: RDMA device, interface, address with prefix length."""
        index = [n.rail for n in self.guest(guest).nics].index(self.guest(guest).nic(rail).rail)
        if self.bond:
            if index < BONDED:
                return "rxe0", bond_name(guest), self.guest(guest).nics[0].address
            return (
                f"rxe{index - BONDED + 1}",
                self.guest(guest).nics[index].name,
                self.guest(guest).nics[index].address,
            )
        return f"rxe{index}", self.guest(guest).nics[index].name, self.guest(guest).nics[index].address


def plan(fabric: Fabric, *, bond: bool = False) -> LabPlan:
    """The guests that realise `fabric`."""
    if bond and len(fabric.rails) < BONDED:
        raise ValueError(f"a bond needs {BONDED} rails; fabric {fabric.name!r} has {len(fabric.rails)}")
    guests = []
    for host in fabric.hosts:
        low = f"{host.number >> 8:02x}:{host.number & 255:02x}"
        nics = [
            Nic(
                name=f"{host.name}-{rail}",
                rail=rail,
                mac=f"52:54:00:{index:02x}:{low}",
                bridge=host.leaves[rail],
                mtu=fabric.mtu,
                address=f"{host.on_rail(index)}/16",
            )
            for index, rail in enumerate(fabric.rails)
        ]
        mgmt = Nic(
            f"{host.name}-mgmt",
            None,
            f"52:54:00:ff:{low}",
            MANAGEMENT_BRIDGE,
            MANAGEMENT_MTU,
            f"{host.management}/16",
        )
        guests.append(GuestPlan(host.name, host, (*nics, mgmt)))
    return LabPlan(fabric, bond, tuple(guests))


def wiring(lab: LabPlan) -> list[str]:
    """Lines for `ip -batch` that make bridges and the links between them in a fresh network namespace."""
    fabric = lab.fabric
    lines = ["link set lo up"]
    for bridge in (*(s.name for s in (*fabric.leaves, *fabric.spines)), MANAGEMENT_BRIDGE):
        lines += [f"link add {bridge} type bridge mcast_snooping 0", f"link set {bridge} mtu {fabric.mtu} up"]
    for leaf in fabric.leaves:
        spine = fabric.spine_of(leaf.rail)
        if spine is not None:
            lines += _cable(leaf.name, spine.name, fabric.mtu)
    if lab.bond:
        lines += _cable(top(fabric, fabric.rails[0]), top(fabric, fabric.rails[1]), fabric.mtu)
    lines.append(f"addr add {LAB_ADDRESS} dev {MANAGEMENT_BRIDGE}")
    return lines


def cable_ends(one: str, other: str) -> tuple[str, str]:
    """The names of the two ends of the link between two bridges, each on the bridge that it starts with."""
    return f"{one}-{other}", f"{other}-{one}"


def _cable(one: str, other: str, mtu: int) -> list[str]:
    ends = cable_ends(one, other)
    lines = [f"link add {ends[0]} type veth peer name {ends[1]}"]
    return lines + [
        f"link set {end} mtu {mtu} master {bridge} up" for end, bridge in zip(ends, (one, other), strict=True)
    ]


def top(fabric: Fabric, rail: str) -> str:
    """The switch that reaches all of `rail`: its spine, or its only leaf."""
    spine = fabric.spine_of(rail)
    return spine.name if spine else next(s.name for s in fabric.leaves if s.rail == rail)


def bond_name(host: str) -> str:
    return f"{host}-bond0"


def setup(lab: LabPlan, guest: GuestPlan) -> dict[str, Any]:
    """What the guest is told: the order in which guestd carries it out is guestd's own business."""
    fabric, host = lab.fabric, guest.host
    bonded = guest.nics[:BONDED] if lab.bond else ()
    devices = [bond_name(guest.name)] if lab.bond else []
    devices += [n.name for n in guest.nics if n.rail is not None and n not in bonded]
    return {
        "name": guest.name,
        "nics": [
            {"mac": n.mac, "name": n.name, "mtu": n.mtu, "address": None if n in bonded else n.address}
            for n in guest.nics
        ],
        "bond": {
            "name": bond_name(guest.name),
            "ports": [n.name for n in bonded],
            "miimon": MIIMON,
            "address": bonded[0].address,
            "mtu": fabric.mtu,
        }
        if bonded
        else None,
        "service": f"{host.service}/32",
        "routes": baseline_routes(lab, guest),
        "rdma": [[f"rxe{index}", device] for index, device in enumerate(devices)],
        "hosts": {g.name: g.host.management for g in lab.guests},
    }


def baseline_routes(lab: LabPlan, guest: GuestPlan) -> list[str]:
    """The static equal-cost routes that every host has without LinkPass, as arguments for `ip route replace`."""
    routes = []
    for peer in lab.fabric.hosts:
        if peer.name == guest.name:
            continue
        hops = []
        for index, nic in enumerate(n for n in guest.nics if n.rail is not None):
            if lab.bond and index < BONDED:
                if index == 0:
                    hops.append(f"nexthop via {peer.on_rail(0)} dev {bond_name(guest.name)}")
                continue
            hops.append(f"nexthop via {peer.on_rail(index)} dev {nic.name}")
        routes.append(f"{peer.service}/32 metric 1024 src {guest.host.service} {' '.join(hops)}")
    return routes
