"""rlready.tasks."""
