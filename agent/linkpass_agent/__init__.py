"""The host agent: sees, judges, shares, decides and acts for one host."""
