"""What stale data does: lag 0, 2 and 8, with and without correction, and which signs showed the trouble first.

The lag is exact and the same on every machine: groups are sampled by the policy of so many updates ago, whose weights
are kept. (`Collector(max_lag=)` bounds the lag instead, and what it comes to depends on the clock.) Task and start are
those of docs/algorithms.md; updates are harder (a larger learning rate, several optimizer steps), so that there can be
trouble at all.

    python benchmarks/lag.py                   # writes benchmarks/results/lag.json and lag.png; goes on where it was
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import chain
from parts import RESULTS, write

from rlready.algorithms import CISPO, DPPO, GRPO, Algorithm
from rlready.curriculum.samplers import Uniform
from rlready.envs.chat import ChatEnv
from rlready.policy.base import OptimizerConfig, Policy, SamplingParams, require_learner
from rlready.policy.tiny import TinyPolicy, load_policy, save_policy
from rlready.rollout.collect import Collector
from rlready.signs import Signs
from rlready.tasks.base import TaskSet
from rlready.types import Score, Task, Trajectory

LAGS = (0, 2, 8)
SETTING = {"steps": 60, "prompts": 16, "group": 8, "max_tokens": 24, "lr": 1e-4, "minibatches": 2}
START = {"steps": 300, "mixed": 60, "direct": 0.9, "dim": 96, "layers": 3}
RULES: dict[str, Callable[[], Algorithm]] = {
    # The clip is against the policy at the update's start; that the data is older is not corrected (as in trl#6945).
    "uncorrected": lambda: GRPO(advantage="mean", average="token", anchor="start"),
    "truncated": lambda: GRPO(advantage="mean", average="token", anchor="start", mismatch="truncate"),
    "icepop": lambda: GRPO(advantage="mean", average="token", anchor="start", mismatch="icepop"),
    "clip at the sampler": lambda: GRPO(advantage="mean", average="token"),
    "cispo": lambda: CISPO(advantage="mean"),
    "dppo": lambda: DPPO(),
}
COLLAPSED = 0.5
"""A run has collapsed where its last rewards are below this share of its best (means of five updates)."""


class Stale(TinyPolicy):
    """A policy whose sampler has the weights of some updates ago."""

    lag = 0

    def sync(self) -> None:
        """Keep the learner's weights; hand over the oldest that are kept."""
        learner = require_learner(self)
        kept: deque[tuple[dict[str, Any], int]] = self.__dict__.setdefault("_kept", deque(maxlen=self.lag + 1))
        kept.append(({name: w.clone() for name, w in learner.weights().items()}, learner.version))
        self.sampler.load(*kept[0])


def score(task: Task, trajectory: Trajectory) -> Score:
    """Whether the digit after the mark is the sum."""
    right = chain.answer_of(trajectory.turns[-1].text) == task.data["answer"]
    return Score.right() if right else Score.wrong()


