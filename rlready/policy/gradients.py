"""Gradients that were accumulated and are not stepped with: to look at, or to drop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlready.errors import UserError
from rlready.policy.base import Learner

if TYPE_CHECKING:
    from torch import Tensor


def take_gradients(learner: Learner) -> dict[str, Tensor]:
    """The gradients since the last step, by parameter; the learner has none afterwards.

    Raises:
        UserError: the learner keeps no model in this process.
    """
    from torch import nn

    model = getattr(learner, "model", None) or getattr(getattr(learner, "body", None), "model", None)
    if not isinstance(model, nn.Module):
        raise UserError(f"A {type(learner).__name__} shows no gradients: it keeps no model in this process.")
    out: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            out[name], parameter.grad = parameter.grad, None
    return out
