"""The two sides of the DPO comparison, each in a process of its own; see `sides.py` for how they are driven.

A folder holds what both read: `start` (the policy), `reference` (another one) and `pairs.json`. Both sides take the
same pairs in the same order, so their losses can be compared step by step. A step's `reward` is its loss here.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from sides import Pace, Piped, Setting

PAIRS, LR, BETA = 64, 1e-4, 0.1


def read_pairs(folder: Path, steps: int) -> list[dict[str, Any]]:
    """The pairs of so many steps: prompt, chosen and rejected as texts."""
    found: list[dict[str, Any]] = json.loads((folder / "pairs.json").read_text())
    if len(found) < steps * PAIRS:
        raise SystemExit(f"{len(found)} pairs are too few for {steps} steps of {PAIRS}.")
    return found[: steps * PAIRS]


def run_ours(folder: Path, steps: int, seed: int, setting: Setting, pace: Pace) -> None:
    """Train with rlready's DPO on given pairs; the reference's log-probs are taken in the first step."""
    import numpy as np

    from rlready.algorithms.pairs import Pair
    from rlready.algorithms.preferences import DPO
    from rlready.policy.base import OptimizerConfig, require_learner
    from rlready.policy.tiny import load_policy
    from rlready.policy.tiny.learner import TinyLearner
    from rlready.seeds import np_rng

    given = read_pairs(folder, steps)
    policy = load_policy(
        folder / "reference", optimizer=OptimizerConfig(lr=LR, betas=(0.9, 0.999), clip=1.0), max_batch=2 * PAIRS
    )
    learner = require_learner(policy)
    assert isinstance(learner, TinyLearner)
    learner.freeze_reference()
    learner.model.load_state_dict(dict(require_learner(load_policy(folder / "start")).weights()))
    order = np_rng(seed, "pairs", 0).permutation(len(given))  # as `fit_pairs` shuffles: undone, so that both agree
    laid: list[Pair] = [None] * len(given)  # type: ignore[list-item]
    for place, pair in zip(order, given, strict=True):
        laid[int(place)] = Pair.of(policy.renderer, pair["prompt"], pair["chosen"], pair["rejected"])
    length = float(np.mean([len(row) for pair in laid for row in (*pair.chosen, *pair.rejected)]))

    def on_step(step: int, of: int, metrics: dict[str, float]) -> None:
        pace.done(metrics["loss/pair"], length)
        if step < of:
            pace.wait()

    pace.wait()
    DPO(beta=BETA).fit_pairs(policy, laid, epochs=1, batch_pairs=PAIRS, seed=seed, which="reference", on_step=on_step)


def run_trl(folder: Path, steps: int, seed: int, setting: Setting, pace: Pace) -> None:
    """Train with TRL's `DPOTrainer`; the reference's log-probs are taken before the first step."""
    from datasets import Dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import DPOConfig, DPOTrainer

    model, reference = (
        AutoModelForCausalLM.from_pretrained(folder / name, attn_implementation="sdpa")
        for name in ("start", "reference")
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "start" / "tokenizer.json"), eos_token="<end>", pad_token="<pad>", bos_token="<s>"
    )
    for each in (model, reference):
        for config in (each.config, each.generation_config):
            config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    given = read_pairs(folder, steps)
    rows = [
        {
            "prompt": f"<s> {pair['prompt']} >", "chosen": f" {pair['chosen']} <end>",
            "rejected": f" {pair['rejected']} <end>",
        }
        for pair in given
    ]  # fmt: skip
    seen: list[float] = []

    class Trainer(DPOTrainer):
        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return SequentialSampler(self.train_dataset)

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(*args, **kwargs)
            seen.append(float(loss))
            return loss

    class Paced(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            seen.clear()
            pace.wait()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            pace.done(sum(seen) / len(seen) if scaled else sum(seen), length)

    scaled = False
    micro = setting.micro
    with tempfile.TemporaryDirectory() as work:
        config = DPOConfig(
            output_dir=work, use_cpu=True, bf16=False, gradient_checkpointing=False, dataloader_pin_memory=False,
            report_to=[], logging_steps=steps + 1, save_strategy="no", disable_tqdm=True, seed=seed, max_steps=steps,
            per_device_train_batch_size=micro, gradient_accumulation_steps=PAIRS // micro,
            precompute_ref_log_probs=True, precompute_ref_batch_size=PAIRS, beta=BETA, max_length=None,
            learning_rate=LR, lr_scheduler_type="constant", max_grad_norm=1.0, weight_decay=0.0,
        )  # fmt: skip
        trainer = Trainer(
            model, ref_model=reference, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
            callbacks=[Paced()],
        )  # fmt: skip
        first = trainer.train_dataset[0]
        check_ids(folder, given[0], first)
        length = (
            0.5
            * sum(
                2 * len(row["prompt_ids"]) + len(row["chosen_ids"]) + len(row["rejected_ids"])
                for row in trainer.train_dataset.select(range(256))
            )
            / 256
        )
        trainer.train()


def check_ids(folder: Path, pair: dict[str, Any], row: dict[str, Any]) -> None:
    """Make sure that TRL trains on the ids that rlready trains on.

    Raises:
        SystemExit: it does not.
    """
    from rlready.algorithms.pairs import Pair
    from rlready.policy.tiny import load_policy

    ours = Pair.of(load_policy(folder / "start").renderer, pair["prompt"], pair["chosen"], pair["rejected"])
    for name, rows in (("chosen", ours.chosen), ("rejected", ours.rejected)):
        if (found := list(rows[0].tokens)) != (theirs := row["prompt_ids"] + row[f"{name}_ids"]):
            raise SystemExit(f"{name}: {found} for rlready and {theirs} for TRL.")
        begins = int((rows[0].weights["nll"] > 0).argmax())
        if begins != len(row["prompt_ids"]):
            raise SystemExit(f"{name}: trained from token {begins} for rlready and {len(row['prompt_ids'])} for TRL.")


def main() -> None:
    """Run one side: `dpo_sides.py FOLDER STEPS SEED SETTING`, the last as JSON."""
    import torch

    folder, steps, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    setting = Setting(**json.loads(sys.argv[4]))
    torch.set_num_threads(setting.threads)
    run = run_ours if setting.side == "rlready" else run_trl
    run(folder, steps, seed, setting, Piped())


if __name__ == "__main__":
    main()
