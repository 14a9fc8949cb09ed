"""The value analysers: numbers by hand, estimators whose quality is known, gradients whose variance is known."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rlready.algorithms import PPO, RLOO, VAPO, Reinforce, VinePPO
from rlready.cli.app import app
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError
from rlready.policy.base import Policy, SamplingParams
from rlready.policy.gradients import take_gradients
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.rollout.probe import State, as_graded
from rlready.rollout.steps import StepRule
from rlready.values import (
    Choice,
    Visited,
    advantages,
    alternatives,
    batches_of,
    by_position,
    critic,
    gradient_variance,
    prediction,
    probes,
    ranking,
    visit,
)
from rlready.values.gradient import clean, spread
from rlready.values.ranking import order
from rlready.values.statistics import correlation_and_error, mean_and_error, numbered
from tests.rollout import coins

torch.set_num_threads(1)
PARAMS = SamplingParams(max_tokens=12)
EACH = StepRule("every", size=1)


# -- statistics --------------------------------------------------------------------------------------------------------


def test_a_mean_and_its_error_by_hand() -> None:
    # Clusters (1, 3) and (5, 7): mean 4, cluster sums of deviations -4 and 4: sqrt(2 (16 + 16)) / 4 = 2.
    mean, error = mean_and_error(np.array([1.0, 3.0, 5.0, 7.0]), np.array([0, 0, 1, 1]))
    assert (mean, error) == (4.0, 2.0)
    # Every value its own cluster: the usual standard error.
    values = np.array([1.0, 3.0, 5.0, 7.0])
    assert mean_and_error(values, np.arange(4))[1] == pytest.approx(values.std(ddof=1) / 2)
    assert math.isnan(mean_and_error(values, np.zeros(4, int))[1])
    assert numbered(["b", "a", "b"]).tolist() == [0, 1, 0]


def test_a_correlation_and_its_error() -> None:
    rng = np.random.default_rng(0)
    errors, found = [], []
    for _ in range(200):
        a = rng.normal(size=50)
        b = 0.8 * a + 0.6 * rng.normal(size=50)
        r, e = correlation_and_error(a, b, np.arange(50))
        found.append(r)
        errors.append(e)
    assert np.mean(found) == pytest.approx(0.8, abs=0.02)
    assert np.mean(errors) == pytest.approx(np.std(found), rel=0.15)
    assert math.isnan(correlation_and_error(np.ones(5), np.arange(5.0), np.arange(5))[0])


# -- prediction --------------------------------------------------------------------------------------------------------


def all_states() -> list[Visited]:
    tasks = coins.tasks(n=4)
    return [
        Visited(coins.state(task, " ".join(words)), n, 6)
        for task in tasks
        for n in range(4)
        for words in itertools.product("HT", repeat=n)
    ]


def known(bias: float = 0.0, noise: float = 0.0) -> Any:
    """An estimator that knows the truth, but for a bias and noise."""
    rng = np.random.default_rng(1)

    async def estimate(states: list[State]) -> list[float]:
        words = [coins.RENDER.decode(s.said_ids) for s in states]
        return [coins.value(w) + bias + noise * float(rng.normal()) for w in words]

    return estimate


def test_prediction_tells_a_biased_estimator_from_an_unbiased_one() -> None:
    policy, score = coins.policy(), coins.tasks().score
    visited = all_states()
    estimators = {
        "truth": known(),
        "biased": known(bias=0.1),
        "noisy": known(noise=0.3),
        "flat": lambda states: asyncio.sleep(0, [0.3] * len(states)),
        **{f"k={k}": probes(policy, score, k=k, params=PARAMS, seed=7) for k in (1, 9)},
    }
    found = asyncio.run(
        prediction(policy, visited, estimators, score=score, params=PARAMS, seed=3, rollouts=400, bins=2)
    )
    assert np.abs(found.truth - [coins.value(coins.RENDER.decode(v.state.said_ids)) for v in visited]).max() < 0.04
    a = found.overall
    assert a["truth"].unbiased and a["truth"].absolute < 0.02 and a["truth"].correlation > 0.99
    assert not a["biased"].unbiased and a["biased"].error == pytest.approx(0.1, abs=0.01)
    assert a["noisy"].unbiased and a["noisy"].absolute == pytest.approx(0.3 * math.sqrt(2 / math.pi), abs=0.06)
    assert math.isnan(a["flat"].correlation)
    assert a["k=1"].unbiased and a["k=9"].unbiased and a["k=9"].absolute < 0.6 * a["k=1"].absolute
    # For k samples of mean square error v / k, the truth's own error is a small part.
    assert found.truth_se < 0.02
    bins = found.by_position["biased"]
    assert [(b.low, b.high, b.n) for b in bins] == [(0.0, 0.5, 28), (0.5, 1.0, 32)]
    assert sum(b.error * b.n for b in bins) / 60 == pytest.approx(a["biased"].error)
    assert json.dumps(found.to_json())


def test_the_probes_of_an_estimator_are_not_those_of_the_truth() -> None:
    """With the truth's own samples an estimate would be nearer than it is: the error would be 0 here."""
    policy, score = coins.policy(), coins.tasks().score
    for seed in (3, 4):
        same = {"k": probes(policy, score, k=20, params=PARAMS, seed=seed)}
        found = asyncio.run(
            prediction(policy, all_states()[:8], same, score=score, params=PARAMS, seed=seed, rollouts=20)
        )
        assert found.overall["k"].absolute > 0.01


