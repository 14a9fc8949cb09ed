"""What the rest of the house knows of a model: it can be sampled from, and it can learn from rows.

`Sampler` and `Learner` are small protocols, so that a tiny CPU transformer, a Hugging Face model, vLLM or a remote
endpoint fit behind them. `Policy` bundles both with the `Renderer` that turns messages into token ids, token-exactly.

The learner computes every log-probability under the distribution that was sampled from: the row's temperature and
support (top-k, top-p, admissible choices) are applied on both sides, so a ratio of 1 means an unchanged policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from rlready.aio import finish_in_thread
from rlready.types import FloatArray, IntArray, Message, Row, Stop

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Which = Literal["current", "reference", "ema"]


class Choices:
    """A set of admissible completions as a prefix tree of token ids; decoding is limited to it.

    A completion ends with `stop="end"` when it has reached a leaf, so single-token actions cost one token and need no
    end-of-turn token. Build once and share: samplers cache masks by identity of the node's id array.
    """

    __slots__ = ("_leaf", "_next", "_root")

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        """Build the tree.

        Args:
            sequences: the admissible completions, each a non-empty list of token ids.

        Raises:
            ValueError: no sequence was given, or one is empty.
        """
        if not sequences or any(not s for s in sequences):
            raise ValueError("Choices needs at least one completion, and none may be empty.")
        tree: dict[tuple[int, ...], set[int]] = {}
        for seq in sequences:
            for i, token in enumerate(seq):
                tree.setdefault(tuple(seq[:i]), set()).add(token)
        self._next = {k: np.asarray(sorted(v), dtype=np.int64) for k, v in tree.items()}
        self._root = self._next[()]
        self._leaf = len(self._next) == 1

    def allowed(self, prefix: Sequence[int]) -> IntArray | None:
        """Ids that may follow `prefix`, or None where the prefix is a complete choice."""
        if not prefix:
            return self._root
        if self._leaf:
            return None
        return self._next.get(tuple(prefix))

    def complete(self) -> list[list[int]]:
        """The completions, those left out that another one goes on from; `Choices` of them is the same tree."""
        return [
            [*prefix, i] for prefix, ids in self._next.items() for i in ids.tolist() if (*prefix, i) not in self._next
        ]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is decoded.

    Attributes:
        temperature: 0 decodes greedily (log-probs are then those at temperature 1).
        top_k: keep the k likeliest ids; 0 keeps all.
        top_p: keep the smallest set of ids whose probability reaches this.
        min_p: drop ids less likely than this share of the likeliest.
        max_tokens: completion length cap; reaching it gives `stop="length"`.
        stop_ids: token ids that end the completion (and belong to it).
        choices: admissible completions, if the decoder is limited to some.
        entropy: also return the entropy (nats) of each sampled distribution.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 256
    stop_ids: tuple[int, ...] = ()
    choices: Choices | None = None
    entropy: bool = False


@dataclass(slots=True)
class SampleRequest:
    """One completion to draw.

    Attributes:
        prompt_ids: the whole context.
        params: decoding parameters.
        seed: the request's own noise. Token i is drawn with a uniform number hashed from (seed, i), so a sample is a
            function of the request and the weights, not of what else was in the batch.
        session: any hashable; requests of one session reuse its key/value cache as far as their prompts agree.
    """

    prompt_ids: list[int]
    params: SamplingParams
    seed: int = 0
    session: Any = None


@dataclass(slots=True)
class Sample:
    """What came back: exact ids, behaviour log-probs under the sampled distribution, and why it stopped.

    `version` is that of the weights; a list, one per token, where they changed in flight.
    """

    completion_ids: list[int]
    logprobs: list[float]
    stop: Stop
    version: int | list[int] = 0
    support: list[IntArray | None] | None = None
    entropy: list[float] | None = None


@runtime_checkable
class Sampler(Protocol):
    """Draws completions. Concurrent calls are batched together (continuous batching).

    One that also says `elsewhere = True` computes in another process, so that it draws on while this one learns: its
    `load` may be called from any thread. One that has `stats.busy` counts the seconds in which it computed.
    """

    @property
    def version(self) -> int:
        """Version of the weights in use."""
        ...

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Draw one completion per request, in order."""
        ...

    def load(self, state: Mapping[str, Any], version: int) -> None:
        """Take new weights."""
        ...

    def release(self, session: Any) -> None:
        """Forget a session's cache."""
        ...


@dataclass(slots=True)
class Outputs:
    """What a forward pass gives, all [B, T], aligned with tokens (position 0 is 0)."""

    logprobs: torch.Tensor
    entropy: torch.Tensor | None = None
    values: torch.Tensor | None = None
    reference: torch.Tensor | None = None


@dataclass(slots=True)
class Batch:
    """A padded micro-batch of rows as tensors [B, T]; padding has weight 0 everywhere.

    `denominators` were taken over the *whole* minibatch before it was cut into micro-batches, one per stream. A loss
    divides by them and by nothing else, so gradient accumulation gives the update of one big batch.
    """

    rows: list[Row]
    tokens: torch.Tensor
    logprobs: torch.Tensor
    advantage: torch.Tensor
    weights: dict[str, torch.Tensor]
    denominators: Mapping[str, float]
    temperature: torch.Tensor
    returns: torch.Tensor | None = None
    values: torch.Tensor | None = None


@dataclass(slots=True)
class Loss:
    """A scalar to differentiate, and numbers to log.

    `metrics` are *shares of the whole minibatch* (already divided by its denominators), so the learner adds them up
    over micro-batches.
    """

    total: torch.Tensor
    metrics: dict[str, torch.Tensor | float] = field(default_factory=dict)


