"""Magistral's full preset on a small checkpoint and a dozen problems: the whole path, resuming, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlready.algorithms import Magistral
from rlready.checkpoint import load_state
from rlready.policy.hf import HFPolicy
from rlready.recipes.magistral import recipe
from rlready.recipes.magistral.full import Full, proved
from rlready.rewards import ThinkFormat
from rlready.run_files import read_jsonl
from rlready.types import Task, Trajectory, Turn, Verdict
from tests.recipes.full_fixtures import SYSTEM, Spy, checkpoint, opened, problems
from tests.same_run import same_run

pytest.importorskip("py3langid")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Full:
    path = tmp_path_factory.mktemp("magistral")
    return replace(
        recipe.FULL, model=str(checkpoint(path)), data=str(problems(path / "sums.jsonl")), held_out=0.3, steps=2,
        groups=2, group_size=3, samples=3, lr=1e-3, warmup=0, l_max=80, l_cache=20, max_tokens=110,
        languages=("en", "fr"), looks=2, look_tasks=2, checkpoints=2, eval_samples=1, dev_tasks=2, test_tasks=2,
    )  # fmt: skip


def test_two_updates_end_to_end_and_a_resumed_run_is_the_same(
    tmp_path: Path, config: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, opened(tmp_path / "a", config) as run:
        spy = Spy.on(patch)
        report = recipe.full(run, config=config)
    policy = HFPolicy.load(config.model)
    spy.check_ids(policy)
    folder = tmp_path / "a" / "full-1"
    assert all(SYSTEM in policy.renderer.decode(request.prompt_ids) for request, _ in spy.asked)

    # Every part of the reward is logged, and adds up to it.
    played = [line for line in read_jsonl(folder / "trajectories.jsonl") if line["stage"] == "magistral"]
    assert len(played) >= 2 * 2 * 3
    formed = [line for line in played if line["scores"]["format"] == 1]
    assert len(formed) > len(played) / 2 and len({line["reward"] for line in formed}) > 1
    for line in formed:
        s = line["scores"]
        assert line["reward"] == pytest.approx(0.1 + 0.9 * s["correct"] + s["length"] + 0.1 * s.get("language", 0.0))
        assert -0.1 <= s["length"] <= 0 and s["language/same"] in (0, 1)
    for line in played:
        if line["scores"]["format"] == 0:
            assert line["reward"] == 0 and "correct" not in line["scores"]
    lines = [line for line in read_jsonl(folder / "metrics.jsonl") if line["stage"] == "magistral"]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert all({"eval/success", "eval/consistency", "eval/formed", "eval/long"} <= line.keys() for line in lines)
    assert lines[1]["update/optimizer_steps"] == 1 and lines[1]["entropy"] > 0
    assert lines[1]["update/mismatch/abs"] == pytest.approx(1, abs=1e-3)

    before, after = (load_state(folder / "stages" / name, "learner")["model"] for name in ("start", "magistral"))
    assert any(not (before[name] == after[name]).all() for name in before)
    for name in ("filter/first/kept", "filter/second/wrong reference", "dev/magistral/consistency"):
        assert name in report.metrics
    passes = [sum(v for k, v in report.metrics.items() if k.startswith(f"filter/{n}/")) for n in ("first", "second")]
    judged = json.loads((folder / "stages" / "first-pass" / "record.json").read_text())["result"]["filtered"]["tasks"]
    assert passes[0] == passes[1] == len(judged) > 5 and all(task["samples"] == 3 for task in judged)

    update, calls = Magistral.update, []

    async def failing(self: Magistral, *args: object) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the power is out")
        return await update(self, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(RuntimeError), opened(tmp_path / "b", config) as run:
        patch.setattr(Magistral, "update", failing)
        recipe.full(run, config=config)
    with opened(tmp_path / "b", config, "full-1") as run:
        again = recipe.full(run, config=config)
    same_run(folder, tmp_path / "b" / "full-1", "checkpoints/magistral/step-00000002", "learner")
    assert again.metrics["test/magistral/tuned"] == report.metrics["test/magistral/tuned"]


def test_right_is_what_is_proved_of_the_box_behind_the_thoughts() -> None:
    task = Task.of("What is one half?", answer="\\frac{1}{2}")

    def judged(text: str, form: ThinkFormat | None = None) -> Verdict:
        score = proved(form or ThinkFormat(), "answer")(task, Trajectory(task, [Turn([0], [1], text=text)]))  # type: ignore[operator]
        return score.verdict  # type: ignore[no-any-return]

    assert judged(r"<think>It is \boxed{3}.</think> So \boxed{0.5}") is Verdict.RIGHT
    assert judged(r"<think>It is \boxed{0.5}.</think> So \boxed{2}") is Verdict.WRONG
    assert judged(r"<think>It is \boxed{0.5}.</think> So it is.") is Verdict.NO_ANSWER
    loose = ThinkFormat("[THINK]", "[/THINK]", "any")
    assert judged("[THINK]It is 3.[/THINK] The answer is 1/2.", loose) is Verdict.RIGHT
    assert judged("[THINK]It is 1/2.[/THINK] The answer is 3.", loose) is Verdict.WRONG
