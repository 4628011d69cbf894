"""Whether an address lies in a subnet."""

import ipaddress


def inside(subnet: str, address: str) -> bool:
    """Of an address with or without a prefix length. ValueError for what is none."""
    ip, network = ipaddress.ip_interface(address).ip, ipaddress.ip_network(subnet)
    return ip.version == network.version and ip in network
