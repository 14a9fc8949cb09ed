"""The learner of a Hugging Face model: rows in, gradients and updates out.

Rows are laid out as those of the tiny learner (right-padded, heads for weighted tokens only); the model computes the
logits of the columns that are needed. Log-probabilities and entropies are taken in single precision.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from rlready.errors import UserError
from rlready.policy.base import Batch, LossFn, OptimizerConfig, Outputs, Which
from rlready.policy.hf.body import Body, Weights
from rlready.policy.tiny.batching import Live, cut, everything, locate, pad
from rlready.policy.tiny.optimizer import Optimizer
from rlready.types import FloatArray, Row

_LOGITS = 1 << 26
"""Elements of the logits of a micro-batch, by default: 256 MB in single precision."""


class HFLearner:
    """Trains a `Body`'s trainable weights; implements `policy.base.Learner`.

    Attributes:
        body: the model.
        micro_tokens: padded tokens per micro-batch. Gradients are accumulated, so it changes speed and memory only.
        dropout: whether the model is in training mode while gradients are computed.
    """

    keeps_units = True

    def __init__(
        self,
        body: Body,
        optimizer: OptimizerConfig,
        *,
        version: int = 0,
        micro_tokens: int | None = None,
        dropout: bool = False,
    ) -> None:
        """Take a model.

        Args:
            body: its trainable weights are trained in place.
            optimizer: settings.
            version: what `version` starts from.
            micro_tokens: padded tokens per micro-batch; by default as many as keep the logits below 256 MB.
            dropout: put the model into training mode for gradients; log-probs are always without dropout.
        """
        self.body = body
        self.micro_tokens = micro_tokens or min(4096, max(256, _LOGITS // body.vocab_size))
        self.dropout = dropout
        self._version = version
        self._optimizer = Optimizer(body.model, optimizer)
        self._reference: dict[str, Tensor] | None = None
        self._broken = False

    @property
    def version(self) -> int:
        """Optimizer steps taken in the life of these weights."""
        return self._version

    @property
    def optimizer(self) -> OptimizerConfig:
        """The optimizer's settings."""
        return self._optimizer.config

    def configure(self, optimizer: OptimizerConfig) -> None:
        """Start a fresh optimizer, schedule and moving average with other settings; weights and version stay."""
        self._optimizer.clear()
        self._broken = False
        self._optimizer = Optimizer(self.body.model, optimizer)

    def freeze_reference(self) -> None:
        """Keep a copy of the present trainable weights for KL terms.

        With LoRA that is a copy of the adapter: before any step the same as the model without it, and right after
        supervised training too, where the model without it is no longer what one starts from.
        """
        self._reference = self.body.copy()

    def restart(self) -> None:
        """Go back to the frozen reference's weights, with a fresh optimizer and schedule; the version goes on.

        Raises:
            UserError: there is no reference.
        """
        frozen = self._weights("reference")
        assert frozen is not None
        self._set(frozen)
        self.configure(self.optimizer)

    def weights(self, which: Which = "current") -> Mapping[str, Tensor]:
        """The trainable weights by name. The current ones are the live tensors.

        Raises:
            UserError: there is no reference or moving average.
        """
        chosen = self._weights(which)
        return self.body.live() if chosen is None else chosen

    def logprobs(self, rows: Sequence[Row], *, which: Which = "current") -> list[FloatArray]:
        """Log-probs of every row's tokens, [N] each, at the rows' temperature and support; position 0 is 0.

        Raises:
            UserError: there is no such set of weights, or a row is longer than the model's context.
            ValueError: a token is outside its support.
        """
        self._check(rows)
        out: list[FloatArray] = [torch.zeros(len(row)).numpy() for row in rows]
        with torch.no_grad(), self.body.using(self._weights(which)):
            for index in cut(rows, self.micro_tokens):
                batch, mask = everything([rows[i] for i in index])
                live = locate(batch, mask)
                if live is None:
                    continue
                full = _scatter(batch, live, self._heads(batch, live, False)[0]).cpu().numpy()
                for i, values in zip(index, full, strict=True):
                    out[i] = values[: len(rows[i])].copy()
        return out

    def values(self, rows: Sequence[Row]) -> list[FloatArray]:
        """There is no value head.

        Raises:
            UserError: always.
        """
        raise UserError("A Hugging Face policy has no value head: use an algorithm without a critic (GRPO, RLOO).")

    def forward_backward(
        self,
        rows: Sequence[Row],
        loss: LossFn,
        denominators: Mapping[str, float],
        *,
        entropy: bool = False,
        values: bool | Literal["head"] = False,
        reference: bool = False,
    ) -> dict[str, float]:
        """Accumulate gradients of `loss` over rows in micro-batches; return summed metrics.

        `Outputs` hold 0 wherever a row has no weight in any stream. Batch and outputs are on the CPU.

        Raises:
            UserError: values are asked for, or a reference and there is none, or a row is longer than the context.
            ValueError: a row weighs its first token, or a token is outside its support.
        """
        if values:
            self.values(rows)
        self._check(rows)
        frozen = self._weights("reference") if reference else None
        sums: dict[str, float] = defaultdict(float)
        for index in cut(rows, self.micro_tokens):
            batch, mask = pad([rows[i] for i in index], denominators)
            live = locate(batch, mask)
            outputs = Outputs(torch.zeros(batch.tokens.shape))
            if live is not None and frozen is not None:
                with torch.no_grad(), self.body.using(frozen):
                    outputs.reference = _scatter(batch, live, self._heads(batch, live, False)[0])
            with self._training():
                if live is not None:
                    logprobs, entropies = self._heads(batch, live, entropy)
                    outputs.logprobs = _scatter(batch, live, logprobs)
                    if entropies is not None:
                        outputs.entropy = _scatter(batch, live, entropies)
                if entropy and outputs.entropy is None:
                    outputs.entropy = torch.zeros(batch.tokens.shape)
                if reference and outputs.reference is None:
                    outputs.reference = torch.zeros(batch.tokens.shape)
                result = loss(outputs, batch)
                self._broken |= not math.isfinite(float(result.total.detach()))
                if result.total.requires_grad:
                    result.total.backward()  # type: ignore[no-untyped-call]
            for name, value in result.metrics.items():
                sums[name] += float(value)
        return dict(sums)

    def step(self) -> dict[str, float]:
        """Clip, update, clear the gradients; return `grad_norm` and `lr`.

        Raises:
            FloatingPointError: the loss or its gradient is not finite; the weights stay as they are.
        """
        if self._broken:
            self._broken = False
            self._optimizer.clear()
            raise FloatingPointError(f"The loss is not finite at version {self._version}; the weights were left as is.")
        with self.body.using(None):
            self.body.changing()
            report = self._optimizer.step()
        self._version += 1
        return report

    def state_dict(self) -> dict[str, Any]:
        """Trainable weights, optimizer, schedule, reference, moving average, version, torch's random state."""
        return {
            "version": self._version,
            "model": self.body.copy(),
            "optimizer": self._optimizer.state_dict(),
            "reference": None if self._reference is None else {n: t.clone() for n, t in self._reference.items()},
            "rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`.

        Raises:
            UserError: the state belongs to another model.
        """
        self.body.check(state["model"], "The weights of this state")
        self._set(state["model"])
        self._optimizer.clear()
        self._broken = False
        self._optimizer = Optimizer.restore(self.body.model, state["optimizer"])
        given = state["reference"]
        self._reference = None if given is None else {n: t.to(self.body.device, copy=True) for n, t in given.items()}
        self._version = int(state["version"])
        torch.set_rng_state(state["rng"])

    def _set(self, weights: Mapping[str, Tensor]) -> None:
        with self.body.using(None):
            self.body.changing()
            with torch.no_grad():
                for name, p in self.body.trainable.items():
                    p.copy_(weights[name])

    def _weights(self, which: Which) -> Weights | None:
        """A set of trainable tensors; None for the live ones."""
        if which == "current":
            return None
        if which == "reference":
            if self._reference is None:
                raise UserError("There is no reference: call freeze_reference() before a KL term needs it.")
            return self._reference
        if self._optimizer.ema is None:
            raise UserError("No moving average is kept: set OptimizerConfig.ema above 0.")
        return self._optimizer.ema

    def _check(self, rows: Sequence[Row]) -> None:
        longest = max((len(row) for row in rows), default=0)
        if longest > self.body.max_len:
            raise UserError(f"A row of {longest} tokens is longer than the model's context of {self.body.max_len}.")

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Hold the model for a pass with gradients: in training mode where there is dropout."""
        with self.body.using(None):
            self.body.model.train(self.dropout)
            try:
                yield
            finally:
                self.body.model.eval()

    def _heads(self, batch: Batch, live: Live, entropy: bool) -> tuple[Tensor, Tensor | None]:
        """Log-probs of the live tokens, [M] float32 on the CPU, and the entropies of their distributions."""
        device = self.body.device
        columns, column = torch.unique(live.column - 1, return_inverse=True)
        inputs = batch.tokens[:, : int(live.column.max())]
        logits = self.body.forward(inputs.to(device), keep=columns.to(device))
        z = logits[live.row.to(device), column.to(device)].float()
        if live.temperature is not None:
            z = z / live.temperature.to(device).unsqueeze(-1)
        target = live.tokens.to(device).unsqueeze(-1)
        closed = None if live.supports is None else live.supports.mask(0, len(z), z.shape[1])
        if closed is not None:
            closed = closed.to(device)
            if closed.gather(-1, target).any():
                raise ValueError(
                    "A row holds a token outside the support that it says it was drawn from: tokens and `support_of` "
                    "do not belong together."
                )
            z = z.masked_fill(closed, -torch.inf)
        logp = z.log_softmax(-1)
        chosen = logp.gather(-1, target).squeeze(-1).cpu()
        if not entropy:
            return chosen, None
        finite = logp if closed is None else logp.masked_fill(closed, 0.0)
        p = logp.exp()
        return chosen, -(p * finite).sum(-1).cpu()


def _scatter(batch: Batch, live: Live, values: Tensor) -> Tensor:
    """Put M values at their tokens' places, [B, T], zeros elsewhere."""
    shape = batch.tokens.shape
    return values.new_zeros(shape.numel()).index_copy(0, live.target, values).view(shape)
