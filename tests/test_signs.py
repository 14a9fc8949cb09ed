"""Signs of trouble: each begins on its stream and ends on a healthy one; healthy streams are silent; resuming."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rlready.cli.app import app
from rlready.policy.base import OptimizerConfig
from rlready.policy.tiny.optimizer import Optimizer
from rlready.run import Run
from rlready.signs import Level, Sign, Signs, StopAt, Thresholds, usual

HEALTHY = {
    "reward": 0.5, "success": 0.5, "episodes": 128.0, "tokens": 1280.0, "length": 10.0, "length_trained": 10.0,
    "cut_off": 0.01, "no_answer": 0.05, "uniform": 0.4, "uniform_right": 0.2, "uniform_wrong": 0.2, "tool_calls": 1.5,
    "lag": 0.0, "update/mismatch/kl": 1e-9, "update/mismatch/mean": 1.0, "update/mismatch/std": 1e-4,
    "update/mismatch/abs": 1.000001, "update/mismatch/ess": 1.0, "update/masked": 0.0, "update/grad_cosine": 0.1,
    "update/entropy": 1.0, "update/value/explained": 0.5, "update/ratio/mean": 1.0, "update/kl/behaviour": 0.001,
}  # fmt: skip
LAGGED = {"lag": 2.0, "update/mismatch/abs": 1.03}

# sign, what a step has while it stands, what its sentence must say
PLANTED: list[tuple[str, dict[str, float], str]] = [
    ("first_ratio", {"update/mismatch/abs": 1.004}, "disagree by 0.004 a token"),
    ("mismatch", {"lag": 1.0, "update/mismatch/kl": 0.002}, "mismatch (look): the learner is 0.002 nats"),
    ("mismatch", {"lag": 1.0, "update/mismatch/kl": 0.02}, "mismatch (warn): the learner is 0.02 nats"),
    ("mismatch", {"lag": 8.0, "update/mismatch/kl": 0.2}, "mismatch (stop): the learner is 0.2 nats"),
    ("mismatch_rise", {"lag": 1.0, "update/mismatch/abs": 1.05}, "is 1 + 0.05, three times its start"),
    ("weight_mean", {"update/mismatch/mean": 0.4}, "mean importance weight is 0.4"),
    ("weight_mean", {"update/mismatch/mean": 2.1}, "mean importance weight is 2.1"),
    ("weight_std", {"update/mismatch/std": 1.3}, "deviation of 1.3"),
    ("ess", {"update/mismatch/ess": 0.25}, "only 25% of the samples count"),
    ("masked", {"update/masked": 0.3}, "masked (warn): 30% of the trained tokens"),
    ("masked", {"update/masked": 1.0}, "masked (stop): 100% of the trained tokens"),
    ("cosine", {"update/grad_cosine": 0.8}, "cosine 0.80"),
    ("cut_off", {"cut_off": 0.3}, "30% of the episodes are stopped by a length cap, mean length 10"),
    ("no_answer", {"no_answer": 0.6}, "60% of the episodes give no answer"),
    ("trained_length", {"length_trained": 6.0}, "is 60% as long as what was sampled"),
    ("uniform", {"uniform": 0.8, "uniform_right": 0.1, "uniform_wrong": 0.7}, "(10% all right, 70% all wrong)"),
    ("entropy_low", {"update/entropy": 0.1}, "entropy fell from 1 to 0.1 nats a token, success 50%"),
    ("entropy_collapse", {"update/entropy": 0.01}, "entropy collapsed from 1 to 0.01"),
    ("entropy_high", {"update/entropy": 2.5}, "entropy rose from 1 to 2.5"),
    ("critic", {"update/value/explained": -0.3}, "explains -30% of the returns' variance"),
    ("length_growth", {"length": 25.0}, "episodes grew from 10 to 25 tokens"),
    ("ratio_drift", {"update/ratio/mean": 1.5}, "mean ratio over an update is 1.50"),
    ("ratio_drift", {"update/ratio/mean": 0.6}, "mean ratio over an update is 0.60"),
    ("update_size", {"update/kl/behaviour": 0.2}, "0.2 nats a token from its data"),
    ("tool_calls", {"tool_calls": 0.0}, "0 tool calls on average"),
]


def play(signs: Signs, steps: Sequence[dict[str, float]]) -> list[tuple[int, str, str]]:
    """(step, sign, what) of all that was said."""
    for i, step in enumerate(steps, 1):
        signs(step, i)
    return [(entry["step"], entry["sign"], entry["what"]) for entry in signs.history]


def steps(n: int, **changed: float) -> list[dict[str, float]]:
    return [HEALTHY | changed for _ in range(n)]


@pytest.mark.parametrize(("name", "planted", "words"), PLANTED, ids=[f"{p[0]}-{i}" for i, p in enumerate(PLANTED)])
def test_a_sign_is_said_once_when_it_begins_and_once_when_it_ends(
    name: str, planted: dict[str, float], words: str
) -> None:
    start = HEALTHY | ({"lag": 1.0} if name == "mismatch_rise" else {})
    signs = Signs()
    said = play(signs, [start] * 5 + [start | planted] * 20 + [start] * 10)
    mine = [(step, what) for step, sign, what in said if sign == name]
    assert mine[0][1] in ("begins", "worse") and 5 < mine[0][0] <= 10
    assert mine[-1][1] == "ends" and 25 < mine[-1][0] <= 30
    assert [what for _, what in mine].count("ends") == 1 and len(mine) <= 3
    sentences = [entry["said"] for entry in signs.history if entry["sign"] == name]
    assert any(words in sentence for sentence in sentences), sentences
    assert sentences[-1].startswith(f"{name} is over: it reads")
    related = {name, "entropy_low"} if name == "entropy_collapse" else {name}
    assert {sign for _, sign, _ in said} <= related  # nothing else is alarmed
    assert signs.standing == {}


def test_every_sign_of_the_table_is_planted_here() -> None:
    assert {sign.name for sign in usual(Thresholds())} == {name for name, _, _ in PLANTED} | {"overfit"}


def test_a_threshold_can_be_changed_and_each_changes_something() -> None:
    assert not play(Signs(Thresholds(cut_off=0.5)), steps(20, cut_off=0.3))
    assert not play(Signs(table=()), steps(20, cut_off=1.0))
    for each in fields(Thresholds):
        if each.name in ("solved", "rise", "fall"):  # inside readers, tested below
            continue
        assert usual(Thresholds(**{each.name: 0.123})) != usual(Thresholds()), each.name


def healthy_run(seed: int, n: int = 120) -> list[dict[str, float]]:
    """A run that learns: success climbs, entropy falls to a third, numbers are noisy, held-out follows."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(n):
        share = i / n
        success = 0.3 + 0.5 * share + rng.normal(0, 0.04)
        step = HEALTHY | {
            "reward": success, "success": success, "uniform": 0.3 + 0.2 * share + rng.normal(0, 0.05),
            "length": 10 + 4 * share + rng.normal(0, 1), "tokens": 1280 + 512 * share, "length_trained": 10 + 4 * share,
            "update/entropy": 1.0 * (1 - 0.65 * share) * np.exp(rng.normal(0, 0.1)),
            "update/value/explained": 0.5 * share + abs(rng.normal(0, 0.1)),
            "update/mismatch/abs": 1 + abs(rng.normal(0, 1e-6)), "update/mismatch/kl": abs(rng.normal(0, 1e-9)),
            "update/grad_cosine": rng.normal(0.1, 0.2), "update/ratio/mean": 1 + rng.normal(0, 0.03),
            "update/kl/behaviour": abs(rng.normal(0, 0.01)), "cut_off": abs(rng.normal(0, 0.015)),
        }  # fmt: skip
        if i % 10 == 9:
            held = success + rng.normal(0, 0.03)
            step |= {"eval/success": held, "eval/success_low": held - 0.06, "eval/success_high": held + 0.06}
        out.append(step)
    return out


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_is_silent(seed: int) -> None:
    assert play(Signs(), healthy_run(seed)) == []


