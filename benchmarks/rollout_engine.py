"""How much of a rollout is the model's forward passes, and how much is everything around them.

Two workloads of the same 0.8M-parameter shape: single-turn completions of chain sums (256 at once), and episodes of
the telecom world with one-token turns (128 at once), where there is most to do per token. No peer: the figures are
shares of one and the same run. The completions are also made by a model of 4.5M parameters, and the episodes played
without prefix reuse, alternating.

    python benchmarks/rollout_engine.py    # writes benchmarks/results/rollout_engine.json
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import chain
import torch
from parts import Forgetful, Loop, write

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

SHAPE = TinyConfig(dim=128, layers=4, heads=4, kv_heads=1, max_len=128)
LARGER = TinyConfig(dim=256, layers=6, heads=4, kv_heads=1, max_len=128)
WARM_UP = 2


def measure(collectors: Sequence[Collector], groups: int, rounds: int) -> list[dict[str, float]]:
    """Medians over rounds, the first left out; the collectors take turns.

    Of the wall-clock time of a collection W, with F in forward passes, B in the engine (F included), E in environments
    and graders: "engine" is (B - F) / B, "framework" (W - F - E) / (W - E), "all but forward passes" (W - F) / W.
    """
    loop = Loop()
    out: list[list[dict[str, float]]] = [[] for _ in collectors]
    for _ in range(WARM_UP + rounds):
        for collector, found in zip(collectors, out, strict=True):
            stats = collector.policy.sampler.stats  # type: ignore[attr-defined]
            stats.reset()
            gc.collect()
            idle = loop.idle
            began = time.perf_counter()
            loop.run(collector.collect(groups))
            wall = time.perf_counter() - began
            shares = collector.metrics()
            other = wall * (shares["time/env"] + shares["time/score"])
            found.append(
                {
                    "engine": (stats.busy - stats.forward) / stats.busy,
                    "framework": (wall - stats.forward - other) / (wall - other),
                    "all but forward passes": (wall - stats.forward) / wall,
                    "environments and graders": other / wall,
                    "around the engine": (wall - stats.busy - other) / wall,
                    "waiting": (loop.idle - idle) / wall,
                    "seconds": wall,
                    "tokens": float(stats.tokens),
                    "prefill tokens": float(stats.prefill_tokens),
                    "reused prompt tokens": float(stats.reused_tokens),
                    "turns": float(stats.requests),
                }
            )
    return [{name: statistics.median(f[name] for f in found[WARM_UP:]) for name in found[0]} for found in out]


def completions(rounds: int, shape: TinyConfig = SHAPE) -> dict[str, float]:
    """256 completions of chain sums at once, by an untrained policy: up to 24 tokens each."""

    def zero(task: Task, trajectory: Trajectory) -> Score:
        return Score.wrong()

    policy = TinyPolicy.create(chain.renderer(), shape, max_batch=256)
    tasks = TaskSet(chain.tasks(512, seed=1), score=zero)
    params = SamplingParams(max_tokens=24, stop_ids=policy.renderer.stop_ids)
    collector = Collector(policy, ChatEnv, tasks, Uniform(tasks), group_size=8, params=params, max_steps=1)
    return measure([collector], 32, rounds)[0]


def episodes(rounds: int) -> dict[str, float]:
    """128 telecom episodes at once, by an untrained policy: one token a turn, up to 18 turns."""
    world = telecom()
    renderer = ChatRenderer(word_tokenizer(world.vocabulary, specials=("<pad>", "<s>", ">")))
    policy = TinyPolicy.create(renderer, replace(SHAPE, max_len=256))
    forgetful = TinyPolicy.create(renderer, replace(SHAPE, max_len=256))
    forgetful.sampler = Forgetful(forgetful.sampler)
    tasks = world.splits["train"]
    both = [Collector(each, world.env, tasks, Uniform(tasks), group_size=8) for each in (policy, forgetful)]
    reusing, without = measure(both, 16, rounds)
    return reusing | {
        "prefill tokens without reuse": without["prefill tokens"],
        "time without reuse": without["seconds"] / reusing["seconds"],
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    out = {
        "threads": 1,
        "completions": completions(rounds),
        "completions, larger model": completions(rounds, LARGER),
        "episodes": episodes(rounds),
    }
    write("rollout_engine", out)
    for name, numbers in out.items():
        if isinstance(numbers, dict):
            print(name, {k: round(v, 3) for k, v in numbers.items()})


if __name__ == "__main__":
    main()
