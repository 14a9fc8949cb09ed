"""rlready.worlds."""
