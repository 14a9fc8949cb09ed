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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlready.errors import UserError
from rlready.policy.tiny.fused import rms_norm, swiglu


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


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Apply RoPE.

    Args:
        x: heads side by side, [..., heads, E].
        turn: the positions' rotations, broadcastable to [..., heads, E/2], complex.
    """
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2)


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

    def attend(self, x: Tensor, turn: Tensor, mask: Tensor | None = None) -> Tensor:
        """Self-attention before its output projection, [B, T, D] -> [B, T, D]; causal where no mask is given."""
        c = self.config
        heads = self.qkv(self.norm_attention(x)).view(*x.shape[:-1], -1, c.head_dim)
        queries_keys, values = heads.split_with_sizes((c.heads + c.kv_heads, c.kv_heads), dim=-2)
        q, k = rotate(queries_keys, turn).transpose(1, 2).split_with_sizes((c.heads, c.kv_heads), dim=1)
        v = values.transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=c.kv_heads != c.heads
        )
        return mixed.transpose(1, 2).flatten(2)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Everything after attention, position by position, [..., D] -> [..., D]."""
        x = x + self.out(mixed)
        return x + swiglu(self.norm_ffn(x), self.gate_up.weight, self.down.weight)


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

    def hidden(
        self,
        tokens: Tensor,
        need: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        media: Any = None,
    ) -> Tensor:
        """Final hidden states after the last norm.

        Args:
            tokens: ids, right-padded, [B, T] int64.
            need: flat indices into B*T of the positions wanted, [M] int64; None wants all. What only other positions
                need is not computed in the last block.
            positions: of the tokens, [B, T] int64; counted from 0 in each row by default.
            mask: added to the attention scores, [B, 1, T, T]; causal by default. Both serve rows that share a prefix.
            media: reserved for image patches.

        Returns:
            [M, D], or [B*T, D] where `need` is None.

        Raises:
            UserError: the sequence is longer than the model's `max_len`.
        """
        length = tokens.shape[1] if positions is None else int(positions.max()) + 1
        if length > self.config.max_len:
            raise UserError(
                f"A sequence of {length} tokens does not fit the model's max_len {self.config.max_len}. Raise max_len."
            )
        turn = (self.turn[:length] if positions is None else self.turn[positions]).unsqueeze(-2)
        x = self.embed(tokens, media)
        for block in self.blocks:
            assert isinstance(block, Block)
            mixed = block.attend(x, turn, mask)
            if need is not None and block is self.blocks[-1]:
                x, mixed = (each.flatten(0, 1).index_select(0, need) for each in (x, mixed))
            x = block.finish(x, mixed)
        normed: Tensor = self.norm(x)
        return normed.reshape(-1, self.config.dim)

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
