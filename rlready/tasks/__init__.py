"""Tasks and how they are scored: from files, datasets and generators; split, mixed and checked."""

from __future__ import annotations

from rlready.tasks.base import TaskSet
from rlready.tasks.mix import concat, mix

__all__ = ["TaskSet", "concat", "mix"]
