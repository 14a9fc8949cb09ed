"""Mixed losses: the sum of two gradients with a denominator each, demonstrations from a file, exact resuming."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
import torch

from rlready.aio import run_sync
from rlready.algorithms import SFT, algorithm, nll
from rlready.algorithms.mixed import Mixed, read_demonstrations
from rlready.algorithms.preferences import DPO
from rlready.errors import UserError
from rlready.types import Row, Verdict
from tests.algorithms.say_digit import DIGITS, TASKS, learn, tiny
from tests.algorithms.toy_bigram import Bigram, group_of, policy_of

DEMONSTRATIONS = (
    Row.from_segments([([0], 0.0), ([3, 3, 3], 1.0)]),
    Row.from_segments([([1, 0], 0.0), ([2], 1.0)]),
)


def moved(algo, groups, **fields):
    """How the table moves in one SGD step of size 1, that is minus the gradient."""
    learner = Bigram(lr=1.0, **fields)
    before = learner.table.detach().clone()
    learner.reference = before.clone()
    metrics = asyncio.run(algo.update(policy_of(learner), groups(learner)))
    assert learner.version == 1
    return before - learner.table.detach(), metrics


def groups(learner):
    return [group_of(1.0, 0.0, 0.5, learner=learner), group_of(0.0, 1.0, learner=learner)]


def judged(learner):
    out = groups(learner)[:1]
    for trajectory in (t for g in out for t in g):
        trajectory.verdict = Verdict.RIGHT if trajectory.reward == 1 else Verdict.WRONG
    return out


@pytest.mark.parametrize("micro", [1, 100])
@pytest.mark.parametrize("inner", [algorithm("grpo"), algorithm("rloo"), algorithm("ppo", epochs=1), DPO()])
def test_the_step_is_the_sum_of_the_two_alone(inner, micro):
    make = judged if isinstance(inner, DPO) else groups
    alone, _ = moved(inner, make, micro=micro)
    learner = Bigram(lr=1.0)
    before = learner.table.detach().clone()
    SFT().fit_rows(policy_of(learner), DEMONSTRATIONS, batch_tokens=100)
    likelihood = before - learner.table.detach()
    assert alone.abs().sum() > 1e-2 and likelihood.abs().sum() > 1e-2
    for copies in (1, 7):  # however many there are, nothing is diluted
        mixed = Mixed(by=inner, rows=DEMONSTRATIONS * copies, coefficient=0.3, batch=100)
        both, metrics = moved(mixed, make, micro=micro)
        torch.testing.assert_close(both, alone + 0.3 * likelihood, rtol=1e-6, atol=1e-7)
        assert metrics["loss/demonstrations"] > 0


class Rank(Bigram):
    """One of two ranks: the other has as much of everything."""

    def total(self, sums):
        return {name: 2 * value for name, value in sums.items()}


def test_denominators_of_both_parts_are_of_all_ranks():
    """Also of the part that sees the learner through a wrapper."""
    mixed = Mixed(by="rloo", rows=DEMONSTRATIONS, batch=100)
    alone, ranked = Bigram(lr=1.0), Rank(lr=1.0)
    steps = []
    for learner in (alone, ranked):
        before = learner.table.detach().clone()
        asyncio.run(mixed.update(policy_of(learner), groups(learner)))
        steps.append(learner.table.detach() - before)
    torch.testing.assert_close(2 * steps[1], steps[0], rtol=1e-6, atol=1e-9)


def test_the_likelihood_by_hand():
    learner = Bigram(lr=1.0)
    logp = torch.log_softmax(learner.table.detach(), -1)
    expected = -(logp[0, 3] + 2 * logp[3, 3] + logp[0, 2]).item() / 4
    metrics = asyncio.run(Mixed(rows=DEMONSTRATIONS, coefficient=0.5).update(policy_of(learner), groups(learner)))
    assert metrics["loss/demonstrations"] == pytest.approx(0.5 * expected, rel=1e-6)
    assert {"ratio/mean", "grad_norm"} <= set(metrics)


def test_without_anything_to_reinforce_a_step_is_taken_on_demonstrations():
    group = group_of(1.0)
    group.trajectories[0].failure = "died"
    learner = Bigram(lr=1.0)
    policy = policy_of(learner)
    before = nll(policy, DEMONSTRATIONS)
    asyncio.run(Mixed(rows=DEMONSTRATIONS).update(policy, [group]))
    assert learner.version == policy.version == 1 and nll(policy, DEMONSTRATIONS) < before


def test_every_demonstration_once_per_pass_and_resumed_exactly():
    rows = tuple(Row.from_segments([([0, i % 4] + [1] * i, 1.0)]) for i in range(7))
    algo = Mixed(rows=rows, batch=3, options={"epochs": 2, "minibatches": 2})

    def drawn(algo, updates):
        learner = Bigram()
        for _ in range(updates):
            asyncio.run(algo.update(policy_of(learner), groups(learner)))
        return [len(row) for batch in learner.seen for row in batch.rows if "nll" in row.weights]

    first = drawn(algo, 7)  # 4 steps of 3 each: 84 = 12 passes
    for epoch in range(12):
        assert sorted(first[7 * epoch : 7 * epoch + 7]) == sorted(len(row) for row in rows)
    assert first[:7] != first[7:14]
    half = Mixed(rows=rows, batch=3, options={"epochs": 2, "minibatches": 2})
    start = drawn(half, 3)
    resumed = Mixed(rows=rows, batch=3, options={"epochs": 2, "minibatches": 2})
    state = json.loads(json.dumps(half.state_dict()))
    resumed.load_state_dict(state)
    assert start + drawn(resumed, 4) == first and resumed.state_dict() == algo.state_dict()


def test_the_other_algorithms_state_is_kept():
    algo = Mixed(by="reinforce", options={"advantage": "running"}, rows=DEMONSTRATIONS)
    learner = Bigram()
    asyncio.run(algo.update(policy_of(learner), groups(learner)))
    other = Mixed(by="reinforce", options={"advantage": "running"}, rows=DEMONSTRATIONS)
    other.load_state_dict(algo.state_dict())
    assert algo.inner.state_dict() and other.inner.state_dict() == algo.inner.state_dict()


# -- files -----------------------------------------------------------------------------------------------------------


def write(tmp_path, *records):
    path = tmp_path / f"shown{len(records)}.jsonl"
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records), encoding="utf-8")
    return str(path)


def test_a_file_of_prompts_and_completions(tmp_path):
    policy = tiny(0)
    chat = [{"role": "user", "content": "digit 2"}]
    path = write(tmp_path, {"prompt": "digit 1", "completion": "1"}, {"prompt": chat, "completion": "2"})
    rows = read_demonstrations(path, policy.renderer)
    for row, digit in zip(rows, "12", strict=True):
        learnt = row.tokens[row.weights["nll"] > 0].tolist()
        assert learnt == policy.renderer.encode_completion(digit)
        assert row.tokens.tolist()[: -len(learnt)] == policy.renderer.render(TASKS[int(digit)].prompt)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"prompt": "digit 1", "completion": "1"}, {"prompt": "digit 1"}], 'line 2: there is no "completion"'),
        ([{"completion": "1", "text": ""}], 'line 1: there is no "prompt"; the record has completion, text'),
        ([{"prompt": "digit 1", "completion": 1}], "line 1: the completion must be a text"),
        ([{"prompt": "digit 1", "completion": "elephant"}], "line 1: .*elephant"),
        ([{"prompt": [{"role": "boss", "content": "x"}], "completion": "1"}], "line 1: .*boss"),
        (["{"], "line 1, column"),
        ([], "no demonstrations"),
    ],
)
def test_bad_files_are_named_by_line(tmp_path, records, message):
    path = write(tmp_path, *records)
    algo = Mixed(demonstrations=path)
    with pytest.raises(UserError, match=message):
        asyncio.run(algo.update(tiny(0), []))


def test_a_missing_file_and_no_demonstrations_are_said(tmp_path):
    with pytest.raises(UserError, match="Cannot read"):
        asyncio.run(Mixed(demonstrations=str(tmp_path / "none.jsonl")).update(tiny(0), []))
    with pytest.raises(UserError, match="no demonstrations"):
        asyncio.run(Mixed().update(tiny(0), []))
    with pytest.raises(UserError, match="no demonstration has a token with weight"):
        asyncio.run(Mixed(rows=(Row.from_segments([([0, 1], 0.0)]),)).update(tiny(0), []))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"by": "mixed"}, "another algorithm"),
        ({"by": "grop"}, "Did you mean grpo"),
        ({"options": {"clip_hgih": 1}}, "clip_high"),
        ({"by": DPO(), "options": {"beta": 1}}, "options are read"),
        ({"epochs": 2}, "options.epochs"),
        ({"coefficient": -1}, "coefficient"),
        ({"batch": 0}, "batch"),
        ({"rows": DEMONSTRATIONS, "demonstrations": "x"}, "not both"),
    ],
)
def test_fields_that_cannot_work_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        Mixed(**fields)


# -- learning --------------------------------------------------------------------------------------------------------


def test_demonstrations_speed_up_and_reward_does_the_rest(tmp_path):
    path = write(tmp_path, *[{"prompt": f"digit {d}", "completion": d} for d in DIGITS])
    half = write(tmp_path, *[{"prompt": f"digit {d}", "completion": d} for d in DIGITS[:3]])
    plain = algorithm("rloo", minibatches=2)
    _, early, _ = learn(Mixed(by=plain, demonstrations=path, coefficient=1.0), 1, steps=8)
    _, without, _ = learn(plain, 1, steps=8)
    assert early > without + 0.1, (early, without)
    # Half of the digits are shown, the others only rewarded: all are learnt.
    _, last, metrics = learn(Mixed(by=plain, demonstrations=half), 0, steps=20)
    assert last >= 0.9 and all(np.isfinite(v) for v in metrics.values()), (last, metrics)


def test_the_policy_given_is_left_whole():
    policy = tiny(0)
    learner = policy.learner
    run_sync(Mixed(rows=(_shown(policy),)).update(policy, []))
    assert policy.learner is learner and policy.version == learner.version == 1


def _shown(policy):
    return Row.from_segments(
        [(policy.renderer.render(TASKS[0].prompt), 0.0), (policy.renderer.encode_completion("0"), 1.0)]
    )
