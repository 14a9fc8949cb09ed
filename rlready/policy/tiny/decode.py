"""The sampler's forward pass: packed tokens through prepared weights, attention through the cache.

A *pass* holds some rows, each with one or more new tokens. Everything but attention works on the packed tokens [N,
...], so unequal numbers of new tokens cost no padding there. Attention sees a rectangle [R, n] of rows and new
tokens, and reads

- its own fresh keys where every row starts a context (`fresh`),
- a contiguous range of slots as a view, with idle slots among them computed and dropped, or
- slots gathered by index, where the range would be mostly idle.

The query heads that share a key/value head are merged with the new tokens into one dimension, so that attention is
two batched matrix products. Weights are copied when they are loaded: norm weights and the attention scale are folded
in, so a sampler keeps acting with the version it was given while the learner goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from rlready.policy.tiny.cache import Cache
from rlready.policy.tiny.model import TinyConfig, check_state, rotations

Ints = NDArray[np.int64]

PASS_TOKENS = 1024
"""Most tokens (attention's padding included) computed at once; larger passes leave the processor's cache."""

_IDLE_SHARE = 1.6
"""A contiguous range is read as a view while it is at most this many times longer than its rows."""


@dataclass(slots=True)
class Pass:
    """What one forward pass needs to know; index tensors are int64.

    Attributes:
        rows: which rows of the batch, [R].
        tokens: packed new tokens, [N].
        positions: their positions, [N].
        write: rows of the flattened cache that take their keys and values, [N * K].
        width: n, new tokens per row of the attention rectangle.
        length: L, positions of the cache that attention reads.
        base: what to read: a range of slots (first, last + 1), rows of the cache by index, or None for fresh contexts.
        place: index of every packed token in the rectangle [R' * n]; None where they fill it in order.
        height: R', rows of the rectangle.
        mask: added to the scores, [R' or 1, n, 1, L]; None where nothing is hidden.
        last: index of every row's last token among the packed ones; None where each row has one token.
    """

    rows: Ints
    tokens: Tensor
    positions: Tensor
    write: Tensor
    width: int
    length: int
    base: tuple[int, int] | Tensor | None
    place: Tensor | None
    height: int
    mask: Tensor | None
    last: Tensor | None


def plan(slots: Ints, past: Ints, new: Ints) -> list[tuple[Ints, bool]]:
    """Cut a batch into passes.

    Args:
        slots: slot of every row, ascending, [B].
        past: tokens of the row that are in the cache, [B].
        new: tokens of the row that are not, at least 1, [B].

    Returns:
        Rows of each pass, and whether they are fresh contexts.
    """
    if new.max() == 1:
        return _chunks(np.arange(len(slots)), 1, fresh=False)
    passes: list[tuple[Ints, bool]] = []
    fresh = np.flatnonzero((past == 0) & (new > 1))
    if len(fresh):
        fresh = fresh[np.argsort(-new[fresh], kind="stable")]
        begin = 0
        for i in range(1, len(fresh) + 1):
            widest = new[fresh[begin]]
            if i == len(fresh) or new[fresh[i]] < 0.6 * widest - 2 or widest * (i - begin + 1) > PASS_TOKENS:
                passes.append((np.sort(fresh[begin:i]), True))
                begin = i
    rest = np.flatnonzero((past > 0) | (new == 1))
    if len(rest):
        counts = new[rest]
        if len(rest) * counts.max() <= 1.5 * counts.sum() + 64:
            passes += _chunks(rest, int(counts.max()), fresh=False)
        else:
            kinds = np.ceil(np.log2(counts)).astype(np.int64)
            for kind in np.unique(kinds):
                same = rest[kinds == kind]
                passes += _chunks(same, int(new[same].max()), fresh=False)
    return passes


def _chunks(rows: Ints, width: int, *, fresh: bool) -> list[tuple[Ints, bool]]:
    most = max(1, PASS_TOKENS // width)
    return [(rows[i : i + most], fresh) for i in range(0, len(rows), most)]


def build(cache: Cache, rows: Ints, fresh: bool, slots: Ints, past: Ints, new: Ints, tokens: Ints) -> Pass:
    """Lay out one pass.

    Args:
        cache: where keys and values go.
        rows: rows of the batch, [R]; the other arrays are those of these rows.
        fresh: every row starts a context.
        slots: ascending, [R].
        past: tokens already in the cache, [R].
        new: new tokens, [R].
        tokens: the new tokens packed, [N].
    """
    count, width, heads = len(rows), int(new.max()), cache.config.kv_heads
    uniform = width == 1 or bool((new == width).all())
    if width == 1:
        within, row_of = np.zeros(count, dtype=np.int64), np.arange(count)
    else:
        row_of = np.repeat(np.arange(count), new)
        within = np.arange(len(tokens)) - np.repeat(np.cumsum(new) - new, new)
    positions = past[row_of] + within
    write = (slots[row_of] * heads)[:, None] + np.arange(heads)
    write = (write * cache.length + positions[:, None]).ravel()
    last = None if width == 1 else torch.from_numpy(np.cumsum(new) - 1)

    base: tuple[int, int] | Tensor | None = None
    place: Ints | None = None
    height, length, mask = count, width, None
    if fresh:
        if not uniform:
            place = row_of * width + within
        if width > 1:
            mask = torch.full((width, width), -torch.inf).triu_(1)[None, :, None, :]
    else:
        length = int((past + new).max())
        first, end = int(slots[0]), int(slots[-1]) + 1
        if end - first <= _IDLE_SHARE * count:
            base, height = (first, end), end - first
            if height > count or not uniform:
                place = (slots[row_of] - first) * width + within
        else:
            base = torch.from_numpy((slots[:, None] * heads + np.arange(heads)).ravel())
            if not uniform:
                place = row_of * width + within
        if width > 1 or height > count or bool((past + 1 < length).any()):
            seen = np.zeros(height * width, dtype=np.int64)
            seen[slice(None) if place is None else place] = positions
            mask = _hide(torch.from_numpy(seen).view(height, width), length)
    return Pass(
        rows,
        torch.from_numpy(tokens),
        torch.from_numpy(positions),
        torch.from_numpy(write),
        width,
        length,
        base,
        None if place is None else torch.from_numpy(place),
        height,
        mask,
        last,
    )


def _hide(seen: Tensor, length: int) -> Tensor:
    """Scores to add so that a token at position p sees positions <= p only, [R, n] -> [R, n, 1, L]."""
    hidden = torch.arange(length) > seen.unsqueeze(-1)
    return torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf).unsqueeze(2)


@dataclass(slots=True)
class _Layer:
    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor


class Decoder:
    """A snapshot of the weights, laid out for decoding."""

    def __init__(self, config: TinyConfig) -> None:
        self.config = config
        self.turn = rotations(config)
        self._layers: list[_Layer] = []
        self._head = self._embedding = torch.empty(0)
        self._work: dict[str, Tensor] = {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy weights.

        Raises:
            UserError: they belong to a model of another shape.
        """
        c = self.config
        check_state(c, state)
        with torch.no_grad():
            self._layers = []
            for i in range(c.layers):
                w = {k: state[f"blocks.{i}.{k}.weight"] for k in ("qkv", "out", "gate_up", "down")}
                w["qkv"] = w["qkv"] * state[f"blocks.{i}.norm_attention.weight"]
                w["qkv"][: c.dim] *= c.head_dim**-0.5
                w["gate_up"] = w["gate_up"] * state[f"blocks.{i}.norm_ffn.weight"]
                self._layers.append(
                    _Layer(**{k: m.t().clone(memory_format=torch.contiguous_format) for k, m in w.items()})
                )
            self._embedding = state["embed_tokens.weight"].detach().clone()
            head = self._embedding if c.tie else state["head.weight"]
            self._head = (head * state["norm.weight"]).detach().t().contiguous()

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the next token, [R, D] -> [R, V]."""
        return torch.mm(self._norm(hidden), self._head)

    def forward(self, p: Pass, cache: Cache) -> Tensor:
        """Write a pass's keys and values and return the last token's hidden state of each row, [R, D]."""
        c = self.config
        x = self._embedding.index_select(0, p.tokens)
        turn = self.turn.index_select(0, p.positions).unsqueeze(1)
        rotated, query = (c.heads + c.kv_heads) * c.head_dim, c.dim
        for i, layer in enumerate(self._layers):
            qkv = torch.mm(self._norm(x), layer.qkv, out=self._buffer("qkv", len(x), c.qkv_dim))
            torch.view_as_complex(qkv[:, :rotated].view(len(x), -1, c.head_dim // 2, 2)).mul_(turn)
            key, value = qkv[:, query:rotated], qkv[:, rotated:]
            keys, values = cache.keys[i], cache.values[i]
            keys.view(-1, c.head_dim).index_copy_(0, p.write, key.reshape(-1, c.head_dim))
            values.view(-1, c.head_dim).index_copy_(0, p.write, value.reshape(-1, c.head_dim))
            if p.base is None:
                keys, values = self._rectangle(p, key, c.kv_heads), self._rectangle(p, value, c.kv_heads)
            elif isinstance(p.base, tuple):
                first, end = p.base[0] * c.kv_heads, p.base[1] * c.kv_heads
                keys, values = keys[first:end, : p.length], values[first:end, : p.length]
            else:
                keys, values = (store[:, : p.length].index_select(0, p.base) for store in (keys, values))
            mixed = self._attend(p, qkv[:, :query], keys, values)
            if p.last is not None and i == c.layers - 1:
                x, mixed = x.index_select(0, p.last), mixed.index_select(0, p.last)
            x.addmm_(mixed, layer.out)
            gate_up = torch.mm(self._norm(x), layer.gate_up, out=self._buffer("gate_up", len(x), 2 * c.hidden))
            gate, up = gate_up[:, : c.hidden], gate_up[:, c.hidden :]
            x.addmm_(F.silu(gate, inplace=True).mul_(up), layer.down)
        return x

    def _attend(self, p: Pass, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention over given keys and values [R' * K, L, E]; packed queries [N, D] in, packed mixtures [N, D] out."""
        c = self.config
        group = c.heads // c.kv_heads
        q = self._rectangle(p, query, c.kv_heads).reshape(-1, p.width * group, c.head_dim)
        shape = (len(q), q.shape[1], p.length)
        scores = torch.bmm(q, keys.transpose(1, 2), out=self._buffer("scores", *shape))
        if p.mask is not None:
            scores.view(p.height, c.kv_heads, p.width, group, p.length).add_(p.mask.unsqueeze(1))
        weights = torch.softmax(scores, dim=-1, out=self._buffer("weights", *shape))
        mixed = torch.bmm(weights, values, out=self._buffer("mixed", *q.shape))
        if c.kv_heads > 1:
            mixed = mixed.view(p.height, c.kv_heads, p.width, -1).transpose(1, 2)
        mixed = mixed.reshape(p.height * p.width, c.dim)
        return mixed if p.place is None else mixed.index_select(0, p.place)

    def _rectangle(self, p: Pass, packed: Tensor, heads: int) -> Tensor:
        """Packed vectors [N, heads * w] to the attention rectangle [R' * heads, n, w]."""
        if p.place is not None:
            full = packed.new_zeros(p.height * p.width, packed.shape[1])
            packed = full.index_copy_(0, p.place, packed)
        shaped = packed.reshape(p.height, p.width, heads, -1)
        return shaped.transpose(1, 2).reshape(p.height * heads, p.width, -1)

    def _norm(self, x: Tensor) -> Tensor:
        """RMSNorm without its weight, which is folded into the next matrix, [N, D]."""
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        scale.div_(self.config.dim).add_(self.config.norm_eps).rsqrt_()
        return torch.mul(x, scale, out=self._buffer("normed", *x.shape))

    def _buffer(self, name: str, *shape: int) -> Tensor:
        """Reused memory: fresh pages cost as much as the product that fills them."""
        size = math.prod(shape)
        held = self._work.get(name)
        if held is None or held.numel() < size:
            held = self._work[name] = torch.empty(size * 5 // 4)
        return held[:size].view(shape)
