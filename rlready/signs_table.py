"""The table of signs of trouble: what each reads, from when on it is one, what it says, and the mend.

The signs are those of shared practice in late 2026; `Thresholds` names where each number is from. How they are watched
stands in `signs`. A level relative to the start takes the mean of the first `START` steps that have the number as the
start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

LevelName = Literal["look", "warn", "stop"]
LEVELS: tuple[LevelName, ...] = ("look", "warn", "stop")
START = 3
"""Steps whose mean is "the start" of a run."""

Metrics = Mapping[str, float]
Memory = dict[str, Any]
Reader = Callable[[Metrics, Memory], float | None]
"""A step's number from its metrics; may remember between steps (JSON-ready)."""


@dataclass(frozen=True)
class Thresholds:
    """When a sign begins. Where no source is named, the number is ours.

    Attributes:
        first_ratio: mean exp|log(pi/mu)| - 1 while the sampler has the learner's weights (lag 0), where it has to be 0
            (AReaL checks a ratio of 1 in the first update); float32 leaves about 1e-6. Raise it to 0.02 for a sampler
            of another engine.
        mismatch_look, mismatch_warn, mismatch_stop: k3 of the policy at the update's start against the sampler, nats
            per token (NeMo-RL, tinker, verl).
        mismatch_rise: mean exp|log w| - 1 that is suspicious where it is also three times its start (NeMo-RL: a steep
            rise past 1.01-1.02).
        weight_low, weight_high, weight_std: bounds of the mean importance weight w and of its deviation (verl).
        ess: least effective share of samples, (mean w)^2 / mean w^2 (verl).
        masked: share of trained tokens that mismatch masks take out; "stop" where it is all of them.
        cosine: of successive gradients, persistently (2603.01501 names no number).
        cut_off: share of episodes stopped by a length cap (AReaL).
        no_answer: share of episodes without an answer that can be graded.
        trained_length: least ratio of trained to sampled episode lengths.
        uniform: share of groups whose rewards are all alike.
        entropy_low, entropy_high, entropy_collapse: multiples of the start's entropy; a collapse is one while success
            is below `solved`.
        solved: success from which a low entropy is the end of learning and no collapse.
        explained: share of the returns' variance that the critic explains.
        length: multiple of the start's episode length.
        fall, rise: held-out success lost since its best, beyond two standard errors, while the training reward rose.
        ratio_low, ratio_high: bounds of the mean ratio over an update; in expectation it is 1.
        update_warn, update_stop: KL of the policy after an update to that before, nats per token.
        tool_calls: least mean per episode, where the environment has tools.
    """

    first_ratio: float = 1e-3
    mismatch_look: float = 1e-3
    mismatch_warn: float = 1e-2
    mismatch_stop: float = 1e-1
    mismatch_rise: float = 0.02
    weight_low: float = 0.5
    weight_high: float = 2.0
    weight_std: float = 1.0
    ess: float = 0.3
    masked: float = 0.2
    cosine: float = 0.5
    cut_off: float = 0.05
    no_answer: float = 0.2
    trained_length: float = 0.8
    uniform: float = 0.7
    entropy_low: float = 0.2
    entropy_high: float = 2.0
    entropy_collapse: float = 0.02
    solved: float = 0.9
    explained: float = 0.0
    length: float = 2.0
    fall: float = 0.05
    rise: float = 0.02
    ratio_low: float = 0.8
    ratio_high: float = 1.25
    update_warn: float = 0.1
    update_stop: float = 0.5
    tool_calls: float = 0.05


@dataclass(frozen=True)
class Level:
    """A level of a sign: beyond `low` or `high` for `patience` steps in a row. Where both are None it never begins."""

    name: LevelName = "warn"
    high: float | None = None
    low: float | None = None
    patience: int = 3

    def crossed(self, value: float, slack: float = 0.0) -> bool:
        """Whether a value is beyond a bound; with slack, whether it is not yet well inside."""
        over = self.high is not None and value > self.high - slack * abs(self.high)
        under = self.low is not None and value < self.low + slack * (abs(self.low) or 0.1)
        return over or under


@dataclass(frozen=True)
class Sign:
    """One line of the table.

    Attributes:
        name: what it is noted under.
        reads: a metric's name, or a `Reader`.
        levels: mild to grave.
        says: what is wrong, as a format of `value`, `start` and `m`, the step's metrics (0 where one is missing).
        mend: what to do about it.
        relative: the levels are multiples of the start's value.
        slack: share of a bound by which a value must be inside it for the sign to end.
        of: what a `Reader` reads, in words.
    """

    name: str
    reads: str | Reader
    levels: tuple[Level, ...]
    says: str
    mend: str
    relative: bool = False
    slack: float = 0.2
    of: str = ""

    def value(self, metrics: Metrics, memory: Memory) -> float | None:
        """The step's number; None where it has none, or not a finite one."""
        found = metrics.get(self.reads) if isinstance(self.reads, str) else self.reads(metrics, memory)
        return found if found is not None and math.isfinite(found) else None


