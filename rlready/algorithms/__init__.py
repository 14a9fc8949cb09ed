"""Algorithms, by name. Each is a dataclass whose fields are its hyper-parameters.

    grpo = algorithm("grpo", clip_high=0.28)

Register one of your own by adding its class to `ALGORITHMS`; passing the object to `train` needs no registering.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rlready.algorithms.base import Algorithm
from rlready.algorithms.grpo import GRPO
from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.algorithms.ppo import PPO
from rlready.algorithms.reinforce import Reinforce
from rlready.algorithms.rloo import RLOO
from rlready.algorithms.sft import SFT, nll
from rlready.errors import did_you_mean

ALGORITHMS: dict[str, type[Algorithm]] = {
    "grpo": GRPO,
    "ppo": PPO,
    "reinforce": Reinforce,
    "rloo": RLOO,
    "sft": SFT,
}

__all__ = ["ALGORITHMS", "GRPO", "PPO", "RLOO", "SFT", "Algorithm", "PolicyGradient", "Reinforce", "algorithm", "nll"]


def algorithm(name: str, **settings: Any) -> Algorithm:
    """Build an algorithm by its name.

    Args:
        name: a key of `ALGORITHMS`; case does not matter.
        settings: its fields.

    Raises:
        UserError: an unknown name, an unknown field, or a value that cannot work.
    """
    kind = ALGORITHMS.get(name.lower())
    if kind is None:
        raise did_you_mean("algorithm", name, ALGORITHMS, see="rlready algorithms")
    known = {f.name for f in fields(kind) if f.init}
    for key in settings:
        if key not in known:
            raise did_you_mean(f"field of {name.lower()}", key, known)
    return kind(**settings)
