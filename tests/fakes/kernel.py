"""The simulator's kernel, for the tests that drive one by hand."""

from linkpass_agent.simulate.kernel import Device, Entry, FakeKernel

__all__ = ["Device", "Entry", "FakeKernel"]
