"""The first batch, and the first update as it would be made: rolled out, recorded, and put back.

The update is run for real against a recording learner: every call of `forward_backward` is kept as it came (rows,
weights, denominators, loss), and `step` clears the gradients instead of following them. So whatever an algorithm
overrides, the doctor sees what would have been trained. Afterwards the learner's state is restored exactly.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import nn

from rlready.aio import run_sync
from rlready.algorithms.base import Algorithm
from rlready.algorithms.credit import centre
from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.curriculum.samplers import Uniform
from rlready.doctor.setup import Setup
from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.policy.base import Learner, LossFn, Policy, SampleRequest
from rlready.rollout.collect import Collector
from rlready.tasks.base import TaskSet
from rlready.types import FloatArray, Group, Row, Trajectory, Turn


@dataclass
class Call:
    """One call of `forward_backward`, as an update made it."""

    rows: list[Row]
    loss: LossFn
    denominators: dict[str, float]
    asks: dict[str, bool]
    metrics: dict[str, float] = field(default_factory=dict)


class Recorder:
    """A learner that remembers what it is asked for and does not move."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

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
        """As the learner's, and kept."""
        asks = {"entropy": entropy, "values": values, "reference": reference}
        call = Call(list(rows), loss, dict(denominators), asks)
        call.metrics = self._learner.forward_backward(rows, loss, denominators, **asks)
        self.calls.append(call)
        return dict(call.metrics)

    def step(self) -> dict[str, float]:
        """Clear the gradients; the weights stay."""
        parameters = parameters_of(self._learner)
        if not parameters:
            return self._learner.step()  # the state is put back at the end
        squares = [float(p.grad.square().sum()) for p in parameters if p.grad is not None]
        clear(self._learner)
        return {"grad_norm": sum(squares) ** 0.5, "lr": 0.0}


@dataclass
class Evidence:
    """What the checks look at.

    Attributes:
        setup, algorithm, env: what is examined, completed.
        groups: the first batch.
        calls: what the first update asked of the learner.
        rows: the distinct rows of its first epoch.
        metrics: what the update logged.
        failed: what the update raised, in words; "" where it went through.
    """

    setup: Setup
    algorithm: Algorithm
    env: EnvFactory
    groups: list[Group] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    failed: str = ""

    @property
    def policy(self) -> Policy:
        """The policy."""
        return self.setup.policy

    @property
    def learner(self) -> Learner | None:
        """The policy's learner."""
        return self.policy.learner

    @property
    def trajectories(self) -> list[Trajectory]:
        """All of the batch, failed ones too; `Row.trajectory` counts the valid ones alone."""
        return [t for group in self.groups for t in group]

    @property
    def valid(self) -> list[Trajectory]:
        """Those that are trained on, in the order of `Row.trajectory`."""
        return [t for group in self.groups for t in group.valid]

    def turns(self) -> Iterator[tuple[int, Trajectory, int, Turn]]:
        """Every turn with where it is: index of its trajectory, trajectory, index, turn."""
        for i, trajectory in enumerate(self.trajectories):
            for j, turn in enumerate(trajectory.turns):
                yield i, trajectory, j, turn


def roll_out(evidence: Evidence) -> None:
    """Collect the first batch.

    Raises:
        UserError: from the collector.
    """
    setup = evidence.setup
    if setup.collect is not None:
        made = setup.collect()
        evidence.groups = list(run_sync(_awaited(made)) if inspect.isawaitable(made) else made)
        return
    _start(setup)
    curriculum = _Keeps(setup.tasks, setup.seed)
    collector = Collector(
        setup.policy,
        evidence.env,
        setup.tasks,
        curriculum,
        group_size=setup.group_size,
        params=setup.params,
        max_steps=setup.max_steps,
        deadline=setup.deadline,
        seed=setup.seed,
        max_failures=1.0,
        max_refills=0.0,
    )
    collector.collect_sync(setup.groups)
    evidence.groups = curriculum.groups  # those too in which every episode failed


def _start(setup: Setup) -> None:
    """Let a sampler that begins somewhere else take its time, before a deadline runs."""
    try:
        prompt = setup.policy.renderer.render(setup.tasks[0].prompt) if setup.tasks[0].prompt else []
    except UserError:
        return  # told by the template check
    if prompt and len(prompt) < room_of(setup.policy):
        request = SampleRequest(prompt, replace(setup.params, max_tokens=1), session="doctor starts")
        run_sync(setup.policy.sampler.sample([request]))
        setup.policy.sampler.release(request.session)


