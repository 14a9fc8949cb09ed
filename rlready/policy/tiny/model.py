"""A small decoder-only transformer in plain torch: RMSNorm, RoPE, SwiGLU, grouped-query attention, a value head.

The architecture is Llama's (Touvron et al. 2023), so that a checkpoint is read by every tool that reads Llama;
`save.py` converts names and layouts. Two layouts differ from Hugging Face's files, for speed:

- query, key and value are one matrix, gate and up another;
- RoPE turns the pairs (2i, 2i+1) of a head, as in the RoPE paper (Su et al. 2021, eq. 34), and not (i, i + half): a
  rotation is then one complex multiplication. The two differ by a permutation of the query's and key's rows
  (`save.py` applies it).

Shapes: B rows, T positions, N packed tokens, D width, H query heads, K key/value heads, E head width, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlready.errors import UserError
from rlready.policy.tiny.fused import attend, finish, rms_norm
from rlready.policy.tiny.sharing import Forest, Rectangle, plant


@dataclass(frozen=True)
class TinyConfig:
    """The shape of a tiny transformer.

    Attributes:
        vocab_size: number of token ids; 0 lets `TinyPolicy.create` take the tokenizer's.
        dim: width D of the residual stream.
        layers: number of blocks.
        heads: query heads; `dim` must be divisible by it.
        kv_heads: key/value heads; `heads` must be divisible by it. One is fastest to decode.
        ffn: inner width of the SwiGLU; 0 takes 3 * dim.
        max_len: longest sequence in tokens, prompt and completion together.
        rope_theta: base of the rotary frequencies.
        norm_eps: epsilon of the RMS norms.
        value_head: add a scalar head that predicts returns.
        tie: use the embedding matrix as output head.
    """

    vocab_size: int = 0
    dim: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 1
    ffn: int = 0
    max_len: int = 512
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    value_head: bool = True
    tie: bool = True

    def __post_init__(self) -> None:
        """Check the numbers against each other.

        Raises:
            UserError: a size is not positive, or one does not divide the other.
        """
        for name in ("dim", "layers", "heads", "kv_heads", "max_len"):
            if getattr(self, name) < 1:
                raise UserError(f"TinyConfig: {name} is {getattr(self, name)}; it must be at least 1.")
        if self.vocab_size < 0 or self.ffn < 0:
            raise UserError("TinyConfig: vocab_size and ffn must not be negative.")
        if self.dim % self.heads or (self.dim // self.heads) % 2:
            raise UserError(
                f"TinyConfig: dim {self.dim} over heads {self.heads} must give an even head width. Change one of them."
            )
        if self.heads % self.kv_heads:
            raise UserError(f"TinyConfig: heads {self.heads} must be a multiple of kv_heads {self.kv_heads}.")

    @property
    def head_dim(self) -> int:
        """Width E of one head."""
        return self.dim // self.heads

    @property
    def hidden(self) -> int:
        """Inner width of the feed-forward part."""
        return self.ffn or 3 * self.dim

    @property
    def qkv_dim(self) -> int:
        """Rows of the joint query/key/value matrix, (H + 2K) * E."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


def rotations(config: TinyConfig) -> Tensor:
    """The complex numbers that RoPE multiplies with, [max_len, E/2], complex64."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angle = torch.outer(torch.arange(config.max_len, dtype=torch.float64), config.rope_theta**-half)
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)


class Norm(nn.Module):
    """RMSNorm: x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return rms_norm(x, self.weight, self.eps)


