"""What the paper's own scale needs: models, memory and tokens; the settings are those of `paper.toml`."""

from __future__ import annotations

from rlready.recipes.local import memory, needs_cluster
from rlready.recipes.magistral.full import Full
from rlready.recipes.registry import paper
from rlready.run import Run
from rlready.run_report import Report, Table

# Parameters in billions, from the models' public configurations.
MODELS = {"Mistral-Small-3 24B": 23.6, "Qwen3-14B": 14.8, "Qwen3-8B": 8.2}
# Of the three stages of the paper's schedule: most tokens of an answer, answers in flight, answers per batch.
STAGES = ((16_000, 4096, 8192), (24_000, 3072, 4096), (32_000, 2048, 2048))
GIB = 2**30


def training_gib(billions: float) -> float:
    """Memory of full fine-tuning with AdamW: bf16 weights and gradients, fp32 master weights and two moments."""
    return billions * 1e9 * (2 * 2 + 3 * 4) / GIB


def serving_gib(billions: float) -> float:
    """Memory of the weights alone, in bf16; keys and values come on top."""
    return billions * 1e9 * 2 / GIB


def machine(billions: float) -> int:
    """GPUs of 80 GB, by powers of two: the training's memory and as many again that serve, a third of room besides."""
    gpus = 2
    while gpus / 2 * 80 < max(training_gib(billions), serving_gib(billions)) * 4 / 3:
        gpus *= 2
    return gpus


def plan(run: Run, config: Full) -> Report:
    """Tables of what the full preset loads and does with these settings; starts nothing."""
    models = Table(
        "Models, and the least machine for trainer and generators at the paper's scale",
        ("model", "parameters", "serve, GiB", "train, GiB", "machine"),
        [
            (name, f"{b:.1f}B", f"{serving_gib(b):.0f}", f"{training_gib(b):.0f}", f"{machine(b)} x H100 80 GB")
            for name, b in MODELS.items()
        ],
    )
    schedule = Table(
        "Schedule: the limit on length grows, and what is in flight shrinks as keys and values take more memory",
        ("stage", "most tokens of an answer", "answers in flight", "answers per batch", "tokens per batch at most"),
        [
            (i, f"{tokens:,}", f"{flight:,}", f"{batch:,}", f"{tokens * batch / 1e6:.0f}e6")
            for i, (tokens, flight, batch) in enumerate(STAGES, 1)
        ],
    )
    batch = config.groups * config.group_size
    total = config.steps * batch
    tokens = f"{total * config.max_tokens / 1e9:,.0f}e9"
    asked = Table(
        "As set: one stage of the schedule is one run",
        ("most tokens of an answer", "answers per batch", "updates", "answers of RL", "tokens in all, at most"),
        [(f"{config.max_tokens:,}", f"{batch:,}", config.steps, f"{total:,}", tokens)],
    )
    settings = Table(
        "Settings and their source",
        ("setting", "value", "source"),
        [(str(h["name"]), str(h["value"]), str(h["source"])) for h in paper("magistral").hyperparameters],
    )
    return run.report(
        "Magistral at the paper's scale: the plan",
        tables=[models, memory(MODELS), asked, schedule, settings],
        notes=[
            "Data: DeepScaleR-like mathematics with a tenth of the problems translated; answers are graded by "
            "`rewards.math`. Code with tests is left out.",
            f"The difficulty filter draws {config.samples} answers to every problem, before RL and after it.",
            needs_cluster(),
        ],
    )
