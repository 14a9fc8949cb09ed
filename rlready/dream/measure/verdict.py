"""The verdict of a fit, in words: fit to train in, needs more of something, or do not dream.

No open-loop score is shown to predict what training in a dream gains; so "fit to train in" says that nothing speaks
against trying, and the gate and the check in the real environment have the last word.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlready.dream.domain import Domain
from rlready.dream.measure.curve import Curve
from rlready.dream.measure.jsonable import from_json, to_json
from rlready.dream.measure.numbers import mean
from rlready.dream.measure.open_loop import OpenLoop
from rlready.dream.measure.walk import steps_of
from rlready.envs.base import EnvFactory
from rlready.experience.episode import LoggedEpisode
from rlready.types import Task

Word = Literal["fit to train in", "needs more", "do not dream"]


@dataclass(frozen=True)
class Thresholds:
    """What a verdict rests on. All are ours, set by reason; a user may know better for a domain.

    Attributes:
        f1: least F1 of replies, mean over kinds of action. Below about a half a reply shares less with the true one
            than it gets wrong, and errors add up over an episode.
        over_baseline: least gain of F1 over the better baseline. A simulator that does not beat the nearest recording
            or no change at all has learned nothing of the dynamics.
        kind_share: kinds of action with at least this share of the held-out steps are looked at singly; rarer ones
            have too few steps to tell.
        kind_f1: least F1 of such a kind.
        kind_recordings: fewest recordings of such a kind: below about twenty most ways in which it can answer are
            unseen.
        errors: fewest recorded error replies. What a wrong action does cannot be learned from right ones.
        failures: least share of failed episodes among the judged ones. Logs of experts alone teach that everything
            works (Word2World, as reported).
        judged: least share of episodes with a reward; without them nobody can tell success.
        tasks: fewest tasks. Below, held-out figures are noise.
        noise: a last doubling is called pointless only where its standard error is below this: else one cannot tell.
        cheaper: dreaming must take at most this share of the real seconds per episode; at 1 any saving counts.
    """

    f1: float = 0.5
    over_baseline: float = 0.02
    kind_share: float = 0.05
    kind_f1: float = 0.3
    kind_recordings: int = 20
    errors: int = 10
    failures: float = 0.1
    judged: float = 0.5
    tasks: int = 10
    noise: float = 0.05
    cheaper: float = 1.0


@dataclass(frozen=True)
class Economics:
    """Seconds on both sides (others measured: dreaming pays where set-up costs more than steps times latency).

    Attributes:
        real_setup, real_step: of the real environment, per episode and per action; NaN where unknown.
        dream_setup, dream_step: of the dream.
        steps: actions of an episode.
        real_at_once, dream_at_once: episodes that run at the same time; seconds are shared among them.
    """

    real_setup: float
    real_step: float
    dream_setup: float
    dream_step: float
    steps: float
    real_at_once: int = 1
    dream_at_once: int = 1

    @property
    def real(self) -> float:
        """Seconds for a real episode; NaN where unknown."""
        return (self.real_setup + self.steps * self.real_step) / self.real_at_once

    @property
    def dream(self) -> float:
        """Seconds for a dreamt one."""
        return (self.dream_setup + self.steps * self.dream_step) / self.dream_at_once


async def measure_seconds(
    env: EnvFactory, scripts: Sequence[tuple[Task, Sequence[str]]], *, seed: int = 0
) -> tuple[float, float]:
    """Median seconds of a reset and of a step, played one after another; NaN where nothing was played."""
    setups, steps = [], []
    for task, actions in scripts:
        world, start = env(), time.perf_counter()
        try:
            await world.reset(task, seed)
            setups.append(time.perf_counter() - start)
            for action in actions:
                start = time.perf_counter()
                step = await world.step(action)
                steps.append(time.perf_counter() - start)
                if step.terminated or step.truncated or "failure" in step.info:
                    break
        finally:
            await world.close()
    return tuple(statistics.median(v) if v else math.nan for v in (setups, steps))  # type: ignore[return-value]


@dataclass(frozen=True)
class Supply:
    """What the recordings to learn from hold.

    Attributes:
        episodes, tasks: how many.
        judged: share of episodes with a reward.
        failures: share of failures among them; NaN where none is judged.
        errors: replies that are errors.
        random: share of episodes of random play.
        recorded: how often each kind of action was recorded.
        steps: mean actions of an episode.
    """

    episodes: int
    tasks: int
    judged: float
    failures: float
    errors: int
    random: float
    recorded: dict[str, int] = field(default_factory=dict)
    steps: float = math.nan

    @classmethod
    def of(cls, episodes: Sequence[LoggedEpisode], domain: Domain, *, random: Sequence[str] = ("random",)) -> Supply:
        """Count recordings; `random` names the sources that are random play."""
        judged = [e for e in episodes if e.judged]
        return cls(
            len(episodes),
            len({e.task_id for e in episodes}),
            mean([float(e.judged) for e in episodes]),
            mean([float(not e.success) for e in judged]),
            sum(len(e.errors) for e in episodes),
            mean([float(e.source in random) for e in episodes]),
            dict(Counter(action.kind for e in episodes for action, _ in steps_of(domain, e))),
            mean([float(len(e)) for e in episodes]),
        )


@dataclass(frozen=True)
class Verdict:
    """What to do.

    Attributes:
        word: "fit to train in", "needs more" or "do not dream".
        reasons: sentences, the deciding ones first.
        needs: what is wanting, a sentence each; empty where nothing is.
        more_logs: whether more logs like these would help; None where one cannot tell.
    """

    word: Word
    reasons: tuple[str, ...]
    needs: tuple[str, ...] = ()
    more_logs: bool | None = None

    def __str__(self) -> str:
        """In a few lines, for people."""
        lines = [f"Verdict: {self.word}."]
        lines += [f"  {reason}" for reason in self.reasons]
        lines += [f"  - {need}" for need in self.needs]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        record: dict[str, Any] = to_json(self)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Verdict:
        """Inverse of `to_json`."""
        return from_json(cls, record)


def decide(
    loop: OpenLoop,
    supply: Supply,
    *,
    baselines: Sequence[OpenLoop] = (),
    curve: Curve | None = None,
    economics: Economics | None = None,
    judge_matters: bool = True,
    thresholds: Thresholds | None = None,
) -> Verdict:
    """Reach a verdict.

    Args:
        loop: the dream (code and simulator) on held-out episodes.
        supply: what it learned from.
        baselines: on the same steps.
        curve: over numbers of recordings.
        economics: seconds on both sides, where known.
        judge_matters: False where a verifier or criteria give the reward, so that the logs need none.
        thresholds: what it rests on.
    """
    limits = thresholds or Thresholds()
    reasons = [_accuracy(loop, baselines)]
    if economics is not None:
        seconds = _seconds(economics)
        reasons.append(seconds)
        if economics.dream > limits.cheaper * economics.real:
            return Verdict("do not dream", (seconds, "Train in the real environment itself.", reasons[0]))
    more, sentence = _more_logs(curve, limits)
    reasons += sentence
    needs = _needs(loop, supply, baselines, judge_matters, limits)
    if not needs:
        said = (
            "Nothing measured speaks against training in it. Only a check in the real environment tells what it gains."
        )
        return Verdict("fit to train in", (said, *reasons), (), more)
    return Verdict("needs more", tuple(reasons), tuple(needs), more)


def _accuracy(loop: OpenLoop, baselines: Sequence[OpenLoop]) -> str:
    beside = "".join(f"; {b.name} {b.f1.macro:.2f}" for b in baselines)
    return (
        f"On {loop.steps} held-out steps of {loop.tasks} tasks the F1 of replies is {loop.f1.macro:.2f} "
        f"(mean over kinds of action; {loop.f1.micro:.2f} over steps), {loop.exact.micro:.0%} are exact{beside}."
    )


def _seconds(economics: Economics) -> str:
    if math.isnan(economics.real):
        return "What a real episode costs is unknown; give its set-up and step seconds to compare."
    return (
        f"An episode takes {economics.real:.3g} s in the real environment and {economics.dream:.3g} s in the dream "
        f"({economics.steps:.0f} steps)."
    )


def _more_logs(curve: Curve | None, limits: Thresholds) -> tuple[bool | None, list[str]]:
    if curve is None or math.isnan(curve.gain) or math.isnan(curve.noise):
        return None, []
    said = f"The last doubling of the recordings gained {curve.gain:+.3f} F1 (standard error {curve.noise:.3f})"
    if curve.gain > curve.noise:
        return True, [f"{said}: more logs like these help."]
    if curve.noise > limits.noise:
        return None, [f"{said}: too few held-out tasks to tell whether more logs help."]
    return False, [
        f"{said}, less than its noise: logging more of the same is pointless. What is wrong is not in the logs; "
        "give the dream the missing state (tool schemas, documents, a verifier) or a stronger simulator."
    ]


def _needs(
    loop: OpenLoop, supply: Supply, baselines: Sequence[OpenLoop], judge_matters: bool, limits: Thresholds
) -> list[str]:
    needs: list[str] = []
    if supply.tasks < limits.tasks:
        needs.append(f"more tasks: {supply.tasks} are recorded, fewer than {limits.tasks} say little about others.")
    for kind, seen in loop.by_kind.items():
        share = seen.steps / loop.steps
        if share < limits.kind_share:
            continue
        recorded = supply.recorded.get(kind, 0)
        if recorded < limits.kind_recordings:
            needs.append(f"more recordings of {kind}: {recorded}, and it is {share:.0%} of the steps.")
        elif not seen.f1 >= limits.kind_f1:
            needs.append(f"better replies to {kind}: F1 {seen.f1:.2f} on {share:.0%} of the steps.")
    if supply.errors < limits.errors:
        needs.append(
            f"failed actions: only {supply.errors} recorded replies are errors, so what a wrong action does is "
            "unknown; random play is a cheap source."
        )
    if supply.failures < limits.failures:
        needs.append(f"failed episodes: {supply.failures:.0%} of the judged ones; success alone teaches no judging.")
    if judge_matters and not supply.judged >= limits.judged:
        needs.append(f"rewards: {supply.judged:.0%} of the episodes have one; give --rewards or a verifier.")
    if judge_matters and loop.verdict.n >= 20 and not loop.verdict.brier < loop.verdict.base * (1 - loop.verdict.base):
        needs.append(
            f"a better judge: its Brier score {loop.verdict.brier:.3f} is no better than always saying "
            f"{loop.verdict.base:.0%}; use a verifier or criteria as the reward source."
        )
    if not loop.f1.macro >= limits.f1:
        needs.append(
            f"accuracy: F1 {loop.f1.macro:.2f}, mean over kinds of action; at least {limits.f1:.2f} is wanted."
        )
    best = max((b.f1.macro for b in baselines), default=math.nan)
    if loop.f1.macro < best + limits.over_baseline:
        needs.append(f"a simulator that knows more than a baseline: F1 {loop.f1.macro:.2f} against {best:.2f}.")
    return needs
