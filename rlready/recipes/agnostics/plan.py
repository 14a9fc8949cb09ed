"""What the paper's own scale needs: models, memory and programs; the settings are those of `paper.toml`."""

from __future__ import annotations

from rlready.recipes.agnostics.full import Full
from rlready.recipes.local import memory, needs_cluster
from rlready.recipes.registry import paper
from rlready.rewards.code.languages import languages
from rlready.run import Run
from rlready.run_report import Report, Table

# Parameters in billions, from the models' public configurations.
MODELS = {
    "Qwen3-4B": 4.0, "Qwen3-8B": 8.2, "DeepSeek-Coder-6.7B-Instruct": 6.7, "Phi-4-mini": 3.8, "SmolLM3-3B": 3.1,
}  # fmt: skip
# Tasks to train on, and tasks to test on, from the digest of the paper.
DATA = {"Ag-Codeforces-X": (5369, 0), "Ag-MBPP-X": (384, 500), "Ag-LiveCodeBench-X": (0, 499)}
GIB = 2**30


def plan(run: Run, config: Full) -> Report:
    """Tables of what the full preset loads and runs with these settings; starts nothing."""
    batch = config.groups * config.group_size
    models = Table(
        "Models: GiB to serve (bf16 weights) and to train (AdamW in mixed precision), keys and values besides",
        ("model", "parameters", "serve", "train"),
        [(name, f"{b:.1f}B", f"{2e9 * b / GIB:.0f}", f"{16e9 * b / GIB:.0f}") for name, b in MODELS.items()],
    )
    data = Table(
        "Data: tasks by input and output, in any of the languages",
        ("tasks", "to train on", "to test on", "updates of one pass", "programs of one pass", "tokens at most"),
        [
            (name, f"{train:,}", f"{test:,}", f"{train // config.groups:,}", f"{train * config.group_size:,}",
             f"{train * config.group_size * config.max_tokens / 1e9:.2f}e9")
            for name, (train, test) in DATA.items()
        ],
    )  # fmt: skip
    known = Table(
        "Languages",
        ("language", "runs here", "to do"),
        [(each.name, "yes" if each.runs_here else "no", each.remedy or "-") for each in languages().values()],
    )
    settings = Table(
        "Settings and their source",
        ("setting", "value", "source"),
        [(str(h["name"]), str(h["value"]), str(h["source"])) for h in paper("agnostics").hyperparameters],
    )
    return run.report(
        "Agnostics at the paper's scale: the plan",
        tables=[models, memory(MODELS), data, known, settings],
        notes=[
            f"A batch is {batch} programs, each run on its tests until one fails, {config.timeout:g} s a test at most.",
            "The paper has two or more GPUs, one to train and one to serve, and CPU nodes for the executors.",
            needs_cluster(),
        ],
    )