LossFn = Callable[[Outputs, Batch], Loss]


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with clipping and a schedule.

    Attributes:
        lr: peak learning rate; 1e-4 suits RL of small trained models (ours); 1e-6 is usual for billions of weights
            (prime-rl), and a tiny model that starts from nothing bears 1e-3 (`rlready.fit`).
        betas: of the moments; ours for small models (0.9, 0.999 is usual for large ones, prime-rl and TRL).
        warmup: steps of linear warm-up.
        schedule: "constant", "linear" or "cosine" decay to `lr * final` over `total` steps.
        total: steps of the schedule; required unless constant.
        clip: global gradient norm, 1 as in prime-rl and TRL; 0 turns clipping off.
        ema: decay of an exponential moving average of the weights; 0 keeps none.
        cosine: also report `grad_cosine`, the cosine of each gradient with the one before, which stays high where steps
            are aligned by stale data (arXiv 2603.01501); it keeps one more copy of the gradients.
    """

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0
    warmup: int = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    total: int = 0
    final: float = 0.0
    ema: float = 0.0
    cosine: bool = False


class Learner(Protocol):
    """Owns the trainable weights and the optimizer.

    One that also says `keeps_units = True` computes the rows of a unit (`Row.unit`) in one micro-batch. A loss that
    couples rows then costs one pass instead of two.
    """

    @property
    def version(self) -> int:
        """Optimizer steps taken."""
        ...

    def logprobs(self, rows: Sequence[Row], *, which: Which = "current") -> list[FloatArray]:
        """Log-probs of every row's tokens, [N] each, without gradients, at the rows' temperature and support."""
        ...

    def values(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Value-head predictions at every token, [N] each, without gradients.

        `values[t]` is the value of the state *before* token t, that is of the context tokens < t.
        """
        ...

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

        With `values="head"` the values have gradients in the value head alone, so that a critic can be warmed up while
        the body, and with it the policy, stays as it is.
        """
        ...

    def step(self) -> dict[str, float]:
        """Clip, update, clear gradients; return `grad_norm` and `lr`.

        Raises:
            FloatingPointError: a gradient was not finite; nothing was updated.
        """
        ...

    def configure(self, optimizer: OptimizerConfig) -> None:
        """Start a fresh optimizer with other settings."""
        ...

    def freeze_reference(self) -> None:
        """Keep a frozen copy of the present weights for KL terms."""
        ...

    def restart(self) -> None:
        """Go back to the frozen reference's weights, with a fresh optimizer; the version goes on.

        Raises:
            UserError: there is no reference.
        """
        ...

    def weights(self) -> Mapping[str, Any]:
        """The weights a sampler loads."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that resuming needs: weights, optimizer, schedule, reference, EMA, RNG."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        ...


class Ranked(Protocol):
    """A learner that is one of several ranks, each with rows of its own; their gradients are *added up*.

    What a loss is divided by is then the total of all ranks, so the update is that of one learner with all the rows.
    """

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Sums over all ranks; every rank gets the same, a key that one rank lacks being 0 there."""
        ...


def over_ranks(learner: Learner, sums: Mapping[str, float]) -> dict[str, float]:
    """Sums over all ranks where a learner is one of several (`Ranked`); else as they are.

    It asks for the method, as a learner may be wrapped: from Python 3.12 on `isinstance` with a protocol does not see
    what a wrapper passes on.
    """
    total: Callable[[Mapping[str, float]], dict[str, float]] | None = getattr(learner, "total", None)
    return dict(sums) if total is None else total(sums)


class Renderer(Protocol):
    """Messages to token ids and back.

    The rule that keeps training honest: `extend` appends to what the model really saw and really sampled. It never
    decodes and re-encodes a completion.
    """

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn; empty where turns end by choices or length alone."""
        ...

    def render(self, messages: Sequence[Message]) -> list[int]:
        """The whole prompt, ready for the assistant to continue."""
        ...

    def extend(self, prompt_ids: list[int], completion_ids: list[int], new: Sequence[Message]) -> list[int]:
        """The next prompt: what was seen, what was sampled, and the new messages."""
        ...

    def encode_completion(self, text: str) -> list[int]:
        """The ids of an assistant turn with this text, end token included: for demonstrations and choices."""
        ...

    def decode(self, completion_ids: Sequence[int]) -> str:
        """The text of a completion, end token left out."""
        ...


@dataclass
class Policy:
    """A model that acts (`sampler`), learns (`learner`, None for a fixed policy) and reads messages (`renderer`)."""

    sampler: Sampler
    renderer: Renderer
    learner: Learner | None = None

    @property
    def version(self) -> int:
        """Version of the weights that act."""
        return self.sampler.version

    def sync(self) -> None:
        """Hand the learner's weights to the sampler."""
        if self.learner is not None:
            self.sampler.load(self.learner.weights(), self.learner.version)


async def beside(policy: Policy, fn: Callable[..., T], *args: Any) -> T:
    """Call a function that blocks: in a thread where the policy samples elsewhere, so that rollouts and grading go on.

    What it raises is raised as it is.
    """
    if getattr(policy.sampler, "elsewhere", False):
        return await finish_in_thread(fn, *args)
    return fn(*args)


def require_learner(policy: Policy) -> Learner:
    """The policy's learner.

    Raises:
        ValueError: the policy is fixed.
    """
    if policy.learner is None:
        raise ValueError("This policy has no learner, so it cannot be trained.")
    return policy.learner
