"""The halves of a block with hand-written backward passes: fewer passes over memory than autograd's, and fewer calls.

All of it works on packed tokens [N, ...]; attention alone looks at rectangles of queries and keys, see `sharing`. Norm
weights are multiplied into the matrix that follows, which is smaller than what is normalised.

Checked against autograd in double precision (tests). They are used in training and evaluation alike, so the learner
has one set of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rlready.policy.tiny.sharing import Rectangle


def _normalise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normed n = x * r with r = 1 / sqrt(mean(x^2) + eps); both."""
    scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return x * scale, scale


def _denormalise(grad: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    """The gradient by x from that by n, r * (g - n * mean(g * n)), in the memory of the latter."""
    shift = torch.linalg.vecdot(grad, normed).div_(-normed.shape[-1]).unsqueeze(-1)
    return grad.addcmul_(normed, shift).mul_(scale)


class _Norm(torch.autograd.Function):
    """y = n * w."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed, scale = _normalise(x, eps)
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        by_weight = (grads[0] * normed).flatten(0, -2).sum(0)
        return _denormalise(grads[0] * weight, normed, scale), by_weight, None


class _Attend(torch.autograd.Function):
    """softmax(q k^T / sqrt(E) + mask) v with [q, k, v] = (n * w) @ qkv^T, and q and k rotated.

    The query heads that share a key stand side by side, as further queries of it. 1 / sqrt(E) is in the matrix.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        norm: Tensor,
        qkv: Tensor,
        turn: Tensor,
        rectangles: Sequence[Rectangle],
        shape: tuple[int, int],
        eps: float,
    ) -> Tensor:
        heads, width = shape
        normed, scale = _normalise(x, eps)
        folded = qkv * norm
        folded[: heads * width].mul_(width**-0.5)
        packed = torch.mm(normed, folded.t())
        shared = packed.shape[1] // width - heads >> 1  # key heads
        _turned(packed, shared * width, width).mul_(turn)
        query, key, value = packed.split_with_sizes([n * width for n in (heads, shared, shared)], dim=1)
        mixed = packed.new_empty(len(x) + 1, heads * width)
        kept: list[Tensor] = []
        for each in rectangles:
            q, k, v = (
                _by_head(given.index_select(0, at), each.shape[0], shared, width)
                for given, at in ((query, each.queries), (key, each.keys), (value, each.keys))
            )
            scores = torch.bmm(q, k.transpose(1, 2))
            rows, queries, keys = each.shape
            scores.view(rows, shared, queries, -1, keys).add_(each.mask[:, None, :, None])
            weights = torch.softmax(scores, dim=-1)
            mixed.index_copy_(0, each.into, _by_token(torch.bmm(weights, v), rows, shared, queries))
            kept += [q, k, v, weights]
        ctx.save_for_backward(normed, scale, norm, qkv, folded, turn, *kept)
        ctx.rectangles, ctx.shape = rectangles, (heads, shared, width)
        return mixed[:-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None, None]:
        normed, scale, norm, qkv, folded, turn, *kept = ctx.saved_tensors
        heads, shared, width = ctx.shape
        by_query = normed.new_zeros(len(normed) + 1, heads * width)
        by_key_value = normed.new_zeros(len(normed), 2 * shared * width)
        for i, each in enumerate(ctx.rectangles):
            q, k, v, weights = kept[4 * i : 4 * i + 4]
            rows, queries, keys = each.shape
            grad = grads[0].index_select(0, each.queries).index_fill_(0, each.idle, 0.0)
            grad = _by_head(grad, rows, shared, width)
            by_weights = torch.bmm(grad, v.transpose(1, 2))
            by_scores = torch._softmax_backward_data(by_weights, weights, -1, weights.dtype)
            by_query.index_copy_(0, each.into, _by_token(torch.bmm(by_scores, k), rows, shared, queries))
            by_k, by_v = torch.bmm(by_scores.transpose(1, 2), q), torch.bmm(weights.transpose(1, 2), grad)
            both = torch.cat([_by_token(by_k, rows, shared, keys), _by_token(by_v, rows, shared, keys)], dim=1)
            by_key_value.index_add_(0, each.keys, both)
        by_packed = torch.cat([by_query[:-1], by_key_value], dim=1)
        _turned(by_packed, shared * width, width).mul_(turn.conj())
        by_folded = torch.mm(by_packed.t(), normed)
        by_folded[: heads * width].mul_(width**-0.5)
        by_x = _denormalise(torch.mm(by_packed, folded), normed, scale)
        return by_x, torch.linalg.vecdot(by_folded, qkv, dim=0), by_folded.mul_(norm), None, None, None, None


