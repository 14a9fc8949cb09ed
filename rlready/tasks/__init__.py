"""Tasks and how they are scored: from files, datasets and generators; split, mixed and checked."""

from __future__ import annotations

from rlready.tasks.base import TaskSet
from rlready.tasks.check import check_taskset
from rlready.tasks.mix import concat, mix

__all__ = ["TaskSet", "check_taskset", "concat", "mix"]
