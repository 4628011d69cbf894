"""LinkPass keeps RDMA jobs running when a NIC, cable, optic or switch port fails.

This package is the ground floor: the language that all parts share, the client of the agent's socket,
and the command line.
"""

__version__ = "0.1.0"
