"""Two pieces of the block with a hand-written backward pass: fewer passes over memory than autograd's.

Both are checked against autograd in double precision (tests). They are used in training and evaluation alike, so the
learner has one set of numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class _Norm(torch.autograd.Function):
    """y = x * r * w with r = 1 / sqrt(mean(x^2) + eps).

    With n = x * r and g = dy * w:  dx = r * (g - n * mean(g * n)),  dw = sum(dy * n).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        y: Tensor = (x * scale).mul_(weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        normed, grad = x * scale, grads[0]
        by_normed = grad * normed
        by_weight = by_normed.flatten(0, -2).sum(0)
        shift = torch.mv(by_normed.flatten(0, -2), weight).div_(x.shape[-1]).view(scale.shape)
        return normed.mul_(shift).neg_().addcmul_(grad, weight).mul_(scale), by_weight, None


class _SwiGLU(torch.autograd.Function):
    """y = (silu(g) * u) @ down^T with [g, u] = x @ gate_up^T, for x [N, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        both = torch.mm(x, gate_up.t())
        half = both.shape[1] // 2
        inner = F.silu(both[:, :half]).mul_(both[:, half:])
        ctx.save_for_backward(x, gate_up, down, both, inner)
        return torch.mm(inner, down.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, gate_up, down, both, inner = ctx.saved_tensors
        half = both.shape[1] // 2
        gate, up = both[:, :half], both[:, half:]
        by_down = torch.mm(grads[0].t(), inner)
        by_inner = torch.mm(grads[0], down)
        by_both = torch.empty_like(both)
        torch.mul(by_inner, F.silu(gate), out=by_both[:, half:])
        torch.ops.aten.silu_backward.grad_input(by_inner.mul_(up), gate, grad_input=by_both[:, :half])
        return torch.mm(by_both, gate_up), torch.mm(by_both.t(), x), by_down


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension, [..., D]."""
    normed: Tensor = _Norm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return normed


def swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The SwiGLU feed-forward part (Shazeer 2020).

    Args:
        x: [..., D].
        gate_up: gate and up matrix in one, [2F, D].
        down: [D, F].
    """
    flat: Tensor = _SwiGLU.apply(x.reshape(-1, x.shape[-1]), gate_up, down)  # type: ignore[no-untyped-call]
    return flat.view(x.shape)
