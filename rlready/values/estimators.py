"""States that a policy comes to, and who says what they are worth."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.policy.base import Policy, SamplingParams, require_learner
from rlready.rollout.actors import PolicyActor
from rlready.rollout.collect import play_many
from rlready.rollout.gather import Progress
from rlready.rollout.probe import Reward, State, answers_of, probe, unfinished_is_zero
from rlready.rollout.steps import SplitError, StepRule
from rlready.scoring import Scorer
from rlready.seeds import np_rng
from rlready.tasks.base import TaskSet
from rlready.types import Row

Estimator = Callable[[Sequence[State]], Awaitable[Sequence[float]]]
"""Values of states, in order; NaN where it has none."""


@dataclass(frozen=True, slots=True)
class Visited:
    """A state that an answer of the policy went through.

    Attributes:
        state: task, prompt and what was said.
        step: steps said, t.
        steps: steps of the whole answer, T.
    """

    state: State
    step: int
    steps: int

    @property
    def position(self) -> float:
        """The share of steps said, t / T, from 0 to below 1."""
        return self.step / self.steps


async def visit(
    policy: Policy,
    tasks: TaskSet,
    env: EnvFactory,
    *,
    rule: StepRule,
    params: SamplingParams,
    seed: int,
    states: int | None = None,
    per_task: int = 1,
    first: bool = True,
    on_progress: Progress | None = None,
) -> list[Visited]:
    """Let the policy answer the tasks and cut its answers into steps.

    Args:
        policy: answers.
        tasks: all of them are answered.
        env: a question and its answer.
        rule: how answers are cut.
        params: as in training.
        seed: of the answers and of the choice.
        states: how many distinct states to keep, drawn evenly from all that were visited; None for all.
        per_task: answers per task.
        first: whether the bare prompt, S_0, is one of them.
        on_progress: called with (answers done, answers asked for).

    Returns:
        Distinct states in the order of tasks and positions; the state after the last step is none of them.

    Raises:
        UserError: no answer had a state of the kind asked for, or tasks are not of one question and one free answer.
    """
    answers_of(env, "The analysis of values")
    actor = PolicyActor(policy, params, seed)
    played = await play_many(
        tasks, env, actor, [task for task in tasks for _ in range(per_task)], seed, on_progress=on_progress
    )
    found: dict[State, Visited] = {}
    for trajectory in played:
        if trajectory.failure is not None or not trajectory.turns:
            continue
        turn = trajectory.turns[0]
        try:
            starts = rule.starts(turn.completion_ids, policy.renderer)
        except SplitError:
            continue
        for step, start in enumerate(starts):
            if step or first:
                state = State.of(trajectory.task, turn, start)
                found.setdefault(state, Visited(state, step, len(starts)))
    every = list(found.values())
    if not every:
        raise UserError(
            f"None of {len(played)} answers has a state to look at: each is a single step by the rule "
            f'"{rule.kind}". Choose a rule that cuts them.'
        )
    return every if states is None else drawn(every, states, seed)


def drawn(visited: Sequence[Visited], n: int, seed: int) -> list[Visited]:
    """So many of them, chosen evenly, in their order; all where there are not so many."""
    if n >= len(visited):
        return list(visited)
    kept = sorted(np_rng(seed, "drawn", len(visited)).choice(len(visited), n, replace=False).tolist())
    return [visited[i] for i in kept]


def probes(
    policy: Policy,
    score: Scorer,
    *,
    k: int,
    params: SamplingParams,
    seed: int,
    reward: Reward = unfinished_is_zero,
    on_progress: Progress | None = None,
) -> Estimator:
    """The mean reward of k fresh samples; arguments as for `rollout.probe.probe`."""

    async def estimate(states: Sequence[State]) -> Sequence[float]:
        found = await probe(
            policy, states, k=k, params=params, score=score, seed=seed, reward=reward, on_progress=on_progress
        )
        return found.means

    return estimate


def critic(policy: Policy) -> Estimator:
    """What the policy's value head says of a state.

    Raises:
        UserError: when it is asked: the policy has no value head.
    """

    async def estimate(states: Sequence[State]) -> Sequence[float]:
        # The value before a token is that of what precedes it, so any token may stand behind a state.
        rows = [Row.from_segments([(state.ids, 0.0), (state.ids[-1:], 1.0)]) for state in states]
        return [float(values[-1]) for values in require_learner(policy).values(rows)]

    return estimate