def test_prediction_needs_states_and_a_grader() -> None:
    policy = coins.policy(p=0.0)
    with pytest.raises(UserError, match="0 states"):
        asyncio.run(prediction(policy, [], {}, score=coins.tasks().score, params=PARAMS, seed=0))
    broken = coins.tasks(coins.fails_on_tails).score
    with pytest.raises(UserError, match="judge no rollout"):
        asyncio.run(prediction(policy, all_states()[:1], {}, score=broken, params=PARAMS, seed=0, rollouts=4))


# -- states ------------------------------------------------------------------------------------------------------------


def test_visited_states_are_distinct_and_of_the_policys_own_answers() -> None:
    policy, tasks = coins.policy(), coins.tasks(n=3)
    found = asyncio.run(visit(policy, tasks, ChatEnv, rule=EACH, params=PARAMS, seed=0, per_task=5))
    assert len({v.state for v in found}) == len(found)
    assert {v.steps for v in found} == {6} and {v.step for v in found} == {0, 1, 2, 3, 4, 5}
    assert sum(v.step == 0 for v in found) == 3 and all(len(v.state.said_ids) == v.step for v in found)
    inner = asyncio.run(visit(policy, tasks, ChatEnv, rule=EACH, params=PARAMS, seed=0, per_task=5, first=False))
    assert inner == [v for v in found if v.step]
    some = asyncio.run(visit(policy, tasks, ChatEnv, rule=EACH, params=PARAMS, seed=0, per_task=5, states=4))
    assert len(some) == 4 and set(some) <= set(found)
    with pytest.raises(UserError, match="single step"):
        asyncio.run(visit(policy, tasks, ChatEnv, rule=StepRule("line"), params=PARAMS, seed=0, first=False))
    with pytest.raises(UserError, match="choices"):
        asyncio.run(visit(policy, tasks, lambda: ChatEnv(choices=["H"]), rule=EACH, params=PARAMS, seed=0))


# -- ranking -----------------------------------------------------------------------------------------------------------


