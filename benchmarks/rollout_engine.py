"""How much of a rollout is the model's forward passes, and how much is everything around them.

Two workloads: single-turn completions of about 12 tokens (256 at once), and the telecom world's episodes of about 14 one-token
turns (128 at once), where the framework has most to do per token. No peer: the figures are shares of one and the same run.

    python benchmarks/rollout_engine.py    # writes benchmarks/results/rollout_engine.json
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from pathlib import Path

import chain
import torch
from rlready.curriculum.samplers import Uniform
from rlready.envs.chat import ChatEnv
from rlready.policy.base import SamplingParams
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import word_tokenizer
from rlready.rollout.collect import Collector
from rlready.tasks.base import TaskSet
from rlready.types import Score, Task, Trajectory
from rlready.worlds.tau2 import telecom

ROUNDS = 12


def measure(policy: TinyPolicy, collector: Collector, groups: int) -> dict[str, float]:
    """Median shares over rounds, the first two left out."""
    stats = policy.sampler.stats  # type: ignore[attr-defined]
    shares: list[dict[str, float]] = []
    for index in range(ROUNDS):
        stats.reset()
        gc.collect()
        began = time.perf_counter()
        collector.collect_sync(groups)
        wall = time.perf_counter() - began
        env = collector.metrics().get("time/env", 0.0)
        if index >= 2:
            shares.append(
                {
                    "engine beyond forward passes": (stats.busy - stats.forward) / stats.busy,
                    "everything beyond forward passes": (wall - stats.forward) / wall,
                    "tokens": float(stats.tokens),
                    "prefill tokens": float(stats.prefill_tokens),
                    "reused tokens": float(stats.reused_tokens),
                    "share of environment steps": env,
                }
            )
    return {name: statistics.median(s[name] for s in shares) for name in shares[0]}


def completions() -> dict[str, float]:
    """256 completions of chain sums at once."""
    policy = chain.warm_start(seed=0, steps=60)

    def zero(task: Task, trajectory: Trajectory) -> Score:
        return Score.wrong()

    tasks = TaskSet(chain.tasks(512, seed=1), score=zero)
    params = SamplingParams(max_tokens=24, stop_ids=policy.renderer.stop_ids)
    collector = Collector(policy, ChatEnv, tasks, Uniform(tasks), group_size=8, params=params, max_steps=1)
    return measure(policy, collector, 32)  # type: ignore[arg-type]


def episodes() -> dict[str, float]:
    """128 telecom episodes at once, by an untrained policy (about 18 turns each)."""
    world = telecom()
    renderer = ChatRenderer(word_tokenizer(world.vocabulary, specials=("<pad>", "<s>", ">")))
    policy = TinyPolicy.create(renderer, TinyConfig(dim=128, layers=4, heads=4, kv_heads=1))
    tasks = world.splits["train"]
    collector = Collector(policy, world.env, tasks, Uniform(tasks), group_size=8)
    collector.collect_sync(16)  # the simulator's prepared states
    return measure(policy, collector, 16)


def main() -> None:
    """Measure, print, write."""
    torch.set_num_threads(1)
    out = {"benchmark": "rollout_engine", "threads": 1, "completions": completions(), "episodes": episodes()}
    path = Path(__file__).parent / "results" / "rollout_engine.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(out, indent=1) + "\n")
    for name in ("completions", "episodes"):
        print(name, {k: round(v, 3) for k, v in out[name].items()})  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
