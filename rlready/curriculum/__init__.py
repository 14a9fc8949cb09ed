"""rlready.curriculum."""
