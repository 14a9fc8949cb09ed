"""Drawing tokens: noise that belongs to the request, and the exact distribution that was drawn from.

Token i of a request is drawn by inverting the cumulative distribution at a uniform number hashed from (seed, i). A
sample is therefore a function of the request and the weights, whatever else was in the batch and whenever it arrived.

The sampled distribution is, in this order: mask, temperature, top-k, top-p on what top-k left (renormalised), min-p
against the likeliest. Log-probabilities and entropies are those of the result, renormalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlready.policy.base import SamplingParams

UIntArray = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK_64 = (1 << 64) - 1
_BELOW_ONE = 1.0 - 2.0**-22  # stays below the total when multiplied with it in single precision


class Rule(NamedTuple):
    """The part of `SamplingParams` that shapes a distribution: rows with the same rule are drawn together."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    entropy: bool
    stop_ids: tuple[int, ...]

    @classmethod
    def of(cls, params: SamplingParams) -> Rule:
        """The rule of a request."""
        return cls(params.temperature, params.top_k, params.top_p, params.min_p, params.entropy, params.stop_ids)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest id is taken; truncation then has no effect."""
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether ids are cut from the vocabulary."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


@dataclass(slots=True)
class Drawn:
    """One token per row; all [B] but `kept`, the ids that could have been drawn, [B, V] bool, None where all could."""

    tokens: Tensor
    logprobs: Tensor
    entropy: Tensor | None
    kept: Tensor | None


def mix_seeds(seeds: Sequence[int]) -> UIntArray:
    """Spread request seeds over 64 bits (the finaliser of splitmix64, Steele et al. 2014), [B]."""
    return _splitmix(np.asarray([s & _MASK_64 for s in seeds], dtype=np.uint64))


def uniforms(mixed: UIntArray, index: NDArray[np.int64]) -> Tensor:
    """Uniform numbers in [0, 1) hashed from (seed, token index), [B] float32.

    Args:
        mixed: what `mix_seeds` gave, [B].
        index: which token of its completion each row draws, [B].
    """
    bits = _splitmix(mixed + (index.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    u = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return torch.from_numpy(u).clamp_(max=_BELOW_ONE).to(torch.float32)


def _splitmix(x: UIntArray) -> UIntArray:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def draw(logits: Tensor, rule: Rule, noise: Tensor, allowed: Tensor | None = None) -> Drawn:
    """Draw one token per row.

    Args:
        logits: [B, V] float32; may be overwritten.
        rule: how to draw.
        noise: uniform numbers in [0, 1), [B].
        allowed: ids that may be drawn, [B, V] bool; None allows all.
    """
    if allowed is not None:
        logits = logits.masked_fill_(~allowed, -torch.inf)
    if rule.greedy:
        logprobs = torch.log_softmax(logits, dim=-1)
        best = logprobs.max(dim=-1)
        entropy = torch.special.entr(logprobs.exp()).sum(-1) if rule.entropy else None
        return Drawn(best.indices, best.values, entropy, allowed)
    if rule.temperature != 1.0:
        logits = logits.div_(rule.temperature)
    kept = allowed
    if rule.truncates:
        kept = truncate(logits, rule.top_k, rule.top_p, rule.min_p)
        logits = logits.masked_fill_(~kept, -torch.inf)
    logprobs = torch.log_softmax(logits, dim=-1)
    probs = logprobs.exp()
    cumulative = probs.cumsum(-1)
    point = (noise * cumulative[:, -1]).unsqueeze(-1)
    tokens = torch.searchsorted(cumulative, point, right=True)
    entropy = torch.special.entr(probs).sum(-1) if rule.entropy else None
    return Drawn(tokens.squeeze(-1), logprobs.gather(-1, tokens).squeeze(-1), entropy, kept)


def truncate(logits: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Which ids survive top-k, then top-p, then min-p, [B, V] bool. Ties go to the lower id; one id always survives.

    Args:
        logits: temperature applied, -inf where an id is not allowed, [B, V].
        top_k: 0 keeps all.
        top_p: 1 keeps all.
        min_p: 0 keeps all.
    """
    kept = torch.isfinite(logits)
    if top_k > 0 or top_p < 1:
        ordered, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
        keep = torch.isfinite(ordered)
        if top_k > 0:
            keep[:, top_k:] = False
        if top_p < 1:
            probs = torch.softmax(ordered.masked_fill(~keep, -torch.inf), dim=-1)
            keep &= probs.cumsum(-1) - probs < top_p
            keep[:, 0] = True
        kept = torch.zeros_like(kept).scatter_(-1, ids, keep)
    if min_p > 0:
        kept &= logits >= logits.amax(-1, keepdim=True) + float(np.log(min_p))
    return kept


class MaskTable:
    """Masks of admissible ids, one row of a table per distinct id array, so that a batch's masks are one lookup.

    Row 0 allows everything. Arrays are known by identity first and by content second; the table holds on to them.
    Beyond `limit` bytes it starts anew.
    """

    def __init__(self, vocab_size: int, limit: int = 64 << 20) -> None:
        self.vocab_size = vocab_size
        self.most = max(256, limit // vocab_size)
        self.clear()

    def clear(self) -> None:
        """Forget all masks; indices given out before are void."""
        self.table = torch.ones(64, self.vocab_size, dtype=torch.bool)
        self.used = 1
        self._by_identity: dict[int, tuple[int, NDArray[np.int64]]] = {}
        self._by_content: dict[bytes, int] = {}

    @property
    def full(self) -> bool:
        """Whether it is time to `clear`."""
        return self.used >= self.most or len(self._by_identity) >= 4 * self.most

    def index(self, ids: NDArray[np.int64]) -> int:
        """The row of the mask that allows just these ids.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        known = self._by_identity.get(id(ids))
        if known is not None:
            return known[0]
        content = ids.tobytes()
        row = self._by_content.get(content)
        if row is None:
            if len(ids) == 0 or ids.min() < 0 or ids.max() >= self.vocab_size:
                raise ValueError(f"Choices hold ids outside the vocabulary of {self.vocab_size}.")
            if self.used == len(self.table):
                self.table = torch.cat((self.table, torch.ones_like(self.table)))
            row = self.used
            self.table[row] = False
            self.table[row, torch.from_numpy(ids)] = True
            self.used += 1
            self._by_content[content] = row
        self._by_identity[id(ids)] = (row, ids)
        return row
