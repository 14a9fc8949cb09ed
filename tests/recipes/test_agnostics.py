"""Agnostics' recipe: tasks and their programs, prompts, the judge, and the smoke preset from end to end."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.doctor import Setup
from rlready.errors import UserError
from rlready.recipes.agnostics import recipe
from rlready.recipes.agnostics.families import FAMILIES, READS
from rlready.recipes.agnostics.judge import PARTIAL, Judge, cases_of
from rlready.recipes.agnostics.programs import FOLDER, written
from rlready.recipes.agnostics.prompts import Problem, draw_form, fenced, write_prompt
from rlready.recipes.agnostics.tasks import TESTS, cut, problem, tasks
from rlready.recipes.registry import paper
from rlready.rewards.code import Test, find_program, language, languages
from rlready.run import Run
from rlready.seeds import rng
from rlready.types import Score, Task, Trajectory, Turn, Verdict

WRITTEN = sorted(path.stem for path in FOLDER.glob("*.toml"))


def judge_of(name: str) -> Judge:
    try:
        return Judge(language(name), timeout_s=10.0)
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def lua() -> Iterator[Judge]:
    judge = judge_of("lua")
    yield judge
    judge.close()


def said(judge: Judge, text: str, task: Task, partial: float = 0.0) -> Score:
    reward = judge.reward(partial)
    score: Score = asyncio.run(reward(task, Trajectory(task, [Turn([0], [1], text=text)])))
    return score


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_families_are_whole() -> None:
    assert 24 <= len(FAMILIES) == len({f.name for f in FAMILIES}) and WRITTEN == ["lua", "ocaml", "python"]
    for family in FAMILIES:
        assert family.reads in READS and len(family.settings) >= 3 and len(family.says) == 2
        filled = {text.format(**each) for each in family.settings for text in family.says}
        assert len(filled) == 2 * len(family.settings), "another setting is another text"


@pytest.mark.parametrize("name", WRITTEN)
def test_every_program_is_right_in_every_language(name: str) -> None:
    """One task of each family, and both styles of names; the answers are the Python references'."""
    judge = judge_of(name)

    async def results() -> list[tuple[str, str]]:
        made = []
        for i, family in enumerate(FAMILIES):
            chance = rng(3, family.name)
            wanted = problem(family, chance.choice(family.settings), chance)
            chosen = chance.choice(family.settings)
            wanted = problem(family, chosen, chance)
            program = written(name).program(family.name, family.reads, chosen, random.Random(i))
            made.append((family.name, program, wanted.tests))
        found = await asyncio.gather(*(judge.run(program, tests) for _, program, tests in made))
        return [(family, f"{r.result} {r.reason}") for (family, _, _), r in zip(made, found, strict=True)]

    try:
        assert not [each for each in asyncio.run(results()) if not each[1].startswith("success")]
    finally:
        judge.close()


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_tests_tell_programs_apart_and_are_the_references(seed: int) -> None:
    for family in FAMILIES:
        for chosen in family.settings:
            made = problem(family, chosen, random.Random(f"{seed} {family.name} {chosen}"))
            assert len(made.tests) == TESTS and len({test.input for test in made.tests}) == TESTS
            assert all(test.output and family.solve(test.input, chosen) == test.output for test in made.tests)
            assert len({test.output for test in made.tests}) > 1, "no program that prints a constant is right"


def test_settings_are_cut_70_30_within_each_family_and_nothing_held_out_is_shown() -> None:
    parts = cut(5)
    seen: dict[str, set[str]] = {name: {f"{f.name} {s}" for f, s in part} for name, part in parts.items()}
    assert not seen["train"] & seen["test"] and not seen["dev"] & (seen["train"] | seen["test"])
    everything = sum(len(f.settings) for f in FAMILIES)
    assert sum(map(len, seen.values())) == everything and 0.27 < len(seen["test"]) / everything < 0.35
    assert {f.name for f, _ in parts["train"]} == {f.name for f, _ in parts["test"]} == {f.name for f in FAMILIES}
    assert cut(6)["test"] != parts["test"]
    drawn = tasks(parts["train"], language("lua"), 52, 1, "some")
    assert {f"{t.data['family']} {t.data['settings']}" for t in drawn} <= seen["train"]
    assert Counter(t.data["family"] for t in drawn).most_common(1)[0][1] == 2, "families take turns"
    for task in drawn:
        assert find_program(str(task.data["solution"]), "lua").strip()
        assert task.data["solution"] not in task.prompt[0].text