def test_a_run_that_solves_its_task_is_told_that_and_nothing_grave() -> None:
    run = healthy_run(0)
    for i, step in enumerate(run[60:]):
        step |= {"success": 0.99, "reward": 0.99, "uniform": 0.9, "uniform_right": 0.9, "uniform_wrong": 0.0,
                 "update/entropy": 0.5 * 0.9**i}  # fmt: skip
    signs = Signs()
    assert {sign for _, sign, _ in play(signs, run)} == {"uniform", "entropy_low"}
    assert set(signs.standing.values()) == {"look"}


@given(st.lists(st.booleans(), min_size=30, max_size=60))
def test_noise_around_a_threshold_does_not_chatter(above: list[bool]) -> None:
    """Values that stay within 20% of the threshold begin a sign at most once and never end it."""
    t = Thresholds().cut_off
    said = play(Signs(), [HEALTHY | {"cut_off": 1.1 * t if x else 0.9 * t} for x in above])
    assert len(said) <= 1
    thrice = any(above[i : i + 3] == [True] * 3 for i in range(len(above)))
    assert bool(said) == thrice


def test_missing_and_infinite_numbers_are_passed_over() -> None:
    assert not play(Signs(), [{}, {"reward": 0.5}, {"update/masked": float("nan"), "cut_off": float("inf")}] * 5)
    bare = {"cut_off": 0.5}  # the sentence also quotes a length, which is not there
    signs = Signs()
    play(signs, [bare] * 3)
    assert "mean length 0" in signs.history[0]["said"]


