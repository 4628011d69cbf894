"""Sources: they turn the outside world into observations. Nothing here judges."""