def test_an_order_by_hand() -> None:
    truth = [np.array([0.1, 0.5, 0.5, 0.9]), np.array([0.2, 0.3])]
    error = [np.full(4, 0.01), np.full(2, 0.1)]
    values = [np.array([0.0, 0.4, 0.2, 0.4]), np.array([0.5, 0.1])]
    # Pairs whose truths differ: 01 right, 02 right, 03 right, 13 tied, 23 right; and one wrong, which is not clear.
    found = order("x", values, truth, error, [0, 1])
    assert found.pairs == 6 and found.accuracy == pytest.approx(4 / 6)
    assert found.ties == pytest.approx(1 / 6) and found.decided == pytest.approx(4 / 5)
    assert found.clear_pairs == 5 and found.clear == pytest.approx(4 / 5)
    # Favourites: two of four, one of them the best: half; then the wrong one of two: 0. Blind: 1/4 and 1/2.
    assert found.best == pytest.approx(0.25) and found.best_chance == pytest.approx(0.375)


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_a_blind_estimator_is_right_half_the_time_and_the_truth_always(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = [rng.random(5) for _ in range(300)]
    error = [np.zeros(5)] * 300
    blind = order("blind", [rng.random(5) for _ in truth], truth, error, range(300))
    assert blind.accuracy == pytest.approx(0.5, abs=5 * blind.accuracy_se) and blind.accuracy_se < 0.02
    assert blind.best == pytest.approx(blind.best_chance, abs=5 * blind.best_se)
    assert order("truth", truth, truth, error, range(300)).accuracy == 1.0
    assert order("flat", [np.zeros(5)] * 300, truth, error, range(300)).accuracy == 0.0


def test_next_steps_are_the_policys_own_distinct_and_do_not_end_the_answer() -> None:
    policy, task = coins.policy(p=0.5), coins.tasks()[0]
    places = [Visited(coins.state(task, said), n, 6) for said, n in (("H", 1), ("T T", 2), ("H H H H H", 5))]
    rule = StepRule("every", size=2)
    found = asyncio.run(alternatives(policy, places, rule=rule, params=PARAMS, seed=0, continuations=9, least=2))
    assert [choice.visited.step for choice in found] == [1, 2]  # after five tosses the next step is the last
    for choice in found:
        said = choice.visited.state.said_ids
        end = 2 if len(said) == 1 else 4  # steps end at even tokens
        assert all(after.said_ids[: len(said)] == said and len(after.said_ids) == end for after in choice.after)
        assert len(set(choice.after)) == len(choice.after) >= 2
    assert not asyncio.run(alternatives(policy, places, rule=rule, params=PARAMS, seed=0, least=5))
    assert set(policy.sampler.released) == {r.session for r in policy.sampler.requests}


def test_ranking_tells_who_knows_the_better_step() -> None:
    policy, tasks = coins.policy(p=0.5), coins.tasks(n=6)
    places = [Visited(coins.state(task, said), 1, 6) for task in tasks for said in ("H", "T")]
    rule = StepRule("every", size=3)
    choices = asyncio.run(alternatives(policy, places, rule=rule, params=PARAMS, seed=0, continuations=8))
    assert choices and all(isinstance(choice, Choice) for choice in choices)
    score = tasks.score
    estimators = {
        "truth": known(),
        "flat": lambda states: asyncio.sleep(0, [0.3] * len(states)),
        **{f"k={k}": probes(policy, score, k=k, params=PARAMS, seed=50) for k in (1, 9)},
    }
    found = asyncio.run(ranking(policy, choices, estimators, score=score, params=PARAMS, seed=1, rollouts=200))
    o = found.orders
    assert o["truth"].clear == 1 and o["flat"].accuracy == 0 and o["flat"].ties == 1
    assert o["k=1"].clear < o["k=9"].clear
    assert found.choices == len(choices) and found.steps == sum(len(c.after) for c in choices)
    with pytest.raises(UserError, match="distinct next steps"):
        asyncio.run(ranking(policy, [], estimators, score=score, params=PARAMS, seed=1))


# -- gradients ---------------------------------------------------------------------------------------------------------


def test_the_spread_of_gradients_by_hand() -> None:
    # (1, 2), (3, 2): mean (2, 2), signal 8, variance 2 + 0, trace 2.
    gradients = [
        {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])},
        {"a": torch.tensor([3.0]), "b": torch.tensor([2.0])},
    ]
    found = spread("x", gradients)
    assert (found.trace, found.signal) == pytest.approx((2.0, 8.0)) and found.variance == pytest.approx(0.25)
    assert found.corrected == pytest.approx(2 / 7) and found.by_parameter == pytest.approx({"a": 0.5, "b": 0.0})
    assert spread("x", [{"a": torch.ones(2)}, {}]).trace == pytest.approx(1.0)  # absent is 0


def test_the_spread_is_that_of_the_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    ratios, errors = [], []
    for _ in range(40):
        draws = [{"w": 1 + 2 * torch.randn(50, generator=generator)} for _ in range(20)]
        found = spread("x", draws)
        ratios.append(found.corrected)
        errors.append(found.variance_se / found.variance)
    assert np.mean(ratios) == pytest.approx(4.0, rel=0.1)  # trace 50 x 4, signal 50
    assert 0.0 < np.mean(errors) < 0.5


