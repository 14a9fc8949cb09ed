"""The two sides of the PPO comparison, each in a process of its own; see `sides.py` for how they are driven.

TRL's `PPOTrainer` knows a reward model and a value model. The reward model here computes what the task's score is; the
value model is a zero head on the policy's own body, as rlready's critic is.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import chain
from sides import LR, MAX_TOKENS, Pace, Piped, Setting, check_prompts

BATCH, EPOCHS, LAM, VALUE_COEF, CLIP = 128, 2, 0.95, 1.0, 0.2


def run_ours(start: Path, steps: int, seed: int, setting: Setting, pace: Pace) -> None:
    """Train with rlready: one completion a task."""
    from rlready.algorithms import PPO
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

    # TRL's PPO clips no gradient.
    policy = load_policy(start, optimizer=OptimizerConfig(lr=LR, betas=(0.9, 0.999), clip=0.0), max_batch=BATCH)
    tasks = TaskSet(chain.tasks(steps * BATCH, seed=seed), score=score)
    params = SamplingParams(max_tokens=MAX_TOKENS, stop_ids=policy.renderer.stop_ids)
    collector = Collector(
        policy, ChatEnv, tasks, Uniform(tasks, seed), group_size=1, params=params, max_steps=1, seed=seed
    )
    # TRL halves the critic's squared error, rlready does not.
    algorithm = PPO(
        epochs=EPOCHS, lam=LAM, value_coef=VALUE_COEF / 2, value_clip=CLIP, clip_low=CLIP, clip_high=CLIP, seed=seed
    )

    async def loop() -> None:
        for _ in range(steps):
            pace.wait()
            groups = await collector.collect(BATCH)
            await algorithm.update(policy, groups)
            played = [trajectory for group in groups for trajectory in group]
            pace.done(
                sum(t.reward for t in played) / len(played),
                sum(t.length for t in played) / len(played),
            )

    asyncio.run(loop())


def run_trl(start: Path, steps: int, seed: int, setting: Setting, pace: Pace) -> None:
    """Train with TRL's `PPOTrainer`, with the same loss as ours."""
    import torch
    from datasets import Dataset
    from torch import nn
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(start / "tokenizer.json"), eos_token="<end>", pad_token="<pad>", bos_token="<s>",
        padding_side="left",
    )  # fmt: skip
    model, reference = (
        AutoModelForCausalLM.from_pretrained(start, attn_implementation="sdpa") for _ in ("policy", "reference")
    )
    for each in (model, reference):
        for config in (each.config, each.generation_config):
            config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    seen: list[tuple[float, int]] = []

    class Body(nn.Module):
        """Hands the token ids on."""

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            from transformers.modeling_outputs import BaseModelOutput

            return BaseModelOutput(hidden_states=(input_ids,))

    class Grader(nn.Module):
        """A reward model that knows: 1 at every token of a row whose answer is right."""

        base_model_prefix = "body"

        def __init__(self) -> None:
            super().__init__()
            self.body = Body()

        def score(self, ids: torch.Tensor) -> torch.Tensor:
            out = torch.zeros(*ids.shape, 1)
            for i, row in enumerate(ids.tolist()):
                words = [w for w in tokenizer.convert_ids_to_tokens(row) if w not in ("<pad>", "<s>")]
                at = words.index(">")
                prompt, said = words[:at], words[at + 1 :]
                text = " ".join(w for w in said if w != "<end>")
                right = sum(int(w) for w in prompt if w.isdigit()) % 10
                out[i] = float(chain.answer_of(text) == str(right))
                seen.append((float(out[i, 0, 0]), len(said)))
            return out

    class Critic(nn.Module):
        """A zero head on the policy's body."""

        base_model_prefix = "model"

        def __init__(self) -> None:
            super().__init__()
            self.model = model.model
            self.score = nn.Linear(model.config.hidden_size, 1)
            nn.init.zeros_(self.score.weight)
            nn.init.zeros_(self.score.bias)

    class Paced(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            seen.clear()
            pace.wait()

        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            pace.done(sum(value for value, _ in seen) / len(seen), sum(n for _, n in seen) / len(seen))
            seen.clear()
            if state.global_step < steps:
                pace.wait()

    prompts = [chain.prompt_text(task) for task in chain.tasks(steps * BATCH, seed=seed)]
    check_prompts(start, tokenizer, prompts)
    rows = [{"input_ids": tokenizer(text=[prompt])["input_ids"][0]} for prompt in prompts]
    with tempfile.TemporaryDirectory() as folder:
        config = PPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], seed=seed,
            logging_steps=steps + 1, save_strategy="no", disable_tqdm=True, num_sample_generations=0,
            total_episodes=steps * BATCH, per_device_train_batch_size=BATCH, gradient_accumulation_steps=1,
            num_mini_batches=1, num_ppo_epochs=EPOCHS, local_rollout_forward_batch_size=BATCH, stop_token="eos",
            response_length=MAX_TOKENS, temperature=1.0, kl_coef=0.0, cliprange=CLIP, cliprange_value=CLIP,
            vf_coef=VALUE_COEF, gamma=1.0, lam=LAM, whiten_rewards=False,
            learning_rate=LR, lr_scheduler_type="constant", weight_decay=0.0,
        )  # fmt: skip
        dataset = Dataset.from_list(rows)
        trainer = PPOTrainer(
            config, tokenizer, model, reference, Grader(), dataset, Critic(), eval_dataset=dataset.select(range(8)),
            callbacks=[Paced()],
        )  # fmt: skip
        trainer.train()


def main() -> None:
    """Run one side: `ppo_sides.py FOLDER STEPS SEED SETTING`, the last as JSON."""
    import torch

    start, steps, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    setting = Setting(**json.loads(sys.argv[4]))
    torch.set_num_threads(setting.threads)
    run = run_ours if setting.side == "rlready" else run_trl
    run(start, steps, seed, setting, Piped())


if __name__ == "__main__":
    main()
