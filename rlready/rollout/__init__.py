"""rlready.rollout."""
