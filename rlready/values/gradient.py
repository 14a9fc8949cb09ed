"""What credit does to the update: variance of the gradient from batch to batch, advantages by position.

The weights stay as they are. An algorithm learns from a batch as it always does, but on a learner that keeps the
gradient and takes no step:

    variance = trace of Cov(g) / |mean of g|^2  over B batches of the same policy

It says how many times larger than the gradient its own noise is; comparing two algorithms, both see the same batches.
|mean of g|^2 over B batches is too large by trace / B in expectation, which `corrected` takes out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from rlready.algorithms.base import Algorithm
from rlready.curriculum.samplers import Uniform
from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.policy.base import Learner, LossFn, Policy, SamplingParams, require_learner
from rlready.policy.gradients import take_gradients
from rlready.rollout.collect import Collector
from rlready.rollout.gather import Progress
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.types import Group, Row, Trajectory


@dataclass(frozen=True)
class Variance:
    """The spread of an algorithm's gradient over batches.

    Attributes:
        name: the algorithm's.
        batches: B.
        trace: sum over parameters of the variance (divided by B - 1).
        signal: squared norm of the mean gradient.
        variance: trace / signal.
        variance_se: its standard error, by leaving out one batch at a time.
        corrected: trace / (signal - trace / B); infinite where the mean is within its own noise.
        by_parameter: trace / signal of each parameter tensor; NaN where its gradient is always 0.
    """

    name: str
    batches: int
    trace: float
    signal: float
    variance: float
    variance_se: float
    corrected: float
    by_parameter: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return asdict(self)


@dataclass(frozen=True)
class Bin:
    """The advantages of the tokens in one range of positions.

    Attributes:
        low, high: the range, as shares of the answer.
        n: tokens.
        mean, std: of their advantages.
        zero: share that is exactly 0.
        quantiles: at 5, 25, 50, 75 and 95 %.
    """

    low: float
    high: float
    n: int
    mean: float
    std: float
    zero: float
    quantiles: tuple[float, ...]


async def batches_of(
    policy: Policy,
    tasks: TaskSet,
    env: EnvFactory,
    *,
    batches: int,
    groups: int,
    group_size: int,
    params: SamplingParams,
    seed: int,
    max_steps: int | None = None,
    on_progress: Progress | None = None,
) -> list[list[Group]]:
    """Batches of the same policy, each with tasks and noise of its own.

    Args:
        policy: plays.
        tasks: drawn from.
        env: makes environments.
        batches: how many.
        groups: tasks per batch.
        group_size: episodes per task.
        params: as in training.
        seed: of all.
        max_steps: actions per episode.
        on_progress: called with (batches done, batches).
    """
    out = []
    for b in range(batches):
        own = derive(seed, "batch", b)
        collector = Collector(
            policy, env, tasks, Uniform(tasks, own), group_size=group_size, params=params, seed=own,
            max_steps=max_steps,
        )  # fmt: skip
        out.append(await collector.collect(groups))
        if on_progress is not None:
            on_progress(b + 1, batches)
    return out


async def gradient_variance(
    policy: Policy,
    algorithms: Mapping[str, Algorithm],
    batches: Sequence[Sequence[Group]],
    *,
    streams: Sequence[str] = ("policy",),
    on_progress: Progress | None = None,
) -> dict[str, Variance]:
    """The spread of each algorithm's gradient over the same batches. Nothing is learned.

    Each batch is one pass and one minibatch, whatever the algorithm's own numbers are. All gradients are kept until the
    end: B times the model's size.

    Args:
        policy: with a learner in this process.
        algorithms: by name, bound where they need it.
        batches: at least two, as `batches_of` gives them. They are copied, not written to.
        streams: loss streams whose gradient counts; None of the critic's or a penalty's by default.
        on_progress: called with (gradients done, gradients).

    Raises:
        UserError: there are fewer than two batches, an algorithm asked for no gradient, or it is 0 in every batch.
    """
    if len(batches) < 2:
        raise UserError(f"gradient_variance: {len(batches)} batches have no variance; give at least 2.")
    out = {}
    done = 0
    for name, algorithm in algorithms.items():
        gradients = []
        for groups in batches:
            gradients.append(await _gradient(policy, name, algorithm, groups, streams))
            done += 1
            if on_progress is not None:
                on_progress(done, len(batches) * len(algorithms))
        out[name] = spread(name, gradients)
        if out[name].trace == out[name].signal == 0:
            raise UserError(
                f"gradient_variance: the gradient of {name} is 0 in every batch, so it has no variance: no rewards "
                "differ, or a critic warms up while the policy rests (critic_warmup)."
            )
    return out


async def advantages(policy: Policy, algorithm: Algorithm, groups: Sequence[Group], *, bins: int = 10) -> list[Bin]:
    """The advantages that an algorithm gives these groups, by position; the groups are copied, not written to."""
    fresh = clean(groups)
    await algorithm.credit(fresh, policy)
    return by_position(fresh, bins=bins)


def by_position(groups: Sequence[Group], *, bins: int = 10) -> list[Bin]:
    """Advantages of all trained tokens by their place in the answer; ranges without tokens are left out."""
    places: list[float] = []
    values: list[float] = []
    for turn in (turn for group in groups for t in group.valid for turn in t.turns if turn.trainable and turn.length):
        if turn.advantage is None:
            continue
        places += (np.arange(turn.length) / turn.length).tolist()
        values += np.broadcast_to(np.asarray(turn.advantage, dtype=np.float64), turn.length).tolist()
    place, value = np.asarray(places), np.asarray(values)
    out = []
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        chosen = value[(place >= low) & (place < high)]
        if len(chosen):
            quantiles = tuple(float(q) for q in np.quantile(chosen, (0.05, 0.25, 0.5, 0.75, 0.95)))
            zero = float((chosen == 0).mean())
            out.append(Bin(low, high, len(chosen), float(chosen.mean()), float(chosen.std()), zero, quantiles))
    return out


def clean(groups: Sequence[Group]) -> list[Group]:
    """Copies of groups without what an earlier credit wrote."""

    def copied(trajectory: Trajectory) -> Trajectory:
        turns = [replace(turn, advantage=None, returns=None, value=None) for turn in trajectory.turns]
        return replace(trajectory, turns=turns)

    return [Group(group.task, [copied(t) for t in group.valid]) for group in groups]


def spread(name: str, gradients: Sequence[Mapping[str, torch.Tensor]]) -> Variance:
    """Variance of gradients given by parameter; a parameter that a batch lacks had gradient 0 there."""
    names = list(dict.fromkeys(n for gradient in gradients for n in gradient))
    shapes = {n: g.shape for gradient in gradients for n, g in gradient.items()}
    gram = np.zeros((len(gradients), len(gradients)))
    by_parameter = {}
    for parameter in names:
        stack = torch.stack([g.get(parameter, torch.zeros(shapes[parameter])).flatten().double() for g in gradients])
        own = (stack @ stack.T).numpy()
        gram += own
        trace, signal = _moments(own)
        by_parameter[parameter] = trace / signal if signal > 0 else math.nan
    trace, signal = _moments(gram)
    n = len(gradients)
    error = math.nan
    if n > 2:
        left = [_moments(np.delete(np.delete(gram, i, 0), i, 1)) for i in range(n)]
        ratios = np.asarray([t / s if s > 0 else math.nan for t, s in left])
        error = math.sqrt((n - 1) / n * float(((ratios - ratios.mean()) ** 2).sum()))
    rest = signal - trace / n
    return Variance(
        name, n, trace, signal, trace / signal if signal > 0 else math.nan, error,
        trace / rest if rest > 1e-9 * signal else math.inf, by_parameter,  # below is rounding
    )  # fmt: skip


def _moments(gram: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float]:
    """Trace of the covariance and squared norm of the mean, from the inner products of B vectors [B, B]."""
    n = len(gram)
    signal = float(gram.sum()) / n**2
    return max(0.0, float(np.trace(gram)) - n * signal) / (n - 1), signal


async def _gradient(
    policy: Policy, name: str, algorithm: Algorithm, groups: Sequence[Group], streams: Sequence[str]
) -> dict[str, torch.Tensor]:
    """The gradient of one update over a batch."""
    once = copy.copy(algorithm)
    for field in ("epochs", "minibatches"):
        object.__setattr__(once, field, 1)
    keeper = _Keeper(require_learner(policy), streams)
    state = algorithm.state_dict()  # a running baseline must not run on
    try:
        await once.update(Policy(policy.sampler, policy.renderer, keeper), clean(groups))
    finally:
        algorithm.load_state_dict(state)
    if keeper.kept is None:
        raise UserError(f"gradient_variance: {name} found nothing to learn from in a batch, so it has no gradient.")
    return keeper.kept


class _Keeper:
    """A learner that keeps the gradient and takes no step; everything else is the real one's."""

    def __init__(self, learner: Learner, streams: Sequence[str]) -> None:
        self._learner = learner
        self._streams = tuple(streams)
        self.kept: dict[str, torch.Tensor] | None = None
        self.forward: Callable[..., dict[str, float]] = learner.forward_backward

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    @property
    def version(self) -> int:
        return self._learner.version

    def forward_backward(
        self, rows: Sequence[Row], loss: LossFn, denominators: Mapping[str, float], **options: Any
    ) -> dict[str, float]:
        # A stream's loss is divided by its denominator: an infinite one takes its gradient out.
        out = {stream for row in rows for stream in row.weights} - set(self._streams)
        kept = {name: math.inf if name in out else size for name, size in denominators.items()}
        return self.forward(rows, loss, kept, **options)

    def step(self) -> dict[str, float]:
        self.kept = {name: g.float().cpu() for name, g in take_gradients(self._learner).items()}
        return {"grad_norm": math.sqrt(sum(float(g.square().sum()) for g in self.kept.values())), "lr": 0.0}