def test_lag_explains_a_mismatch_and_its_absence_does_not() -> None:
    with_lag = play(Signs(), [HEALTHY] + [HEALTHY | LAGGED] * 10)
    assert "first_ratio" not in {sign for _, sign, _ in with_lag}
    unknown = {k: v for k, v in HEALTHY.items() if k != "lag"} | {"update/mismatch/abs": 1.1}
    assert (1, "first_ratio", "begins") in play(Signs(), [unknown] * 5)  # the first step has no lag in any setup


def evaluated(trained: float, held: float, error: float = 0.0) -> list[dict[str, float]]:
    last = {"eval/success": held, "eval/success_low": held - 1.96 * error, "eval/success_high": held + 1.96 * error}
    return [HEALTHY | {"reward": trained}] * 4 + [HEALTHY | {"reward": trained} | last]


@pytest.mark.parametrize(
    ("curve", "begins"),
    [
        ([(0.3, 0.30), (0.5, 0.50), (0.6, 0.42), (0.7, 0.40)], 20),  # up while held-out falls
        ([(0.3, 0.30), (0.5, 0.50), (0.5, 0.42), (0.5, 0.40)], None),  # both stop
        ([(0.3, 0.30), (0.5, 0.50), (0.3, 0.30), (0.2, 0.20)], None),  # both fall: another sign's business
        ([(0.3, 0.30), (0.5, 0.50), (0.6, 0.42), (0.7, 0.55)], None),  # it fell once
        ([(0.3, 0.30), (0.5, 0.50), (0.6, 0.47), (0.7, 0.46)], None),  # a little
    ],
)
def test_reward_up_while_held_out_falls(curve: list[tuple[float, float]], begins: int | None) -> None:
    said = play(Signs(), [step for trained, held in curve for step in evaluated(trained, held)])
    assert said == ([(begins, "overfit", "begins")] if begins else [])


def test_a_fall_within_the_noise_of_the_evaluation_is_none() -> None:
    curve = [(0.3, 0.30), (0.5, 0.50), (0.6, 0.42), (0.7, 0.40)]
    for error, begins in ((0.01, True), (0.05, False)):  # a difference has sqrt(2) x the error of each
        said = play(Signs(), [step for trained, held in curve for step in evaluated(trained, held, error)])
        assert bool(said) == begins


def test_a_state_goes_on_as_if_it_had_not_been_interrupted() -> None:
    stream = steps(5) + steps(4, cut_off=0.3, **{"update/entropy": 0.1}) + steps(3) + healthy_run(1, 20)
    whole = Signs()
    play(whole, stream)
    assert whole.history
    for cut in range(1, len(stream)):
        first, second = Signs(), Signs()
        for i, step in enumerate(stream[:cut], 1):
            first(step, i)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        for i, step in enumerate(stream[cut:], cut + 1):
            second(step, i)
        assert second.history == whole.history and second.state_dict() == whole.state_dict()


