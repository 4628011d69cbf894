"""How host records travel between agents."""
