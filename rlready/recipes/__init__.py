"""rlready.recipes."""
