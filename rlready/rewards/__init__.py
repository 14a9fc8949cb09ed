"""rlready.rewards."""
