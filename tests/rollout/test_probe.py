"""Values by trying: unbiased, deduplicated, with prefixes as they were sampled and computed once."""

from __future__ import annotations

import asyncio
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.errors import UserError
from rlready.policy.base import Choices, SampleRequest, SamplingParams
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.rollout.probe import Estimates, State, as_graded, chains_of, probe
from rlready.types import Score, Task, Trajectory
from tests.rollout import coins

torch.set_num_threads(1)
PARAMS = SamplingParams(max_tokens=12)


def run(policy, states, **options) -> Estimates:
    settings = {"k": 9, "params": PARAMS, "score": coins.tasks().score, "seed": 0} | options
    return asyncio.run(probe(policy, states, **settings))


def test_the_mean_of_many_samples_is_the_value() -> None:
    task = coins.tasks()[0]
    for said in ("", "H", "T T H", "H H H H H"):
        (found,) = run(coins.policy(), [coins.state(task, said)], k=2000)
        assert len(found.values) == 2000 and found.mean == pytest.approx(np.mean(found.values))
        assert abs(found.mean - coins.value(said)) < 4 * max(found.error, 1e-3)


def test_few_samples_are_unbiased_over_states() -> None:
    task = coins.tasks()[0]
    said = [" ".join(words) for n in range(6) for words in itertools.product("HT", repeat=n)]
    found = run(coins.policy(), [coins.state(task, each) for each in said], k=3)
    gaps = np.asarray([e.mean - coins.value(s) for e, s in zip(found, said, strict=True)])
    assert abs(gaps.mean()) < 2 * gaps.std(ddof=1) / math.sqrt(len(gaps))


def test_a_sample_goes_on_with_what_is_left_of_the_cap_and_the_whole_answer_is_graded() -> None:
    seen: list[Trajectory] = []

    async def score(task: Task, trajectory: Trajectory) -> Score:
        seen.append(trajectory)
        return Score.right()

    task = coins.tasks()[0]
    policy = coins.policy()
    run(policy, [coins.state(task, "H T")], k=2, score=score)
    assert {r.params.max_tokens for r in policy.sampler.requests} == {10}
    assert all(r.prompt_ids == list(coins.state(task, "H T").ids) for r in policy.sampler.requests)
    for trajectory in seen:
        (turn,) = trajectory.turns
        assert turn.prompt_ids == coins.RENDER.render(task.prompt)
        assert turn.completion_ids[:2] == [coins.H, coins.T] and turn.completion_ids[-1] == coins.END
        assert turn.text.startswith("H T ") and len(turn.text.split()) == 6 and turn.stop == "end"


def test_what_was_cut_off_counts_as_0_unless_graded() -> None:
    task = coins.tasks()[0]
    short = SamplingParams(max_tokens=3)
    (found,) = run(coins.policy(p=1.0), [coins.state(task, "H")], params=short)
    assert found.mean == 0 and found.unfinished == 9 and found.tokens == 18
    (found,) = run(coins.policy(p=1.0), [coins.state(task, "H")], params=short, reward=as_graded)
    assert found.mean == 1
    (found,) = run(coins.policy(p=1.0), [coins.state(task, "H H H")], params=short, reward=as_graded)
    assert found.mean == 1 and found.tokens == 0 and found.values == (1.0,)  # the cap is used up: an answer already


def test_equal_states_share_one_estimate_and_others_do_not() -> None:
    tasks = coins.tasks()
    states = [coins.state(tasks[0], "H"), coins.state(tasks[0], "H"), coins.state(tasks[0], "T")]
    states.append(State(tasks[1], states[0].prompt_ids, states[0].said_ids))  # same words, another task's grader
    policy = coins.policy()
    found = run(policy, states)
    assert found[0] is found[1] and found[0] is not found[3]
    assert found.distinct == 3 and found.shared == pytest.approx(0.25)
    assert len(policy.sampler.requests) == 27 and found.tokens == sum(found[i].tokens for i in (0, 2, 3))
    assert len({r.seed for r in policy.sampler.requests}) == 27


def test_an_estimate_is_a_function_of_seed_and_state() -> None:
    task = coins.tasks()[0]
    one, two = coins.state(task, "H"), coins.state(task, "T H")
    alone = run(coins.policy(), [two])
    among = run(coins.policy(), [one, two, one])
    assert alone[0].values == among[1].values
    assert run(coins.policy(), [two], seed=1)[0].values != alone[0].values


