"""AdamW with clipping, a schedule, a moving average of the weights, and the cosine of successive gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from rlready.errors import UserError
from rlready.policy.base import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """The learning rate of a step, counted from 0: linear warm-up, then constant, linear or cosine."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if config.schedule == "constant":
        return config.lr
    done = min(1.0, (step - config.warmup) / (config.total - config.warmup))
    left = 1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return config.lr * (config.final + (1 - config.final) * left)


class Optimizer:
    """Updates a model's parameters from their gradients, those that require one.

    Weight decay acts on matrices only, not on norms and biases.

    Attributes:
        config: settings.
        taken: steps taken with them.
        ema: moving average of the weights by name; None where none is kept.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        """Start at step 0.

        Raises:
            UserError: a setting makes no sense.
        """
        if config.schedule not in ("constant", "linear", "cosine"):
            raise UserError(f'OptimizerConfig: schedule "{config.schedule}" is none of constant, linear, cosine.')
        if config.schedule != "constant" and config.total <= config.warmup:
            raise UserError(
                f"OptimizerConfig: a {config.schedule} schedule needs total, which is {config.total}, above warmup, "
                f"which is {config.warmup}."
            )
        if config.lr < 0 or config.clip < 0 or not 0 <= config.ema < 1:
            raise UserError("OptimizerConfig: lr and clip must not be negative, and ema must be in [0, 1).")
        self.config = config
        self.taken = 0
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        matrices = [p for p in self._parameters.values() if p.ndim > 1]
        others = [p for p in self._parameters.values() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
        self.ema = {k: p.detach().clone() for k, p in self._parameters.items()} if config.ema else None
        self._before: dict[str, Tensor] = {}  # the last gradient over its norm, where `cosine` is asked for

    def step(self) -> dict[str, float]:
        """Clip, update, clear the gradients; return `grad_norm` (before clipping), `lr`, and `grad_cosine` if asked.

        Raises:
            FloatingPointError: a gradient is not finite; nothing is updated and the gradients are cleared.
        """
        grads = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = float(_norm(grads))
        if not math.isfinite(norm):
            self.clear()
            raise FloatingPointError(
                f"The gradient is not finite (norm {norm}) at step {self.taken}; the weights were left as they are."
            )
        report = {"grad_norm": norm} | (self._cosine(norm) if self.config.cosine else {})
        if self.config.clip and norm > self.config.clip:
            torch._foreach_mul_(grads, self.config.clip / norm)
        rate = learning_rate(self.config, self.taken)
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        self.clear()
        self.taken += 1
        if self.ema is not None:
            current = [p.detach() for p in self._parameters.values()]
            torch._foreach_lerp_(list(self.ema.values()), current, 1 - self.config.ema)
        return report | {"lr": rate}

    def _cosine(self, norm: float) -> dict[str, float]:
        """The cosine with the gradient before, from the second one on; a parameter without a gradient counts as 0."""
        now = {k: p.grad / max(norm, 1e-30) for k, p in self._parameters.items() if p.grad is not None}
        both = now.keys() & self._before.keys()
        dots = [torch.dot(now[k].flatten(), self._before[k].flatten()) for k in sorted(both)]
        known, self._before = bool(self._before), now
        return {"grad_cosine": float(sum(dots))} if known else {}

    def clear(self) -> None:
        """Drop the gradients."""
        self._adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Settings, moments, position in the schedule, moving average."""
        return {
            "config": asdict(self.config),
            "taken": self.taken,
            "adam": self._adam.state_dict()["state"],
            "ema": None if self.ema is None else {k: v.clone() for k, v in self.ema.items()},
            "before": {k: v.clone() for k, v in self._before.items()},
        }

    @classmethod
    def restore(cls, model: nn.Module, state: Mapping[str, Any]) -> Optimizer:
        """Inverse of `state_dict`."""
        config = OptimizerConfig(**{**state["config"], "betas": tuple(state["config"]["betas"])})
        made = cls(model, config)
        made.taken = int(state["taken"])
        groups = made._adam.state_dict()["param_groups"]
        moments = {int(k): {n: t.clone() for n, t in v.items()} for k, v in state["adam"].items()}
        made._adam.load_state_dict({"state": moments, "param_groups": groups})
        if made.ema is not None:
            made.ema = {k: state["ema"][k].clone() for k in made.ema}
        made._before = {k: v.clone() for k, v in state.get("before", {}).items()}
        return made


def _norm(grads: list[Tensor]) -> Tensor:
    """The joint L2 norm of all gradients; 0 where there are none."""
    if not grads:
        return torch.zeros(())
    norms: list[Tensor] = list(torch._foreach_norm(grads))
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total
