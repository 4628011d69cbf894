"""Actuators: they carry plans out, keep a ledger of what they made, and can undo it."""
