"""Numbers of one collection: outcomes, lengths, failures, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlready.types import Group, Verdict


def tally(groups: Sequence[Group], seconds: float) -> dict[str, float]:
    """Metrics over groups that were played within so many seconds of wall-clock time.

    Means are over valid episodes; `failures` is the share of the others. `uniform` is the share of groups whose valid
    rewards are all alike, which teach nothing: `uniform_right` those at the best reward that was seen, `uniform_wrong`
    the others (all of them, where every reward of the batch is the same and not above 0). `cut_off` is the share of
    episodes of which a trainable turn was stopped by the length cap, `no_answer` that of episodes without an answer
    that could be graded, `tool_calls` the mean of calls that were carried out, where the environment counts them
    (`ToolEnv`). `time/...` are shares of the wall-clock time, see `shares_of_time`.
    """
    every = [trajectory for group in groups for trajectory in group]
    valid = [trajectory for trajectory in every if not trajectory.excluded]
    out = {
        "episodes": float(len(every)),
        "failures": 1 - len(valid) / len(every) if every else 0.0,
        "env_steps": float(sum(t.env_steps for t in every)),
        "tokens": float(sum(t.length for t in every)),
        "seconds": seconds,
    }
    if valid:
        rewards = np.asarray([t.reward for t in valid], dtype=np.float64)
        out["reward"] = float(rewards.mean())
        out["reward_std"] = float(rewards.std())
        out["success"] = sum(t.success for t in valid) / len(valid)
        out["length"] = sum(t.length for t in valid) / len(valid)
        out["turns"] = sum(len(t.turns) for t in valid) / len(valid)
        out["truncated"] = sum(t.truncated for t in valid) / len(valid)
        out["cut_off"] = sum(t.cut_off for t in valid) / len(valid)
        out["no_answer"] = sum(t.verdict is Verdict.NO_ANSWER for t in valid) / len(valid)
        calls = [env["tool_calls"] for t in valid if "tool_calls" in (env := t.info.get("env") or {})]
        if calls:
            out["tool_calls"] = float(np.mean(calls))
        entropies = [e for t in valid for turn in t.turns if turn.entropy is not None for e in turn.entropy]
        if entropies:
            out["entropy"] = float(np.mean(entropies))
    judged = [group for group in groups if group.valid]
    if judged:
        best = max(float(group.rewards.max()) for group in judged)
        least = min(float(group.rewards.min()) for group in judged)
        alike = [group for group in judged if group.variance == 0]
        right = sum(float(group.rewards[0]) == best and best > min(least, 0.0) for group in alike)
        out["uniform"] = len(alike) / len(judged)
        out["uniform_right"] = right / len(judged)
        out["uniform_wrong"] = (len(alike) - right) / len(judged)
        out["variance"] = float(np.mean([group.variance for group in judged]))
    return out | shares_of_time(groups, seconds)


def shares_of_time(groups: Sequence[Group], seconds: float) -> dict[str, float]:
    """Where the wall-clock time went: `time/env`, `time/score`, `time/sample`, `time/wait`; they sum to 1.

    Environments and graders hold the event loop for `env_busy` and `score_busy` seconds, which is exact. The rest is
    shared out by what episodes were suspended on meanwhile: the sampler (`sample`), or a remote environment, a remote
    grader, or a free slot (`wait`).
    """
    total: dict[str, float] = {}
    for group in groups:
        for trajectory in group:
            for name, value in trajectory.timings.items():
                total[name] = total.get(name, 0.0) + value
    env, score = total.get("env_busy", 0.0), total.get("score_busy", 0.0)
    seconds = max(seconds, env + score, 1e-9)
    on_sampler = total.get("sample", 0.0)
    on_env = max(total.get("boot", 0.0) + total.get("env", 0.0) - env, 0.0)
    on_score = max(total.get("score", 0.0) - score, 0.0)
    waiting = on_env + on_score + total.get("queue", 0.0)
    rest = 1 - (env + score) / seconds
    sampled = rest * on_sampler / (on_sampler + waiting) if on_sampler + waiting > 0 else 0.0
    return {
        "time/env": env / seconds,
        "time/score": score / seconds,
        "time/sample": sampled,
        "time/wait": rest - sampled,
    }
