"""Closed loop: what the dream said of an agent's own actions, against what the real environment says of them.

    replay_dreams    dreamt episodes, their actions replayed in reality; outcomes, first wrong steps, flattery, ranks
    sameness         the same actions many times over, and in fresh sessions: is it one world?

A dream that drew its own hidden world can only be compared with reality where both know the same world (recorded tasks,
or a seed that means the same on both sides); for others the figures are a lower bound. Real transitions are counted,
and never more of them are spent than the budget allows.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlready.dream.checks import Agreement, Replayed, agreement, replay
from rlready.dream.measure import documents
from rlready.dream.measure.determinism import Script, digest
from rlready.dream.measure.jsonable import from_json, to_json
from rlready.dream.measure.numbers import mean, spearman
from rlready.dream.measure.open_loop import Example, Progress
from rlready.dream.simulators.words import f1
from rlready.envs.base import EnvFactory
from rlready.experience.episode import LoggedEpisode
from rlready.rollout.gather import together
from rlready.seeds import derive
from rlready.types import Task

Outcome = Callable[[Task, Replayed], bool]
"""Whether a real episode succeeded."""


@dataclass(frozen=True, slots=True)
class Dreamt:
    """One dreamt episode: who played it, of which task, and how it went (`LoggedEpisode.seed` is the world's)."""

    actor: str
    task: Task
    episode: LoggedEpisode


@dataclass(frozen=True)
class ActorResult:
    """One actor on both sides.

    Attributes:
        episodes: replayed.
        dream: mean success in the dream.
        replayed: mean success of the same actions in reality.
        real: mean success of the actor itself in reality, where it was played there; else NaN.
    """

    episodes: int
    dream: float
    replayed: float
    real: float = math.nan


@dataclass(frozen=True)
class ClosedLoop:
    """Dreamt episodes against reality.

    Attributes:
        episodes: replayed; `skipped` for want of budget, `void` since the real environment failed.
        outcome: share whose success is the same on both sides.
        flattered: share that succeeded in the dream only; `missed`: in reality only.
        optimism: mean success in the dream minus that of the same actions in reality (sim-optimism gap).
        tasks: agreement of success by task.
        task_rank: rank correlation over tasks.
        actor_rank: rank correlation over actors, of success in the dream and in reality; NaN for fewer than 3.
        order: share of pairs of actors that differ in reality and that the dream puts in the same order.
        replies: share of replies that equal the real ones, over the steps that both sides have; `f1` likewise.
        first_wrong: mean number of steps before the first reply that differs (all of them where none does).
        clean: share of episodes without a wrong reply.
        actors: by name.
        real_transitions: what this cost.
        examples: first wrong replies, recorded (real) against said (dream).
    """

    episodes: int
    skipped: int
    void: int
    outcome: float
    flattered: float
    missed: float
    optimism: float
    tasks: Agreement | None
    task_rank: float
    actor_rank: float
    order: float
    replies: float
    f1: float
    first_wrong: float
    clean: float
    actors: dict[str, ActorResult] = field(default_factory=dict)
    real_transitions: int = 0
    examples: tuple[Example, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        record: dict[str, Any] = to_json(self)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ClosedLoop:
        """Inverse of `to_json`."""
        return from_json(cls, record)


def paid(task: Task, run: Replayed) -> bool:
    """The usual outcome: the real environment gave a positive reward."""
    return run.reward > 0


async def replay_dreams(
    real: EnvFactory,
    dreams: Sequence[Dreamt],
    *,
    played: Mapping[str, float] | None = None,
    budget: int | None = None,
    outcome: Outcome = paid,
    at_once: int = 8,
    examples: int = 8,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> ClosedLoop:
    """Replay dreamt actions in the real environment.

    Args:
        real: the real environment.
        dreams: dreamt episodes, of one actor or many.
        played: success in reality of the actors themselves, where it was measured elsewhere; ranks then go by it.
        budget: most real transitions; None for no limit. Episodes are chosen by a hash until it is used up.
        outcome: whether a real episode succeeded.
        at_once: real episodes at the same time.
        examples: how many first wrong replies to keep.
        seed: of the choice.
        on_progress: called with (episodes done, all of them).
    """
    order = sorted(range(len(dreams)), key=lambda i: (derive(seed, "replay", dreams[i].task.id, dreams[i].actor, i), i))
    chosen, left = list[Dreamt](), math.inf if budget is None else budget
    for i in order:
        if len(dreams[i].episode) <= left:
            left -= len(dreams[i].episode)
            chosen.append(dreams[i])
    gate, count = asyncio.Semaphore(at_once), 0

    async def one(dream: Dreamt) -> Replayed:
        nonlocal count
        async with gate:
            run = await replay(real, dream.task, dream.episode.seed, dream.episode.actions)
        count += 1
        if on_progress is not None:
            on_progress(count, len(chosen))
        return run

    runs = await together([one(d) for d in chosen])
    pairs = [(d, r) for d, r in zip(chosen, runs, strict=True) if r.failure is None]
    cost = sum(r.steps for r in runs)
    return _compare(pairs, played or {}, outcome, len(dreams) - len(chosen), len(runs) - len(pairs), cost, examples)


def replies_of(run: Replayed) -> list[str]:
    """What came back after each action, as a log would hold it."""
    out: list[list[str]] = []
    for role, text in run.shown:
        if role == "assistant":
            out.append([])
        elif out:
            out[-1].append(text)
    return ["\n".join(texts) for texts in out]


def _compare(
    pairs: Sequence[tuple[Dreamt, Replayed]],
    played: Mapping[str, float],
    outcome: Outcome,
    skipped: int,
    void: int,
    cost: int,
    examples: int,
) -> ClosedLoop:
    dreamt = [float(d.episode.success) for d, _ in pairs]
    real = [float(outcome(d.task, r)) for d, r in pairs]
    same, alike, firsts, wrong = list[float](), list[float](), list[int](), list[Example]()
    clean = 0
    for dream, run in pairs:
        said, true = dream.episode.replies, replies_of(run)
        equal = [documents.same(a, b) for a, b in zip(said, true, strict=False)]
        same += [float(e) for e in equal]
        alike += [f1(a, b) for a, b in zip(said, true, strict=False)]
        first = equal.index(False) if False in equal else len(equal)
        firsts.append(first)
        clean += first == len(equal)
        if first < len(equal) and len(wrong) < examples:
            wrong.append(_example(dream, first, true[first]))
    by_task = [_means([(d.task.id, v) for (d, _), v in zip(pairs, side, strict=True)]) for side in (dreamt, real)]
    by_actor = [_means([(d.actor, v) for (d, _), v in zip(pairs, side, strict=True)]) for side in (dreamt, real)]
    names = sorted(by_actor[0])
    truth = {name: played.get(name, math.nan) for name in names}
    ranked = truth if not any(math.isnan(v) for v in truth.values()) else by_actor[1]
    tasks = sorted(by_task[0])
    return ClosedLoop(
        episodes=len(pairs),
        skipped=skipped,
        void=void,
        outcome=mean([float(a == b) for a, b in zip(dreamt, real, strict=True)]),
        flattered=mean([float(a > b) for a, b in zip(dreamt, real, strict=True)]),
        missed=mean([float(a < b) for a, b in zip(dreamt, real, strict=True)]),
        optimism=mean(dreamt) - mean(real),
        tasks=agreement(by_task[0], by_task[1]) if pairs else None,
        task_rank=spearman([by_task[0][t] for t in tasks], [by_task[1][t] for t in tasks]),
        actor_rank=spearman([by_actor[0][n] for n in names], [ranked[n] for n in names]),
        order=_same_order(by_actor[0], ranked),
        replies=mean(same),
        f1=mean(alike),
        first_wrong=mean([float(v) for v in firsts]),
        clean=clean / len(pairs) if pairs else math.nan,
        actors={
            n: ActorResult(sum(d.actor == n for d, _ in pairs), by_actor[0][n], by_actor[1][n], truth[n]) for n in names
        },
        real_transitions=cost,
        examples=tuple(wrong),
    )


def _means(values: Sequence[tuple[str, float]]) -> dict[str, float]:
    out: dict[str, list[float]] = {}
    for name, value in values:
        out.setdefault(name, []).append(value)
    return {name: mean(v) for name, v in out.items()}


def _same_order(dream: Mapping[str, float], real: Mapping[str, float]) -> float:
    names = sorted(dream)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if real[a] != real[b]]
    return mean([float((dream[a] - dream[b]) * (real[a] - real[b]) > 0) for a, b in pairs])


def _example(dream: Dreamt, step: int, true: str) -> Example:
    episode = dream.episode
    return Example(
        f"task {dream.task.id}, {dream.actor or 'agent'}, step {step + 1}",
        episode.instruction,
        episode.actions[step],
        true,
        episode.replies[step],
        f1(episode.replies[step], true),
        "dream",
        math.nan,
    )


@dataclass(frozen=True)
class Sameness:
    """The same actions, many times over.

    Attributes:
        scripts, replays: what was played.
        different: scripts with more than one transcript; 0 is wanted.
        reward_variance: mean over scripts of the variance of the reward; exactly 0 is wanted.
        sessions: fresh sessions that were compared.
        other_worlds: scripts that are another episode in some fresh session; 0 is wanted.
        void: replays that failed.
        example: the first difference.
    """

    scripts: int
    replays: int
    different: int
    reward_variance: float
    sessions: int
    other_worlds: int
    void: int
    example: str = ""

    @property
    def passed(self) -> bool:
        """True where it is one world."""
        return not self.different and not self.other_worlds and self.reward_variance == 0


async def sameness(
    env: EnvFactory,
    scripts: Sequence[Script],
    *,
    replays: int = 1000,
    sessions: Sequence[EnvFactory] = (),
    at_once: int = 64,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Sameness:
    """Replay each script many times, scripts mixed, in one world each, and a few times in every fresh session.

    Args:
        env: makes a dream.
        scripts: tasks with the actions to play.
        replays: how often to play each.
        sessions: the same dream, loaded afresh.
        at_once: episodes at the same time.
        seed: of the worlds.
        on_progress: called with (episodes done, all of them).
    """
    gate, count = asyncio.Semaphore(at_once), 0
    total = len(scripts) * (replays + len(sessions))
    firsts: dict[int, Replayed] = {}

    async def one(i: int, factory: EnvFactory) -> tuple[int, str, float, bool]:
        nonlocal count
        async with gate:
            run = await replay(factory, scripts[i][0], seed, scripts[i][1])
        firsts.setdefault(i, run)
        count += 1
        if on_progress is not None:
            on_progress(count, total)
        if not example and digest(run) != digest(firsts[i]):
            example.append(_unlike(scripts[i][0], firsts[i], run))
        return i, digest(run), run.reward, run.failure is not None

    example: list[str] = []
    inside = await together([one(i, env) for _ in range(replays) for i in range(len(scripts))])
    outside = await together([one(i, session) for session in sessions for i in range(len(scripts))])
    kinds: list[set[str]] = [set() for _ in scripts]
    rewards: list[list[float]] = [[] for _ in scripts]
    for i, hashed, reward, _ in inside:
        kinds[i].add(hashed)
        rewards[i].append(reward)
    strangers = {i for i, hashed, *_ in outside if hashed not in kinds[i]}
    return Sameness(
        len(scripts),
        replays,
        sum(len(k) > 1 for k in kinds),
        mean([float(np.var(r)) if len(set(r)) > 1 else 0.0 for r in rewards]) if scripts else 0.0,
        len(sessions),
        len(strangers),
        sum(failed for *_, failed in (*inside, *outside)),
        example[0] if example else "",
    )


def _unlike(task: Task, a: Replayed, b: Replayed) -> str:
    for i, (x, y) in enumerate(zip(a.shown, b.shown, strict=False)):
        if x != y:
            return f"task {task.id}, message {i}: {x[1]!r} or {y[1]!r}"
    return f"task {task.id}: rewards {a.reward:g} or {b.reward:g}"
