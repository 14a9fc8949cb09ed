"""The two sides of the TRL comparison, each in a process of its own, driven step by step by `vs_trl.py`.

A side loads its model, says it is ready, and then takes one training step for every line that it is sent. So the steps
of all sides alternate on the same machine, a few at a time, and a busy minute meets all of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import chain

PROMPTS, GROUP, MAX_TOKENS, LR = 32, 8, 24, 1e-4


@dataclass(frozen=True)
class Setting:
    """How a side runs.

    Attributes:
        side: "rlready" or "trl".
        threads: torch threads.
        micro: completions per forward and backward pass; rlready cuts its own micro-batches.
        program: the file of the sides.
        packages: a folder of packages that come before the installed ones, such as another release of TRL.
    """

    side: str
    threads: int
    micro: int = PROMPTS * GROUP
    program: str = "sides.py"
    packages: str = ""

    def __str__(self) -> str:
        return f"{self.side}, threads {self.threads}" + (f", micro-batch {self.micro}" if self.side == "trl" else "")


@dataclass
class Step:
    """One training step: seconds of wall clock and of processor time, mean reward, mean completion length."""

    wall: float
    cpu: float
    reward: float
    tokens: float


class Pace(Protocol):
    """Takes the orders to step, and reports."""

    def wait(self) -> None:
        """Return when the next step shall begin; the clock starts."""
        ...

    def done(self, reward: float, tokens: float) -> None:
        """The step is over; the clock stops."""
        ...


class Piped:
    """A `Pace` over standard input and output; whatever else a library prints goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._ready = False

    def wait(self) -> None:
        """Say that the side is ready, the first time; wait for a line."""
        if not self._ready:
            self._out.write("ready\n")
            self._ready = True
        if not sys.stdin.readline():
            raise SystemExit(0)  # the driver has what it wants
        self._began = time.perf_counter(), time.process_time()

    def done(self, reward: float, tokens: float) -> None:
        """Write the step as a line of JSON."""
        wall, cpu = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        self._out.write(json.dumps(asdict(Step(wall, cpu, reward, tokens))) + "\n")


def run_ours(start: Path, steps: int, seed: int, setting: Setting, pace: Pace) -> None:
    """Train with rlready: the collector's rollouts, GRPO's update."""
    from rlready.algorithms.presets import GRPO
    from rlready.curriculum.samplers import Uniform
    from rlready.envs.chat import ChatEnv
    from rlready.policy.base import OptimizerConfig, SamplingParams
    from rlready.policy.tiny import load_policy
    from rlready.rollout.collect import Collector
    from rlready.tasks.base import TaskSet
    from rlready.types import Score, Task, Trajectory

    def score(task: Task, trajectory: Trajectory) -> Score:
        right = chain.answer_of(trajectory.turns[-1].text) == task.data["answer"]
        return Score.right() if right else Score.wrong()

    policy = load_policy(
        start, optimizer=OptimizerConfig(lr=LR, betas=(0.9, 0.999), clip=1.0), max_batch=PROMPTS * GROUP
    )
    tasks = TaskSet(chain.tasks(steps * PROMPTS, seed=seed), score=score)
    params = SamplingParams(max_tokens=MAX_TOKENS, stop_ids=policy.renderer.stop_ids)
    collector = Collector(
        policy, ChatEnv, tasks, Uniform(tasks, seed), group_size=GROUP, params=params, max_steps=1, seed=seed
    )
    algorithm = GRPO(average="sequence", seed=seed)

    async def loop() -> None:
        for _ in range(steps):
            pace.wait()
            groups = await collector.collect(PROMPTS)
            await algorithm.update(policy, groups)
            played = [trajectory for group in groups for trajectory in group]
            pace.done(
                sum(t.reward for t in played) / len(played),
                sum(t.length for t in played) / len(played),
            )

    asyncio.run(loop())


def run_trl(start: Path, steps: int, seed: int, setting: Setting, pace: Pace) -> None:
    """Train with TRL's `GRPOTrainer`, with its settings that are fastest on a CPU and the same loss as ours.

    Two things differ and change nothing here. TRL divides advantages by the sample's deviation, rlready by the
    population's: a common factor, to which Adam is blind. The order of the tasks is each side's own; every task is seen
    once.
    """
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model = AutoModelForCausalLM.from_pretrained(start, attn_implementation="sdpa")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(start / "tokenizer.json"), eos_token="<end>", pad_token="<pad>", bos_token="<s>"
    )
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    rows = [
        {"prompt": chain.prompt_text(task), "answer": task.data["answer"]}
        for task in chain.tasks(steps * PROMPTS, seed=seed)
    ]
    check_prompts(start, tokenizer, [row["prompt"] for row in rows])
    seen: list[tuple[float, int]] = []

    def reward(completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float]:
        out = [float(chain.answer_of(text) == right) for text, right in zip(completions, answer, strict=True)]
        seen.extend((value, len(ids)) for value, ids in zip(out, completion_ids, strict=True))
        return out

    class Paced(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            seen.clear()
            pace.wait()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            pace.done(sum(value for value, _ in seen) / len(seen), sum(n for _, n in seen) / len(seen))

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, dataloader_pin_memory=False,
            report_to=[], logging_steps=steps, save_strategy="no", disable_tqdm=True, seed=seed, max_steps=steps,
            per_device_train_batch_size=setting.micro, gradient_accumulation_steps=PROMPTS * GROUP // setting.micro,
            num_generations=GROUP, max_completion_length=MAX_TOKENS, temperature=1.0, top_k=0, top_p=1.0,
            loss_type="grpo", scale_rewards="group", beta=0.0, epsilon=0.2, num_iterations=1,
            learning_rate=LR, lr_scheduler_type="constant", max_grad_norm=1.0, weight_decay=0.0,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model, reward_funcs=[reward], args=config, train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer, callbacks=[Paced()],
        )  # fmt: skip
        trainer.train()


def check_prompts(start: Path, tokenizer: Any, prompts: list[str]) -> None:
    """Make sure that TRL's tokenizer makes the ids that rlready's renderer makes.

    Raises:
        SystemExit: it does not, so the two would not be compared on the same task.
    """
    from rlready.policy.tiny import load_policy
    from rlready.types import Message

    renderer = load_policy(start).renderer
    for prompt in prompts:
        ours = renderer.render((Message.user(prompt.removeprefix("<s> ").removesuffix(" >")),))
        theirs = tokenizer(text=[prompt])["input_ids"][0]
        if ours != theirs:
            raise SystemExit(f"{prompt!r} is {ours} for rlready and {theirs} for TRL.")


def main() -> None:
    """Run one side: `sides.py FOLDER STEPS SEED SETTING`, the last as JSON."""
    import torch

    start, steps, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    setting = Setting(**json.loads(sys.argv[4]))
    torch.set_num_threads(setting.threads)
    run = run_ours if setting.side == "rlready" else run_trl
    run(start, steps, seed, setting, Piped())


if __name__ == "__main__":
    main()