def test_a_language_without_programs_is_named() -> None:
    with pytest.raises(UserError, match="no programs in fortran"):
        written("fortran")


# -- prompts ----------------------------------------------------------------------------------------------------------

ADD = Problem("1", "Add.", "Two numbers.", "One number.", tuple(Test(f"{i} 1", f"{i + 1}") for i in (11, 22, 33)))


def test_the_last_test_is_never_shown() -> None:
    for form in ("standard", "other", "bare"):
        text = write_prompt(ADD, "Use Lua.\nTips: none.", form)  # type: ignore[arg-type]
        assert "11 1" in text and "22 1" in text and "33 1" not in text and "34" not in text
        assert text.endswith("Tips: none.")
        assert "11 1" not in write_prompt(ADD, "Use Lua.", form, samples=False)  # type: ignore[arg-type]
        short = write_prompt(ADD, "Use Lua.\nTips: none.", form, tips=False)  # type: ignore[arg-type]
        assert short.endswith("Use Lua.") and "Tips" not in short
    alone = Problem("1", "Add.", "Two numbers.", "One number.", ADD.tests[:1])
    assert "11" not in write_prompt(alone, "Use Lua.") and "Samples" not in write_prompt(alone, "Use Lua.")
    assert "Beware." in write_prompt(Problem("1", "Add.", "a", "b", ADD.tests, notes="Beware."), "Use Lua.")


def test_forms_are_drawn_as_published() -> None:
    drawn = Counter(draw_form(random.Random(i)) for i in range(4000))
    share = {form: sum(n for (f, _), n in drawn.items() if f == form) / 4000 for form in ("standard", "other", "bare")}
    assert (
        abs(share["standard"] - 0.3) < 0.03 and abs(share["other"] - 0.35) < 0.03 and abs(share["bare"] - 0.35) < 0.03
    )
    assert drawn["standard", False] == 0 and drawn["bare", False] > 200


def test_a_record_comes_back_and_a_wrong_one_is_named() -> None:
    assert Problem.of(json.loads(json.dumps(ADD.to_json()))) == ADD
    good = ADD.to_json()
    for change, told in (
        ({"tests": []}, "at least one test"), ({"tests": "ab"}, "at least one test"), ({"extra": 1}, 'key "extra"'),
        ({"description": " "}, '"description"'), ({"tests": [{"input": "1"}]}, "test 1 must have"),
        ({"tests": [{"input": 1, "output": "1"}]}, "must be texts"),
        ({"notes": 3}, '"notes" must be a text'),
    ):  # fmt: skip
        with pytest.raises(UserError, match=told):
            Problem.of(good | change)


# -- the judge --------------------------------------------------------------------------------------------------------


def test_all_tests_or_nothing_and_partial_pays_for_running(lua: Judge) -> None:
    task = Task.of("Add.", **ADD.to_json())
    right = fenced('local a, b = io.read("n", "n")\nprint(a + b)')
    wrong = fenced('local a, b = io.read("n", "n")\nprint(a - b)')
    hidden = fenced('local a, b = io.read("n", "n")\nif a > 30 then print(0) else print(a + b) end')
    broken, silent = fenced("print(1 +"), fenced("local a = 1")
    for partial in (0.0, PARTIAL):
        values = [said(lua, text, task, partial) for text in (right, wrong, hidden, broken, silent, "print(3)", "")]
        assert [v.value for v in values] == [1, partial, partial, 0, partial, 0, 0]
        verdicts = [v.verdict for v in values]
        assert verdicts == [Verdict.RIGHT, *[Verdict.WRONG] * 4, *[Verdict.NO_ANSWER] * 2]
        assert [v.parts["ran"] for v in values] == [1, 1, 1, 0, 1, 0, 0]
    assert said(lua, f"{wrong}\nNo, rather:\n{right}\n", task).value == 1, "the last block counts"


