"""A learner small enough to compute by hand: the next token depends on the last one alone.

`table[a, b]` is the logit of b after a, `critic[a]` the value of a context that ends in a. Rows are cut into
micro-batches of `micro` rows and padded, as a real learner does, with nan where nothing may be read. Rows of one unit
are not kept together, but by `Bound`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rlready.policy.base import Batch, LossFn, Outputs, Policy
from rlready.types import Group, Row, Task, Trajectory, Turn

NAN = float("nan")


class Bigram:
    def __init__(self, vocab: int = 4, *, micro: int = 100, lr: float = 0.1, adam: bool = False, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(vocab, vocab, generator=generator, dtype=torch.float64).requires_grad_()
        self.critic = torch.randn(vocab, generator=generator, dtype=torch.float64).requires_grad_()
        self.reference = self.table.detach().clone()
        self.micro = micro
        kind: Any = torch.optim.AdamW if adam else torch.optim.SGD
        self.optimizer = kind([self.table, self.critic], lr=lr)
        self.version = 0
        self.rows_run = 0
        self.seen: list[Batch] = []

    def _logprobs(self, table: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        before = batch.tokens[:, :-1]
        logits = table[before] / batch.temperature[:, 1:, None]
        logp = torch.log_softmax(logits, -1)
        chosen = logp.gather(-1, batch.tokens[:, 1:, None])[..., 0]
        entropy = -(logp.exp() * logp).sum(-1)
        pad = torch.zeros(len(before), 1, dtype=table.dtype)
        return torch.cat([pad, chosen], 1), torch.cat([pad, entropy], 1)

    def forward_backward(
        self,
        rows: Sequence[Row],
        loss: LossFn,
        denominators: Mapping[str, float],
        *,
        entropy: bool = False,
        values: bool = False,
        reference: bool = False,
    ) -> dict[str, float]:
        out: dict[str, float] = {}
        for start in range(0, len(rows), self.micro):
            batch = pad(rows[start : start + self.micro], denominators)
            self.rows_run += len(batch.rows)
            self.seen.append(batch)
            logprobs, ent = self._logprobs(self.table, batch)
            outputs = Outputs(logprobs, entropy=ent if entropy else None)
            if values:
                pad_column = torch.zeros(len(batch.rows), 1, dtype=self.critic.dtype)
                outputs.values = torch.cat([pad_column, self.critic[batch.tokens[:, :-1]]], 1)
            if reference:
                outputs.reference = self._logprobs(self.reference, batch)[0].detach()
            result = loss(outputs, batch)
            result.total.backward()
            for name, value in result.metrics.items():
                out[name] = out.get(name, 0.0) + float(value)
        return out

    def step(self) -> dict[str, float]:
        grads = [p.grad for p in (self.table, self.critic) if p.grad is not None]
        norm = float(torch.sqrt(sum((g.square().sum() for g in grads), torch.tensor(0.0))))
        if not np.isfinite(norm):
            raise FloatingPointError(f"gradient norm is {norm}")
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.version += 1
        return {"grad_norm": norm, "lr": 0.1}

    def logprobs(self, rows: Sequence[Row], *, which: str = "current") -> list[np.ndarray]:
        table = self.reference if which == "reference" else self.table
        with torch.no_grad():
            return [self._logprobs(table, pad([row], {}))[0][0].float().numpy() for row in rows]

    def values(self, rows: Sequence[Row]) -> list[np.ndarray]:
        with torch.no_grad():
            return [np.append(0, self.critic[row.tokens[:-1]].numpy()).astype(np.float32) for row in rows]

    def freeze_reference(self) -> None:
        self.reference = self.table.detach().clone()

    def weights(self) -> dict[str, Any]:
        return {"table": self.table.detach().clone()}

    def gradient(self, run: Callable[[], Any]) -> torch.Tensor:
        """The table's gradient that `run` accumulates."""
        self.optimizer.zero_grad()
        run()
        assert self.table.grad is not None
        grad = self.table.grad.clone()
        self.optimizer.zero_grad()
        return grad


