"""VinePPO's recipe: its task, its judgements, the smoke preset from end to end, and that resuming repeats nothing."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.algorithms import RLOO, Reinforce
from rlready.doctor import Setup
from rlready.errors import UserError
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.recipes.registry import paper
from rlready.recipes.vineppo import chain, recipe
from rlready.recipes.vineppo.critic import CriticPPO
from rlready.recipes.vineppo.measure import (
    NEVER,
    REPEAT,
    Curve,
    Values,
    add_batches,
    averaged,
    curve_of,
    sum_gap,
    updates_ratio,
)
from rlready.rollout.collect import Collector
from rlready.run import Run
from rlready.seeds import rng
from rlready.types import Trajectory, Turn, Verdict
from rlready.values import batches_of
from rlready.values.analysis import Analysis
from rlready.values.ranking import Order, order
from tests.algorithms.toy_bigram import Bigram, group_of, policy_of

TINY = replace(
    recipe.SMOKE, problems=80, sft_epochs=1, check_every=1000, check_tasks=2, stop_at=0.0, iterations=1, eval_tasks=2
)


def worked(prompt: str) -> str:
    """The solution, computed by a reading of the prompt of its own."""
    tens, units, *operations = prompt.split()
    number, out = int(tens + units), ""
    for operation in operations:
        number = eval(f"{number} {operation}") % 100
        out += f"{operation} {number // 10} {number % 10} ; "
    return out + f"= {number // 10} {number % 10}"


# -- the task ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_solutions_are_right_and_steps_are_operations(index: int) -> None:
    task = chain.problem(rng(1, index), index)
    operations = len(task.prompt[0].text.split()) - 2
    assert 4 <= operations <= 7
    assert task.data["solution"] == worked(task.prompt[0].text)
    render = chain.renderer()
    ids = render.encode_completion(task.data["solution"])
    assert render.decode(ids) == task.data["solution"] and len(ids) <= chain.MAX_TOKENS
    starts = chain.STEPS.starts(ids, render)
    assert starts == [4 * i for i in range(operations)]  # the answer belongs to the last step


def test_only_the_answer_is_paid() -> None:
    task = chain.problem(rng(3), 0)

    def score(text: str, stop: str = "end") -> Verdict:
        turn = Turn([0], [1], text=text, stop=stop)  # type: ignore[arg-type]
        return chain.right(task, Trajectory(task, [turn])).verdict

    answer = task.data["answer"]
    wrong = "0 0" if answer != "0 0" else "0 1"
    assert score(task.data["solution"]) is Verdict.RIGHT
    assert score(f"= {answer}") is Verdict.RIGHT  # the way there is not looked at
    assert score(f"= {answer} ; = {wrong}") is Verdict.WRONG
    assert score(f"= {answer} 1") is Verdict.WRONG
    assert score(answer) is score("") is Verdict.NO_ANSWER
    assert score(f"= {answer}", "length") is Verdict.NO_ANSWER


def test_splits_are_disjoint_and_seeds_differ() -> None:
    splits = chain.chains(400, 0)
    ids = {name: {task.id for task in tasks} for name, tasks in splits.items()}
    assert sum(map(len, ids.values())) == len(set().union(*ids.values())) == 400
    assert min(map(len, ids.values())) > 20
    other = {task.id for tasks in chain.chains(400, 1).values() for task in tasks}
    assert len(other & set().union(*ids.values())) < 4


# -- what is judged ---------------------------------------------------------------------------------------------------


def curve(*accuracy: float) -> Curve:
    steps = [10.0 * i for i in range(len(accuracy))]
    return Curve(steps, [100 * s for s in steps], list(steps), list(accuracy))


def test_updates_are_counted_to_the_better_rivals_best() -> None:
    rivals = [curve(0.4, 0.5, 0.6, 0.55), curve(0.4, 0.5, 0.5, 0.5)]
    assert rivals[0].best == (0.6, 20)
    assert curve(0.4, 0.8, 0.8).reaches(0.6) == pytest.approx(5)  # half-way between two looks
    assert updates_ratio(curve(0.4, 0.8, 0.8), rivals) == pytest.approx(5 / 20)
    assert updates_ratio(curve(0.4, 0.5, 0.55, 0.65), rivals) == pytest.approx(25 / 20)
    assert updates_ratio(curve(0.4, 0.5, 0.59), rivals) == NEVER
    assert updates_ratio(curve(0.4, 0.9), [curve(0.4, 0.3)]) == NEVER  # a rival that got nowhere shows nothing


def test_repeats_of_an_estimator_are_averaged() -> None:
    def scored(right: float, name: str) -> Order:
        truth, error = [np.asarray([0.0, 1.0])], [np.asarray([0.0, 0.0])]
        return order(name, [np.asarray([0.0, right])], truth, error, [0])

    names = ("critic", f"k=1{REPEAT}0", f"k=1{REPEAT}1")
    found = averaged({name: scored(x, name) for name, x in zip(names, (1.0, 1.0, 0.0), strict=True)})
    assert list(found) == ["critic", "k=1"] and found["k=1"].name == "k=1"
    assert (found["critic"].accuracy, found["k=1"].accuracy, found["k=1"].ties) == (1.0, 0.5, 0.5)
    assert found["k=1"].pairs == 1 and isinstance(found["k=1"].pairs, int)


def test_all_arms_share_what_is_not_credit() -> None:
    made = recipe.arms(recipe.Config(), seed=3)
    assert list(made) == ["VinePPO", "PPO, lambda 1", "PPO, lambda 0.95", "GRPO", "RLOO", "RestEM"]
    same = ("epochs", "minibatches", "trust", "clip_low", "clip_high", "kl", "kl_gradient", "kl_average", "seed")
    settings = {tuple(getattr(a, name) for name in same) for name, (a, _) in made.items() if name != "RestEM"}
    assert len(settings) == 1
    assert made["PPO, lambda 1"][0].lam == 1 and made["VinePPO"][0].k == 9  # type: ignore[attr-defined]


# -- PPO's critic -----------------------------------------------------------------------------------------------------


def update(algorithm: CriticPPO, learner: Bigram, *rewards: float) -> list[Turn]:
    group = group_of(*rewards, learner=learner)
    asyncio.run(algorithm.update(policy_of(learner), [group]))
    return [trajectory.turns[0] for trajectory in group]


def test_a_critic_apart_values_and_learns_and_the_policy_keeps_its_head() -> None:
    learner, apart = Bigram(seed=1), Bigram(seed=2, lr=0.05)
    head, values, table = learner.critic.detach().clone(), apart.critic.detach().clone(), apart.table.detach().clone()
    start = learner.table.detach().clone()
    turns = update(CriticPPO(lam=1.0, minibatches=1).with_critic(policy_of(apart)), learner, 1.0, 0.0)
    said = [turn.completion_ids for turn in turns]  # two tokens each, after a prompt that ends in 0
    expected = [[float(values[0]), float(values[ids[0]])] for ids in said]
    assert [turn.value for turn in turns] == [pytest.approx(each) for each in expected]
    gaps = np.asarray([[r - v for v in each] for r, each in zip((1.0, 0.0), expected, strict=True)])
    white = (gaps - gaps.mean()) / gaps.std()
    assert [turn.advantage for turn in turns] == [pytest.approx(each.tolist()) for each in white]
    assert not torch.equal(learner.table, start) and torch.equal(learner.critic, head)
    returns = {0: 0.5, said[0][0]: 1.0, said[1][0]: 0.0}  # mean return after each token
    for token, target in returns.items():
        assert abs(float(apart.critic.detach()[token]) - target) < abs(float(values[token]) - target)
    assert torch.equal(apart.table, table)


def test_a_critic_that_only_measures_stands_still_and_one_is_needed() -> None:
    apart = Bigram(seed=2)
    values = apart.critic.detach().clone()
    update(CriticPPO(critic_epochs=0).with_critic(policy_of(apart)), Bigram(seed=1), 1.0, 0.0)
    assert torch.equal(apart.critic, values)
    with pytest.raises(UserError, match="with_critic"):
        update(CriticPPO(), Bigram(seed=1), 1.0, 0.0)


def test_a_resumed_critic_is_the_same() -> None:
    shape = TinyConfig(dim=16, layers=1, heads=2, max_len=64)
    first, second = (TinyPolicy.create(chain.renderer(), shape, seed) for seed in (1, 2))
    one, other = (CriticPPO().with_critic(critic) for critic in (first, second))
    other.load_state_dict(one.state_dict())
    assert first.learner is not None and second.learner is not None
    for name, weight in first.learner.weights().items():
        assert torch.equal(weight, second.learner.weights()[name]), name


# -- the whole way ----------------------------------------------------------------------------------------------------


def test_smoke_goes_the_whole_way_and_resume_repeats_nothing(tmp_path: Path) -> None:
    with Run.create("smoke", recipe.SMOKE, seed=3, root=tmp_path, progress="quiet") as run:
        report = recipe.smoke(run)
    numbers = report.metrics
    assert {claim.metric for claim in paper("vineppo").claims} <= numbers.keys()
    assert numbers["values/sum gap"] < 1e-9
    for arm in recipe.arms(recipe.SMOKE, 3):
        assert 0 <= numbers[f"test/{arm}/greedy"] <= 1 and numbers[f"tokens/{arm}"] > 0
        assert numbers[f"real/{arm}"] == 2 * 4 * 4  # all saw as many answers
    assert numbers["tokens/VinePPO"] > 3 * numbers["tokens/GRPO"]  # probes are counted
    folder = tmp_path / "smoke-1"
    assert all((folder / name).stat().st_size > 10_000 for name in ("curves.png", "values.png", "agents.png"))
    learned = curve_of(folder, "VinePPO")
    assert learned.steps == [0, 1, 2] and learned.tokens[0] == 0 and learned.optimizer_steps == 2 * 2

    with Run.create("smoke", recipe.SMOKE, root=tmp_path, resume="smoke-1", progress="quiet") as run:
        again = recipe.smoke(run)
        assert run.spent("real") == 6 * 32
    same = {k: v for k, v in numbers.items() if not k.startswith("seconds/")}
    assert {k: v for k, v in again.metrics.items() if k in same} == pytest.approx(same, rel=0, abs=0, nan_ok=True)
    assert [t.title for t in again.tables] == [t.title for t in report.tables]


def test_sums_of_advantages_would_be_seen_to_be_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run.create("setup", TINY, seed=1, root=tmp_path, progress="quiet") as run:
        made = recipe.setup(run, TINY)
    assert isinstance(made, Setup)
    policy = made.policy
    from rlready.curriculum.samplers import Uniform

    collector = Collector(policy, recipe.ChatEnv, made.tasks, Uniform(made.tasks), group_size=2, params=made.params)
    groups = collector.collect_sync(2)
    # Answers of an untrained policy are as good as never right, so some are said to be.
    for trajectory in groups[0]:
        trajectory.reward, trajectory.verdict = 1.0, Verdict.RIGHT
        trajectory.turns[0].stop = "end"
    algorithm = recipe.arms(TINY, 1)["VinePPO"][0].bind(made.tasks, recipe.ChatEnv, made.params)
    assert asyncio.run(sum_gap(algorithm, policy, groups)) < 1e-9  # type: ignore[arg-type]
    assert all(turn.advantage is None for group in groups for t in group for turn in t.turns)  # copies were used

    import rlready.algorithms.vine as vine

    monkeypatch.setattr(vine, "step_advantages", lambda values, score: [score + 1.0] * len(values))
    assert asyncio.run(sum_gap(algorithm, policy, groups)) > 0.5  # type: ignore[arg-type]


def test_a_gradient_that_is_always_0_is_a_note_and_the_others_are_measured(tmp_path: Path) -> None:
    with Run.create("setup", TINY, seed=1, root=tmp_path, progress="quiet") as run:
        made = recipe.setup(run, TINY)
    assert isinstance(made, Setup)
    policy, tasks, params = made.policy, made.tasks, made.params
    batches = asyncio.run(
        batches_of(policy, tasks, recipe.ChatEnv, batches=2, groups=2, group_size=2, params=params, seed=1)
    )
    for i, trajectory in enumerate(t for groups in batches for group in groups for t in group):
        trajectory.reward = float(i % 4 > 1)  # groups differ, their answers do not
    vine = recipe.arms(TINY, 1)["VinePPO"][0].bind(tasks, recipe.ChatEnv, params)
    values = Values(Analysis(), math.nan, math.nan)
    algorithms = {"RLOO": RLOO(), "Reinforce": Reinforce(), "VinePPO": vine}
    asyncio.run(add_batches(values, policy, algorithms, batches))
    assert "RLOO" not in values.analysis.variances and values.analysis.variances["Reinforce"].trace > 0
    assert any("The gradient of RLOO was not measured" in note for note in values.analysis.notes)
    assert values.sums < 1e-9


def test_full_plans_without_a_model_and_says_what_it_needs(tmp_path: Path) -> None:
    with Run.create("full", None, root=tmp_path, progress="quiet") as run:
        plan = recipe.full(run, plan=True)
        machines = {row[0]: row[-1] for row in plan.tables[0].rows}
        assert machines == {"rho-math-1b": "4 x A100 80 GB", "deepseek-math-7b-base": "8 x H100"}
        here = {row[0]: row[1:] for row in plan.tables[1].rows}  # 24 bytes a weight, in GiB
        assert here["rho-math-1b"] == ("25", "2", "40 GB") and here["deepseek-math-7b-base"][0] == "154"
        gsm8k = next(row for row in plan.tables[2].rows if row[0] == "GSM8K")
        assert gsm8k[3] == 16 and gsm8k[4] == f"{512 * (1 + 9 * 25):,}"
        assert recipe.full(run, plan=True, config=replace(recipe.FULL, k=1)).tables[2].rows[1][4] == f"{512 * 26:,}"
        with pytest.raises(UserError, match="no model is given"):
            recipe.full(run)
