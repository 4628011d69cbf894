"""The fault-injection lab: fabrics out of namespaces and guests, faults, traffic, scenarios."""
