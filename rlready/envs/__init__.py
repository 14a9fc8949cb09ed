"""Environments: the contract, and ready ones. Names load on first use, so that this stays light for child processes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlready.envs.base import Env, EnvFactory, Observation, Step
    from rlready.envs.chat import ChatEnv
    from rlready.envs.check import check_env
    from rlready.envs.gym import from_gym, to_gym
    from rlready.envs.process import ProcessEnv, ProcessPool
    from rlready.envs.tools import ToolEnv

_HOME = {
    "ChatEnv": "chat",
    "Env": "base",
    "EnvFactory": "base",
    "Observation": "base",
    "ProcessEnv": "process",
    "ProcessPool": "process",
    "Step": "base",
    "ToolEnv": "tools",
    "check_env": "check",
    "from_gym": "gym",
    "to_gym": "gym",
}

__all__ = [
    "ChatEnv",
    "Env",
    "EnvFactory",
    "Observation",
    "ProcessEnv",
    "ProcessPool",
    "Step",
    "ToolEnv",
    "check_env",
    "from_gym",
    "to_gym",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name in _HOME:
        return getattr(importlib.import_module(f"rlready.envs.{_HOME[name]}"), name)
    raise AttributeError(f"module 'rlready.envs' has no attribute {name!r}")
