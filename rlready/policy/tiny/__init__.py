"""A tiny transformer on the CPU: model, sampler, learner, and the policy made of them."""

from rlready.policy.tiny.engine import SamplerStats
from rlready.policy.tiny.learner import TinyLearner
from rlready.policy.tiny.model import TinyConfig, TinyModel
from rlready.policy.tiny.policy import TinyPolicy, clone_policy, load_policy, save_policy
from rlready.policy.tiny.sampler import TinySampler

__all__ = [
    "SamplerStats",
    "TinyConfig",
    "TinyLearner",
    "TinyModel",
    "TinyPolicy",
    "TinySampler",
    "clone_policy",
    "load_policy",
    "save_policy",
]
