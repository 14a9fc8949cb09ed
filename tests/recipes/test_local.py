"""What full presets read from this machine: what is missing is said in a sentence, and files become disjoint splits."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlready.config import load
from rlready.errors import UserError
from rlready.policy.base import OptimizerConfig
from rlready.policy.hf import HFPolicy
from rlready.policy.process import in_process
from rlready.recipes.local import PLAIN, Local, Start, check, memory, policy_of, splits_of
from rlready.rewards import math
from rlready.run import Run
from rlready.types import Message
from tests.policy.hf_fixtures import folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("local") / "base", template=None)


def records(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("slug", ["vineppo", "magistral"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "no model is given"),
        (["model=nowhere"], "there is no nowhere"),
        (["model=."], "no data is given"),
        (["model=.", "data=nothing.jsonl"], "no file nothing.jsonl"),
        (["model=.", "data={data}", 'test=["other.jsonl"]'], "no file other.jsonl"),
        (["model=.", "data={data}", "template=t.jinja"], "no file t.jinja"),
        (["model=.", "data={data}", "sampler=vllm"], "vllm is not in this release"),
        (["model=.", "data={data}", "sampler=process"], "samples in this process"),
        (["model=.", "data={data}", "held_out=0.5"], "below 0.5"),
        (["model=.", "data={data}", 'arms=["PPO"]'], 'Unknown arm "PPO"'),
        (["model={here}", "data={data}"], "neither config.json nor a GGUF file"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(tmp_path: Path, slug: str, given: list[str], said: str) -> None:
    data = records(tmp_path / "d.jsonl", [{"problem": f"1 + {i}?", "answer": 1 + i} for i in range(60)])
    words = [text.format(data=data, here=tmp_path) for text in given]
    recipe = importlib.import_module(f"rlready.recipes.{slug}.recipe")
    config = load(type(recipe.FULL), None, words, base=recipe.FULL)
    with (
        Run.create("t", config, root=tmp_path, progress="quiet") as run,
        pytest.raises(UserError, match=said) as caught,
    ):
        recipe.full(run, config=config)
    assert "\n" not in str(caught.value)


def test_arms_that_a_model_of_this_kind_cannot_do_say_why(tmp_path: Path, model: Path) -> None:
    from rlready.recipes.magistral import recipe as magistral

    data = records(tmp_path / "d.jsonl", [{"problem": f"1 + {i}?", "answer": 1 + i} for i in range(60)])
    here = {"model": str(model), "data": str(data)}
    with Run.create("t", root=tmp_path, progress="quiet") as run:
        with pytest.raises(UserError, match="takes new weights between batches"):
            magistral.full(run, config=replace(magistral.FULL, **here, arms=("asynchronous",)))
        with pytest.raises(UserError, match=r"form\.answer=code"):
            form = replace(magistral.FULL.form, answer="code")
            magistral.full(run, config=replace(magistral.FULL, **here, form=form))
    policy = HFPolicy.load(model, otherwise=PLAIN)
    with pytest.raises(UserError, match="new weights between batches, not in flight"), in_process(policy):
        pass


def test_base_models_get_a_plain_template_and_keep_it_when_saved(tmp_path: Path, model: Path) -> None:
    with Run.create("t", root=tmp_path, progress="quiet") as run:
        policy = policy_of(run, Local(model=str(model)), OptimizerConfig(lr=1e-3))
        asked = (Message("system", "be kind"), Message.user("what is it"))
        assert policy.renderer.decode(policy.renderer.render(asked)) == "be kind\n\nProblem:\nwhat is it\n\nSolution:\n"
        assert policy.renderer.stop_ids == (3,)  # the tokenizer's end of text
        policy.save(tmp_path / "saved")
        again = HFPolicy.load(tmp_path / "saved")
        assert again.renderer.render(asked) == policy.renderer.render(asked)
        own = tmp_path / "own.jinja"
        own.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}>")
        other = policy_of(run, Local(model=str(model), template=str(own)), OptimizerConfig(lr=1e-3))
        assert other.renderer.decode(other.renderer.render(asked[1:])) == "[what is it]>"
        adapted = policy_of(run, Local(model=str(model), lora=4), OptimizerConfig(lr=1e-3))
        assert adapted.adapted and all("lora" in name for name in adapted.body.trainable)


def test_weights_are_put_back_with_a_fresh_optimizer(model: Path) -> None:
    from rlready.algorithms import SFT
    from rlready.types import Row

    policy = HFPolicy.load(model, otherwise=PLAIN, optimizer=OptimizerConfig(lr=1e-2))
    assert policy.learner is not None
    first = policy.body.copy()
    start = Start.of(policy, OptimizerConfig(lr=1e-2))
    rows = [Row.from_segments([([5, 6, 7], 0.0), ([8, 9], 1.0)])]
    SFT().fit_rows(policy, rows, epochs=3)
    assert not torch.equal(policy.body.live()["lm_head.weight"], first["lm_head.weight"])
    start.again(OptimizerConfig(lr=5e-3))
    assert all(torch.equal(tensor, first[name]) for name, tensor in policy.body.live().items())
    assert policy.learner.version == policy.version == 0 and policy.learner.state_dict()["optimizer"]["taken"] == 0  # type: ignore[attr-defined]
    assert policy.learner.optimizer.lr == 5e-3  # type: ignore[attr-defined]


def test_files_become_disjoint_splits_and_bad_golds_are_left_out(tmp_path: Path) -> None:
    lines = [{"q": f"What is {i} + 1?", "gold": i + 1, "more": "x"} for i in range(200)]
    data = records(tmp_path / "d.jsonl", [*lines, {"q": "Why?", "gold": "\\frac{1}{", "more": "x"}, lines[0]])
    held = records(tmp_path / "held.jsonl", [{"q": line["q"], "gold": line["gold"]} for line in lines[:30]])
    far = records(tmp_path / "train.jsonl", [{"q": f"Far: {i} * 2?", "gold": f"#### {2 * i}"} for i in range(9)])
    config = Local(data=str(data), problem="q", answer="gold", held_out=0.1)
    score = math("gold")
    with Run.create("t", root=tmp_path, progress="quiet") as run:
        said: list[str] = []
        run.say = said.append  # type: ignore[method-assign]
        alone = splits_of(run, config, score, system="Be brief.")
        assert sorted(alone) == ["dev", "test", "train"] and sum(map(len, alone.values())) == 200
        assert said == [f"1 records of {data} have an answer that cannot be read as mathematics, and were left out."]
        task = alone["train"][0]
        assert [m.role for m in task.prompt] == ["system", "user"] and set(task.data) == {"gold"}
        found = splits_of(run, replace(config, test=(str(held), str(far))), score, columns=["more"])
        assert sorted(found) == ["dev", "test", "train", "train 2"]  # a file's name does not hide a split
        assert (len(found["test"]), len(found["train 2"])) == (30, 9)
        asked = {name: {task.prompt[-1].text for task in tasks} for name, tasks in found.items()}
        assert len(set().union(*asked.values())) == sum(map(len, asked.values())) == 200 + 9
        assert said[-1] == f"30 records of {data} are problems of the test files, and were left out."
        with pytest.raises(UserError, match='no column "answer"'):
            splits_of(run, replace(config, answer="answer"), math("answer"))
        few = records(tmp_path / "few.jsonl", lines[:2])
        with pytest.raises(UserError, match="of 2 problems none falls to"):
            splits_of(run, replace(config, data=str(few)), score)


def test_memory_is_reckoned_by_weights() -> None:
    rows = memory({"small": 0.5, "large": 70.0}).rows
    assert rows[0] == ("small", "11", "1", "24 GB")  # 24 and 2 bytes a weight, over 2^30
    assert rows[1][1:] == ("1565", "130", "none")


def test_check_takes_what_is_there(tmp_path: Path, model: Path) -> None:
    data = records(tmp_path / "d.jsonl", [{"problem": "1 + 1?", "answer": 2}])
    check(Local(model=str(model), data=str(data)), "vineppo")
