"""rlready.experience."""
