"""Every gradient against the exact one, on a policy whose answers can all be written down.

Three tokens, answers of three tokens after a start token: 27 answers. The expectation of a loss over what the sampler
mu writes is then a sum, rows weighted by mu(answer), and the gradient it should have comes from differentiating the
expectation itself. What is biased is shown as biased, and by how much.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from rlready.algorithms.base import run_weights
from rlready.algorithms.kl import charge, deduct
from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.rollout.compile import compile_groups
from rlready.types import Group, Task, Trajectory, Turn
from tests.algorithms.toy_bigram import Bound, policy_of

VOCAB, LENGTH = 3, 3


def log_pi(table, answer):
    """log pi of each token of an answer, a list of tensors; the context before the first is token 0."""
    logp = torch.log_softmax(table, -1)
    return [logp[a, b] for a, b in zip((0, *answer[:-1]), answer, strict=True)]


class World:
    """A policy, a sampler (the policy itself, or another), a reference, and a reward for every answer."""

    def __init__(self, length=LENGTH, off_policy=0.0, seed=0):
        generator = torch.Generator().manual_seed(100 + seed)
        self.learner = Bound(VOCAB, seed=seed)
        noise = torch.randn(VOCAB, VOCAB, generator=generator, dtype=torch.float64)
        self.mu = self.learner.table.detach() + off_policy * noise
        self.learner.reference = torch.randn(VOCAB, VOCAB, generator=generator, dtype=torch.float64)
        self.answers = list(product(range(VOCAB), repeat=length))
        self.rewards = torch.randn(len(self.answers), generator=generator, dtype=torch.float64).tolist()

    def groups(self, advantage=True):
        groups = []
        for answer, reward in zip(self.answers, self.rewards, strict=True):
            turn = Turn([0], list(answer), [float(x) for x in log_pi(self.mu, answer)])
            turn.advantage = reward if advantage else 0.0
            groups.append(Group(Task.of(str(answer)), [Trajectory(Task.of(str(answer)), [turn], reward=reward)]))
        return groups

    def expected(self, algorithm, groups=None, **where):
        """The gradient of E_mu[sum over tokens of the loss]; `where` says which step of the update it is."""
        rows = compile_groups(groups or self.groups(), streams=algorithm.streams)
        for row, answer in zip(rows, self.answers, strict=True):
            chance = np.float32(float(torch.stack(log_pi(self.mu, answer)).sum().exp()))
            row.weights = {name: weight * chance for name, weight in row.weights.items()}
        rows, _ = algorithm.prepare(policy_of(self.learner), rows)
        ones = dict.fromkeys(algorithm.streams, 1.0) | run_weights(rows) | where
        return self.learner.gradient(
            lambda: self.learner.forward_backward(
                rows, algorithm.loss, ones, entropy=algorithm.needs_entropy, reference=algorithm.reads_reference
            )
        )

    def gradient(self, value):
        """The gradient of a function of the policy's table."""
        table = self.learner.table.detach().clone().requires_grad_()
        return torch.autograd.grad(value(table), table)[0]

    def minus_reward(self, table):
        chances = [torch.stack(log_pi(table, answer)).sum().exp() for answer in self.answers]
        return -sum(c * r for c, r in zip(chances, self.rewards, strict=True))

    def kl(self, table):
        """KL(pi || reference) of whole answers."""
        total = torch.zeros((), dtype=torch.float64)
        for answer in self.answers:
            new, ref = (torch.stack(log_pi(t, answer)).sum() for t in (table, self.learner.reference))
            total = total + new.exp() * (new - ref)
        return total

    def kl_here(self, table, forward=True):
        """The KL of single tokens at the contexts that mu visits, these held fixed."""
        p, q = torch.log_softmax(table, -1), torch.log_softmax(self.learner.reference, -1)
        each = (p.exp() * (p - q)).sum(-1) if forward else (q.exp() * (q - p)).sum(-1)
        return self.visits() @ each

    def visits(self):
        """How often mu predicts from each token, in expectation."""
        out = torch.zeros(VOCAB, dtype=torch.float64)
        for answer in self.answers:
            chance = torch.stack(log_pi(self.mu, answer)).sum().exp()
            for token in (0, *answer[:-1]):
                out[token] += chance
        return out