def tiny() -> TinyPolicy:
    config = TinyConfig(dim=32, layers=1, heads=2, kv_heads=1, max_len=32)
    policy = TinyPolicy.create(coins.RENDER, config, seed=1)
    torch.nn.init.normal_(policy.learner.model.value.weight, generator=torch.Generator().manual_seed(0))
    policy.learner.freeze_reference()
    return policy


def test_gradient_variance_takes_no_step_and_counts_the_policys_stream_alone() -> None:
    policy, tasks = tiny(), coins.tasks(n=4)
    params = SamplingParams(max_tokens=6)
    batches = asyncio.run(batches_of(policy, tasks, ChatEnv, batches=3, groups=4, group_size=4, params=params, seed=0))
    assert len(batches) == 3 and all(len(groups) == 4 for groups in batches)
    texts = [[t.turns[0].text for group in groups for t in group] for groups in batches]
    assert texts[0] != texts[1] != texts[2]
    before = {name: w.clone() for name, w in policy.learner.weights().items()}
    chosen = {
        "rloo": RLOO(),
        "ppo": PPO(),
        "vineppo": VinePPO(k=2, steps=EACH, truncated="keep").bind(tasks, ChatEnv, params),
    }
    found = asyncio.run(gradient_variance(policy, chosen, batches))
    assert policy.version == 0 and all(torch.equal(w, before[n]) for n, w in policy.learner.weights().items())
    assert not take_gradients(policy.learner)
    assert all(v.batches == 3 and v.variance > 0 and math.isfinite(v.variance_se) for v in found.values())
    assert not any("value" in name and not math.isnan(v) for name, v in found["ppo"].by_parameter.items())
    both = asyncio.run(gradient_variance(policy, {"ppo": PPO()}, batches, streams=("policy", "value")))
    assert any("value" in name and not math.isnan(v) for name, v in both["ppo"].by_parameter.items())
    again = asyncio.run(gradient_variance(policy, chosen, batches))
    assert again["rloo"].variance == found["rloo"].variance and again["vineppo"].variance == found["vineppo"].variance
    assert all(t.turns[0].advantage is None for groups in batches for group in groups for t in group)
    running = Reinforce(advantage="running")
    asyncio.run(gradient_variance(policy, {"running": running}, batches))
    assert running.state_dict() == {}  # a baseline that runs on would make batches depend on their order
    with pytest.raises(UserError, match="1 batches"):
        asyncio.run(gradient_variance(policy, chosen, batches[:1]))
    with pytest.raises(UserError, match=r"gradient of vapo is 0 in every batch.*critic_warmup"):
        asyncio.run(gradient_variance(policy, {"vapo": VAPO()}, batches))


def test_the_gradient_is_that_of_the_update() -> None:
    """With plain SGD-like reading: the kept gradient is what one update of one minibatch would step with."""
    policy, tasks = tiny(), coins.tasks(n=2)
    batches = asyncio.run(
        batches_of(
            policy, tasks, ChatEnv, batches=2, groups=2, group_size=4, params=SamplingParams(max_tokens=6), seed=0
        )
    )
    found = asyncio.run(gradient_variance(policy, {"rloo": RLOO()}, [batches[0], batches[0]]))["rloo"]
    assert found.trace == pytest.approx(0.0, abs=1e-12)
    norm = asyncio.run(RLOO().update(tiny(), clean(batches[0])))["grad_norm"]
    assert math.sqrt(found.signal) == pytest.approx(norm, rel=1e-4)


