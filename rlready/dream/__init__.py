"""rlready.dream."""