def bias(found, exact):
    """Size of the error against the size of the exact gradient."""
    return float((found - exact).norm() / exact.norm())


RULES = {
    "none": {"ratio": "none"},
    "importance": {},
    "clip": {"trust": "clip"},
    "clip, dual": {"trust": "clip", "clip_high": 0.28, "dual_clip": 3.0},
    "cispo": {"trust": "cispo"},
    "sapo": {"trust": "sapo"},
    "tv": {"trust": "tv"},
    "sequence": {"ratio": "sequence", "trust": "clip", "clip_low": 3e-4, "clip_high": 4e-4},
    "geometric": {"ratio": "geometric", "trust": "clip", "clip_low": 0.4, "clip_high": 0.4},
    "start": {"anchor": "start", "trust": "clip", "mismatch": "truncate"},
    "interpolated": {"anchor": "interpolated", "mismatch": "truncate"},
    "masks": {"mismatch": "geometric", "veto": 1e-4, "opsm": 0.5},
    "icepop": {"mismatch": "icepop"},
    "product": {"mismatch": "sequence"},
    "behaviour": {"behaviour": 0.1},
}


@pytest.mark.parametrize("name", RULES)
def test_on_policy_every_rule_has_the_gradient_of_the_expected_reward(name):
    world = World()
    exact = world.gradient(world.minus_reward)
    assert exact.norm() > 0.05
    assert bias(world.expected(PolicyGradient(**RULES[name])), exact) < 1e-5


def test_off_policy_only_the_product_of_weights_is_unbiased():
    """Token weights forget that the sampler chose the context as well; the product of an answer's weights does not."""
    world = World(off_policy=0.4)
    exact = world.gradient(world.minus_reward)
    errors = {
        name: bias(world.expected(PolicyGradient(**fields)), exact)
        for name, fields in {
            "nothing": {"ratio": "none"},
            "token": {},
            "truncate": {"anchor": "start", "mismatch": "truncate", "mismatch_high": 1e6},
            "product": {"anchor": "start", "mismatch": "sequence", "mismatch_high": 1e6},
        }.items()
    }
    assert errors["product"] < 1e-5
    assert errors["token"] == pytest.approx(errors["truncate"], abs=1e-5)  # the same weights, in two places
    assert 0.02 < errors["token"] < errors["nothing"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"anchor": "start", "mismatch": "truncate", "mismatch_high": 1e6},
        {"anchor": "interpolated", "mismatch": "truncate", "mismatch_high": 1e6},
        {"anchor": "start", "mismatch": "icepop", "mismatch_low": 0.0, "mismatch_high": 1e6},
        {"ratio": "none", "anchor": "start", "mismatch": "truncate", "mismatch_high": 1e6},
    ],
)
def test_off_policy_answers_of_one_token_are_corrected_exactly(fields):
    world = World(length=1, off_policy=0.8)
    exact = world.gradient(world.minus_reward)
    assert bias(world.expected(PolicyGradient(**fields)), exact) < 1e-5
    assert bias(world.expected(PolicyGradient(ratio="none")), exact) > 0.1  # what there was to correct
    if fields.get("anchor") == "interpolated":  # whatever the share: 2/3 here, 1 below
        assert bias(world.expected(PolicyGradient(**fields), version=3.0, step=1.0), exact) < 1e-5
        assert bias(world.expected(PolicyGradient(**fields), version=3.0, step=0.0), exact) < 1e-5


