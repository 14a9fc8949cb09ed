"""PPO and VAPO: what the critic estimates, decoupled lambdas, warm-up, the whole loss against autograd."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from rlready.aio import run_sync
from rlready.algorithms import ALGORITHMS, PPO, algorithm
from rlready.algorithms.ppo import VAPO, estimate_values, normalize
from rlready.errors import UserError
from rlready.types import Group, Task, Trajectory, Turn, Verdict
from tests.algorithms.say_digit import batches as rollouts
from tests.algorithms.say_digit import learn, tiny
from tests.algorithms.toy_bigram import Bigram, clone, group_of, policy_of

torch.set_num_threads(1)


def credited(algo, *groups, learner=None):
    asyncio.run(algo.credit(list(groups), policy_of(learner or Bigram())))
    return [[t.turns[0].advantage for t in g.trajectories] for g in groups]


def test_values_reach_the_right_tokens_of_a_forest():
    learner = Bigram()
    turns = [
        Turn([0], [1, 2]),
        Turn([0, 1, 2, 3], [3, 1], parent=0),  # continues: same row
        Turn([0, 1, 2, 0], [2], parent=0),  # a branch: a row of its own, in which turn 0 is context
        Turn([2, 2], [1]),  # a fresh context
    ]
    dead = Trajectory(Task.of("t"), [Turn([0], [1])], failure="died", reward=0.0)
    group = Group(Task.of("t"), [dead, Trajectory(Task.of("t"), turns, reward=1.0)])
    estimate_values(policy_of(learner), [group])
    c = learner.critic.detach()
    wanted = [[c[0], c[1]], [c[3], c[3]], [c[0]], [c[2]]]  # the value of the token before
    for turn, values in zip(turns, wanted, strict=True):
        assert turn.value == pytest.approx([float(v) for v in values], rel=1e-6)
    assert dead.turns[0].value is None


def test_advantages_are_normalised_once_over_all_tokens():
    group = group_of(1.0, 0.0, 0.5)
    credited(PPO(), group)
    every = np.concatenate([t.turns[0].advantage for t in group.trajectories])
    assert len(every) == 6 and every.mean() == pytest.approx(0, abs=1e-12) and every.std() == pytest.approx(1)


def test_a_flat_batch_is_left_at_zero():
    turns = [Turn([0], [1], advantage=[0.3]), Turn([0], [1], advantage=[0.3])]
    normalize(turns)
    assert [t.advantage for t in turns] == [[0.0], [0.0]]


def test_lambdas_are_decoupled():
    """Two tokens, reward r at the end: A = (delta_0 + lam delta_1, delta_1), and at lambda_V = 1 the returns are r."""
    learner = Bigram()
    group = group_of(1.0, learner=learner)
    v0, v1 = (learner.critic[i].item() for i in (0, 1))
    [[advantage]] = credited(PPO(lam=0.5, lam_value=1.0, normalize=False), group, learner=learner)
    assert advantage == pytest.approx([v1 - v0 + 0.5 * (1 - v1), 1 - v1], rel=1e-5)
    assert group.trajectories[0].turns[0].returns == pytest.approx([1.0, 1.0], rel=1e-6)
    credited(PPO(lam=0.5, normalize=False), group, learner=learner)
    assert group.trajectories[0].turns[0].returns == pytest.approx([v1 + 0.5 * (1 - v1), 1.0], rel=1e-5)


@pytest.mark.parametrize(("length", "lam"), [(200, 0.9), (40, 0.5), (20, 0.0), (10, 0.0), (0, 0.0)])
def test_lambda_by_length(length, lam):
    """1 - 1 / (.05 l), cut at 0 for l < 20."""
    turns = [Turn([0], [1] * length), Turn([0], [1] * 1000, trainable=False)]
    assert PPO(lam_length=0.05).lam_of(Trajectory(Task.of("t"), turns)) == pytest.approx(lam)


def test_costs_are_taken_off_the_rewards():
    """gamma = lambda = 1: R_t = reward less the costs from t on."""
    group = group_of(1.0)
    group.trajectories[0].turns[0].costs = [0.25, 0.5]
    credited(PPO(lam=1.0), group)
    assert group.trajectories[0].turns[0].returns == pytest.approx([0.25, 0.5])


def test_a_kl_in_the_reward_reaches_the_critic():
    learner = Bigram()
    learner.reference = learner.table.detach().clone()
    with torch.no_grad():
        learner.table[0, 1] += 0.7
    group = group_of(0.0, 0.0, learner=learner)
    asyncio.run(PPO(kl=0.5, kl_in="reward", kl_estimator="k1", lam=1.0).update(policy_of(learner), [group]))
    turn = group.trajectories[0].turns[0]
    old = torch.log_softmax(learner.reference, -1)
    k1 = np.asarray(turn.logprobs) - [old[0, 1].item(), old[1, 1].item()]
    assert abs(k1[0]) > 0.1
    assert turn.costs == pytest.approx(list(0.5 * k1), abs=1e-6)
    assert turn.returns == pytest.approx([-0.5 * k1.sum(), -0.5 * k1[1]], abs=1e-6)


@pytest.mark.parametrize("micro", [1, 2, 100])
def test_the_loss_against_autograd_of_the_formula(micro):
    """Clip-higher surrogate and the clipped value loss, token means, away from the behaviour policy."""
    algo = PPO(epochs=1, clip_low=0.2, clip_high=0.3, value_clip=0.1, lam=0.9, normalize=False)
    learner = Bigram(micro=micro, lr=1.0)
    group = group_of(1.0, 0.0, 0.5, -0.5, learner=learner)
    asyncio.run(algo.credit([group], policy_of(learner)))
    rows = algo.compile([group])
    with torch.no_grad():  # the policy moves on, so that some ratios and values leave their bounds
        noise = torch.Generator().manual_seed(3)
        learner.table += 0.5 * torch.randn(4, 4, generator=noise, dtype=torch.float64)
        learner.critic += 0.3 * torch.randn(4, generator=noise, dtype=torch.float64)
    table, critic = (x.detach().clone().requires_grad_() for x in (learner.table, learner.critic))
    logp = torch.log_softmax(table, -1)
    policy_terms, value_terms, outside = [], [], 0
    for t in group.trajectories:
        turn = t.turns[0]
        sequence = [*turn.prompt_ids, *turn.completion_ids]
        for k, (a, b) in enumerate(pairwise(sequence)):
            ratio = torch.exp(logp[a, b] - turn.logprobs[k])
            gain = turn.advantage[k]
            policy_terms.append(-torch.minimum(ratio * gain, torch.clamp(ratio, 0.8, 1.3) * gain))
            outside += not 0.8 < ratio.item() < 1.3
            near = turn.value[k] + torch.clamp(critic[a] - turn.value[k], -0.1, 0.1)
            value_terms.append(torch.maximum((critic[a] - turn.returns[k]) ** 2, (near - turn.returns[k]) ** 2))
    total = torch.stack(policy_terms).mean() + 0.5 * torch.stack(value_terms).mean()
    wanted = torch.autograd.grad(total, (table, critic))
    algo.fit(policy_of(learner), rows)
    assert outside  # the clip is at work
    torch.testing.assert_close(table.detach() - learner.table.detach(), wanted[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(critic.detach() - learner.critic.detach(), wanted[1], rtol=1e-5, atol=1e-7)


def test_an_update_moves_policy_and_critic_the_right_way():
    learner = Bigram(adam=True, lr=0.05)
    before = clone(learner)
    group = group_of(1.0, 0.0, 0.0, learner=learner)
    metrics = asyncio.run(PPO(epochs=4).update(policy_of(learner), [group]))
    p = lambda m: torch.softmax(m.table.detach()[0], 0)[1]  # noqa: E731
    assert p(learner) > p(before)
    assert metrics["loss/value"] >= 0 and math.isfinite(metrics["value/explained"])
    target = np.mean([t.turns[0].returns[0] for t in group.trajectories])
    assert abs(learner.critic[0].item() - target) < abs(before.critic[0].item() - target)


# -- the critic's warm-up --------------------------------------------------------------------------------------------


def weights(policy):
    return {name: tensor.clone() for name, tensor in policy.learner.weights().items()}


def changed(policy, before):
    return {name for name, tensor in weights(policy).items() if not torch.equal(tensor, before[name])}


def test_in_the_warm_up_the_value_head_alone_learns():
    policy = tiny(0)
    policy.learner.freeze_reference()
    batches = rollouts(policy, 0, 6, group_size=6)
    algo = PPO(critic_warmup=3, epochs=4)
    before = weights(policy)

    def error():
        groups = batches[5]
        estimate_values(policy, groups)
        return np.mean([(t.turns[0].value[0] - t.reward) ** 2 for g in groups for t in g])

    error_before = error()
    for groups in batches[:3]:
        metrics = run_sync(algo.update(policy, groups))
        assert metrics["critic_warmup"] == 1 and "loss/policy" not in metrics
    assert changed(policy, before) == {"value.weight", "value.bias"}
    assert error() < error_before and policy.version == policy.learner.version == 12
    # Returns are the plain ones, whatever lam is.
    assert all(r == pytest.approx(t.reward) for g in batches[2] for t in g for r in t.turns[0].returns)
    metrics = run_sync(algo.update(policy, batches[3]))
    assert "critic_warmup" not in metrics and "loss/policy" in metrics
    assert changed(policy, before) > {"value.weight", "value.bias"}


def test_a_resumed_warm_up_goes_on_where_it_was():
    def run(updates, algo, policy):
        for groups in updates:
            run_sync(algo.update(policy, groups))

    straight, algo = tiny(0), PPO(critic_warmup=3)
    batches = rollouts(tiny(0), 0, 6, group_size=6)
    run(batches, algo, straight)
    first, half = PPO(critic_warmup=3), tiny(0)
    run(batches[:2], first, half)
    second, rest = PPO(critic_warmup=3), tiny(1)
    second.load_state_dict(first.state_dict())
    rest.learner.load_state_dict(half.learner.state_dict())
    run(batches[2:], second, rest)
    assert second.state_dict() == algo.state_dict()
    assert not changed(rest, weights(straight))


def test_updates_without_episodes_do_not_count():
    algo = PPO(critic_warmup=1)
    dead = Group(Task.of("t"), [Trajectory(Task.of("t"), [Turn([0], [1], [-1.0])], failure="died")])
    metrics = asyncio.run(algo.update(policy_of(Bigram()), [dead]))
    assert metrics["rows"] == 0 and algo.state_dict()["updates"] == 0


def test_a_warm_up_teaches_what_it_can():
    """One state whose mean return is 1/4: the critic's value of it goes there, from plain returns."""
    learner = Bigram(adam=True, lr=0.05)
    algo = PPO(critic_warmup=100, epochs=1)
    for _ in range(100):
        asyncio.run(algo.update(policy_of(learner), [group_of(1.0, 0.0, 0.0, 0.0, tokens=1, learner=learner)]))
    assert learner.critic[0].item() == pytest.approx(0.25, abs=0.02)


