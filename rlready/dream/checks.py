"""Is the dream fit to train in, and does it stay so? Measurements, each with a plain verdict.

    same_actions      replays of the same actions must give the same episode, exactly
    invalid_recall    texts that are no actions must change nothing and be told so
    Agreement         success in the dream against success in reality, task by task; measured again during RL
    closed_loop       what the dream said of the agent's own actions, against what reality says of them

Whatever is measured in the real environment costs real transitions; the counts are returned.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rlready.envs.base import EnvFactory
from rlready.errors import EnvError
from rlready.experience.episode import LoggedEpisode
from rlready.types import Group, Message, Task


@dataclass(frozen=True)
class Replayed:
    """One episode of given actions: everything that was shown, the reward, and why it is void (None for a good one)."""

    shown: tuple[tuple[str, str], ...]
    reward: float
    steps: int
    failure: str | None = None


async def replay(env: EnvFactory, task: Task, seed: int, actions: Sequence[str]) -> Replayed:
    """Play given actions until they or the episode end."""
    world = env()
    reward, steps = 0.0, 0
    try:
        observation = await world.reset(task, seed)
        for action in actions:
            step = await world.step(action)
            observation, steps = step.observation, steps + 1
            reward += step.reward
            if "failure" in step.info:
                return Replayed(_shown(observation.messages), reward, steps, str(step.info["failure"]))
            if step.terminated or step.truncated:
                break
        return Replayed(_shown(observation.messages), reward, steps)
    except EnvError as error:
        return Replayed((), reward, steps, str(error))
    finally:
        await world.close()


@dataclass(frozen=True)
class SameActions:
    """What replays of the same actions gave.

    Attributes:
        scripts: (task, actions) pairs that were replayed.
        replays: how often each.
        different: scripts with more than one transcript.
        reward_variance: mean over scripts of the variance of the reward; 0 is wanted, exactly.
        void: replays that failed.
        example: task, step and replies of the first difference, as a sentence.
    """

    scripts: int
    replays: int
    different: int
    reward_variance: float
    void: int
    example: str = ""

    @property
    def passed(self) -> bool:
        """True where every script gave one and the same episode."""
        return self.different == 0 and self.reward_variance == 0


async def same_actions(
    env: EnvFactory, scripts: Sequence[tuple[Task, Sequence[str]]], *, replays: int = 6, seed: int = 0
) -> SameActions:
    """Replay each script several times, at once, in one world, and compare.

    Args:
        env: makes a dream (or any environment).
        scripts: tasks with the actions to play.
        replays: how often to play each.
        seed: the world's.
    """
    jobs = [replay(env, task, seed, actions) for task, actions in scripts for _ in range(replays)]
    played = await asyncio.gather(*jobs)
    different, variance, void, example = 0, 0.0, 0, ""
    for i, (task, _) in enumerate(scripts):
        runs = played[i * replays : (i + 1) * replays]
        void += sum(r.failure is not None for r in runs)
        rewards = [r.reward for r in runs]
        if len(set(rewards)) > 1:  # the variance of equal numbers is not always 0 in floating point
            variance += float(np.var(rewards)) / len(scripts)
        kinds = list(dict.fromkeys((r.shown, r.reward, r.failure) for r in runs))
        if len(kinds) > 1:
            different += 1
            example = example or _difference(task, kinds[0][0], kinds[1][0])
    return SameActions(len(scripts), replays, different, variance, void, example)


@dataclass(frozen=True)
class InvalidRecall:
    """How an environment takes texts that are no actions: share that was told so, and share that changed nothing.

    `untold` and `moved` are the first example of either fault, as a sentence.
    """

    attempts: int
    told: float
    unchanged: float
    untold: str = ""
    moved: str = ""

    @property
    def passed(self) -> bool:
        """True where all were told and nothing changed."""
        return self.told == 1 and self.unchanged == 1


async def invalid_recall(
    env: EnvFactory,
    scripts: Sequence[tuple[Task, Sequence[str]]],
    invalid: Sequence[str],
    *,
    told: Callable[[str], bool],
    before: int = -1,
    seed: int = 0,
) -> InvalidRecall:
    """Slip an invalid text into each script, and compare with the script played without.

    Args:
        env: makes a dream (or any environment).
        scripts: tasks with valid actions, short enough to leave the step cap room for one more.
        invalid: texts that are no actions.
        told: whether a reply says that the action was invalid.
        before: index of the action before which it is slipped in; the last one by default.
        seed: the world's.
    """
    found: list[bool] = []
    unchanged: list[bool] = []
    untold, moved = "", ""
    for task, actions in scripts:
        clean = await replay(env, task, seed, actions)
        for text in invalid:
            slipped = await replay(env, task, seed, [*actions[:before], text, *actions[before:]])
            at = next((i for i, (role, said) in enumerate(slipped.shown) if role == "assistant" and said == text), None)
            answered = at is not None and at + 1 < len(slipped.shown) and slipped.shown[at + 1][0] != "assistant"
            reply = slipped.shown[at + 1][1] if answered and at is not None else None
            found.append(reply is not None and told(reply))
            if not found[-1]:
                untold = untold or f"task {task.id}: {text!r} was answered by {reply!r}"
            rest = slipped.shown if at is None else slipped.shown[:at] + slipped.shown[at + 1 + answered :]
            unchanged.append(rest == clean.shown and slipped.reward == clean.reward)
            if not unchanged[-1]:
                paid = f"; the reward is {slipped.reward:g} with it and {clean.reward:g} without"
                moved = moved or f"after {text!r}, {_difference(task, rest, clean.shown)}{paid}"
    n = len(found)
    share = [float(np.mean(v)) if n else 1.0 for v in (found, unchanged)]
    return InvalidRecall(n, share[0], share[1], untold, moved)


# ---------------------------------------------------------------------- dream against reality


def success_by_task(groups: Sequence[Group]) -> dict[str, float]:
    """Share of successes among the valid episodes of each task."""
    tally: dict[str, list[bool]] = {}
    for group in groups:
        tally.setdefault(group.task.id, []).extend(t.success for t in group.valid)
    return {task: float(np.mean(v)) for task, v in tally.items() if v}


@dataclass(frozen=True)
class Agreement:
    """Success of one policy on the same tasks in the dream and in reality.

    Attributes:
        tasks: how many tasks were measured in both.
        dream, real: mean success.
        gap: dream - real; above 0 the dream flatters.
        distance: mean over tasks of |dream - real|.
        correlation: Pearson's over tasks; nan where one side does not vary.
        score: 1 - distance, from 0 to 1.
    """

    tasks: int
    dream: float
    real: float
    gap: float
    distance: float
    correlation: float

    @property
    def score(self) -> float:
        """1 minus the mean distance."""
        return 1.0 - self.distance

    def metrics(self) -> dict[str, float]:
        """Numbers to log."""
        return {
            "agreement/dream": self.dream,
            "agreement/real": self.real,
            "agreement/gap": self.gap,
            "agreement/score": self.score,
        }

    def to_json(self) -> dict[str, float | None]:
        """As a JSON-ready mapping."""
        return {k: None if math.isnan(v) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, record: Mapping[str, float | None]) -> Agreement:
        """Inverse of `to_json`."""
        numbers = {k: math.nan if v is None else v for k, v in record.items()}
        return cls(int(numbers.pop("tasks")), **numbers)


def agreement(dream: Mapping[str, float], real: Mapping[str, float]) -> Agreement:
    """Compare success by task.

    Raises:
        ValueError: no task was measured in both.
    """
    both = sorted(set(dream) & set(real))
    if not both:
        raise ValueError("No task was measured both in the dream and in reality.")
    d = np.array([dream[t] for t in both])
    r = np.array([real[t] for t in both])
    varies = d.std() > 0 and r.std() > 0
    return Agreement(
        len(both),
        float(d.mean()),
        float(r.mean()),
        float(d.mean() - r.mean()),
        float(np.abs(d - r).mean()),
        float(np.corrcoef(d, r)[0, 1]) if varies else math.nan,
    )


@dataclass
class AgreementWatch:
    """Stops a run in which dream and reality come apart: the agent then learns the simulator's mistakes.

    Only flattery stops: a dream that is harder than reality wastes effort, but is not exploited. `margin` standard
    errors of the gap (independent episodes) are allowed on top of `allowed`.

    Attributes:
        allowed: how much the gap may grow beyond that of the first measurement.
        margin: standard errors of tolerance.
        seen: every (step, agreement).
    """

    allowed: float = 0.15
    margin: float = 2.0
    seen: list[tuple[int, Agreement]] = field(default_factory=list)

    def observe(self, step: int, now: Agreement, *, episodes: int) -> str | None:
        """Take a measurement; return why to stop, or None.

        Args:
            step: of training.
            now: the measurement.
            episodes: episodes on each side, for the standard error.
        """
        self.seen.append((step, now))
        first = self.seen[0][1]
        error = math.sqrt(max(now.dream * (1 - now.dream) + now.real * (1 - now.real), 0.0) / max(episodes, 1))
        limit = max(first.gap, 0.0) + self.allowed + self.margin * error
        if now.gap <= limit:
            return None
        return (
            f"At step {step} the agent succeeds in {now.dream:.0%} of its dreams and in {now.real:.0%} of the same "
            f"tasks in reality; the gap was {first.gap:+.0%} at first and may be {limit:+.0%}. It now learns the "
            "simulator's mistakes. Keep the checkpoint before this; fit the simulator on the agent's new real episodes."
        )

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready state."""
        return {"seen": [[step, now.to_json()] for step, now in self.seen]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.seen = [(int(step), Agreement.from_json(now)) for step, now in state["seen"]]


@dataclass(frozen=True)
class ClosedLoop:
    """Dreamt episodes whose actions were replayed in reality.

    Attributes:
        episodes: replayed.
        outcome: share whose success is the same in reality.
        flattered: share that succeeded in the dream only.
        replies: share of replies that are the same, over the steps that both have.
        first_wrong: mean step of the first reply that differs (the length where none does).
        real_transitions: what this cost.
    """

    episodes: int
    outcome: float
    flattered: float
    replies: float
    first_wrong: float
    real_transitions: int


async def closed_loop(real: EnvFactory, dreams: Sequence[tuple[Task, LoggedEpisode]]) -> ClosedLoop:
    """Replay the actions of dreams in the real environment.

    A dream has drawn its own hidden start, which a real task shares only by luck, unless it dreamt the task's true
    card. So outcomes and replies are comparable for dreams of a given card only; for others read them as a lower
    bound.
    """
    same, flattered, matches, firsts, cost = [], [], [], [], 0
    for task, dream in dreams:
        played = await replay(real, task, dream.seed, dream.actions)
        cost += played.steps
        truth = played.reward > 0
        same.append(truth == dream.success)
        flattered.append(dream.success and not truth)
        said = [text for role, text in played.shown if role == "tool"]
        equal = [a == b for a, b in zip(dream.replies, said, strict=False)]
        matches += equal
        firsts.append(equal.index(False) if False in equal else len(dream.actions))
    n = len(dreams)
    if not n:
        return ClosedLoop(0, math.nan, math.nan, math.nan, math.nan, 0)
    replies = float(np.mean(matches)) if matches else math.nan
    return ClosedLoop(n, float(np.mean(same)), float(np.mean(flattered)), replies, float(np.mean(firsts)), cost)


def _shown(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    return tuple((m.role, m.text) for m in messages)


def _difference(task: Task, a: Sequence[tuple[str, str]], b: Sequence[tuple[str, str]]) -> str:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return f"task {task.id}, message {i}: {x[1]!r} or {y[1]!r}"
    return f"task {task.id}: episodes of {len(a)} and {len(b)} messages, or another reward"
