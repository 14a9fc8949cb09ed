"""The lag of benchmarks/lag.py is exact; what it and the other new programs sum up is right."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rlready.policy.base import require_learner
from rlready.policy.tiny import TinyConfig, TinyPolicy

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def programs() -> dict[str, ModuleType]:
    sys.path.insert(0, str(FOLDER))
    try:
        return {name: importlib.import_module(name) for name in ("chain", "lag", "readme", "curves_vs_trl")}
    finally:
        sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_the_sampler_has_the_weights_of_exactly_so_many_updates_ago(programs: dict[str, ModuleType], lag: int) -> None:
    renderer = programs["chain"].renderer()
    made = TinyPolicy.create(renderer, TinyConfig(vocab_size=len(renderer.tokenizer), dim=8, layers=1, heads=2))
    policy = programs["lag"].Stale(made.sampler, made.renderer, made.learner)
    policy.lag = lag
    learner: Any = require_learner(policy)
    weight = next(iter(learner.model.parameters()))
    given: list[float] = []
    policy.sampler.load = lambda state, version: given.append(float(next(iter(state.values())).flatten()[0]))
    for update in range(6):
        with torch.no_grad():
            weight.flatten()[0] = float(update)
        policy.sync()
    assert given == [float(max(0, update - lag)) for update in range(6)]


def one(rewards: list[float], **more: Any) -> dict[str, Any]:
    return {"curve": {"reward": rewards}, "halted": None, "signs": [], "after": rewards[-1], "rule": "uncorrected",
            "lag": 0, "seed": 0} | more  # fmt: skip


def test_a_collapse_is_for_good_and_below_half_of_the_best(programs: dict[str, ModuleType]) -> None:
    lag = programs["lag"]
    assert lag.collapsed(one([0.2, 0.4, 0.8] * 10)) is None
    assert lag.collapsed(one([0.8] * 10 + [0.1] * 10 + [0.8] * 10)) is None  # it came back
    at = lag.collapsed(one([0.8] * 10 + [0.1] * 10))
    assert at is not None and 9 <= at <= 11  # means of five updates
    assert lag.collapsed(one([0.8] * 10, halted="update 11: not finite")) is not None


def test_the_summary_takes_the_first_time_that_a_sign_spoke(programs: dict[str, ModuleType]) -> None:
    signs = [{"step": 4, "sign": "mismatch"}, {"step": 2, "sign": "ess"}, {"step": 9, "sign": "mismatch"}]
    runs = [one([0.5] * 6, signs=signs), one([0.7] * 6, signs=[{"step": 3, "sign": "mismatch"}], seed=1)]
    found = programs["lag"].summary(runs)["lag 0, uncorrected"]
    assert found["seeds"] == 2 and found["reward"] == pytest.approx([0.5, 0.7])
    assert found["signs"] == {"ess": [2], "mismatch": [3, 4]}
    text = programs["readme"].lag({"by": programs["lag"].summary(runs)})
    assert "| lag 0, uncorrected | 60 ± 14 | 60 ± 14 | 60 ± 14 | 0 of 2 |" in text
    assert "ess (1 of 2, from update 2), mismatch (2 of 2, from update 3)" in text


def test_learning_curves_agree_within_noise_or_do_not(programs: dict[str, ModuleType]) -> None:
    def pair(ours: float, theirs: float) -> dict[str, Any]:
        def steps(x: float) -> list[dict[str, float]]:
            return [{"reward": x, "tokens": 3.0}] * 10

        return {"steps": {"rlready": steps(ours), "trl": steps(theirs)}}

    agree = programs["curves_vs_trl"].agreement
    noisy = agree([pair(0.5, 0.55), pair(0.6, 0.5), pair(0.4, 0.6)])
    assert noisy["within noise"] and noisy["gap"] == pytest.approx(-0.05)
    # variances of the runs: 0.01 and 0.0025, over three seeds
    assert noisy["standard error"] == pytest.approx((0.0125 / 3) ** 0.5)
    apart = agree([pair(0.5, 0.7), pair(0.51, 0.71), pair(0.49, 0.69)])
    assert not apart["within noise"]
    assert [part["gap"] for part in apart["fifths"]] == pytest.approx([-0.2] * 5)
    text = programs["readme"].curves_vs_trl(
        {"methods": {"ppo": apart | {"trl": "1.8.0", "size": "4 tasks", "pairs": [1, 2, 3]}}}
    )
    assert "**beyond** noise" in text and "TRL 1.8.0" in text
