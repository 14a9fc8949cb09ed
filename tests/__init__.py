"""The tests; helpers beside them are imported as `tests.<folder>.<helper>`."""