def test_what_the_grader_cannot_judge_is_left_out_and_counted() -> None:
    task = coins.tasks()[0]
    score = coins.tasks(coins.fails_on_tails).score
    (found,) = run(coins.policy(p=0.5), [coins.state(task)], score=score, k=40)
    assert found.mean == 1 and 5 < found.failed < 35 and len(found.values) == 40 - found.failed
    every = run(coins.policy(p=0.0), [coins.state(task)], score=score)
    assert math.isnan(every[0].mean) and every.failed == 9

    def broken(task: Task, trajectory: Trajectory) -> float:
        raise ValueError("no such answer")

    assert run(coins.policy(), [coins.state(task)], score=coins.tasks(broken).score).failed == 9

    async def slow(task: Task, trajectory: Trajectory) -> Score:
        await asyncio.sleep(5)
        return Score.right()

    assert run(coins.policy(), [coins.state(task)], score=slow, deadline=0.01).failed == 9


def test_sessions_are_released_also_after_an_error() -> None:
    policy = coins.policy()
    run(policy, [coins.state(coins.tasks()[0], "H")])
    assert set(policy.sampler.released) == {r.session for r in policy.sampler.requests}

    async def raises(task: Task, trajectory: Trajectory) -> Score:
        raise KeyError("mine")

    with pytest.raises(KeyError):  # a scorer that is no task set's is not guarded
        run(policy, [coins.state(coins.tasks()[0], "H")], score=raises)
    assert set(policy.sampler.released) == {r.session for r in policy.sampler.requests}


def test_slips_are_named() -> None:
    task = coins.tasks()[0]
    with pytest.raises(UserError, match="k=0"):
        run(coins.policy(), [coins.state(task)], k=0)
    with pytest.raises(UserError, match="choices"):
        run(coins.policy(), [coins.state(task)], params=SamplingParams(choices=Choices([[1]])))


@given(st.lists(st.lists(st.integers(0, 2), max_size=5).map(tuple), max_size=20, unique=True))
@settings(deadline=None)
def test_chains_hold_every_state_once_each_a_prefix_of_the_one_before(said: list[tuple[int, ...]]) -> None:
    task = Task.of("x")
    states = [State(task, (7,), each) for each in said]
    chains = chains_of(states)
    assert sorted(s.said_ids for chain in chains for s in chain) == sorted(said)
    for chain in chains:
        for longer, shorter in itertools.pairwise(chain):
            assert longer.ids[: len(shorter.ids)] == shorter.ids
    heads = {chain[0].said_ids for chain in chains}
    leaves = {s for s in said if not any(o != s and o[: len(s)] == s for o in said)}
    assert heads == leaves  # no more chains than there are longest states


def tiny() -> TinyPolicy:
    return TinyPolicy.create(coins.RENDER, TinyConfig(dim=32, layers=2, heads=4, kv_heads=1, max_len=64), seed=3)


def test_a_shared_cache_changes_no_sample_and_computes_every_prefix_once() -> None:
    policy = tiny()
    tasks = coins.tasks(n=3)
    words = ["H T T H H T H", "T T H", "H H T H T H T T"]
    said = [(t, w.split()) for t, w in zip(tasks, words, strict=True)]
    states = [coins.state(t, " ".join(w[:n])) for t, w in said for n in range(len(w))]
    params = SamplingParams(max_tokens=16, stop_ids=coins.RENDER.stop_ids)
    policy.sampler.stats.reset()
    found = run(policy, states, k=5, params=params)
    longest = [max((s for s in states if s.task == t), key=lambda s: len(s.ids)) for t in tasks]
    # Each chain's longest prefix once, and one token per further sample: the last of a prompt is always computed.
    assert found.computed <= sum(len(s.ids) for s in longest) + 5 * len(states) - len(longest)
    assert found.computed + found.reused == sum(5 * len(s.ids) for s in states)
    assert found.tokens == policy.sampler.stats.tokens

    async def alone() -> list[list[int]]:
        requests = [SampleRequest(r.prompt_ids, r.params, r.seed) for r in asked]
        return [(await policy.sampler.sample([r]))[0].completion_ids for r in requests]

    asked: list[SampleRequest] = []
    answers: list[list[int]] = []
    sample = policy.sampler.sample

    async def spied(requests):
        samples = await sample(requests)
        asked.extend(requests)
        answers.extend(s.completion_ids for s in samples)
        return samples

    policy.sampler.sample = spied  # type: ignore[method-assign]
    run(policy, states, k=2, params=params)
    policy.sampler.sample = sample  # type: ignore[method-assign]
    assert asyncio.run(alone()) == answers
