"""rlready.algorithms."""