def _turned(packed: Tensor, values: int, width: int) -> Tensor:
    """Queries and keys among queries, keys and values, as complex numbers [N, H + K, E/2]; a view."""
    return torch.view_as_complex(packed[:, :-values].view(len(packed), -1, width // 2, 2))


def _by_head(laid: Tensor, rows: int, shared: int, width: int) -> Tensor:
    """[R*P, K*G*E] -> [R*K, P*G, E]."""
    return laid.view(rows, len(laid) // rows, shared, -1).transpose(1, 2).reshape(rows * shared, -1, width)


def _by_token(found: Tensor, rows: int, shared: int, places: int) -> Tensor:
    """[R*K, P*G, E] -> [R*P, K*G*E]."""
    return found.view(rows, shared, places, -1).transpose(1, 2).reshape(rows * places, -1)


class _Finish(torch.autograd.Function):
    """z = x + mixed @ out^T, then y = z + (silu(g) * u) @ down^T with [g, u] = (n(z) * w) @ gate_up^T."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mixed: Tensor, out: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, eps: float
    ) -> Tensor:
        x = torch.addmm(x, mixed, out.t())
        normed, scale = _normalise(x, eps)
        folded = gate_up * norm
        both = torch.mm(normed, folded.t())
        gate, up = both.chunk(2, dim=1)
        active = F.silu(gate)
        inner = active * up
        ctx.save_for_backward(mixed, out, normed, scale, norm, gate_up, folded, both, active, inner, down)
        return torch.addmm(x, inner, down.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, None]:
        mixed, out, normed, scale, norm, gate_up, folded, both, active, inner, down = ctx.saved_tensors
        grad = grads[0]
        by_down = torch.mm(grad.t(), inner)
        by_inner = torch.mm(grad, down)
        by_both = torch.empty_like(both)
        (gate, up), (by_gate, by_up) = both.chunk(2, dim=1), by_both.chunk(2, dim=1)
        torch.mul(by_inner, active, out=by_up)
        torch.ops.aten.silu_backward.grad_input(by_inner.mul_(up), gate, grad_input=by_gate)
        by_folded = torch.mm(by_both.t(), normed)
        by_x = _denormalise(torch.mm(by_both, folded), normed, scale).add_(grad)
        return (
            by_x,
            torch.mm(by_x, out),
            torch.mm(by_x.t(), mixed),
            torch.linalg.vecdot(by_folded, gate_up, dim=0),
            by_folded.mul_(norm),
            by_down,
            None,
        )


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension, [..., D]."""
    normed: Tensor = _Norm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return normed


def attend(
    x: Tensor,
    norm: Tensor,
    qkv: Tensor,
    turn: Tensor,
    rectangles: Sequence[Rectangle],
    heads: int,
    eps: float,
) -> Tensor:
    """The first half of a block, without its output projection: norm, projections, RoPE, attention.

    Args:
        x: the residual stream of packed tokens, [N, D].
        norm: weight of the norm, [D].
        qkv: query, key and value matrix in one, [(H + 2K) * E, D].
        turn: the tokens' rotations, [N, 1, E/2] complex.
        rectangles: what attends to what.
        heads: query heads H.
        eps: of the norm.

    Returns:
        Mixed values, [N, H * E].
    """
    shape = (heads, 2 * turn.shape[-1])
    mixed: Tensor = _Attend.apply(x, norm, qkv, turn, rectangles, shape, eps)  # type: ignore[no-untyped-call]
    return mixed


def finish(x: Tensor, mixed: Tensor, out: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, eps: float) -> Tensor:
    """What a block does after attention: output projection and SwiGLU (Shazeer 2020), each added to the residual.

    Args:
        x: the residual stream, [N, D].
        mixed: what attention gave, [N, D].
        out: output projection, [D, D].
        norm: weight of the norm before the SwiGLU, [D].
        gate_up: gate and up matrix in one, [2F, D].
        down: [D, F].
        eps: of the norm.
    """
    y: Tensor = _Finish.apply(x, mixed, out, norm, gate_up, down, eps)  # type: ignore[no-untyped-call]
    return y