@pytest.mark.parametrize("off_policy", [0.0, 0.8])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_exact_kl_in_the_loss_is_that_of_the_contexts_visited(estimator, off_policy):
    world = World(off_policy=off_policy)
    world.rewards = [0.0] * len(world.answers)
    found = world.expected(PolicyGradient(kl=0.5, kl_estimator=estimator))
    assert bias(found, 0.5 * world.gradient(world.kl_here)) < 1e-5


def test_naive_kl_gradients_are_biased_and_by_how_much():
    world = World()
    world.rewards = [0.0] * len(world.answers)
    exact = world.gradient(world.kl_here)
    found = {k: world.expected(PolicyGradient(kl=1.0, kl_estimator=k, kl_gradient="naive")) for k in ("k1", "k2", "k3")}
    assert found["k1"].norm() < 1e-6  # no pull at all: an error of 100 %
    assert bias(found["k2"], exact) < 1e-5  # right, on policy ...
    assert bias(found["k3"], world.gradient(lambda t: world.kl_here(t, forward=False))) < 1e-5  # the other KL
    assert bias(found["k3"], exact) > 0.3
    stale = World(off_policy=0.8)
    stale.rewards = world.rewards
    off = stale.expected(PolicyGradient(kl=1.0, kl_estimator="k2", kl_gradient="naive"))
    assert bias(off, stale.gradient(stale.kl_here)) > 0.1  # ... and not off it


def test_kl_in_the_reward_is_that_of_whole_answers():
    """Return-to-go brings a token's effect on later contexts, which no loss on single tokens has."""
    world = World()
    groups = world.groups(advantage=False)
    noted = charge(policy_of(world.learner), groups, 0.5)
    deduct(groups)
    exact = 0.5 * world.gradient(world.kl)
    assert bias(world.expected(PolicyGradient(), groups), exact) < 1e-5
    assert bias(0.5 * world.gradient(world.kl_here), exact) > 0.05
    every = [(t.turns[0].costs or []) for g in groups for t in g]
    assert noted["kl/reference"] == pytest.approx(np.mean(every) / 0.5)


def test_answers_of_one_token_have_one_kl():
    world = World(length=1)
    groups = world.groups(advantage=False)
    charge(policy_of(world.learner), groups, 1.0)
    deduct(groups)
    in_reward = world.expected(PolicyGradient(), groups)
    world.rewards = [0.0] * len(world.answers)
    in_loss = world.expected(PolicyGradient(kl=1.0))
    assert bias(in_loss, world.gradient(world.kl)) < 1e-5 and bias(in_reward, in_loss) < 1e-5


def test_a_clamped_kl_keeps_its_score_term():
    """Beyond the clamp the estimate is a constant: the naive gradient is 0 there, the exact one is not."""
    world = World()
    world.rewards = [0.0] * len(world.answers)
    wide, exact = (world.expected(PolicyGradient(kl=1.0, kl_clamp=c)) for c in (1e3, None))
    assert bias(wide, exact) < 1e-9
    assert world.expected(PolicyGradient(kl=1.0, kl_gradient="naive", kl_clamp=1e-9)).norm() == 0
    assert world.expected(PolicyGradient(kl=1.0, kl_clamp=1e-3)).norm() > 0


def test_entropy_bonus_and_distance_to_the_sampler():
    world = World(off_policy=0.5)
    world.rewards = [0.0] * len(world.answers)

    def entropy(table):
        p = torch.log_softmax(table, -1)
        return 0.3 * world.visits() @ (p.exp() * p).sum(-1)

    def distance(table):
        p, m = torch.log_softmax(table, -1), torch.log_softmax(world.mu, -1)
        return 0.2 * world.visits() @ (m.exp() * (p - m).square()).sum(-1)

    assert bias(world.expected(PolicyGradient(entropy=0.3)), world.gradient(entropy)) < 1e-5
    assert bias(world.expected(PolicyGradient(behaviour=0.2)), world.gradient(distance)) < 1e-5
