"""Agnostics' full preset on a small checkpoint and a dozen tasks: the whole path, resuming, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlready.algorithms import SFT
from rlready.checkpoint import load_state
from rlready.errors import UserError
from rlready.policy.base import OptimizerConfig
from rlready.policy.hf import HFPolicy
from rlready.recipes.agnostics import recipe
from rlready.recipes.agnostics.full import ARMS, Full, read_tasks
from rlready.recipes.agnostics.prompts import Problem, fenced, write_prompt
from rlready.rewards.code import CodePool, language
from rlready.run import Run
from rlready.run_files import read_jsonl
from rlready.run_folder import slug
from rlready.types import Message, Row
from tests.policy import hf_fixtures

NUMBERS = range(1, 13)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Full:
    path = tmp_path_factory.mktemp("agnostics")
    yaml = path / "short.yaml"
    yaml.write_text("prompt: |\n  Use Lua.\n  No tips.\nfilename: a.lua\nexecute: lua5.4 a.lua\n")
    try:
        CodePool(yaml, 1).start().close()
    except UserError as error:
        pytest.skip(str(error))
    data = path / "adds.jsonl"
    data.write_text("".join(json.dumps(record(k) | {"origin": "ours"}) + "\n" for k in NUMBERS))
    return replace(
        recipe.FULL, model=str(checkpoint(path, yaml)), data=str(data), language=str(yaml), held_out=0.25, steps=2,
        groups=2, group_size=3, lr=1e-3, max_tokens=60, temperature=1.0, looks=1, eval_samples=2, dev_tasks=2,
        test_tasks=2, timeout=10.0, arms=ARMS, workers=1, deadline=120.0,
    )  # fmt: skip


def record(k: int) -> dict[str, object]:
    tests = [{"input": str(n), "output": str(n + k)} for n in (2, 5)]
    return {"id": str(k), "description": f"Add {k}.", "input_format": "a", "output_format": "b", "tests": tests}


def checkpoint(path: Path, yaml: Path) -> Path:
    """A random Llama that has then seen programs, two of three right, after prompts in every form."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf_fixtures, "LETTERS", [*hf_fixtures.LETTERS, "`"])
        random = hf_fixtures.folder(path / "random", sharp=1.0, context=512)
    policy = HFPolicy.load(random, optimizer=OptimizerConfig(lr=1e-2))
    rows = []
    for i, k in enumerate([*NUMBERS] * 3):
        form = ("standard", "other", "bare")[(i // 12 + i) % 3]
        tips = i % 2 == 0
        prompt = write_prompt(Problem.of(record(k)), language(yaml).prompt, form, tips=tips)  # type: ignore[arg-type]
        program = fenced(f'print(io.read("n") + {k + (i // 12 == 2)})')
        ids = policy.renderer.encode_completion(program)
        rows.append(Row.from_segments([(policy.renderer.render([Message.user(prompt)]), 0.0), (ids, 1.0)]))
    SFT(seed=0).fit_rows(policy, rows, epochs=24, batch_tokens=600)
    policy.save(path / "model")
    return path / "model"


def opened(root: Path, config: Full, resume: str | None = None) -> Run:
    return Run.create("full", config, 3, root=root, resume=resume, progress="quiet")


def test_two_updates_end_to_end_and_a_resumed_run_is_the_same(tmp_path: Path, config: Full) -> None:
    with opened(tmp_path / "a", config) as run:
        report = recipe.full(run, config=config)
    folder = tmp_path / "a" / "full-1"
    for arm, paid in zip(ARMS, ({0.0, 1.0}, {0.0, 0.2, 1.0}), strict=True):
        played = [line for line in read_jsonl(folder / "trajectories.jsonl") if line["stage"] == arm]
        assert len(played) == 2 * 2 * 3 and {line["reward"] for line in played} <= paid
        before, after = (load_state(folder / "stages" / name, "learner")["model"] for name in ("start", slug(arm)))
        rewards: dict[str, set[float]] = {}
        for line in played:
            rewards.setdefault(line["task"]["id"], set()).add(line["reward"])
            (asked,) = line["task"]["prompt"]
            assert asked["content"].endswith("Use Lua.\nNo tips."), "tips stand in training's prompts"
        moved = any(not (before[name] == after[name]).all() for name in before)
        assert moved == any(len(each) > 1 for each in rewards.values())
    assert {"test/start/tuned", f"test/{ARMS[0]}/tuned", "executed/short"} <= report.metrics.keys()
    assert report.metrics["executed/short"] > 0
    measured = [line for line in read_jsonl(folder / "trajectories.jsonl") if line["stage"] == ARMS[0]]
    assert {line["verdict"] for line in measured} >= {"right", "wrong"}

    with opened(tmp_path / "a", config, resume="full-1") as run:
        again = recipe.full(run, config=config)
    same = {k: v for k, v in report.metrics.items() if not k.startswith(("seconds/", "executed/"))}
    assert {k: v for k, v in again.metrics.items() if k in same} == pytest.approx(same, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"description": "a", "input_format": "b", "output_format": "c", "tests": []}', "line 2.*at least one test"),
        (
            '{"description": "a", "output_format": "c", "tests": [{"input": "", "output": "1"}]}',
            'line 2.*"input_format"',
        ),
    ],
)
def test_a_record_that_is_no_task_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(f"{json.dumps(record(1))}\n{line}\n")
    with pytest.raises(UserError, match=said):
        read_tasks(str(path), 8000)
    path.write_text(json.dumps(record(1)) + "\n" + json.dumps(record(2) | {"notes": "x" * 9000}) + "\n")
    assert [problem.id for problem in read_tasks(str(path), 8000)] == ["1"], "too long a prompt is left out"


def test_what_is_refused(tmp_path: Path, config: Full) -> None:
    with opened(tmp_path, config) as run:
        with pytest.raises(UserError, match="no arm PPO"):
            recipe.full(run, config=replace(config, arms=("PPO",)))
        with pytest.raises(UserError, match="description and tests"):
            recipe.full(run, config=replace(config, data=""))
        with pytest.raises(UserError, match='Unknown language "klingon"'):
            recipe.full(run, config=replace(config, language="klingon"))
        few = tmp_path / "few.jsonl"
        few.write_text(json.dumps(record(1)) + "\n")
        with pytest.raises(UserError, match="none falls to"):
            recipe.full(run, config=replace(config, data=str(few)))
