"""rlready: make tasks, data, rewards, environments and models ready for RL, train on them, prove what is claimed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlready.doctor.setup import Setup
    from rlready.envs.base import Env, Observation, Step
    from rlready.envs.check import check_env
    from rlready.run_read import load_run
    from rlready.seeds import hashed_uniform
    from rlready.start import fit, tiny_policy
    from rlready.tasks.base import TaskSet
    from rlready.tasks.check import check_taskset
    from rlready.types import Group, Message, Row, Score, Task, Trajectory, Transition, Turn, Verdict

_HOME = {
    "Env": "rlready.envs.base",
    "Observation": "rlready.envs.base",
    "Setup": "rlready.doctor.setup",
    "Step": "rlready.envs.base",
    "TaskSet": "rlready.tasks.base",
    "check_env": "rlready.envs.check",
    "check_taskset": "rlready.tasks.check",
    "fit": "rlready.start",
    "hashed_uniform": "rlready.seeds",
    "load_run": "rlready.run_read",
    "tiny_policy": "rlready.start",
    **dict.fromkeys(
        ("Group", "Message", "Row", "Score", "Task", "Trajectory", "Transition", "Turn", "Verdict"), "rlready.types"
    ),
}

__all__ = [
    "Env",
    "Group",
    "Message",
    "Observation",
    "Row",
    "Score",
    "Setup",
    "Step",
    "Task",
    "TaskSet",
    "Trajectory",
    "Transition",
    "Turn",
    "Verdict",
    "check_env",
    "check_taskset",
    "fit",
    "hashed_uniform",
    "load_run",
    "tiny_policy",
]


def __getattr__(name: str) -> Any:
    """Load public names and subpackages on first use, so that `import rlready` stays light."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in ("rewards", "envs", "tasks", "policy", "algorithms", "worlds", "dream", "curriculum", "rollout"):
        return importlib.import_module(f"rlready.{name}")
    raise AttributeError(f"module 'rlready' has no attribute {name!r}")
