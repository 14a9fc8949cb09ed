"""The whole way with a real model: what was sampled is what the learner sees, and a run repeats itself."""

import json

import numpy as np
import pytest
import torch

from rlready.curriculum.samplers import Uniform
from rlready.policy.base import SamplingParams
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import word_tokenizer
from rlready.rollout.collect import Collector
from rlready.rollout.compile import compile_groups
from tests.rollout.rollout_fakes import Lamps, lamps

CONFIG = TinyConfig(dim=32, layers=2, heads=2, kv_heads=1, max_len=128)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def collector(temperature=1.0):
    words = ["find the lamp of press 0 1 2 done light dark", *(f"room{i}" for i in range(6))]
    policy = TinyPolicy.create(ChatRenderer(word_tokenizer(words)), CONFIG, seed=3)
    tasks = lamps(6)
    params = SamplingParams(temperature=temperature)
    return Collector(policy, Lamps, tasks, Uniform(tasks, 1), group_size=4, params=params, max_steps=7, seed=2)


def turns(groups):
    return [[(u.prompt_ids, u.completion_ids, u.logprobs) for u in t.turns] for g in groups for t in g]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_learner_sees_the_distribution_that_was_sampled(temperature):
    c = collector(temperature)
    groups = c.collect_sync(6)
    for group in groups:
        for trajectory in group:
            trajectory.assign(1.0)
    rows = compile_groups(groups)
    assert len(rows) == 24  # each episode is one row
    assert sum(int(r.weights["policy"].sum()) for r in rows) == sum(t.length for g in groups for t in g)
    for row, now in zip(rows, c.policy.learner.logprobs(rows), strict=True):
        at = row.weights["policy"] > 0
        np.testing.assert_allclose(now[at], row.logprobs[at], atol=1e-4)


def test_a_run_repeats_and_resumes_bit_for_bit():
    whole = collector()
    runs = [turns(whole.collect_sync(3)) for _ in range(3)]
    first = collector()
    again = [turns(first.collect_sync(3))]
    second = collector()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    again += [turns(second.collect_sync(3)) for _ in range(2)]
    assert again == runs
    assert second.state_dict() == whole.state_dict()