# -- VAPO ------------------------------------------------------------------------------------------------------------


def test_vapo_is_ppo_with_other_defaults():
    vapo = algorithm("vapo")
    assert isinstance(vapo, VAPO) and ALGORITHMS["ppo"] is PPO
    assert (vapo.clip_low, vapo.clip_high, vapo.lam_value, vapo.lam_length) == (0.2, 0.28, 1.0, 0.05)
    assert vapo.average == "token" and vapo.imitate == 0.1 and vapo.critic_warmup > 0 and vapo.max_lag == 1


def test_vapo_imitates_right_answers_alone():
    """All rewards equal and the critic right: no advantage, so what moves the policy is imitation alone."""
    learner = Bigram(lr=1.0)
    with torch.no_grad():
        learner.critic[:] = 1.0
    group = group_of(1.0, 1.0, tokens=1, learner=learner)
    for trajectory, verdict in zip(group.trajectories, (Verdict.RIGHT, Verdict.WRONG), strict=True):
        trajectory.verdict = verdict
    before = learner.table.detach().clone()
    asyncio.run(VAPO(critic_warmup=0, epochs=1).update(policy_of(learner), [group]))
    p = torch.softmax(before[0], 0)
    gradient = 0.1 * (torch.eye(4, dtype=torch.float64)[1] - p)  # of .1 log p(1 | 0), a mean over its one token
    torch.testing.assert_close((learner.table.detach() - before)[0], gradient, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"lam": 1.5}, "lam"),
        ({"lam_value": -0.1}, "lam_value"),
        ({"lam_length": 0.0}, "lam_length"),
        ({"lam": 0.9, "lam_length": 0.05}, "lam is not read"),
        ({"critic_warmup": -1}, "critic_warmup"),
        ({"value_coef": 0}, "value_coef"),
        ({"advantage": "std"}, "advantage"),
    ],
)
def test_fields_that_cannot_work_are_refused(fields, word):
    with pytest.raises(UserError, match=word):
        PPO(**fields)


@pytest.mark.parametrize(
    ("name", "fields", "turns"),
    [
        ("ppo", {"minibatches": 2}, 1),
        ("ppo", {"minibatches": 2}, 2),
        ("ppo", {"minibatches": 2, "critic_warmup": 3}, 1),
        ("vapo", {"minibatches": 2, "critic_warmup": 3}, 1),
    ],
)
def test_it_learns(name, fields, turns):
    first, last, metrics = learn(algorithm(name, **fields), 0, steps=28, turns=turns)
    assert first < 0.4 and last >= 0.7, (first, last)
    assert all(np.isfinite(v) for v in metrics.values()), metrics
