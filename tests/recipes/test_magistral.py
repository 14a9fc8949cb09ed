"""The smoke preset of Magistral: the whole path. Its numbers mean nothing; that they are all there does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlready.errors import UserError
from rlready.recipes.magistral import recipe
from rlready.recipes.magistral.measure import Names, course
from rlready.recipes.registry import paper
from rlready.run import Run
from rlready.run_files import read_jsonl

pytest.importorskip("py3langid")
NAMES = Names()


def test_smoke_goes_the_whole_way_and_resume_repeats_nothing(tmp_path: Path) -> None:
    with Run.create("smoke", recipe.SMOKE, seed=3, root=tmp_path, progress="quiet") as run:
        report = recipe.smoke(run)
        spent = run.spent("real")
    numbers = report.metrics
    for arm in (NAMES.base, NAMES.filtered, *NAMES.trained):
        assert 0 <= numbers[f"test/{arm}/greedy"] <= 1
        assert 0 <= numbers[f"language/{arm}/consistency"] <= 1
    for arm in NAMES.trained:
        assert numbers[f"real/{arm}"] >= recipe.SMOKE.steps * recipe.SMOKE.groups * recipe.SMOKE.group_size
        assert 0 <= numbers[f"course/{arm}/idle"] <= 1
        assert numbers[f"course/{arm}/lag"] >= 0
    assert all(claim.metric in numbers for claim in paper("magistral").claims)
    assert numbers["tables/rows wrong"] == 0 and numbers["tables/rows"] > 30
    assert numbers["padding saved, packed"] > 0.1
    judged = sum(numbers[f"filter/second/{why}"] for why in ("kept", "never solved", "nearly always solved"))
    assert judged + numbers["filter/second/wrong reference"] == recipe.SMOKE.pool
    for picture in ("arms.png", "curves.png"):
        assert (tmp_path / "smoke-1" / picture).stat().st_size > 10_000
        assert picture in (tmp_path / "smoke-1" / "report.md").read_text()
    many = [line for line in read_jsonl(tmp_path / "smoke-1" / "metrics.jsonl") if line["stage"] == NAMES.many]
    for line in many:
        if line["step"] > 0:  # groups without spread are removed, so where none has any there is no step
            assert line["update/optimizer_steps"] == (recipe.SMOKE.minibatches if line["uniform"] < 1 else 0)

    # Every stage is done: going on trains nothing and says the same.
    with Run.create("smoke", recipe.SMOKE, root=tmp_path, resume="smoke-1", progress="quiet") as run:
        again = recipe.smoke(run)
        assert run.spent("real") == spent
        assert course(run, NAMES.apart, recipe.SMOKE.steps).lag == numbers[f"course/{NAMES.apart}/lag"]
    same = {k: v for k, v in numbers.items() if not k.startswith("seconds/")}
    assert {k: v for k, v in again.metrics.items() if k in same} == pytest.approx(same, rel=0, abs=0, nan_ok=True)


def test_the_loss_is_the_papers(tmp_path: Path) -> None:
    with Run.create("loss", None, root=tmp_path, progress="quiet") as run:
        algorithm = recipe.Lab(run, recipe.SMOKE).algorithm()
    assert (algorithm.advantage, algorithm.average, algorithm.trust) == ("batch_std", "group", "clip")
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.kl, algorithm.minibatches) == (0.2, 0.3, 0.0, 1)
    assert algorithm.max_lag >= recipe.Config().max_lag


def test_full_plans_without_a_model_and_says_what_it_needs(tmp_path: Path) -> None:
    with Run.create("full", None, root=tmp_path, progress="quiet") as run:
        plan = recipe.full(run, plan=True)
        machines = {row[0]: row[-1] for row in plan.tables[0].rows}
        assert machines["Mistral-Small-3 24B"] == "16 x H100 80 GB" and "Qwen3-8B" in machines
        asked = plan.tables[2].rows[0]
        assert asked[1] == "2,048" and asked[3] == f"{300 * 128 * 16:,}"
        with pytest.raises(UserError, match="no model is given"):
            recipe.full(run)
    assert json.loads((tmp_path / "full-1" / "report.json").read_text())["title"].startswith("Magistral")
