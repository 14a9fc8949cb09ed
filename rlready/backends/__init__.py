"""rlready.backends."""