class Block(nn.Module):
    """Attention and a SwiGLU, each behind a norm and added to the residual stream."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.norm_attention = Norm(config.dim, config.norm_eps)
        self.qkv = nn.Linear(config.dim, config.qkv_dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)
        self.norm_ffn = Norm(config.dim, config.norm_eps)
        self.gate_up = nn.Linear(config.dim, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor, turn: Tensor, rectangles: Sequence[Rectangle], need: Tensor | None = None) -> Tensor:
        """Packed tokens [N, D] -> [N, D], or [M, D] where only some are wanted.

        Args:
            x: the residual stream.
            turn: the tokens' rotations, [N, 1, E/2].
            rectangles: what attends to what; tokens that are no query get no result.
            need: indices of the tokens whose result is wanted, [M]; None for all.
        """
        c = self.config
        mixed = attend(x, self.norm_attention.weight, self.qkv.weight, turn, rectangles, c.heads, c.norm_eps)
        if need is not None:
            x, mixed = x.index_select(0, need), mixed.index_select(0, need)
        weights = self.out.weight, self.norm_ffn.weight, self.gate_up.weight, self.down.weight
        return finish(x, mixed, *weights, c.norm_eps)


class TinyModel(nn.Module):
    """The transformer with its two heads."""

    turn: Tensor

    def __init__(self, config: TinyConfig, seed: int = 0) -> None:
        """Initialise from `seed`; the global generator is left alone.

        Raises:
            UserError: the vocabulary size is not set.
        """
        super().__init__()
        if config.vocab_size < 2:
            raise UserError(f"TinyConfig: vocab_size is {config.vocab_size}; a model needs at least 2 ids.")
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed_tokens = nn.Embedding(config.vocab_size, config.dim)
            self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
            self.norm = Norm(config.dim, config.norm_eps)
            self.head = None if config.tie else nn.Linear(config.dim, config.vocab_size, bias=False)
            self.value = nn.Linear(config.dim, 1) if config.value_head else None
            self._initialise()
        self.register_buffer("turn", rotations(config), persistent=False)

    def _initialise(self) -> None:
        """Normal weights of deviation 1 / sqrt(width of the input); the value head starts at zero.

        What is added to the residual stream is scaled down by its depth. On sums of digit chains this learned in 80
        steps what deviation 0.02, usual for large models, had not learned in 160. Embedding and output start at 0.05,
        so that the first policy is nearly uniform: with 1 / sqrt(width) there as well, RL from scratch got stuck with
        two of six digits never tried on half of the seeds.
        """
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                continue
            std = 1 / math.sqrt(parameter.shape[1])
            if name.endswith(("out.weight", "down.weight")):
                std /= math.sqrt(2 * self.config.layers)
            if name.startswith(("embed_tokens", "head")):
                std = 0.05
            nn.init.normal_(parameter, std=std)
        if self.value is not None:
            nn.init.zeros_(self.value.weight)
            nn.init.zeros_(self.value.bias)

    @property
    def output(self) -> Tensor:
        """The matrix that turns hidden states into logits, [V, D]."""
        return self.embed_tokens.weight if self.head is None else self.head.weight

    def embed(self, tokens: Tensor, media: Any = None) -> Tensor:
        """Token embeddings, [...] -> [..., D]. Image patches will enter here, in place of their placeholder tokens.

        Raises:
            UserError: media was given.
        """
        if media is not None:
            raise UserError("The tiny model reads text only so far; image parts need a policy that sees images.")
        embedded: Tensor = self.embed_tokens(tokens)
        return embedded

    def hidden(self, tokens: Tensor, *, media: Any = None) -> Tensor:
        """Final hidden states after the last norm, of every position of some rows: [B, T] int64 -> [B*T, D].

        Args:
            tokens: ids.
            media: reserved for image patches.

        Raises:
            UserError: a row is longer than the model's `max_len`.
        """
        row, column = np.indices(tokens.shape).reshape(2, -1)
        return self.states(plant(tokens.numpy(), row, column), media=media)

    def states(self, forest: Forest, *, media: Any = None) -> Tensor:
        """Final hidden states after the last norm, [M, D], as the forest asks for; only those are computed to the end.

        Raises:
            UserError: a row is longer than the model's `max_len`.
        """
        length = int(forest.positions.max()) + 1
        if length > self.config.max_len:
            raise UserError(
                f"A sequence of {length} tokens does not fit the model's max_len {self.config.max_len}. Raise max_len."
            )
        turn = self.turn[forest.positions].unsqueeze(1)
        x = self.embed(forest.tokens, media)
        for block in self.blocks[:-1]:
            x = block(x, turn, forest.rectangles)
        x = self.blocks[-1](x, turn, forest.last, forest.need)
        normed: Tensor = self.norm(x)
        return normed.index_select(0, forest.state)

    def forward(self, tokens: Tensor, *, media: Any = None) -> Tensor:
        """Logits of the next token at every position, [B, T] -> [B, T, V]."""
        hidden = self.hidden(tokens, media=media)
        return F.linear(hidden, self.output).view(*tokens.shape, -1)


def check_state(config: TinyConfig, state: Mapping[str, Tensor], where: str = "These weights") -> None:
    """Make sure that weights belong to a model of this shape.

    Raises:
        UserError: a tensor is missing, unknown, or has another shape; the first such is named.
    """
    expected = state_shapes(config)
    for name, shape in expected.items():
        if name not in state:
            raise UserError(f'{where} lack "{name}": they belong to another model than {config}.')
        if tuple(state[name].shape) != shape:
            raise UserError(
                f'{where} belong to a model of another shape: "{name}" is {tuple(state[name].shape)}, not {shape}.'
            )
    unknown = sorted(set(state) - set(expected))
    if unknown:
        raise UserError(f'{where} hold "{unknown[0]}", which {config} does not have: they belong to another model.')


@functools.cache
def state_shapes(config: TinyConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a model of this shape."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in TinyModel(config).state_dict().items()}