def room_of(policy: Policy) -> int:
    """Longest sequence of the model, in tokens; practically endless where the sampler does not say."""
    return int(getattr(getattr(policy.sampler, "config", None), "max_len", 10**9))


class _Keeps(Uniform):
    """Every task alike, and every group that was played is kept."""

    def __init__(self, tasks: TaskSet, seed: int) -> None:
        super().__init__(tasks, seed)
        self.groups: list[Group] = []

    def observe(self, groups: Sequence[Group]) -> None:
        """Keep them."""
        self.groups += groups


def _renumber(evidence: Evidence) -> None:
    """`Row.trajectory` of an algorithm that left groups without spread out counts the others; here it counts all."""
    algorithm = evidence.algorithm
    if not isinstance(algorithm, PolicyGradient) or not algorithm.drop_uniform:
        return
    trained: list[int] = []
    before = 0
    for group in evidence.groups:
        valid = group.valid
        if centre([algorithm.reward(t) for t in valid]).any():
            trained += range(before, before + len(valid))
        before += len(valid)
    for row in {id(row): row for call in evidence.calls for row in call.rows}.values():
        if 0 <= row.trajectory < len(trained):
            row.trajectory = trained[row.trajectory]


def record_update(evidence: Evidence) -> None:
    """Run the algorithm's update against a recording learner."""
    learner = evidence.learner
    if learner is None:
        return
    recorder = Recorder(learner)
    policy = Policy(evidence.policy.sampler, evidence.policy.renderer, cast(Learner, recorder))
    algorithm = evidence.algorithm
    kept = copy.deepcopy(algorithm.state_dict())
    done: list[dict[str, float]] = []

    async def work() -> None:
        done.append(await algorithm.update(policy, [group for group in evidence.groups if group.valid]))

    try:
        run_sync(work())
        evidence.metrics = done[0]
    except Exception as error:  # a fault of the set-up, told as a finding
        evidence.failed = f"{type(error).__name__}: {error}"
    finally:
        algorithm.load_state_dict(kept)
        clear(learner)
    evidence.calls = recorder.calls
    _renumber(evidence)
    epochs = max(1, int(getattr(algorithm, "epochs", 1)))
    first = evidence.calls[: max(1, len(evidence.calls) // epochs)]
    evidence.rows = [row for call in first for row in call.rows]


@contextmanager
def put_back(policy: Policy) -> Iterator[None]:
    """Whatever is done to the learner inside, afterwards learner and sampler are as they were."""
    learner = policy.learner
    if learner is None:
        yield
        return
    state = copy.deepcopy(learner.state_dict())
    try:
        yield
    finally:
        clear(learner)
        learner.load_state_dict(state)
        policy.sync()


def parameters_of(learner: Learner) -> list[torch.Tensor]:
    """The trainable weights of a learner that shows its model; else none."""
    for owner in (learner, getattr(learner, "body", None)):
        model = getattr(owner, "model", None)
        if isinstance(model, nn.Module):
            return [p for p in model.parameters() if p.requires_grad]
    return []


def clear(learner: Learner) -> None:
    """Drop accumulated gradients."""
    for parameter in parameters_of(learner):
        parameter.grad = None


def replay(learner: Learner, call: Call, parts: Sequence[Sequence[Row]]) -> list[torch.Tensor]:
    """Gradients of a call's loss over its rows, given to the learner in these parts."""
    clear(learner)
    for rows in parts:
        learner.forward_backward(rows, call.loss, call.denominators, **call.asks)
    out = [
        torch.zeros(p.shape) if p.grad is None else p.grad.detach().float().cpu().clone()
        for p in parameters_of(learner)
    ]
    clear(learner)
    return out


def single_precision(learner: Learner) -> bool:
    """Whether the weights are at least float32, so that small gaps mean something."""
    return all(p.dtype in (torch.float32, torch.float64) for p in parameters_of(learner))


def on_turns(rows: Sequence[Row], values: Sequence[FloatArray]) -> Iterator[tuple[Row, FloatArray, FloatArray]]:
    """For each row: the row, behaviour log-probs and given values at the tokens that were sampled."""
    for row, value in zip(rows, values, strict=True):
        at = row.turn >= 0 if row.turn is not None else row.weights[next(iter(row.weights))] > 0
        yield row, row.logprobs[at], value[at]


async def _awaited(work: Any) -> Any:
    return await work
