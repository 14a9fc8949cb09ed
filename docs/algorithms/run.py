"""Learning curves of every preset on one task at equal samples: what docs/algorithms.md shows.

    python docs/algorithms/run.py                              # every preset, seeds 0 to 4; what is recorded is left
    python docs/algorithms/run.py --only grpo rloo --seeds 0 1
    python docs/algorithms/run.py --share 0 2                  # the first half of the presets, for a second process

The task is that of benchmarks/chain.py (sums of a chain of digits modulo 10), begun from a policy that has learnt to
work step by step, but badly, and hardly ever does so: right answers need exploring and then practice. Each preset has
its own default fields and nothing tuned: the same first weights, tasks by seed, learning rate and number of episodes.
Every task is seen once, so the reward is success on new tasks. A run whose preset or setting has changed is made again.
A run takes 10 to 60 seconds of one core; all of them together about forty minutes.

Results go to docs/algorithms/results/NAME.json; `python docs/algorithms/page.py` makes page and pictures of them.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import chain  # noqa: E402

from rlready.algorithms import ALGORITHMS, Algorithm  # noqa: E402
from rlready.curriculum.samplers import Uniform  # noqa: E402
from rlready.envs.chat import ChatEnv  # noqa: E402
from rlready.policy.base import OptimizerConfig, Policy, SamplingParams, require_learner  # noqa: E402
from rlready.policy.tiny import load_policy, save_policy  # noqa: E402
from rlready.rollout.collect import Collector  # noqa: E402
from rlready.rollout.steps import StepRule  # noqa: E402
from rlready.seeds import rng  # noqa: E402
from rlready.tasks.base import TaskSet  # noqa: E402
from rlready.types import Message, Row, Score, Task, Trajectory  # noqa: E402

RESULTS = HERE / "results"
SEEDS = (0, 1, 2, 3, 4)
SETTING = {
    "steps": 60, "prompts": 16, "group": 8, "max_tokens": 24, "lr": 1e-4, "betas": [0.9, 0.95], "clip": 1.0,
    "start": {"steps": 300, "mixed": 60, "direct": 0.9, "lr": 2e-3, "dim": 96, "layers": 3},
}  # fmt: skip
# What a preset cannot do without and has no default for, or has no use without.
FIELDS: dict[str, dict[str, Any]] = {
    "drgrpo": {"constant": 24.0},
    "luspo": {"constant": 24.0},
    "sft": {"only_right": True},
    "mixed": {"by": "rloo"},
    # A step of the working is a digit and a sum; one optimizer step an update, as all others have.
    "vineppo": {"steps": StepRule(kind="every", size=2), "epochs": 1, "minibatches": 1},
}
DEMONSTRATIONS = 256
"""Worked answers to further tasks, which "mixed" alone is given."""
PROMPTS = {"restem": 160}
"""Tasks an update where a preset needs large updates; it takes as many fewer, for as many samples in all."""


def start(folder: Path) -> Path:
    """The policy that all runs begin from: made once, kept in a folder."""
    where = folder / "start"
    if (where / "config.json").exists():
        return where
    save_policy(chain.warm_start(0, **SETTING["start"]), where)  # type: ignore[arg-type]
    return where


def score(task: Task, trajectory: Trajectory) -> Score:
    """Whether the digit after the mark is the sum."""
    right = chain.answer_of(trajectory.turns[-1].text) == task.data["answer"]
    return Score.right() if right else Score.wrong()


def demonstrations() -> tuple[Row, ...]:
    """What "mixed" learns beside."""
    renderer, rows = chain.renderer(), []
    for i in range(DEMONSTRATIONS):
        prompt, worked, _, _ = chain.problem(rng(0, "demonstrations", i))
        ids = renderer.render((Message.user(prompt),))
        rows.append(Row.from_segments([(ids, 0.0), (renderer.encode_completion(worked), 1.0)]))
    return tuple(rows)


def built(name: str, seed: int) -> Algorithm:
    """A preset with its own defaults."""
    more: dict[str, Any] = {"rows": demonstrations()} if name == "mixed" else {}
    return ALGORITHMS[name](seed=seed, **FIELDS.get(name, {}), **more)


def settings_of(name: str) -> dict[str, Any]:
    """The fields a run is made with, JSON-ready; a changed one makes the run stale."""
    algorithm = built(name, 0)
    left_out = ("seed", "rows")
    names = [f.name for f in dataclasses.fields(algorithm) if f.init and f.name not in left_out]
    shown = {name: getattr(algorithm, name) for name in names}
    if name == "mixed":
        shown["demonstrations"] = DEMONSTRATIONS
    return {key: value if isinstance(value, str | int | float | None) else str(value) for key, value in shown.items()}


def run(name: str, seed: int, folder: Path, steps: int) -> dict[str, Any]:
    """One run: reward, tokens and entropy by update, success after it, what else it sampled, seconds."""
    began, cpu = time.perf_counter(), time.process_time()
    s: dict[str, Any] = SETTING
    prompts = PROMPTS.get(name, s["prompts"])
    updates = max(1, steps * s["prompts"] // prompts)
    optimizer = OptimizerConfig(lr=s["lr"], betas=tuple(s["betas"]), clip=s["clip"])
    policy = load_policy(start(folder), optimizer=optimizer, max_batch=s["prompts"] * s["group"])
    tasks = TaskSet(chain.tasks(updates * prompts, seed=1000 + seed), score=score)
    params = SamplingParams(max_tokens=s["max_tokens"], stop_ids=policy.renderer.stop_ids)
    algorithm = built(name, seed).bind(tasks, ChatEnv, params)
    require_learner(policy).freeze_reference()
    collector = Collector(
        policy, ChatEnv, tasks, Uniform(tasks, seed), group_size=s["group"], params=params, max_steps=1, seed=seed
    )
    curve: dict[str, list[float]] = {"reward": [], "length": [], "entropy": [], "grad_norm": []}
    probes = played = 0.0

    async def loop() -> None:
        nonlocal probes, played
        for _ in range(updates):
            groups = await collector.collect(prompts)
            said = await algorithm.update(policy, groups)
            found = collector.metrics()
            curve["reward"].append(round(found["reward"], 5))
            curve["length"].append(round(found["length"], 3))
            curve["entropy"].append(round(said.get("entropy", math.nan), 5))
            curve["grad_norm"].append(round(said.get("grad_norm", math.nan), 5))
            probes += said.get("vine/tokens", 0.0)
            played += found["tokens"]

    asyncio.run(loop())
    policy.sync()
    return {
        **{key: [None if math.isnan(x) else x for x in values] for key, values in curve.items()},
        "after": success(policy),
        "samples an update": prompts * s["group"],
        "tokens": played,
        "tokens of probes": probes,
        "seconds": round(time.perf_counter() - began, 1),
        "processor seconds": round(time.process_time() - cpu, 1),
    }


def success(policy: Policy) -> dict[str, float]:
    """Right answers on 256 tasks that no run trains on."""
    found = chain.accuracy(policy)
    return {way: found[f"{way} right"] for way in ("greedy", "sampled")}


def key(name: str, steps: int) -> dict[str, Any]:
    """What a recorded run must have been made with."""
    sizes = {"steps": steps, "prompts": PROMPTS.get(name, SETTING["prompts"])}
    return {"setting": SETTING | sizes, "fields": settings_of(name)}


def recorded(name: str, steps: int) -> dict[str, Any]:
    """What is recorded of a preset with the present settings; an empty record where there is none."""
    path = RESULTS / f"{name}.json"
    made = json.loads(json.dumps(key(name, steps)))
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if {k: found[k] for k in made} == made:
            return found
    import platform

    import torch

    versions = {"torch": torch.__version__, "python": platform.python_version()}
    fresh: dict[str, Any] = made | {"preset": name, "versions": versions, "seeds": {}}
    return fresh


def main() -> None:
    """Run what is missing."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(ALGORITHMS), metavar="PRESET")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--share", nargs=2, type=int, default=[0, 1], metavar=("K", "N"), help="every N-th preset")
    parser.add_argument("--steps", type=int, default=SETTING["steps"])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "algorithms", help="keeps the first weights")
    args = parser.parse_args()
    if unknown := set(args.only) - set(ALGORITHMS):
        raise SystemExit(f"There is no preset {', '.join(sorted(unknown))}; there are {', '.join(ALGORITHMS)}.")
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    for name in args.only[args.share[0] :: args.share[1]]:
        for seed in args.seeds:
            record = recorded(name, args.steps)
            if str(seed) in record["seeds"]:
                continue
            done = record["seeds"][str(seed)] = run(name, seed, args.folder, args.steps)
            (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            first, last = done["reward"][0], statistics.fmean(done["reward"][-5:])
            print(f"{name} {seed}: {first:.3f} -> {last:.3f}, {done['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