# -- numbers that no metric has as it is ------------------------------------------------------------------------------


def first_ratio(m: Metrics, memory: Memory) -> float | None:
    """Mean exp|log w| - 1 while the sampler has the learner's weights; without a metric `lag`, the first step's."""
    value = m.get("update/mismatch/abs")
    if value is None:
        return None
    memory["steps"] = memory.get("steps", 0) + 1
    return value - 1 if m.get("lag", 0.0 if memory["steps"] == 1 else 1.0) == 0 else None


def mismatch_rise(m: Metrics, memory: Memory) -> float | None:
    """Mean exp|log w| - 1, where it is three times what it was at the start; else 0."""
    value = m.get("update/mismatch/abs")
    if value is None:
        return None
    first: list[float] = memory.setdefault("first", [])
    if len(first) < START:
        first.append(value - 1)
        return None
    return value - 1 if value - 1 > 3 * sum(first) / START else 0.0


def trained_length(m: Metrics, memory: Memory) -> float | None:
    """Mean length of what is learnt from by that of all that was played."""
    if not m.get("episodes") or not m.get("tokens") or "length_trained" not in m:
        return None
    return m["length_trained"] / (m["tokens"] / m["episodes"])


def entropy(m: Metrics, memory: Memory) -> float | None:
    """The update's entropy; without one, the sampler's."""
    return m.get("update/entropy", m.get("entropy"))


def unsolved_entropy(solved: float) -> Reader:
    """The entropy while success is below `solved`."""
    return lambda m, memory: entropy(m, memory) if m.get("success", 0.0) < solved else None


def overfit(fall: float, rise: float) -> Reader:
    """Held-out success lost since its best, where the training reward rose meanwhile; None without a measurement.

    Smaller falls than `fall`, or than two standard errors (of the intervals that the evaluator gives), read 0.
    """

    def read(m: Metrics, memory: Memory) -> float | None:
        since: list[float] = memory.setdefault("since", [])
        if "reward" in m:
            since.append(m["reward"])
        held = m.get("eval/success", m.get("eval/reward"))
        if held is None or not math.isfinite(held) or not since:
            return None
        trained = sum(since) / len(since)
        since.clear()
        error = (m.get("eval/success_high", held) - m.get("eval/success_low", held)) / 3.92
        best: list[float] | None = memory.get("best")
        if best is None or held >= best[0]:
            memory["best"] = [held, error, trained]
            return 0.0
        lost, noise = best[0] - held, 2 * math.hypot(error, best[1])
        return lost if lost > max(fall, noise) and trained > best[2] + rise else 0.0

    return read


# -- the table --------------------------------------------------------------------------------------------------------


