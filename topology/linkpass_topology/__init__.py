"""What the fleet looks like: fabrics, host records, the shared view and how it spreads."""
