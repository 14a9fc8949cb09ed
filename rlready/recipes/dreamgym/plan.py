"""What the paper's own scale needs: models, memory and steps; the settings are those of `paper.toml`."""

from __future__ import annotations

from rlready.recipes.registry import paper
from rlready.run import Run
from rlready.run_report import Report, Table

BYTES = {"bf16": 2, "fp32": 4}
# Parameters in billions, from the models' public configurations.
MODELS = {"Llama-3.1-8B-Instruct": 8.03, "Llama-3.2-3B-Instruct": 3.21, "Qwen-2.5-7B-Instruct": 7.62}
# The recalled and own settings of `paper.toml`, repeated here as numbers to reckon with.
GROUPS, GROUP_SIZE, ITERATIONS = 16, 8, 150
STEP_CAPS = {"WebShop": 15, "ALFWorld": 50}
TOKENS = 8192


def training_gib(billions: float) -> float:
    """Memory of full fine-tuning with AdamW: bf16 weights and gradients, fp32 master weights and two moments."""
    return billions * 1e9 * (2 * BYTES["bf16"] + 3 * BYTES["fp32"]) / 2**30


def serving_gib(billions: float) -> float:
    """Memory of the weights alone, in bf16; the key/value cache comes on top."""
    return billions * 1e9 * BYTES["bf16"] / 2**30


def plan(run: Run) -> Report:
    """Tables of what the full preset loads and does; starts nothing."""
    models = Table(
        "Models",
        ("model", "role", "parameters", "serve, GiB", "train, GiB"),
        [
            (name, "experience model and agent" if name.startswith("Llama-3.1") else "agent", f"{b:.2f}B",
             f"{serving_gib(b):.0f}", f"{training_gib(b):.0f}")
            for name, b in MODELS.items()
        ],
    )  # fmt: skip
    episodes = GROUPS * GROUP_SIZE * ITERATIONS
    steps = Table(
        "Rollouts in the dream, per agent and environment",
        ("environment", "iterations", "episodes", "transitions at most", "experience-model tokens at most"),
        [(name, ITERATIONS, episodes, episodes * cap, f"{episodes * cap * TOKENS / 1e9:.0f}e9")
         for name, cap in STEP_CAPS.items()],
    )  # fmt: skip
    settings = Table(
        "Settings and their source",
        ("setting", "value", "source"),
        [(str(h["name"]), str(h["value"]), str(h["source"])) for h in paper("dreamgym").hyperparameters],
    )
    return run.report(
        "DreamGym at the paper's scale: the plan",
        tables=[models, steps, settings],
        notes=[
            "Token counts take every prompt at the experience model's context length; prefix caching divides them.",
            "Running it needs Hugging Face policies and vLLM serving, which this release does not have yet.",
        ],
    )
