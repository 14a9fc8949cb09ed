"""Hugging Face causal language models as policies. `transformers` and `peft` are imported when a model is loaded."""

from rlready.policy.hf.learner import HFLearner
from rlready.policy.hf.loading import LoraSettings
from rlready.policy.hf.policy import HFPolicy
from rlready.policy.hf.renderer import HFRenderer
from rlready.policy.hf.sampler import HFSampler

__all__ = ["HFLearner", "HFPolicy", "HFRenderer", "HFSampler", "LoraSettings"]
