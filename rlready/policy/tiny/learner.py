"""The learner of a tiny transformer: rows in, gradients and updates out."""

from __future__ import annotations

import copy
import math
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rlready.errors import UserError
from rlready.policy.base import Batch, Loss, LossFn, OptimizerConfig, Outputs, Which
from rlready.policy.tiny.batching import Live, cut_shared, everything, locate, pad
from rlready.policy.tiny.heads import token_logprobs
from rlready.policy.tiny.model import TinyModel, check_state
from rlready.policy.tiny.optimizer import Optimizer
from rlready.policy.tiny.parallel import side_by_side
from rlready.policy.tiny.sharing import Forest, plant
from rlready.types import FloatArray, Row


class _Read(NamedTuple):
    """The tokens of a micro-batch that are predicted, and what is read for them."""

    live: Live
    forest: Forest


class _Piece(NamedTuple):
    """A micro-batch; nothing is read where nothing is predicted."""

    batch: Batch
    read: _Read | None


class TinyLearner:
    """Trains a `TinyModel`; implements `policy.base.Learner`.

    Attributes:
        model: the trainable weights.
        micro_tokens: tokens per micro-batch, what rows share counted once. Gradients are accumulated, so it changes
            speed and memory only.
    """

    keeps_units = True

    def __init__(
        self,
        model: TinyModel,
        optimizer: OptimizerConfig | None = None,
        *,
        version: int = 0,
        micro_tokens: int = 4096,
    ) -> None:
        """Take a model.

        Args:
            model: trained in place.
            optimizer: settings; the default's otherwise.
            version: what `version` starts from.
            micro_tokens: tokens per micro-batch.
        """
        self.model = model
        self.micro_tokens = micro_tokens
        self._version = version
        self._optimizer = Optimizer(model, optimizer or OptimizerConfig())
        self._reference: TinyModel | None = None
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
        self._optimizer = Optimizer(self.model, optimizer)

    def freeze_reference(self) -> None:
        """Keep a frozen copy of the present weights for KL terms."""
        self._reference = copy.deepcopy(self.model).requires_grad_(False)

    def restart(self) -> None:
        """Go back to the frozen reference's weights, with a fresh optimizer and schedule; the version goes on.

        Raises:
            UserError: there is no reference.
        """
        self.model.load_state_dict(self._model("reference").state_dict())
        self.configure(self.optimizer)

    def weights(self, which: Which = "current") -> Mapping[str, Tensor]:
        """The weights by name. They are the live tensors: a sampler copies what it loads.

        Raises:
            UserError: there is no reference or moving average.
        """
        return {name: tensor.detach() for name, tensor in self._model(which).state_dict().items()}

    def logprobs(self, rows: Sequence[Row], *, which: Which = "current") -> list[FloatArray]:
        """Log-probs of every row's tokens, [N] each, at the rows' temperature and support; position 0 is 0.

        Raises:
            UserError: there is no such set of weights, or a row is longer than the model's `max_len`.
            ValueError: a token is outside its support.
        """
        model = self._model(which)

        def compute(live: Live, forest: Forest) -> Tensor:
            return self._heads(model, model.states(forest), live, False)[0]

        return self._evaluate(rows, compute)

    def values(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Value-head predictions, [N] each: position t is the value of the tokens before t; position 0 is 0.

        Raises:
            UserError: the model has no value head, or a row is longer than its `max_len`.
        """

        def compute(live: Live, forest: Forest) -> Tensor:
            return self._values(self.model.states(forest))

        return self._evaluate(rows, compute)

    def _evaluate(self, rows: Sequence[Row], compute: Any) -> list[FloatArray]:
        """Run `compute` on all tokens of all rows, without gradients."""
        out: list[FloatArray] = [torch.zeros(len(row)).numpy() for row in rows]

        def work(piece: _Piece) -> FloatArray | None:
            if piece.read is None:
                return None
            with torch.no_grad():
                full: FloatArray = _scatter(piece.batch, piece.read.live, compute(*piece.read)).numpy()
            return full

        cut = self._cut(rows)
        pieces = (_piece(*everything([rows[i] for i in index])) for index in cut)
        for index, full in zip(cut, side_by_side(work, pieces), strict=True):
            for i, values in zip(index, () if full is None else full, strict=full is not None):
                out[i] = values[: len(rows[i])].copy()
        return out

    def _cut(self, rows: Sequence[Row]) -> list[list[int]]:
        return cut_shared(rows, self.micro_tokens, torch.get_num_threads())

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

        Where torch has several threads, a micro-batch is computed by each. The loss is called by one at a time, but in
        any order; sums are taken in the order of the micro-batches.

        `Outputs` hold 0 wherever a row has no weight in any stream. With `values="head"` the values have gradients in
        the value head alone.

        Raises:
            UserError: values or a reference are asked for and there is none, or a row is longer than `max_len`.
            ValueError: a row weighs its first token, or a token is outside its support.
        """
        model, frozen = self.model, self._model("reference") if reference else None
        trained = [p for p in model.parameters() if p.requires_grad]
        one_at_a_time = threading.Lock()

        def look(batch: Batch, read: _Read | None) -> Outputs:
            if read is None:
                zeros = torch.zeros(batch.tokens.shape)
                return Outputs(zeros, *(zeros.clone() if asked else None for asked in (entropy, values, reference)))
            live, forest = read
            hidden = model.states(forest)
            logprobs, entropies = self._heads(model, hidden, live, entropy)
            outputs = Outputs(_scatter(batch, live, logprobs))
            if entropies is not None:
                outputs.entropy = _scatter(batch, live, entropies)
            if values:
                seen = hidden.detach() if values == "head" else hidden
                outputs.values = _scatter(batch, live, self._values(seen))
            if frozen is not None:
                with torch.no_grad():
                    theirs, _ = self._heads(frozen, frozen.states(forest), live, False)
                outputs.reference = _scatter(batch, live, theirs)
            return outputs

        def work(piece: _Piece) -> tuple[Loss, Sequence[Tensor | None]]:
            outputs = look(*piece)
            with one_at_a_time:
                result = loss(outputs, piece.batch)
            if not result.total.requires_grad:
                return result, ()
            grads = torch.autograd.grad(result.total, trained, allow_unused=True)
            return Loss(result.total.detach(), result.metrics), grads

        sums: dict[str, Tensor | float] = defaultdict(float)
        pieces = (_piece(*pad([rows[i] for i in index], denominators)) for index in self._cut(rows))
        for result, grads in side_by_side(work, pieces):
            self._broken |= not math.isfinite(float(result.total))
            for parameter, grad in zip(trained, grads, strict=False):
                if grad is not None:
                    parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
            for name, value in result.metrics.items():
                sums[name] = sums[name] + (value.detach() if isinstance(value, Tensor) else value)
        return {name: float(value) for name, value in sums.items()}

    def step(self) -> dict[str, float]:
        """Clip, update, clear the gradients; return `grad_norm` and `lr`.

        Raises:
            FloatingPointError: the loss or its gradient is not finite; the weights stay as they are.
        """
        if self._broken:
            self._broken = False
            self._optimizer.clear()
            raise FloatingPointError(f"The loss is not finite at version {self._version}; the weights were left as is.")
        report = self._optimizer.step()
        self._version += 1
        return report

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, schedule, reference, moving average, version, torch's random state."""
        reference = None if self._reference is None else _copy(self._reference.state_dict())
        return {
            "version": self._version,
            "model": _copy(self.model.state_dict()),
            "optimizer": self._optimizer.state_dict(),
            "reference": reference,
            "rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`.

        Raises:
            UserError: the state belongs to a model of another shape.
        """
        check_state(self.model.config, state["model"], "The weights of this state")
        self.model.load_state_dict(dict(state["model"]))
        self._optimizer.clear()
        self._broken = False
        self._optimizer = Optimizer.restore(self.model, state["optimizer"])
        self._reference = None
        if state["reference"] is not None:
            self._reference = copy.deepcopy(self.model).requires_grad_(False)
            self._reference.load_state_dict(dict(state["reference"]))
        self._version = int(state["version"])
        torch.set_rng_state(state["rng"])

    def _model(self, which: Which) -> TinyModel:
        if which == "current":
            return self.model
        if which == "reference":
            if self._reference is None:
                raise UserError("There is no reference: call freeze_reference() before a KL term needs it.")
            return self._reference
        if self._optimizer.ema is None:
            raise UserError("No moving average is kept: set OptimizerConfig.ema above 0.")
        averaged = copy.deepcopy(self.model).requires_grad_(False)
        averaged.load_state_dict(self._optimizer.ema)
        return averaged

    @staticmethod
    def _heads(model: TinyModel, hidden: Tensor, live: Live, entropy: bool) -> tuple[Tensor, Tensor | None]:
        return token_logprobs(
            hidden,
            model.output,
            live.tokens,
            temperature=live.temperature,
            supports=live.supports,
            entropy=entropy,
        )

    def _values(self, hidden: Tensor) -> Tensor:
        head = self.model.value
        if head is None:
            raise UserError("This model has no value head: create it with TinyConfig(value_head=True).")
        return F.linear(hidden, head.weight, head.bias).squeeze(-1)


def _piece(batch: Batch, mask: Tensor) -> _Piece:
    """A micro-batch with what the tokens of a mask [B, T] need."""
    live = locate(batch, mask)
    if live is None:
        return _Piece(batch, None)
    return _Piece(batch, _Read(live, plant(batch.tokens.numpy(), live.row.numpy(), live.column.numpy() - 1)))


def _scatter(batch: Batch, live: Live, values: Tensor) -> Tensor:
    """Put M values at their tokens' places, [B, T], zeros elsewhere."""
    shape = batch.tokens.shape
    return values.new_zeros(shape.numel()).index_copy(0, live.target, values).view(shape)


def _copy(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state.items()}
