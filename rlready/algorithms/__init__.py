"""Algorithms, by name. Each is a dataclass whose fields are its hyper-parameters.

    grpo = algorithm("grpo", clip_high=0.28)

Register one of your own by adding its class to `ALGORITHMS`; passing the object to `train` needs no registering.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rlready.algorithms.base import Algorithm
from rlready.algorithms.gdpo import GDPO
from rlready.algorithms.mixed import Mixed
from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.algorithms.ppo import PPO, VAPO
from rlready.algorithms.preferences import DPO, DPOP, IPO
from rlready.algorithms.presets import (
    CISPO,
    DAPO,
    DPPO,
    GMPO,
    GRPO,
    GSPO,
    LUSPO,
    NGRPO,
    RLOO,
    SAPO,
    DrGRPO,
    Magistral,
    MaxRL,
    PassK,
    Reinforce,
    ReinforcePlusPlus,
)
from rlready.algorithms.sft import SFT, RestEM, nll
from rlready.algorithms.turns import GiGPO
from rlready.algorithms.vine import VinePPO
from rlready.errors import did_you_mean

ALGORITHMS: dict[str, type[Algorithm]] = {
    "reinforce": Reinforce,
    "rloo": RLOO,
    "grpo": GRPO,
    "drgrpo": DrGRPO,
    "dapo": DAPO,
    "gspo": GSPO,
    "luspo": LUSPO,
    "gmpo": GMPO,
    "reinforce++": ReinforcePlusPlus,
    "maxrl": MaxRL,
    "ngrpo": NGRPO,
    "passk": PassK,
    "cispo": CISPO,
    "sapo": SAPO,
    "dppo": DPPO,
    "magistral": Magistral,
    "ppo": PPO,
    "vapo": VAPO,
    "gdpo": GDPO,
    "gigpo": GiGPO,
    "vineppo": VinePPO,
    "sft": SFT,
    "restem": RestEM,
    "dpo": DPO,
    "ipo": IPO,
    "dpop": DPOP,
    "mixed": Mixed,
}

__all__ = [
    "ALGORITHMS",
    "CISPO",
    "DAPO",
    "DPO",
    "DPOP",
    "DPPO",
    "GDPO",
    "GMPO",
    "GRPO",
    "GSPO",
    "IPO",
    "LUSPO",
    "NGRPO",
    "PPO",
    "RLOO",
    "SAPO",
    "SFT",
    "VAPO",
    "Algorithm",
    "DrGRPO",
    "GiGPO",
    "Magistral",
    "MaxRL",
    "Mixed",
    "PassK",
    "PolicyGradient",
    "Reinforce",
    "ReinforcePlusPlus",
    "RestEM",
    "VinePPO",
    "algorithm",
    "nll",
]


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
