"""What users get wrong ends in one sentence: environments that fail, tasks that do not match, settings out of range."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

import pytest
import torch

from rlready.dream.gym import Gym
from rlready.dream.library import Library
from rlready.dreaming import train as training
from rlready.dreaming.rounds import RealSide
from rlready.dreaming.train import DreamTrainConfig, check_gate
from rlready.errors import UserError
from rlready.evaluate import Evaluation
from rlready.worlds.fiction.desk import Desk
from tests.dreaming.desk_gym import Counted, make_gym, side, train


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return make_gym(tmp_path_factory.mktemp("desk"))


@pytest.fixture
def gym(folder) -> Gym:
    torch.set_num_threads(1)
    return Gym.load(folder)


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    """The gate plays few scripts here; what it checks is tested with it."""
    Counted.steps, Counted.tasks = 0, []
    monkeypatch.setattr(training, "check_gate", functools.partial(check_gate, scripts=4))


# ---------------------------------------------------------------------- hostile environments


class Raises(Desk):
    async def reset(self, task, seed):
        raise RuntimeError("no such shop")


def test_a_real_environment_that_raises_is_one_sentence(gym, tmp_path):
    with pytest.raises(UserError, match="no such shop"):
        train(gym, tmp_path, real=side(gym, Raises))


class RaisesLater(Desk):
    """Lives through the gate, and dies in the checks."""

    made = 0

    def __init__(self):
        super().__init__()
        RaisesLater.made += 1

    async def step(self, action):
        if RaisesLater.made > 4:
            raise RuntimeError("out of stock")
        return await super().step(action)


def test_a_real_environment_that_dies_later_is_one_sentence(gym, tmp_path):
    RaisesLater.made = 0
    with pytest.raises(UserError, match="out of stock") as told:
        train(gym, tmp_path, real=side(gym, RaisesLater))
    assert "No episode of the 6 held-out tasks could be played" in str(told.value)


def test_real_tasks_that_the_environment_does_not_know_are_one_sentence(gym, tmp_path):
    with pytest.raises(UserError, match="--tasks"):
        train(gym, tmp_path, real=RealSide.of(gym, Desk))


def test_no_environment_at_all_is_one_sentence(gym, tmp_path):
    with pytest.raises(UserError, match="type str, not an Env"):
        train(gym, tmp_path, real=side(gym, lambda: "a desk"))  # type: ignore[arg-type,return-value]


def test_an_empty_gym_is_one_sentence(gym, tmp_path):
    library = Library([], gym.domain, gym.state)
    empty = Gym(gym.domain, gym.state, library, gym.simulator, splits={"train": []})
    with pytest.raises(UserError, match="no tasks to train on"):
        train(empty, tmp_path)


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"steps": -1}, "steps"),
        ({"groups": 0}, "groups"),
        ({"group_size": 1}, "group_size"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"generated": 1.5}, "generated"),
        ({"max_failures": -0.1}, "max_failures"),
        ({"allowed": math.nan}, "allowed"),
        ({"check_tasks": 0}, "check_tasks"),
        ({"deadline": 0.0}, "deadline"),
        ({"rl_lr": 0.0}, "rl_lr"),
        ({"clone_batch_tokens": 0}, "clone_batch_tokens"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"enough": math.nan}, "enough"),
        ({"tokenizer": "wrods"}, "words"),
        ({"clone_from": "success"}, "successes"),
    ],
)
def test_settings_out_of_range_are_named(settings, named):
    with pytest.raises(UserError, match=named):
        DreamTrainConfig(**settings)


def test_an_evaluation_is_what_it_was_after_a_round_trip(gym):
    found = Evaluation.of([])
    assert Evaluation.from_json(json.loads(json.dumps(found.to_json()))).n == 0
