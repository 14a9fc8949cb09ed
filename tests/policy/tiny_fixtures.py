"""Small models and requests for the tests of the tiny policy."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import numpy as np
import torch

from rlready.policy.base import Choices, Sample, SampleRequest, SamplingParams
from rlready.policy.tiny import TinyConfig, TinyModel, TinySampler
from rlready.types import Row

torch.set_num_threads(1)

VOCAB = 23


def config(**changes: object) -> TinyConfig:
    settings = {"vocab_size": VOCAB, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 1, "max_len": 64} | changes
    return TinyConfig(**settings)  # type: ignore[arg-type]


def model(seed: int = 0, **changes: object) -> TinyModel:
    """A model whose distributions are far from flat, so that an error in them shows."""
    made = TinyModel(config(**changes), seed)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if p.ndim > 1:
                p.mul_(5.0 if name.startswith(("embed", "head")) else 1.5)
            elif "norm" in name:
                p.copy_(torch.linspace(0.5, 1.5, len(p)))
    return made


def plain_states(made: TinyModel, tokens: torch.Tensor) -> torch.Tensor:
    """Final hidden states of one row, [T] -> [T, D], written down as in the papers and left to autograd."""
    c, length = made.config, len(tokens)
    half = torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim
    angle = torch.outer(torch.arange(length, dtype=torch.float64), c.rope_theta**-half)
    x = made.embed_tokens.weight[tokens]

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + c.norm_eps).sqrt() * weight

    def rotated(x: torch.Tensor) -> torch.Tensor:
        even, odd = x[..., ::2], x[..., 1::2]
        cos, sin = (each.to(x.dtype).unsqueeze(1) for each in (angle.cos(), angle.sin()))
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    for block in made.blocks:
        heads = (norm(x, block.norm_attention.weight) @ block.qkv.weight.T).view(length, -1, c.head_dim)
        q, k, v = heads.split((c.heads, c.kv_heads, c.kv_heads), 1)
        q, k = rotated(q), rotated(k)
        k, v = (each.repeat_interleave(c.heads // c.kv_heads, 1) for each in (k, v))
        scores = torch.einsum("ihe,jhe->hij", q, k) / c.head_dim**0.5
        mixed = torch.einsum("hij,jhe->ihe", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
        x = x + mixed.flatten(1) @ block.out.weight.T
        gate, up = (norm(x, block.norm_ffn.weight) @ block.gate_up.weight.T).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ block.down.weight.T
    return norm(x, made.norm.weight)


def sampler(made: TinyModel, **options: object) -> TinySampler:
    return TinySampler(made.config, made.state_dict(), **options)  # type: ignore[arg-type]


def prompts(n: int, low: int = 1, high: int = 20, seed: int = 0) -> list[list[int]]:
    r = random.Random(seed)
    return [[r.randrange(VOCAB) for _ in range(r.randint(low, high))] for _ in range(n)]


def run(s: TinySampler, requests: Sequence[SampleRequest]) -> list[Sample]:
    return asyncio.run(s.sample(requests))


def row(request: SampleRequest, sample: Sample, temperature: float | None = None) -> Row:
    """The training row of one sample, as `rollout.compile` makes it."""
    tokens = np.asarray(request.prompt_ids + sample.completion_ids)
    n, start = len(tokens), len(request.prompt_ids)

    def full(values: Sequence[float], fill: float = 0.0) -> np.ndarray:
        out = np.full(n, fill, np.float32)
        out[start:] = values
        return out

    t = request.params.temperature if temperature is None else temperature
    supports: list[np.ndarray] = []
    support_of = np.full(n, -1)
    for i, ids in enumerate(sample.support or []):
        if ids is not None:
            support_of[start + i] = len(supports)
            supports.append(ids)
    ones = np.ones(len(sample.completion_ids))
    return Row(
        tokens,
        {"policy": full(ones)},
        full(sample.logprobs),
        full(ones),
        full(ones * t, 1.0),
        support_of=support_of if supports else None,
        supports=tuple(supports),
    )


TREE = Choices([[1], [2, 3], [2, 4, 5], [6, 7], [8]])
SETTINGS = {
    "plain": SamplingParams(max_tokens=9),
    "temperature": SamplingParams(temperature=0.7, max_tokens=9),
    "top_k": SamplingParams(temperature=0.7, top_k=4, max_tokens=9),
    "top_p": SamplingParams(temperature=1.3, top_p=0.8, max_tokens=9),
    "min_p": SamplingParams(temperature=1.1, min_p=0.05, max_tokens=9),
    "all": SamplingParams(temperature=0.9, top_k=10, top_p=0.9, min_p=0.02, max_tokens=9, entropy=True),
    "choices": SamplingParams(temperature=0.7, choices=TREE, max_tokens=9),
    "choices_top_p": SamplingParams(temperature=0.7, choices=TREE, top_p=0.7, max_tokens=9),
    "greedy": SamplingParams(temperature=0.0, max_tokens=9),
    "greedy_choices": SamplingParams(temperature=0.0, choices=TREE, max_tokens=9),
}
