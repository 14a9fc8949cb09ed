"""The flagship's smoke preset: the whole path, in the suite. Its numbers mean nothing; that they are all there does."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rlready.errors import UserError
from rlready.recipes.dreamgym import recipe
from rlready.recipes.registry import paper
from rlready.run import Run

ARMS = ("cloning", "filtered cloning", "real GRPO", "real GRPO, small budget", "dream GRPO", "sim-to-real")


def test_smoke_goes_the_whole_way_and_resume_repeats_nothing(tmp_path: Path) -> None:
    with Run.create("smoke", recipe.SMOKE, seed=3, root=tmp_path, progress="quiet") as run:
        report = recipe.smoke(run)
        spent = run.spent("real")
    numbers = report.metrics
    for arm in ARMS:
        assert 0 <= numbers[f"test/{arm}/greedy"] <= 1
        assert 0 <= numbers[f"hard/{arm}/sampled"] <= 1
    assert all(claim.metric in numbers for claim in paper("dreamgym").claims)
    assert numbers["real/dream GRPO"] == numbers["real/filtered cloning"] == 0
    assert numbers["checks/dream GRPO"] > 0
    assert numbers["real/real GRPO"] > 0 and numbers["real/sim-to-real"] > 0
    assert spent == sum(numbers[f"real/{arm}"] for arm in ARMS)
    assert numbers["dream/different replays"] == 0
    assert not math.isnan(numbers["dream/heldout/trace"])
    assert (tmp_path / "smoke-1" / "agents.png").stat().st_size > 10_000
    assert "agents.png" in (tmp_path / "smoke-1" / "report.md").read_text()

    # Every stage is done: going on trains nothing and says the same.
    with Run.create("smoke", recipe.SMOKE, root=tmp_path, resume="smoke-1", progress="quiet") as run:
        again = recipe.smoke(run)
        assert run.spent("real") == spent
    same = {k: v for k, v in numbers.items() if not k.startswith("seconds/")}
    # Nothing over nothing is nan in so small a run, and must be nan again.
    assert {k: v for k, v in again.metrics.items() if k in same} == pytest.approx(same, rel=0, abs=0, nan_ok=True)


def test_full_is_planned_and_refuses_to_run(tmp_path: Path) -> None:
    with Run.create("full", None, root=tmp_path, progress="quiet") as run:
        plan = recipe.full(run, plan=True)
        assert {row[0] for row in plan.tables[0].rows} >= {"Llama-3.1-8B-Instruct", "Qwen-2.5-7B-Instruct"}
        with pytest.raises(UserError, match="--plan"):
            recipe.full(run)
    assert json.loads((tmp_path / "full-1" / "report.json").read_text())["title"].startswith("DreamGym")
