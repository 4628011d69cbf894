"""A whole fleet on a virtual clock and network, from one seed: `python -m linkpass_agent.simulate`.

Judge, share, decide and the route actuator are the daemon's own; clocks, cables, switches, kernels and datagrams are
simulated. See docs/simulator.md.
"""