def usual(t: Thresholds) -> tuple[Sign, ...]:
    """The signs that `train` watches."""
    return (
        Sign(
            "first_ratio", first_ratio, (Level("warn", high=t.first_ratio, patience=1),),
            "sampler and learner disagree by {value:.2g} a token on average though they have the same weights",
            "Look for a temperature, token ids or masks that differ between them: rlready doctor.",
            of="mean exp abs(log w) - 1 without lag",
        ),
        Sign(
            "mismatch", "update/mismatch/kl",
            (
                Level("look", high=t.mismatch_look), Level("warn", high=t.mismatch_warn, patience=2),
                Level("stop", high=t.mismatch_stop, patience=1),
            ),
            "the learner is {value:.2g} nats a token (k3) from the policy that sampled, lag {m[lag]:g}",
            "Without lag it is a fault of engine, cache or weight sync; with it, lower max_lag or set "
            'anchor="start" and mismatch="truncate" or "geometric".',
        ),
        Sign(
            "mismatch_rise", mismatch_rise, (Level("warn", high=t.mismatch_rise),),
            "mean exp|log w| is 1 + {value:.2g}, three times its start",
            "The sampler may no longer get new weights: look at `lag` and at the policy's sync.",
            of="mean exp abs(log w) - 1, where it is three times its start",
        ),
        Sign(
            "weight_mean", "update/mismatch/mean", (Level("warn", low=t.weight_low, high=t.weight_high, patience=2),),
            "the mean importance weight is {value:.2g}, and should be 1",
            "Log-probs are likely wrong on one side: temperature, top-p or tokenisation.",
        ),
        Sign(
            "weight_std", "update/mismatch/std", (Level("warn", high=t.weight_std),),
            "importance weights have a deviation of {value:.2g}",
            'A few tokens weigh most: bound them with mismatch="truncate" or mask them with "icepop".',
        ),
        Sign(
            "ess", "update/mismatch/ess", (Level("warn", low=t.ess),),
            "only {value:.0%} of the samples count (effective sample size)",
            "Few samples drive the step, which precedes collapse: lower max_lag, the learning rate or `minibatches`.",
        ),
        Sign(
            "masked", "update/masked", (Level("warn", high=t.masked), Level("stop", high=0.999)),
            "{value:.0%} of the trained tokens are masked out for their mismatch",
            "The band is too tight for this lag: widen mismatch_low and mismatch_high, or lower max_lag.",
        ),
        Sign(
            "cosine", "update/grad_cosine", (Level("look", high=t.cosine, patience=5),),
            "successive gradients point the same way (cosine {value:.2f})",
            "Steps may be aligned by stale data: lower max_lag or the learning rate.",
        ),
        Sign(
            "cut_off", "cut_off", (Level("warn", high=t.cut_off),),
            "{value:.0%} of the episodes are stopped by a length cap, mean length {m[length]:.0f}",
            "Raise max_tokens or max_steps, or have length cost something (rewards.length).",
        ),
        Sign(
            "no_answer", "no_answer", (Level("look", high=t.no_answer),),
            "{value:.0%} of the episodes give no answer that can be graded",
            "Look at a few of them: rlready runs show RUN --verdict no_answer --trajectory last.",
        ),
        Sign(
            "trained_length", trained_length, (Level("warn", low=t.trained_length, patience=5),),
            "what is learnt from is {value:.0%} as long as what was sampled",
            "Long episodes are dropped (deadline, filter, lag), and the policy learns to be short.",
            of="`length_trained` by the mean length of all that was played",
        ),
        Sign(
            "uniform", "uniform", (Level("look", high=t.uniform),),
            "{value:.0%} of the groups have rewards that are all alike "
            "({m[uniform_right]:.0%} all right, {m[uniform_wrong]:.0%} all wrong) and teach nothing",
            "All right: harder tasks. All wrong: easier tasks, demonstrations first, or larger groups.",
        ),
        Sign(
            "entropy_low", entropy, (Level("look", low=t.entropy_low),),
            "entropy fell from {start:.3g} to {value:.3g} nats a token, success {m[success]:.0%}",
            "What is not tried is not learnt: clip_high=0.28, a little `entropy`, or stop here if it is solved.",
            relative=True,
            of="`update/entropy`, or `entropy`",
        ),
        Sign(
            "entropy_collapse", unsolved_entropy(t.solved), (Level("stop", low=t.entropy_collapse),),
            "entropy collapsed from {start:.3g} to {value:.3g} nats a token at a success of {m[success]:.0%}",
            "Go back to a checkpoint with entropy, and lower the learning rate or `epochs` x `minibatches`.",
            relative=True,
            of="the same, while `success` is below 0.9",
        ),
        Sign(
            "entropy_high", entropy, (Level("warn", high=t.entropy_high),),
            "entropy rose from {start:.3g} to {value:.3g} nats a token",
            "The policy drifts: lower the learning rate or `entropy`, or hold it with a little `kl`.",
            relative=True,
            of="`update/entropy`, or `entropy`",
        ),
        Sign(
            "critic", "update/value/explained", (Level("warn", low=t.explained, patience=5),),
            "the critic explains {value:.0%} of the returns' variance: it is worse than a constant",
            "Warm it up longer, raise value_coef or its learning rate, or use a group baseline.",
        ),
        Sign(
            "length_growth", "length", (Level("look", high=t.length),),
            "episodes grew from {start:.0f} to {value:.0f} tokens, success {m[success]:.0%}",
            "Fine while success rises with it; else look at what is written: rlready runs show RUN.",
            relative=True,
        ),
        Sign(
            "overfit", overfit(t.fall, t.rise), (Level("warn", high=0.0, patience=2),),
            "held-out success is {value:.1%} below its best, while the training reward ({m[reward]:.3g}) rises",
            "It learns the training tasks or a hole in the grader; the best checkpoint is kept.",
            of="success on `eval/` lost since its best (0.05 or more, beyond two standard errors) while `reward` rose",
        ),
        Sign(
            "ratio_drift", "update/ratio/mean", (Level("warn", low=t.ratio_low, high=t.ratio_high),),
            "the mean ratio over an update is {value:.2f}, where 1 is expected",
            "The update leaves its data: fewer `epochs` x `minibatches`, a smaller learning rate, or a trust region.",
            slack=0.05,
        ),
        Sign(
            "update_size", "update/kl/behaviour",
            (Level("warn", high=t.update_warn, patience=2), Level("stop", high=t.update_stop, patience=1)),
            "the policy is {value:.2g} nats a token from its data within one update",
            "Lower the learning rate or `epochs` x `minibatches`, or set a trust region.",
        ),
        Sign(
            "tool_calls", "tool_calls", (Level("warn", low=t.tool_calls),),
            "episodes have {value:.2g} tool calls on average, though there are tools",
            "Reward an answer only after a call, or demonstrate calls first; rlready doctor shows what is parsed.",
        ),
    )  # fmt: skip
