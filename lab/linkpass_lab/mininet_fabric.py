"""Realises a fabric with Mininet: each host and each switch is a shell in namespaces of its own.

Nothing is made outside these namespaces, so labs can't collide and all goes when the shells go. Names (IFNAMSIZ holds
15 characters): host ports `<host>-<rail>` and `<host>-mgmt`, switch ports `<switch>-<host>`, between switches
`<leaf>-<spine>`. A switch's port must hold the switch's name, or LinuxBridge leaves it out without a word.
"""

import itertools
import logging
import os
import shutil
import subprocess
from typing import Any

from linkpass_lab.lab import LabError
from linkpass_lab.ledger import RUN_VARIABLE, Ledger
from linkpass_topology.fabric import Fabric, FabricHost

MANAGEMENT = "mgmt"
NEEDS = {
    "mnexec": "mininet",
    "brctl": "bridge-utils",
    "ifconfig": "net-tools",
    "ip": "iproute2",
    "tc": "iproute2",
    "sysctl": "procps",
}
# Keeps neighbour discovery out of the packet counts.
NO_IPV6 = ("net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
HOST_SYSCTLS = (
    "net.ipv4.conf.all.rp_filter=0",  # a packet may come in over a rail that its answer would not take
    "net.ipv4.conf.default.rp_filter=0",
    "net.ipv4.conf.all.arp_ignore=1",  # or each port would answer for the addresses of all others
    "net.ipv4.conf.all.arp_announce=2",
    *NO_IPV6,
)


def port_name(host: str, rail: str) -> str:
    """The host's interface on a rail (or MANAGEMENT)."""
    return f"{host}-{rail}"


def switch_port(switch: str, neighbour: str) -> str:
    """The switch's interface towards a host or another switch."""
    return f"{switch}-{neighbour}"


def require() -> None:
    """LabError unless this machine can hold a lab: says what is missing and which package has it."""
    if os.geteuid() != 0:
        raise LabError("a lab of namespaces needs root; run it with sudo")
    missing = {package for program, package in NEEDS.items() if shutil.which(program) is None}
    ours = logging.getLoggerClass()
    try:
        import mininet.net  # noqa: F401  # imported late: only the lab needs it
    except ImportError:
        missing.add("mininet")
    finally:
        logging.setLoggerClass(ours)  # Mininet's import makes every later logger of the process one of its own
    if missing:
        raise LabError(f"missing on this machine: apt-get install {' '.join(sorted(missing))}")


def realise(fabric: Fabric, ledger: Ledger, *, equal_ifindex: bool = False) -> dict[str, int]:
    """Make the fabric; returns the pid that holds each host and switch. The caller undoes the ledger on failure.

    With `equal_ifindex` both ends of each host link get the same index, which makes the kernel report their link
    changes at most once a second (it takes them for physical devices).
    """
    require()
    switches = [s.name for s in (*fabric.leaves, *fabric.spines)]
    if MANAGEMENT in (*fabric.rails, *switches, *(h.name for h in fabric.hosts)):
        raise LabError(f"{MANAGEMENT!r} is the lab's own switch; name the rail, switch or host otherwise")
    from mininet.log import setLogLevel
    from mininet.net import Mininet
    from mininet.nodelib import LinuxBridge

    setLogLevel("error")  # it warns of the root namespace's bridge firewalling, which doesn't reach in here
    Mininet.inited = True  # or it would raise limits and sysctls of the whole machine
    before = os.environ.get(RUN_VARIABLE)
    os.environ[RUN_VARIABLE] = str(ledger.folder)  # marks the shells that Mininet starts
    try:
        net = Mininet(controller=None, switch=LinuxBridge, link=_link(equal_ifindex), build=False)
        nodes: dict[str, Any] = {}
        for switch in (MANAGEMENT, *switches):
            nodes[switch] = net.addSwitch(switch, inNamespace=True, dpid=f"{len(nodes) + 1:x}")
            ledger.process(nodes[switch].pid, f"switch {switch}", kind="node")
        for host in fabric.hosts:
            nodes[host.name] = net.addHost(host.name, ip=None)
            ledger.process(nodes[host.name].pid, f"host {host.name}", kind="node")
        for host in fabric.hosts:
            for rail, switch in ((MANAGEMENT, MANAGEMENT), *host.leaves.items()):
                net.addLink(
                    nodes[host.name],
                    nodes[switch],
                    intfName1=port_name(host.name, rail),
                    intfName2=switch_port(switch, host.name),
                )
        for leaf in fabric.leaves:
            if spine := fabric.spine_of(leaf.rail):
                net.addLink(
                    nodes[leaf.name],
                    nodes[spine.name],
                    intfName1=switch_port(leaf.name, spine.name),
                    intfName2=switch_port(spine.name, leaf.name),
                )
        net.build()
        for switch in net.switches:
            configure(switch.pid, sysctls=NO_IPV6, tc=_qdiscs([i.name for i in switch.intfList()]))
        net.start()
        for host in fabric.hosts:
            lines = addresses(fabric, host) + baseline(fabric, host)
            configure(nodes[host.name].pid, sysctls=HOST_SYSCTLS, ip=lines)
    finally:
        if before is None:
            del os.environ[RUN_VARIABLE]
        else:
            os.environ[RUN_VARIABLE] = before
    _keep.append(net)
    return {name: int(node.pid) for name, node in nodes.items()}


_keep: list[Any] = []  # Mininet's nodes close their terminals when they are collected, which ends the shells


def _link(equal: bool) -> Any:
    from mininet.link import Link

    numbers = itertools.count(100)  # above what the kernel gives to lo and a bridge

    class IndexedLink(Link):  # type: ignore[misc]
        """A veth pair with chosen interface indexes."""

        @classmethod
        def makeIntfPair(
            cls,
            intfname1: str,
            intfname2: str,
            addr1: str | None = None,
            addr2: str | None = None,
            node1: Any = None,
            node2: Any = None,
            deleteIntfs: bool = True,
        ) -> None:
            number = next(numbers)
            said = node1.cmd(
                f"ip link add name {intfname1} index {number} address {addr1} type veth peer name {intfname2} "
                f"index {number if equal else number + 10_000} address {addr2} netns {node2.pid}"
            )
            if said.strip():
                raise LabError(f"link {intfname1} - {intfname2}: {said.strip()}")

    return IndexedLink


def addresses(fabric: Fabric, host: FabricHost) -> str:
    """`ip -batch` lines that give a host its addresses."""
    lines = [f"address replace {host.management}/16 dev {port_name(host.name, MANAGEMENT)}"]
    for i, rail in enumerate(fabric.rails):
        lines.append(f"link set {port_name(host.name, rail)} mtu {fabric.mtu}")
        lines.append(f"address replace {host.on_rail(i)}/16 dev {port_name(host.name, rail)}")
    lines.append(f"address replace {host.service}/32 dev lo")
    return "\n".join(lines) + "\n"


def baseline(fabric: Fabric, host: FabricHost) -> str:
    """`ip -batch` lines for what a host has without LinkPass: static equal-cost routes to each peer's own address."""
    return "".join(
        f"route replace {peer.service}/32 metric 1024 src {host.service} "
        + " ".join(
            f"nexthop via {peer.on_rail(i)} dev {port_name(host.name, rail)}" for i, rail in enumerate(fabric.rails)
        )
        + "\n"
        for peer in fabric.hosts
        if peer is not host
    )


def _qdiscs(ports: list[str]) -> str:
    """`tc -batch` lines: the place where the faults' filters go."""
    return "".join(f"qdisc add dev {p} clsact\n" for p in ports if p != "lo")


def configure(pid: int, *, sysctls: tuple[str, ...] = (), ip: str = "", tc: str = "", check: bool = True) -> None:
    """Set a node up: sysctls, then `ip -batch` lines, then `tc -batch` lines. LabError unless all of it worked."""
    for argv, text in (
        (["sysctl", "-qw", *sysctls], "" if not sysctls else " "),
        (["ip", "-batch", "-"], ip),
        (["tc", "-batch", "-"], tc),
    ):
        if text:
            done = subprocess.run(
                ["mnexec", "-a", str(pid), *argv], input=text, capture_output=True, text=True, check=False, timeout=30
            )
            if check and done.returncode:
                raise LabError(f"{' '.join(argv)}: {done.stderr.strip()}")
