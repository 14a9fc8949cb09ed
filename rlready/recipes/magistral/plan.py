"""What the paper's own scale needs: models, memory and tokens; the settings are those of `paper.toml`."""

from __future__ import annotations

from rlready.errors import UserError
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


def plan(run: Run, only_plan: bool) -> Report:
    """Tables of what the full preset loads and does; starts nothing.

    Raises:
        UserError: it was asked to run; the serving it needs comes in a later release.
    """
    if not only_plan:
        raise UserError(
            "magistral, preset full, needs vLLM serving on several GPUs, which this release does not have yet. "
            "See what it will need: rlready run magistral --preset full --plan."
        )
    models = Table(
        "Models",
        ("model", "parameters", "serve, GiB", "train, GiB"),
        [(name, f"{b:.1f}B", f"{serving_gib(b):.0f}", f"{training_gib(b):.0f}") for name, b in MODELS.items()],
    )
    schedule = Table(
        "Schedule: the limit on length grows, and what is in flight shrinks as keys and values take more memory",
        ("stage", "most tokens of an answer", "answers in flight", "answers per batch", "tokens per batch at most"),
        [
            (i, f"{tokens:,}", f"{flight:,}", f"{batch:,}", f"{tokens * batch / 1e6:.0f}e6")
            for i, (tokens, flight, batch) in enumerate(STAGES, 1)
        ],
    )
    settings = Table(
        "Settings and their source",
        ("setting", "value", "source"),
        [(str(h["name"]), str(h["value"]), str(h["source"])) for h in paper("magistral").hyperparameters],
    )
    return run.report(
        "Magistral at the paper's scale: the plan",
        tables=[models, schedule, settings],
        notes=[
            "Data: DeepScaleR-like mathematics and code with tests; answers are graded by `rewards.math` and by "
            "running tests.",
            "Running it needs vLLM serving on several GPUs, which this release does not have yet.",
        ],
    )
