"""VinePPO's full preset on a small checkpoint and a dozen problems: the whole path, resuming, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rlready.algorithms import VinePPO
from rlready.checkpoint import load_state
from rlready.policy.hf import HFPolicy
from rlready.recipes.vineppo import recipe
from rlready.recipes.vineppo.config import Full
from rlready.run_files import read_jsonl
from tests.recipes.full_fixtures import Spy, checkpoint, opened, problems
from tests.same_run import same_run


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Full:
    path = tmp_path_factory.mktemp("vineppo")
    return replace(
        recipe.FULL, model=str(checkpoint(path)), data=str(problems(path / "sums.jsonl")), held_out=0.3,
        arms=("VinePPO",), iterations=2, groups=2, group_size=3, k=2, minibatches=2, epochs=1, warmup=0,
        lr=replace(recipe.FULL.lr, vine=1e-3, restem=1e-3), temperature=1.0, top_p=0.95, max_tokens=100, eval_every=1,
        eval_samples=2, test_tasks=1, dev_tasks=1, eval_tasks=1, rounds=1,
    )  # fmt: skip


def test_two_updates_end_to_end_and_a_resumed_run_is_the_same(
    tmp_path: Path, config: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, opened(tmp_path / "a", config) as run:
        spy = Spy.on(patch)
        report = recipe.full(run, config=config)
    policy = HFPolicy.load(config.model)
    spy.check_ids(policy)
    assert not any("Look at the two of them." in text for text in spy.encoded)  # only prompts are ever written out
    lines = [line for line in read_jsonl(tmp_path / "a" / "full-1" / "metrics.jsonl") if line["stage"] == "VinePPO"]
    assert [line["step"] for line in lines] == [0, 1, 2]
    for line in lines[1:]:
        assert line["episodes"] == 6 and line["update/vine/states"] > 6  # more than one step an answer
        assert line["update/vine/distinct"] < line["update/vine/states"] and line["update/vine/dropped"] == 0
        assert line["update/ratio/mean"] == pytest.approx(1, abs=0.2) and line["update/optimizer_steps"] == 2
    assert lines[1]["update/mismatch/abs"] == pytest.approx(1, abs=1e-3)  # top-p is the same on both sides
    assert len(spy.probes) == 2 * sum(line["update/vine/distinct"] for line in lines[1:])
    assert 0 < lines[1]["success"] < 1

    stages = tmp_path / "a" / "full-1" / "stages"
    before, after = (load_state(stages / name, "learner")["model"] for name in ("start", "VinePPO"))
    assert any(not (before[name] == after[name]).all() for name in before)
    assert (before["model.norm.weight"] == policy.body.live()["model.norm.weight"]).all()
    assert {"test/start/greedy", "test/VinePPO/tuned", "best/VinePPO", "tokens/VinePPO"} <= report.metrics.keys()
    assert report.metrics["tokens/VinePPO"] == sum(len(s.completion_ids) for _, s in spy.probes) + sum(
        line["tokens"] for line in lines[1:]
    )

    update, calls = VinePPO.update, []

    async def failing(self: VinePPO, *args: object) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the power is out")
        return await update(self, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(RuntimeError), opened(tmp_path / "b", config) as run:
        patch.setattr(VinePPO, "update", failing)
        recipe.full(run, config=config)
    with opened(tmp_path / "b", config, "full-1") as run:
        again = recipe.full(run, config=config)
    same_run(tmp_path / "a" / "full-1", tmp_path / "b" / "full-1", "checkpoints/VinePPO/step-00000002", "learner")
    assert again.metrics["test/VinePPO/tuned"] == report.metrics["test/VinePPO/tuned"]


def test_rivals_start_from_the_sft_that_was_asked_for_and_test_files_are_held_out(
    tmp_path: Path, config: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = problems(tmp_path / "held.jsonl").read_text().splitlines()[:2]
    (tmp_path / "held.jsonl").write_text("\n".join(held))
    config = replace(
        config, test=(str(tmp_path / "held.jsonl"),), arms=("GRPO", "RestEM"), sft_epochs=1, sft_lr=3e-3, iterations=1,
        sft_tokens=400, restem_minibatches=2, eval_samples=1, dev_tasks=1, eval_tasks=1,
    )  # fmt: skip
    with monkeypatch.context() as patch, opened(tmp_path, config) as run:
        spy = Spy.on(patch)
        report = recipe.full(run, config=config)
    assert any("Look at the two of them." in text for text in spy.encoded)  # SFT writes solutions, as it must
    stages = tmp_path / "full-1" / "stages"
    start, grpo, restem = (load_state(stages / name, "learner") for name in ("start", "GRPO", "RestEM"))
    given = HFPolicy.load(config.model).body.live()
    for state in (start, grpo, restem):
        assert not (state["model"]["lm_head.weight"] == given["lm_head.weight"]).all()
    for state in (grpo, restem):  # both from the weights after SFT, not from each other's
        assert all((state["reference"][name] == start["model"][name]).all() for name in given)
    assert grpo["version"] == start["version"] + 2  # of 1 epoch and 2 minibatches
    found = re.search(r"(\d+) problems to train on, (\d+) as dev", report.notes[0])
    assert found is not None and int(found[1]) + int(found[2]) == 12 - 2
    assert [row[0] for row in report.tables[0].rows] == ["start", "GRPO", "RestEM"]
