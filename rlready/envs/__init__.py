"""rlready.envs."""