class Bound(Bigram):
    """Keeps the rows of a unit in one micro-batch."""

    keeps_units = True

    def forward_backward(self, rows: Sequence[Row], *args: Any, **kw: Any) -> dict[str, float]:
        units: dict[object, list[Row]] = {}
        for row in rows:
            units.setdefault(row.unit if row.unit >= 0 else id(row), []).append(row)
        parts: list[list[Row]] = [[]]
        for unit in units.values():
            if parts[-1] and len(parts[-1]) + len(unit) > self.micro:
                parts.append([])
            parts[-1] += unit
        out: dict[str, float] = {}
        micro, self.micro = self.micro, len(rows) + 1
        for part in parts:
            for name, value in super().forward_backward(part, *args, **kw).items():
                out[name] = out.get(name, 0.0) + value
        self.micro = micro
        return out


class Loads:
    """A sampler that only remembers what it was given."""

    version = 0

    def load(self, state: Mapping[str, Any], version: int) -> None:
        self.state, self.version = state, version


def policy_of(learner: Bigram) -> Policy:
    return Policy(Loads(), None, learner)  # type: ignore[arg-type]


def pad(rows: Sequence[Row], denominators: Mapping[str, float]) -> Batch:
    """Rows to one padded batch; log-probs and advantages of padding are nan, so that a leak shows."""
    n = max(len(row) for row in rows)

    def stack(columns: list[np.ndarray], fill: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        out = torch.full((len(columns), n), fill, dtype=dtype)
        for i, c in enumerate(columns):
            out[i, : len(c)] = torch.as_tensor(c)
        return out

    streams = sorted({s for row in rows for s in row.weights})
    return Batch(
        rows=list(rows),
        tokens=stack([r.tokens for r in rows], 0, torch.int64),
        logprobs=stack([r.logprobs for r in rows], NAN),
        advantage=stack([r.advantage for r in rows], NAN),
        weights={s: stack([r.weights[s] for r in rows], 0) for s in streams},
        denominators=denominators,
        temperature=stack([r.temperature for r in rows], 1),
        returns=None if rows[0].returns is None else stack([r.returns for r in rows], NAN),
        values=None if rows[0].values is None else stack([r.values for r in rows], NAN),
    )


def row_of(
    tokens: Sequence[int],
    weights: Sequence[float],
    *,
    advantage: float | Sequence[float] = 1.0,
    logprobs: float | Sequence[float] = 0.0,
    stream: str = "policy",
    trajectory: int = -1,
    group: int = -1,
) -> Row:
    """A row given by lists; a number stands for all trained tokens."""
    w = np.asarray(weights, dtype=np.float32)

    def column(x: float | Sequence[float]) -> np.ndarray:
        return np.where(w > 0, np.broadcast_to(x, w.shape), 0).astype(np.float32)

    return Row(
        np.asarray(tokens, dtype=np.int64),
        {stream: w},
        column(logprobs),
        column(advantage),
        np.ones(len(w), dtype=np.float32),
        trajectory=trajectory,
        group=group,
    )


def group_of(*rewards: float, learner: Bigram | None = None, tokens: int = 2, name: str = "t") -> Group:
    """A group of one-turn trajectories whose k-th says token 1 + k mod 3, `tokens` times."""
    trajectories = []
    for k, reward in enumerate(rewards):
        turn = Turn([0], [1 + k % 3] * tokens, [-1.0] * tokens)
        trajectories.append(Trajectory(Task.of(name), [turn], reward=reward))
    if learner is not None:
        with_behaviour(learner, trajectories)
    return Group(Task.of(name), trajectories)


def with_behaviour(learner: Bigram, trajectories: Sequence[Trajectory]) -> None:
    """Give every turn the learner's own log-probs, so that the first ratio is 1."""
    for trajectory in trajectories:
        for turn in trajectory.turns:
            row = Row.from_segments([(turn.prompt_ids, 0.0), (turn.completion_ids, 1.0)])
            turn.logprobs = [float(x) for x in learner.logprobs([row])[0][len(turn.prompt_ids) :]]


def clone(learner: Bigram) -> Bigram:
    return copy.deepcopy(learner)