def test_a_state_of_another_table_is_taken_as_far_as_it_fits() -> None:
    old = Signs(table=[Sign("cut_off", "cut_off", (Level(high=0.1),), "x", "y"), Sign("gone", "g", (), "x", "y")])
    play(old, steps(2, cut_off=0.3))
    new = Signs()
    new.load_state_dict(old.state_dict())
    assert [name for _, name, _ in play(new, steps(1, cut_off=0.3))] == ["cut_off"]
    two = Signs(table=[Sign("cut_off", "cut_off", (Level(high=0.1), Level("stop", high=0.5)), "x", "y")])
    two.load_state_dict(old.state_dict())  # other levels: it starts afresh
    assert two.state_dict()["watches"]["cut_off"]["held"] == [0, 0]


def test_stop_at_halts_on_its_level_alone() -> None:
    rule = StopAt()
    assert rule(HEALTHY | {"update/mismatch/kl": 0.05, "lag": 1.0}) is None
    assert rule(HEALTHY | {"update/mismatch/kl": 0.05, "lag": 1.0}) is None  # a warning
    why = rule(HEALTHY | {"update/mismatch/kl": 0.2, "lag": 1.0})
    assert why is not None and why.startswith("mismatch (stop)") and "0.2 nats" in why
    assert rule(HEALTHY) == "mismatch stands"  # until it is over
    only = StopAt("warn", only=("ess",))
    assert [only(HEALTHY | {"cut_off": 0.9}) for _ in range(5)] == [None] * 5
    assert only.state_dict() == only.signs.state_dict()


def test_in_a_run_signs_are_said_noted_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Run.create("r", root=tmp_path, progress="lines") as run:
        run.note(signs=[{"stage": "other", "step": 1, "sign": "ess", "what": "begins", "level": "warn", "said": "x"}])
        signs, counts = Signs(), []
        for step in range(1, 12):
            metrics: dict[str, float] = dict(HEALTHY | ({"cut_off": 0.3} if step < 6 else {}))
            signs.watch(run, step, metrics)
            counts.append(metrics["signs"])
        noted: list[dict[str, Any]] = run.noted("signs")
    assert counts == [0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert [(e["stage"], e["step"], e["sign"], e["what"]) for e in noted] == [
        ("other", 1, "ess", "begins"), ("", 3, "cut_off", "begins"), ("", 8, "cut_off", "ends"),
    ]  # fmt: skip
    shown = "".join(capsys.readouterr())
    assert "Step 3, sign of trouble: cut_off (warn): 30% of the episodes" in shown
    assert json.loads((run.dir / "run.json").read_text())["signs"] == noted
    listed = CliRunner().invoke(app, ["runs", "show", run.name, "--root", str(tmp_path)]).output
    assert "other, step 1: x" in listed and "step 8: cut_off is over: it reads 0.01." in listed


# -- the cosine of successive gradients --------------------------------------------------------------------------------


def test_the_optimizer_reports_the_cosine_of_successive_gradients() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = Optimizer(model, OptimizerConfig(lr=0.0, clip=1.0, cosine=True))

    def step(weight: list[float], bias: float | None) -> dict[str, float]:
        model.weight.grad = torch.tensor([weight])
        model.bias.grad = None if bias is None else torch.tensor([bias])
        return optimizer.step()

    assert set(step([3.0, 4.0], 0.0)) == {"grad_norm", "lr"}  # there is none before
    assert step([30.0, 40.0], 0.0)["grad_cosine"] == pytest.approx(1.0)
    assert step([-4.0, 3.0], 0.0)["grad_cosine"] == pytest.approx(0.0)
    state = optimizer.state_dict()
    assert step([4.0, -3.0], None)["grad_cosine"] == pytest.approx(-1.0)
    optimizer = Optimizer.restore(model, state)
    assert step([4.0, -3.0], 5.0)["grad_cosine"] == pytest.approx(-(0.5**0.5))
    assert "grad_cosine" not in Optimizer(model, OptimizerConfig()).step()
