"""Next-state accuracy over the number of recordings: would more logs help?

Everything that is learned (state rules, checks, index) is learned anew from 0, 1, 4, 16, 64 ... recordings and measured
open loop on the same held-out steps. Small numbers are measured in several orders, since one recording more or less
then decides much. The last doubling is measured for itself: from half of the recordings to all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlready.dream.actions import ActionChecks
from rlready.dream.base import Layer, Simulator
from rlready.dream.domain import Domain
from rlready.dream.library import Library
from rlready.dream.measure.jsonable import from_json, to_json
from rlready.dream.measure.numbers import Mean, mean
from rlready.dream.measure.open_loop import Kind, OpenLoop, Progress, open_loop
from rlready.dream.measure.walk import steps_of
from rlready.dream.simulators.retrieval import Retrieval
from rlready.dream.simulators.words import f1
from rlready.dream.state import StateRules
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import derive

ALIKE = 0.5
"""F1 of words from which two error texts of one kind of action count as the same error."""


@dataclass(frozen=True)
class Learned:
    """What answers, learned from some recordings."""

    rules: StateRules
    layers: Sequence[Layer]
    simulator: Simulator


Learn = Callable[[Library], Learned]
"""Learns from a part of the recordings; must take an empty one."""


def retrieval(library: Library) -> Learned:
    """State rules, checks and the retrieval backend, from these recordings alone."""
    episodes = list(library.episodes.values())
    if not episodes:
        return Learned(StateRules(), (), Retrieval(library, exclude_own=True))
    rules = StateRules.learn(episodes, library.domain)
    known = Library(episodes, library.domain, rules)
    return Learned(rules, (ActionChecks(library.domain), rules), Retrieval(known, exclude_own=True))


@dataclass(frozen=True)
class Point:
    """The accuracy at one number of recordings.

    Attributes:
        traces: how many recordings were learned from.
        orders: choices of them that were averaged over.
        exact, f1: of the next reply.
        exact_spread, f1_spread: standard deviation of the micro means over the orders; 0 where there is one.
        kinds: share of the held-out kinds of action that were recorded.
        actions: share of the held-out actions that were recorded to the letter.
        errors: share of the held-out errors of which one like it was recorded; NaN where there are none.
    """

    traces: int
    orders: int
    exact: Mean
    f1: Mean
    exact_spread: float
    f1_spread: float
    kinds: float
    actions: float
    errors: float


@dataclass(frozen=True)
class Curve:
    """Accuracy over the number of recordings.

    Attributes:
        points: by number of recordings.
        steps, tasks: measured on.
        gain: of F1 (mean over steps) in the last doubling, half of the recordings to all.
        noise: standard error of `gain`, from its scatter over held-out tasks.
        by_kind: accuracy by kind of action, with all recordings.
        recorded: how often each kind of action was recorded.
    """

    points: tuple[Point, ...]
    steps: int
    tasks: int
    gain: float
    noise: float
    by_kind: dict[str, Kind]
    recorded: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        record: dict[str, Any] = to_json(self)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Curve:
        """Inverse of `to_json`."""
        return from_json(cls, record)


def sizes(n: int) -> list[int]:
    """0, 1, 4, 16, 64 ... below n, half of n, and n."""
    out = {0, n, n // 2}
    at = 1
    while at < n:
        out.add(at)
        at *= 4
    return sorted(out)


async def learning_curve(
    library: Library,
    held_out: Sequence[LoggedEpisode],
    domain: Domain,
    learn: Learn = retrieval,
    *,
    orders: int = 3,
    most_steps: int = 300,
    at_once: int = 64,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Curve:
    """Measure the curve.

    Args:
        library: all recordings to learn from.
        held_out: episodes of other tasks.
        domain: reads actions; the same at every point, so that all are asked the same.
        learn: learns from a part of the library.
        orders: choices of recordings at each number below all.
        most_steps: held-out episodes are left out, by a hash, once there are so many steps.
        at_once: moments asked concurrently.
        seed: of the orders.
        on_progress: called with (measurements done, all of them).
    """
    episodes = some(held_out, most_steps, seed)
    plan = [(n, order) for n in sizes(len(library)) for order in range(1 if n in (0, len(library)) else orders)]
    found: dict[int, list[tuple[OpenLoop, Library]]] = {}
    for done, (n, order) in enumerate(plan, 1):
        part = library.only(n, derive(seed, "order", order))
        learned = learn(part)
        loop = await open_loop(
            episodes,
            domain,
            learned.rules,
            learned.layers,
            learned.simulator,
            judge=False,
            at_once=at_once,
            seed=seed,
            examples=0,
        )
        found.setdefault(n, []).append((loop, part))
        if on_progress is not None:
            on_progress(done, len(plan))
    full = found[len(library)][0][0]
    gain, noise = last_doubling([loop for loop, _ in found[len(library) // 2]], full)
    return Curve(
        tuple(_point(n, runs, episodes, domain) for n, runs in sorted(found.items())),
        full.steps,
        full.tasks,
        gain,
        noise,
        full.by_kind,
        dict(library.kinds()),
    )


def some(episodes: Sequence[LoggedEpisode], most_steps: int, seed: int) -> list[LoggedEpisode]:
    """Whole episodes in a hashed order, task by task in turn, until there are enough steps."""
    turn = Counter[str]()
    keyed = []
    for i, e in sorted(enumerate(episodes), key=lambda p: derive(seed, "held out", p[1].task_id, p[0])):
        keyed.append((turn[e.task_id], derive(seed, "task", e.task_id), i))
        turn[e.task_id] += 1
    out, steps = [], 0
    for _, _, i in sorted(keyed):
        if steps >= most_steps:
            break
        out.append(episodes[i])
        steps += len(episodes[i])
    return out


def last_doubling(half: Sequence[OpenLoop], full: OpenLoop) -> tuple[float, float]:
    """The gain in mean F1 from half of the recordings to all, and its standard error over held-out tasks.

    Tasks are paired, and the ratio of sums keeps the mean one over steps: with d_t the summed gain of task t and n_t
    its steps, the gain is g = sum d / sum n, its error sqrt(T/(T-1) sum (d_t - g n_t)^2) / sum n.
    """
    tasks = full.by_task()
    if not tasks or not half:
        return math.nan, math.nan
    before = [loop.by_task() for loop in half]
    steps = np.array([len(v) for v in tasks.values()], dtype=float)
    gains = np.array([sum(r.f1 for r in v) - mean([sum(r.f1 for r in b[t]) for b in before]) for t, v in tasks.items()])
    gain = float(gains.sum() / steps.sum())
    if len(tasks) < 2:
        return gain, math.nan
    residual = gains - gain * steps
    many = len(tasks)
    return gain, float(math.sqrt(many / (many - 1) * (residual**2).sum()) / steps.sum())


def _point(
    n: int, runs: Sequence[tuple[OpenLoop, Library]], episodes: Sequence[LoggedEpisode], domain: Domain
) -> Point:
    loops = [loop for loop, _ in runs]
    covers = [coverage(library, episodes, domain) for _, library in runs]
    exact, words = [loop.exact for loop in loops], [loop.f1 for loop in loops]
    return Point(
        n,
        len(runs),
        Mean(mean([m.macro for m in exact]), mean([m.micro for m in exact])),
        Mean(mean([m.macro for m in words]), mean([m.micro for m in words])),
        _spread([m.micro for m in exact]),
        _spread([m.micro for m in words]),
        *(mean([c[i] for c in covers]) for i in range(3)),
    )


def _spread(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def coverage(library: Library, episodes: Sequence[LoggedEpisode], domain: Domain) -> tuple[float, float, float]:
    """Shares of held-out kinds of action, exact actions and errors that were recorded."""
    known, errors = set[str](), dict[str, set[str]]()
    for id in library:
        for action, reply in library.steps(id):
            known.add(action.text)
            if reply.failed:
                errors.setdefault(action.kind, set()).add(reply.text)
    steps = [step for e in episodes for step in steps_of(domain, e)]
    kinds = {action.kind for action, _ in steps}
    seen = library.kinds()
    failed = [(action.kind, reply.text) for action, reply in steps if reply.failed]
    return (
        mean([float(kind in seen) for kind in kinds]),
        mean([float(action.text in known) for action, _ in steps]),
        mean([float(any(f1(text, other) >= ALIKE for other in errors.get(kind, ()))) for kind, text in failed]),
    )