def test_results_are_remembered_by_program_and_tests(lua: Judge) -> None:
    program = 'print(io.read("n") * 2)'
    tests, others = (Test("4", "8"), Test("5", "10")), (Test("4", "9"),)
    executed, asked = lua.executed, lua.asked

    async def many() -> list[str]:
        return [r.result for r in await asyncio.gather(*(lua.run(program, tests) for _ in range(8)))]

    assert asyncio.run(many()) == ["success"] * 8 and asyncio.run(many()) == ["success"] * 8
    assert (lua.executed - executed, lua.asked - asked) == (1, 16)
    assert asyncio.run(lua.run(program, others)).result == "fail:wrong-output" and lua.executed == executed + 2
    lua.load_state_dict(lua.state_dict() | {"asked": 3})
    assert lua.state_dict()["asked"] == 3


def test_programs_that_ignore_their_input_are_seen(lua: Judge) -> None:
    tests = cases_of(Task.of("Add.", **ADD.to_json()))

    def outputs(program: str) -> list[str] | None:
        return asyncio.run(lua.outputs(program, tests))

    assert outputs("print(12)") == ["12"] * 3, "it goes on after a wrong answer"
    assert outputs('local a = io.read("n") print(a + 1)') == ["12", "23", "34"]
    assert outputs("x = 1") == [""] * 3 and outputs("print(") is None
    assert outputs('if io.read("n") > 20 then error() end') is None


# -- the whole way ----------------------------------------------------------------------------------------------------


def test_smoke_goes_the_whole_way_and_resume_repeats_nothing(tmp_path: Path, lua: Judge) -> None:
    if not languages()["ocaml"].runs_here:
        pytest.skip("ocaml is not installed")
    with Run.create("smoke", recipe.SMOKE, seed=3, root=tmp_path, progress="quiet") as run:
        report = recipe.smoke(run)
        spent = run.spent("real")
    numbers = report.metrics
    assert all(claim.metric in numbers for claim in paper("agnostics").claims)
    assert numbers["conformance/languages with all codes"] == numbers["conformance/languages"] == 1
    assert numbers["conformance/not contained"] == 0
    names = recipe.ARMS
    judged = numbers[f"real/{names.binary}"]
    c = recipe.SMOKE
    assert judged >= c.steps * c.groups * c.group_size and numbers[f"executed/{names.binary}"] > 0
    assert abs(numbers[f"real/{names.rejection}"] - judged) < c.rounds * c.group_size, "as many programs as GRPO"
    assert [table.title for table in report.tables][:2] == [f"Held-out tasks solved in {n}" for n in ("lua", "ocaml")]
    folder = tmp_path / "smoke-1"
    assert all((folder / name).stat().st_size > 10_000 for name in ("arms.png", "curves.png"))

    with Run.create("smoke", recipe.SMOKE, root=tmp_path, resume="smoke-1", progress="quiet") as run:
        again = recipe.smoke(run)
        assert run.spent("real") == spent
    same = {k: v for k, v in numbers.items() if not k.startswith("seconds/")}
    assert {k: v for k, v in again.metrics.items() if k in same} == pytest.approx(same, rel=0, abs=0, nan_ok=True)


def test_the_loss_is_the_papers(tmp_path: Path, lua: Judge) -> None:
    with Run.create("setup", None, seed=1, root=tmp_path, progress="quiet") as run:
        made = recipe.setup(run, recipe.SMOKE)
    assert isinstance(made, Setup) and len(made.tasks) == recipe.SMOKE.train_tasks
    a = made.algorithm
    assert (a.advantage, a.average, a.trust, a.clip_low, a.clip_high) == ("std", "trajectory", "clip", 0.1, 0.1)  # type: ignore[attr-defined]
    assert (a.kl, a.minibatches, a.epochs) == (0.0, 1, 1)  # type: ignore[attr-defined]


def test_full_is_planned_and_says_what_is_missing(tmp_path: Path) -> None:
    with Run.create("full", None, root=tmp_path, progress="quiet") as run:
        plan = recipe.full(run, plan=True)
        assert {row[0] for row in plan.tables[0].rows} >= {"Qwen3-4B", "SmolLM3-3B"}
        data = {row[0]: row for row in plan.tables[2].rows}
        assert data["Ag-Codeforces-X"][4] == f"{5369 * 32:,}"
        with pytest.raises(UserError, match="model=PATH"):
            recipe.full(run)