def run(start: Path, rule: str, lag: int, seed: int) -> dict[str, Any]:
    """One run: curves of reward and of what the signs read, and what the signs said."""
    began = time.perf_counter()
    s: dict[str, Any] = SETTING
    loaded = load_policy(start, optimizer=OptimizerConfig(lr=s["lr"], cosine=True), max_batch=s["prompts"] * s["group"])
    policy = Stale(loaded.sampler, loaded.renderer, loaded.learner)
    policy.lag = lag
    policy.sync()
    algorithm = replace(RULES[rule](), minibatches=s["minibatches"], seed=seed)
    tasks = TaskSet(chain.tasks(s["steps"] * s["prompts"], seed=2000 + seed), score=score)
    params = SamplingParams(max_tokens=s["max_tokens"], stop_ids=policy.renderer.stop_ids)
    collector = Collector(
        policy, ChatEnv, tasks, Uniform(tasks, seed), group_size=s["group"], params=params, max_steps=1, seed=seed
    )
    signs = Signs()
    watched = ("reward", "length", "cut_off", "update/mismatch/kl", "update/mismatch/ess", "update/grad_cosine",
               "update/entropy", "update/masked")  # fmt: skip
    curve: dict[str, list[float]] = {name: [] for name in watched}
    halted = None

    async def loop() -> None:
        nonlocal halted
        for step in range(1, s["steps"] + 1):
            groups = await collector.collect(s["prompts"])
            try:
                said = await algorithm.update(policy, groups)
            except FloatingPointError as error:
                halted = f"update {step}: {error}"
                return
            metrics = collector.metrics() | {f"update/{name}": value for name, value in said.items()}
            metrics["lag"] = float(min(lag, step - 1))  # in updates; the collector's own counts optimizer steps
            signs(metrics, step)
            for name in watched:
                curve[name].append(round(metrics.get(name, math.nan), 6))

    asyncio.run(loop())
    begun = [{k: e[k] for k in ("step", "sign", "level", "said")} for e in signs.history if e["what"] != "ends"]
    return {
        "rule": rule, "lag": lag, "seed": seed, "halted": halted,
        "curve": {name: [None if math.isnan(x) else x for x in values] for name, values in curve.items()},
        "signs": begun, "after": sampled(policy), "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def sampled(policy: Policy) -> float:
    """Success of the learner's last weights on tasks that no run trains on, sampled at 1."""
    learner = require_learner(policy)
    policy.sampler.load(learner.weights(), learner.version)
    return chain.accuracy(policy)["sampled right"]


def smooth(rewards: Sequence[float], width: int = 5) -> list[float]:
    """Moving means."""
    return [statistics.fmean(rewards[i : i + width]) for i in range(max(1, len(rewards) - width + 1))]


def collapsed(one: dict[str, Any]) -> int | None:
    """The update at which a collapsed run began to be below `COLLAPSED` of its best for good; None where it did not."""
    means = smooth(one["curve"]["reward"])
    best = max(means)
    if one["halted"] is None and means[-1] >= COLLAPSED * best:
        return None
    below = len(means)
    while below and means[below - 1] < COLLAPSED * best:
        below -= 1
    return below + 1


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By lag and rule: reward over the run, at the end, collapses, and the signs that began, with the first update."""
    out: dict[str, Any] = {}
    for lag in LAGS:
        for rule in RULES:
            some = [one for one in runs if one["lag"] == lag and one["rule"] == rule]
            if not some:
                continue
            first: dict[str, list[int]] = {}
            for one in some:
                seen: set[str] = set()
                for entry in one["signs"]:
                    if entry["sign"] not in seen:
                        seen.add(entry["sign"])
                        first.setdefault(entry["sign"], []).append(entry["step"])
            out[f"lag {lag}, {rule}"] = {
                "seeds": len(some),
                "reward": [statistics.fmean(one["curve"]["reward"]) for one in some],
                "last": [smooth(one["curve"]["reward"])[-1] for one in some],
                "after": [one["after"] for one in some],
                "collapsed": [collapsed(one) for one in some],
                "signs": {name: sorted(steps) for name, steps in sorted(first.items(), key=lambda e: min(e[1]))},
            }
    return out


def draw(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Rewards by update, a panel a lag, a colour a rule."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(LAGS), figsize=(10, 3.2), sharey=True, layout="constrained")
    for axis, lag in zip(axes, LAGS, strict=True):
        for i, rule in enumerate(RULES):
            some = [smooth(one["curve"]["reward"]) for one in runs if one["lag"] == lag and one["rule"] == rule]
            for means in some:
                axis.plot(means, color=f"C{i}", alpha=0.35, linewidth=0.8)
            if some:
                mean = [statistics.fmean(v) for v in zip(*some, strict=False)]  # a run may still go on
                axis.plot(mean, color=f"C{i}", linewidth=1.8, label=rule)
        axis.set(title=f"lag {lag}", xlabel="update")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("mean reward (five updates)")
    lines = {line.get_label(): line for axis in axes for line in axis.lines if not line.get_label().startswith("_")}
    axes[0].legend(lines.values(), lines.keys(), frameon=False, fontsize=7)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run what is missing, write results and picture."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lags", nargs="+", type=int, default=list(LAGS))
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--start", type=Path, help="folder of the first weights; made there where it is missing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "lag.json"
    runs: list[dict[str, Any]] = []
    if path.exists() and (found := json.loads(path.read_text()))["setting"] == SETTING | {"start": START}:
        runs = found["runs"]
    with tempfile.TemporaryDirectory() as folder:
        start = args.start or Path(folder) / "start"
        if not start.exists():
            save_policy(chain.warm_start(0, **START), start)  # type: ignore[arg-type]
        for seed in range(args.seeds):
            for lag in args.lags:
                for rule in args.rules:
                    if any((one["rule"], one["lag"], one["seed"]) == (rule, lag, seed) for one in runs):
                        continue
                    one = run(start, rule, lag, seed)
                    runs.append(one)
                    write("lag", {"setting": SETTING | {"start": START}, "by": summary(runs), "runs": runs})
                    reward, last = statistics.fmean(one["curve"]["reward"]), smooth(one["curve"]["reward"])[-1]
                    first = ", ".join(f"{e['sign']} {e['level']} {e['step']}" for e in one["signs"][:5])
                    print(f"{rule}, lag {lag}, seed {seed}: {reward:.3f}, last {last:.3f}, {one['seconds']} s; {first}")
    draw(runs, RESULTS / "lag.png")


if __name__ == "__main__":
    main()
