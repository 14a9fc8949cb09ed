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

from rlready.policy.tiny.native import native
from rlready.policy.tiny.sharing import Rectangle


@native
def _normalise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normed n = x * r with r = 1 / sqrt(mean(x^2) + eps); both."""
    scale = torch.linalg.vector_norm(x, dim=[-1], keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return x * scale, scale


@native
def _denormalise(grad: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    """The gradient by x from that by n, r * (g - n * mean(g * n)), in the memory of the latter."""
    shift = (grad * normed).sum(-1, keepdim=True)
    return grad.addcmul_(normed, shift, value=-1.0 / normed.shape[-1]).mul_(scale)


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


@native
def _turned(packed: Tensor, values: int, width: int) -> Tensor:
    """Queries and keys among queries, keys and values, as complex numbers [N, H + K, E/2]; a view."""
    return torch.view_as_complex(packed[:, :-values].view(packed.shape[0], -1, width // 2, 2))


@native
def _by_head(laid: Tensor, rows: int, shared: int, width: int) -> Tensor:
    """[R*P, K*G*E] -> [R*K, P*G, E]."""
    if shared == 1:
        return laid.view(rows, -1, width)
    return laid.view(rows, laid.shape[0] // rows, shared, -1).transpose(1, 2).reshape(rows * shared, -1, width)


@native
def _by_token(found: Tensor, rows: int, shared: int, places: int) -> Tensor:
    """[R*K, P*G, E] -> [R*P, K*G*E]."""
    if shared == 1:
        return found.view(rows * places, -1)
    return found.view(rows, shared, places, -1).transpose(1, 2).reshape(rows * places, -1)


@native
def _attend(
    x: Tensor,
    norm: Tensor,
    qkv: Tensor,
    turn: Tensor,
    rectangles: list[Rectangle],
    heads: int,
    eps: float,
) -> tuple[Tensor, list[Tensor]]:
    """Mixed values, and what the way back needs.

    The query heads that share a key stand side by side, as further queries of it. 1 / sqrt(E) is in the matrix.
    """
    width = 2 * turn.shape[-1]
    shared = (qkv.shape[0] // width - heads) // 2  # key heads
    normed, scale = _normalise(x, eps)
    folded = qkv * norm
    folded[: heads * width].mul_(width**-0.5)
    packed = torch.mm(normed, folded.t())
    _turned(packed, shared * width, width).mul_(turn)
    query, key, value = packed.split_with_sizes([heads * width, shared * width, shared * width], dim=1)
    mixed = packed.new_empty([x.shape[0] + 1, heads * width])
    kept = [normed, scale, folded]
    for each in rectangles:
        rows, places, length = each.mask.shape[0], each.mask.shape[2], each.mask.shape[4]
        q = _by_head(query.index_select(0, each.queries), rows, shared, width)
        k = _by_head(key.index_select(0, each.keys), rows, shared, width)
        v = _by_head(value.index_select(0, each.keys), rows, shared, width)
        scores = torch.bmm(q, k.transpose(1, 2))
        scores.view(rows, shared, places, -1, length).add_(each.mask)
        weights = torch.softmax(scores, dim=-1)
        mixed.index_copy_(0, each.into, _by_token(torch.bmm(weights, v), rows, shared, places))
        kept += [q, k, v, weights]
    return mixed[:-1], kept


@native
def _attend_back(
    grad: Tensor,
    norm: Tensor,
    qkv: Tensor,
    turn: Tensor,
    rectangles: list[Rectangle],
    heads: int,
    kept: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by x, norm and qkv."""
    width = 2 * turn.shape[-1]
    shared = (qkv.shape[0] // width - heads) // 2
    normed, scale, folded = kept[0], kept[1], kept[2]
    by_query = normed.new_zeros([normed.shape[0] + 1, heads * width])
    by_key_value = normed.new_zeros([normed.shape[0], 2 * shared * width])
    for i, each in enumerate(rectangles):
        rows, places, length = each.mask.shape[0], each.mask.shape[2], each.mask.shape[4]
        q, k, v, weights = kept[4 * i + 3], kept[4 * i + 4], kept[4 * i + 5], kept[4 * i + 6]
        given = grad.index_select(0, each.queries).index_fill_(0, each.idle, 0.0)
        by_mixed = _by_head(given, rows, shared, width)
        by_weights = torch.bmm(by_mixed, v.transpose(1, 2))
        by_scores = torch._softmax_backward_data(by_weights, weights, -1, weights.dtype)
        by_query.index_copy_(0, each.into, _by_token(torch.bmm(by_scores, k), rows, shared, places))
        by_k, by_v = torch.bmm(by_scores.transpose(1, 2), q), torch.bmm(weights.transpose(1, 2), by_mixed)
        both = torch.cat([_by_token(by_k, rows, shared, length), _by_token(by_v, rows, shared, length)], dim=1)
        by_key_value.index_add_(0, each.keys, both)
    by_packed = torch.cat([by_query[:-1], by_key_value], dim=1)
    _turned(by_packed, shared * width, width).mul_(turn.conj())
    by_folded = torch.mm(by_packed.t(), normed)
    by_folded[: heads * width].mul_(width**-0.5)
    by_x = _denormalise(torch.mm(by_packed, folded), normed, scale)
    return by_x, (by_folded * qkv).sum(0), by_folded.mul_(norm)


class _Attend(torch.autograd.Function):
    """softmax(q k^T / sqrt(E) + mask) v with [q, k, v] = (n * w) @ qkv^T, and q and k rotated."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        norm: Tensor,
        qkv: Tensor,
        turn: Tensor,
        rectangles: list[Rectangle],
        heads: int,
        eps: float,
    ) -> Tensor:
        mixed, kept = _attend(x, norm, qkv, turn, rectangles, heads, eps)
        ctx.save_for_backward(norm, qkv, turn, *kept)
        ctx.rectangles, ctx.heads = rectangles, heads
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        norm, qkv, turn, *kept = ctx.saved_tensors
        return *_attend_back(grads[0], norm, qkv, turn, ctx.rectangles, ctx.heads, kept), None, None, None, None


@native
def _finish(
    x: Tensor, mixed: Tensor, out: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, eps: float
) -> tuple[Tensor, list[Tensor]]:
    """The result, and what the way back needs."""
    x = torch.addmm(x, mixed, out.t())
    normed, scale = _normalise(x, eps)
    folded = gate_up * norm
    both = torch.mm(normed, folded.t())
    gate, up = both.split_with_sizes([down.shape[1], down.shape[1]], dim=1)
    active = torch.ops.aten.silu(gate)
    inner = active * up
    return torch.addmm(x, inner, down.t()), [normed, scale, folded, both, active, inner]


@native
def _finish_back(
    grad: Tensor, mixed: Tensor, out: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, kept: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by x, mixed, out, norm, gate_up and down."""
    normed, scale, folded, both, active, inner = kept
    by_down = torch.mm(grad.t(), inner)
    by_inner = torch.mm(grad, down)
    by_both = torch.empty_like(both)
    gate, up = both.split_with_sizes([down.shape[1], down.shape[1]], dim=1)
    by_gate, by_up = by_both.split_with_sizes([down.shape[1], down.shape[1]], dim=1)
    torch.mul(by_inner, active, out=by_up)
    torch.ops.aten.silu_backward(by_inner.mul_(up), gate, grad_input=by_gate)
    by_folded = torch.mm(by_both.t(), normed)
    by_x = _denormalise(torch.mm(by_both, folded), normed, scale).add_(grad)
    by_norm, by_gate_up = (by_folded * gate_up).sum(0), by_folded.mul_(norm)
    return by_x, torch.mm(by_x, out), torch.mm(by_x.t(), mixed), by_norm, by_gate_up, by_down


class _Finish(torch.autograd.Function):
    """z = x + mixed @ out^T, then y = z + (silu(g) * u) @ down^T with [g, u] = (n(z) * w) @ gate_up^T."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mixed: Tensor, out: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, eps: float
    ) -> Tensor:
        y, kept = _finish(x, mixed, out, norm, gate_up, down, eps)
        ctx.save_for_backward(mixed, out, norm, gate_up, down, *kept)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        mixed, out, norm, gate_up, down, *kept = ctx.saved_tensors
        return *_finish_back(grads[0], mixed, out, norm, gate_up, down, kept), None


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
    mixed: Tensor = _Attend.apply(x, norm, qkv, turn, list(rectangles), heads, eps)  # type: ignore[no-untyped-call]
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
