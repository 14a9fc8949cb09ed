"""What the paper's own scale needs: models, memory and samples; the settings are those of `paper.toml`."""

from __future__ import annotations

from rlready.recipes.local import memory, needs_cluster
from rlready.recipes.registry import paper
from rlready.recipes.vineppo.config import Full
from rlready.run import Run
from rlready.run_report import Report, Table

# Parameters in billions, from the models' public configurations; accelerators as in the digest of the paper.
MODELS = {"rho-math-1b": (1.10, "4 x A100 80 GB"), "deepseek-math-7b-base": (6.91, "8 x H100")}
# Iterations of the paper, the cap of probed states (25 on GSM8K; on MATH a usual number of steps, ours), and tokens of
# an answer at most.
TASKS = {"MATH": (1000, 12, 1024), "GSM8K": (650, 25, 1024)}


def training_gib(billions: float, *, reference: bool = True) -> float:
    """AdamW in mixed precision: bf16 weights and gradients, fp32 master weights and two moments; a bf16 reference."""
    return billions * 1e9 * (2 * 2 + 3 * 4 + (2 if reference else 0)) / 2**30


def serving_gib(billions: float) -> float:
    """The weights alone, in bf16; the key/value cache comes on top."""
    return billions * 1e9 * 2 / 2**30


def plan(run: Run, config: Full) -> Report:
    """Tables of what the full preset loads and samples with these settings; starts nothing."""
    models = Table(
        "Models: GiB to serve, to train with a reference, and for PPO's critic besides",
        ("model", "size", "serve", "train", "critic", "machine"),
        [
            (name, f"{b:.2f}B", f"{serving_gib(b):.0f}", f"{training_gib(b):.0f}",
             f"{training_gib(b, reference=False):.0f}", machine)
            for name, (b, machine) in MODELS.items()
        ],
    )  # fmt: skip
    episodes = config.groups * config.group_size
    updates = config.epochs * config.minibatches
    rows = []
    for name, (iterations, states, tokens) in TASKS.items():
        samples = episodes * (1 + config.k * states)
        rows.append(
            (name, iterations, episodes, updates, f"{samples:,}", f"{iterations * samples * tokens / 2 / 1e9:,.0f}e9")
        )
    columns = ("task", "iterations", "answers", "steps", "samples", "tokens in all")
    settings = Table(
        "Settings and their source",
        ("setting", "value", "source"),
        [(str(h["name"]), str(h["value"]), str(h["source"])) for h in paper("vineppo").hyperparameters],
    )
    return run.report(
        "VinePPO at the paper's scale: the plan",
        tables=[
            models,
            memory({name: b for name, (b, _) in MODELS.items()}),
            Table("VinePPO per model: answers, optimizer steps and samples (at most) per iteration", columns, rows),
            settings,
        ],
        notes=[
            "A continuation is taken to be half as long as the longest answer. States that answers share are probed "
            "once, and prefix caching spares most of the prompts, so both are upper bounds.",
            "Evaluated on the held-out problems of MATH and GSM8K, and on CollegeMath and OlympiadBench: 16 samples at "
            "T=0.35.",
            needs_cluster(),
        ],
    )