def test_advantages_by_position_by_hand() -> None:
    policy, tasks = tiny(), coins.tasks(n=2)
    (groups, _) = asyncio.run(
        batches_of(
            policy, tasks, ChatEnv, batches=2, groups=2, group_size=2, params=SamplingParams(max_tokens=4), seed=0
        )
    )
    for group in groups:
        for trajectory in group:
            n = trajectory.turns[0].length
            trajectory.turns[0].advantage = [float(i >= n / 2) for i in range(n)]
    bins = by_position(groups, bins=2)
    assert [(b.low, b.high) for b in bins] == [(0.0, 0.5), (0.5, 1.0)]
    assert (bins[0].mean, bins[0].std, bins[0].zero) == (0.0, 0.0, 1.0)
    assert (bins[1].mean, bins[1].zero, bins[1].quantiles) == (1.0, 0.0, (1.0,) * 5)
    found = asyncio.run(advantages(policy, RLOO(), groups, bins=1))
    assert found[0].n == sum(t.length for group in groups for t in group)


def test_a_critic_says_what_the_value_head_says() -> None:
    policy = tiny()
    task = coins.tasks()[0]
    states = [coins.state(task), coins.state(task, "H T")]
    found = asyncio.run(critic(policy)(states))
    turned = asyncio.run(critic(policy)(states[::-1]))
    assert found == pytest.approx(turned[::-1], abs=1e-6) and found[0] != found[1]
    from rlready.types import Row

    ids = (*states[1].ids, coins.H, coins.END)  # the value before a token does not depend on what follows
    row = Row.from_segments([(ids[:1], 0.0), (ids[1:], 1.0)])
    whole = policy.learner.values([row])[0]
    assert whole[len(states[0].ids)] == pytest.approx(found[0], abs=1e-5)
    assert whole[len(states[1].ids)] == pytest.approx(found[1], abs=1e-5)
    with pytest.raises(ValueError, match="no learner"):
        asyncio.run(critic(Policy(policy.sampler, policy.renderer))(states))


# -- the command -------------------------------------------------------------------------------------------------------

TASKS = """
import rlready as rl
from rlready.types import Task

def problem(random, index):
    words = [random.choice("abc") for _ in range(3)]
    return Task.of(" ".join(words), answer=" ".join(words))

def score(task, trajectory):
    said = trajectory.turns[-1].text.split()
    return sum(a == b for a, b in zip(said, task.data["answer"].split())) / 3

tasks = rl.TaskSet.from_generator(problem, 24, 0, score)
"""


def test_the_command_measures_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("copying.py").write_text(TASKS)
    small = ["steps=2", "groups=2", "group_size=4", "max_tokens=4", "tiny.dim=16", "tiny.layers=1", "tiny.heads=2"]
    runner = CliRunner()
    made = runner.invoke(app, ["train", "copying.py:tasks", "-a", "ppo", "-q", *small])
    assert made.exit_code == 0, made.output
    sizes = ["--size", "1", "--states", "6", "--choices", "2", "--rollouts", "16"]
    sizes += ["--batches", "2", "--k", "1,4", "--split", "train"]
    found = runner.invoke(app, ["values", "copying-1", "-q", "--json", "--also", "rloo,vineppo", *sizes])
    assert found.exit_code == 0, found.output
    record = json.loads(found.stdout)
    assert record["run"] == "copying-1" and record["step"] == 2 and record["steps"]["kind"] == "every"
    assert set(record["prediction"]["overall"]) == {"k=1", "k=4", "critic"}
    assert set(record["gradient_variance"]) == {"ppo", "rloo", "vineppo"}, record["notes"]
    folder = Path("runs/copying-1")
    assert json.loads((folder / "values.json").read_text())["prediction"] == record["prediction"]
    assert (folder / "values.png").stat().st_size > 5000
    shown = runner.invoke(app, ["values", "copying-1", "-q", "--batches", "0", "--choices", "0", *sizes[:4]])
    assert shown.exit_code == 0 and "critic" in shown.stdout and "unbiased" in shown.stdout
    for wrong, word in ((["--k", "0"], "--k"), (["--split", "tset"], "test"), (["--steps", "separator"], "separator")):
        refused = runner.invoke(app, ["values", "copying-1", "-q", *wrong])
        assert refused.exit_code == 2 and word in refused.stderr


def test_as_graded_and_a_keeper_of_nothing() -> None:
    from rlready.types import Task, Trajectory, Turn

    assert as_graded(Trajectory(Task.of("x"), [Turn([0], [1], stop="length")], reward=0.5)) == 0.5
    with pytest.raises(UserError, match="shows no gradients"):
        take_gradients(object())  # type: ignore[arg-type]
