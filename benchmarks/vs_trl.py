"""GRPO per step: rlready against TRL's `GRPOTrainer`, paired.

Same tiny model and weights, same tasks, groups, token cap, optimizer settings, same machine, alternating runs (ours, TRL,
ours, TRL, ...), each side in its own process at its own best thread count. Needs the extra `bench`.

    python benchmarks/vs_trl.py            # writes benchmarks/results/vs_trl.json and prints the ratio
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
PROMPTS, GROUP, MAX_TOKENS, LR = 32, 8, 24, 1e-4


def run_ours(start: Path, steps: int, threads: int, seed: int) -> dict[str, list[float]]:
    """Train with rlready; return seconds and mean reward per step."""
    import torch

    import chain
    from rlready.algorithms.grpo import GRPO
    from rlready.curriculum.samplers import Uniform
    from rlready.envs.chat import ChatEnv
    from rlready.policy.base import OptimizerConfig, SamplingParams
    from rlready.policy.tiny import load_policy
    from rlready.rollout.collect import Collector
    from rlready.tasks.base import TaskSet
    from rlready.types import Score, Task, Trajectory

    torch.set_num_threads(threads)

    def reward(task: Task, trajectory: Trajectory) -> Score:
        right = chain.answer_of(trajectory.turns[-1].text) == task.data["answer"]
        return Score.right() if right else Score.wrong()

    policy = load_policy(start)
    assert policy.learner is not None
    policy.learner.configure(OptimizerConfig(lr=LR, betas=(0.9, 0.999), clip=1.0))
    tasks = TaskSet(chain.tasks(steps * PROMPTS, seed=seed), score=reward)
    params = SamplingParams(max_tokens=MAX_TOKENS, stop_ids=policy.renderer.stop_ids)
    collector = Collector(
        policy, ChatEnv, tasks, Uniform(tasks, seed), group_size=GROUP, params=params, max_steps=1, seed=seed
    )
    algorithm = GRPO(average="sequence")
    seconds, rewards, tokens = [], [], []
    import asyncio

    async def loop() -> None:
        for _ in range(steps):
            began = time.perf_counter()
            groups = await collector.collect(PROMPTS)
            await algorithm.update(policy, groups)
            seconds.append(time.perf_counter() - began)
            rewards.append(sum(t.reward for g in groups for t in g) / (PROMPTS * GROUP))
            tokens.append(sum(t.length for g in groups for t in g) / (PROMPTS * GROUP))

    asyncio.run(loop())
    return {"seconds": seconds, "rewards": rewards, "tokens": tokens}


def run_trl(start: Path, steps: int, threads: int, seed: int) -> dict[str, list[float]]:
    """Train with TRL; return seconds and mean reward per step."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    import chain

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(start / "tokenizer.json"), eos_token="<end>", pad_token="<pad>", bos_token="<s>"
    )
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    rows = [
        {"prompt": f"<s> {t.prompt[0].text} >", "answer": t.data["answer"]}
        for t in chain.tasks(steps * PROMPTS, seed=seed)
    ]

    def reward(completions: list[str], answer: list[str], **_: object) -> list[float]:
        return [float(chain.answer_of(c) == a) for c, a in zip(completions, answer, strict=True)]

    marks: list[float] = []
    logs: list[dict[str, float]] = []

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            marks.append(time.perf_counter())

        def on_step_end(self, *_: object, **__: object) -> None:
            marks.append(time.perf_counter())

        def on_log(self, _args: object, _state: object, _control: object, logs: dict[str, float], **__: object) -> None:
            if "reward" in logs:
                kept.append(logs)

    kept = logs
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP, max_steps=steps,
            max_completion_length=MAX_TOKENS, learning_rate=LR, lr_scheduler_type="constant", beta=0.0,
            loss_type="grpo", num_iterations=1, temperature=1.0, top_k=0, max_grad_norm=1.0, weight_decay=0.0, use_cpu=True, bf16=False,
            gradient_checkpointing=False, report_to=[], logging_steps=1, save_strategy="no", seed=seed,
            dataloader_pin_memory=False, disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model, reward_funcs=[reward], args=config, train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer, callbacks=[Clock()],
        )  # fmt: skip
        trainer.train()
    return {
        "seconds": [b - a for a, b in zip(marks, marks[1:], strict=False)],
        "rewards": [float(entry["reward"]) for entry in kept],
        "tokens": [float(entry["completions/mean_length"]) for entry in kept],
    }


def child(side: str, start: Path, steps: int, threads: int, seed: int) -> dict[str, list[float]]:
    """Run one side in a process of its own."""
    env = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--child", side, str(start), str(steps), str(threads), str(seed)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    result: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return result


def median_step(result: dict[str, list[float]]) -> float:
    """Median seconds per step, the first three (warm-up) left out."""
    return statistics.median(result["seconds"][3:])


def main() -> None:
    """Choose threads, alternate the sides, write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--child", nargs=5)
    args = parser.parse_args()
    if args.child:
        side, start, steps, threads, seed = args.child
        run = run_ours if side == "rlready" else run_trl
        print(json.dumps(run(Path(start), int(steps), int(threads), int(seed))))
        return

    sys.path.insert(0, str(HERE))
    import chain
    from rlready.policy.tiny import save_policy

    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start"
        save_policy(chain.warm_start(seed=0), start)
        cores = os.cpu_count() or 1
        options = sorted({1, min(2, cores), cores})
        best: dict[str, int] = {}
        for side in ("rlready", "trl"):
            timed = {n: median_step(child(side, start, 8, n, 99)) for n in options}
            best[side] = min(timed, key=timed.__getitem__)
            print(f"{side}: seconds a step by threads {({n: round(s, 3) for n, s in timed.items()})}", flush=True)
        pairs = []
        for seed in range(args.pairs):
            ours = child("rlready", start, args.steps, best["rlready"], seed)
            theirs = child("trl", start, args.steps, best["trl"], seed)
            pairs.append({"seed": seed, "rlready": ours, "trl": theirs, "ratio": median_step(theirs) / median_step(ours)})
            print(
                f"pair {seed}: rlready {median_step(ours):.3f} s, TRL {median_step(theirs):.3f} s a step, "
                f"{pairs[-1]['ratio']:.1f}x; last rewards {statistics.mean(ours['rewards'][-5:]):.3f} and "
                f"{statistics.mean(theirs['rewards'][-5:]):.3f}",
                flush=True,
            )
    ratios = [pair["ratio"] for pair in pairs]
    out = {
        "benchmark": "vs_trl",
        "setting": {"prompts": PROMPTS, "group": GROUP, "max_tokens": MAX_TOKENS, "lr": LR, "steps": args.steps},
        "threads": best,
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "reward_last5": {
            side: [statistics.mean(pair[side]["rewards"][-5:]) for pair in pairs] for side in ("rlready", "trl")
        },
        "pairs": pairs,
    }
    path = HERE / "results" / "vs_trl.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(out, indent=1) + "\n")
    print(f"TRL's step takes {out['ratio_median']:.1f}x as long (median of {len(ratios)} pairs). Written to {path}.")


if __name__ == "__main__":
    main()
