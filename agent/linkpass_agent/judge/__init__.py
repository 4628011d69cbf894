"""Verdicts from observations and time. Pure: no I/O, no clock of its own."""
