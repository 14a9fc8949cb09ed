"""rlready.policy."""
