"""DPO, IPO and DPO-positive: values and slopes by hand, gradients against autograd of the formula, any cut."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from rlready.algorithms import algorithm
from rlready.algorithms.preferences import DPO, DPOP, IPO, Pair, preference_loss
from rlready.errors import UserError
from rlready.policy.base import OptimizerConfig
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tiny.batching import cut
from rlready.policy.tokenize import word_tokenizer
from rlready.types import Group, Row, Task, Trajectory, Turn, Verdict
from tests.algorithms.say_digit import learn
from tests.algorithms.toy_bigram import Bigram, group_of, policy_of

torch.set_num_threads(1)
SIGMOID_1 = 1 / (1 + math.exp(-1))


@pytest.mark.parametrize(
    ("rule", "h", "beta", "penalty", "loss", "slopes"),
    [
        # m = 2, beta m = 1: -log sigmoid(1); slopes -+ beta sigmoid(-1).
        ("dpo", (1, -1), 0.5, 0, math.log(1 + math.exp(-1)), (-0.5 * (1 - SIGMOID_1), 0.5 * (1 - SIGMOID_1))),
        # The target is 1 / (2 x .25) = 2, m = 3: (3 - 2)^2; slopes +-2 (m - 2).
        ("ipo", (1, -2), 0.25, 0, 1.0, (2.0, -2.0)),
        # h_w above 0: no charge, DPO's value at beta m = 1.
        ("dpop", (1, -1), 0.5, 3, math.log(1 + math.exp(-1)), (-0.5 * (1 - SIGMOID_1), 0.5 * (1 - SIGMOID_1))),
        # m = 1, charge 3 x 1, beta (1 - 3) = -1: log(1 + e); slopes -beta sigmoid(1) (1 + 3) and beta sigmoid(1).
        ("dpop", (-1, -2), 0.5, 3, math.log(1 + math.e), (-0.5 * SIGMOID_1 * 4, 0.5 * SIGMOID_1)),
    ],
)
def test_values_and_slopes_by_hand(rule, h, beta, penalty, loss, slopes):
    w, l = (torch.tensor([float(x)], dtype=torch.float64, requires_grad=True) for x in h)  # noqa: E741
    value = preference_loss(rule, w, l, beta, penalty)
    value.sum().backward()
    assert value.item() == pytest.approx(loss)
    assert (w.grad.item(), l.grad.item()) == pytest.approx(slopes)


def test_a_huge_margin_is_no_overflow():
    w = torch.tensor([1e4, -1e4], requires_grad=True)
    value = preference_loss("dpo", w, torch.zeros(2), 1.0)
    value.sum().backward()
    assert value.tolist() == [0.0, 1e4] and w.grad.tolist() == [0.0, -1.0]


# -- the gradient of a step ------------------------------------------------------------------------------------------


class Coupling(Bigram):
    """A learner that keeps units together, as the real ones do: here all rows are one micro-batch."""

    keeps_units = True


def row(prompt, answer):
    return Row.from_segments([(prompt, 0.0), (answer, 1.0)])


PAIRS = [
    Pair((row([0], [1, 2]),), (row([0], [2]),)),
    Pair((row([1, 0], [3]),), (row([1, 0], [1, 1, 1]),)),
    Pair((row([0], [1]), row([2], [3, 3])), (row([0], [2]), row([2], [1]))),  # rewritten contexts: two rows each
]


def by_formula(table, reference, pairs, algo):
    """The loss as the papers write it, over whole completions, on the bigram's logits."""

    def likelihood(logits, rows):
        logp = torch.log_softmax(logits, -1)
        terms = [logp[r.tokens[t - 1], r.tokens[t]] for r in rows for t in np.flatnonzero(r.weights["nll"])]
        return torch.stack(terms).sum(), len(terms)

    losses, nll, tokens = [], 0.0, 0
    for pair in pairs:
        h = []
        for rows in (pair.chosen, pair.rejected):
            (new, n), (old, _) = likelihood(table, rows), likelihood(reference, rows)
            h.append((new - old) / (n if algo.length_normalised else 1))
        (new, n) = likelihood(table, pair.chosen)
        nll, tokens = nll - new, tokens + n
        if algo.rule == "ipo":
            losses.append((h[0] - h[1] - 1 / (2 * algo.beta)) ** 2)
        else:
            charge = algo.penalty * F.relu(-h[0]) if algo.rule == "dpop" else 0.0
            losses.append(-F.logsigmoid(algo.beta * (h[0] - h[1] - charge)))
    return torch.stack(losses).mean() + algo.imitate * nll / tokens


ALGOS = [
    DPO(beta=0.7),
    DPO(beta=0.7, imitate=0.5),
    IPO(beta=0.3),
    DPOP(beta=0.3, penalty=4.0),
    DPO(length_normalised=True),
    IPO(length_normalised=True, imitate=0.1),
]


@pytest.mark.parametrize("kind", [Coupling, Bigram])
@pytest.mark.parametrize("algo", ALGOS)
def test_the_step_has_the_formulas_gradient(kind, algo):
    for micro in (1, 2, 100) if kind is Bigram else (100,):
        learner = kind(micro=micro, lr=1.0)
        learner.reference = torch.randn(4, 4, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
        table = learner.table.detach().clone().requires_grad_()
        wanted = by_formula(table, learner.reference, PAIRS, algo)
        (gradient,) = torch.autograd.grad(wanted, table)
        [metrics] = algo.fit_pairs(policy_of(learner), PAIRS, epochs=1, which="reference")
        torch.testing.assert_close(table.detach() - learner.table.detach(), gradient, rtol=1e-5, atol=1e-6)
        assert metrics["loss/pair"] + metrics.get("loss/nll", 0.0) == pytest.approx(wanted.item(), rel=1e-5)


def test_at_the_reference_every_pair_is_a_tie():
    [metrics] = DPO().fit_pairs(policy_of(Coupling()), PAIRS)
    assert metrics["loss/pair"] == pytest.approx(math.log(2)) and metrics["pair/margin"] == pytest.approx(0, abs=1e-6)
    [metrics] = IPO(beta=0.25).fit_pairs(policy_of(Bigram()), PAIRS)
    assert metrics["loss/pair"] == pytest.approx(4.0)  # (0 - 2)^2


# -- micro-batches of the tiny learner -------------------------------------------------------------------------------

WORDS = [str(d) for d in range(10)]


def tiny(seed=0, **optimizer):
    renderer = ChatRenderer(word_tokenizer(["a b c d e f", *WORDS]))
    config = TinyConfig(dim=16, layers=1, heads=2, max_len=64)
    return TinyPolicy.create(renderer, config, seed, OptimizerConfig(**{"lr": 1e-2, **optimizer}))


texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
prompts = st.lists(st.sampled_from(list("abcdef")), min_size=1, max_size=12).map(" ".join)


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(st.tuples(prompts, texts, texts), min_size=1, max_size=7),
    micro=st.sampled_from([1, 24, 60, 10_000]),
    algo=st.sampled_from(ALGOS),
    keeps=st.booleans(),
)
def test_the_cut_into_microbatches_changes_nothing(texts, micro, algo, keeps):
    policy = tiny()
    renderer, learner = policy.renderer, policy.learner
    learner.freeze_reference()
    with torch.no_grad():  # away from the reference, so that no term is 0
        for k, p in enumerate(learner.model.parameters()):
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
    pairs = [Pair.of(renderer, *each) for each in texts]
    frozen, moving = learner._model("reference"), learner.model

    def likelihood(model, rows):
        (r,) = rows
        tokens = torch.from_numpy(r.tokens)[None]
        hidden = model.hidden(tokens[:, :-1])
        logp = torch.log_softmax(F.linear(hidden, model.output), -1)
        chosen = logp.gather(-1, tokens[0, 1:, None])[:, 0]
        return (chosen * torch.from_numpy(r.weights["nll"][1:])).sum(), float(r.weights["nll"].sum())

    losses, nll, tokens = [], 0.0, 0.0
    for pair in pairs:
        h = []
        for side in (pair.chosen, pair.rejected):
            (new, n), (old, _) = likelihood(moving, side), likelihood(frozen, side)
            h.append((new - old.detach()) / (n if algo.length_normalised else 1))
        new, n = likelihood(moving, pair.chosen)
        nll, tokens = nll - new, tokens + n
        margin = h[0] - h[1]
        if algo.rule == "ipo":
            losses.append((margin - 1 / (2 * algo.beta)) ** 2)
        else:
            losses.append(-F.logsigmoid(algo.beta * (margin - algo.penalty * F.relu(-h[0]))))
    wanted = torch.stack(losses).mean() + algo.imitate * nll / tokens
    expected = torch.autograd.grad(wanted, list(moving.parameters()), allow_unused=True)

    learner.micro_tokens = micro
    learner.keeps_units = keeps
    seen = []
    learner.step = lambda: seen.append([p.grad for p in moving.parameters()]) or {"grad_norm": 0.0, "lr": 0.0}
    [metrics] = algo.fit_pairs(policy, pairs, batch_pairs=len(pairs), epochs=1, which="reference")
    assert metrics["loss/pair"] + metrics.get("loss/nll", 0.0) == pytest.approx(wanted.item(), rel=1e-4, abs=1e-5)
    assert any(want is not None for want in expected)
    for got, want in zip(seen[0], expected, strict=True):
        if want is None:  # a weight that no log-prob depends on
            assert got is None
            continue
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(-1, 3), st.integers(-1, 2)), min_size=1, max_size=12),
    st.integers(1, 60),
)
def test_a_unit_is_never_cut(shape, micro):
    rows = []
    for n, unit, group in shape:
        each = Row.from_segments([(list(range(n)), 1.0)])
        each.unit, each.group = unit, group
        rows.append(each)
    batches = cut(rows, micro)
    assert sorted(i for batch in batches for i in batch) == list(range(len(rows)))
    for unit in {r.unit for r in rows} - {-1}:
        assert sum(any(rows[i].unit == unit for i in batch) for batch in batches) == 1


# -- pairs of a group ------------------------------------------------------------------------------------------------


def judged(*each, learner=None):
    """A group of trajectories given as (reward, verdict)."""
    group = group_of(*[reward for reward, _ in each], learner=learner)
    for trajectory, (_, verdict) in zip(group.trajectories, each, strict=True):
        trajectory.verdict = verdict
    return group


R, W, N = Verdict.RIGHT, Verdict.WRONG, Verdict.NO_ANSWER


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [(2, 3)]),  # the best right one and the worst wrong one
        ({"pairs": "all"}, [(0, 1), (0, 3), (2, 1), (2, 3)]),
        ({"by": "reward"}, [(2, 3)]),
        # By reward, two right answers and two wrong ones make pairs as well: 1 > .9 > .2 > 0.
        ({"by": "reward", "pairs": "all"}, [(0, 1), (0, 3), (1, 3), (2, 0), (2, 1), (2, 3)]),
    ],
)
def test_pairs_of_a_group(fields, expected):
    group = judged((0.9, R), (0.2, W), (1.0, R), (0.0, N))
    assert DPO(**fields).pairs_of(group, key=0, index=0) == expected


def test_a_uniform_group_has_no_pairs_and_failures_are_no_losers():
    assert DPO().pairs_of(judged((1, R), (1, R)), key=0, index=0) == []
    assert DPO().pairs_of(judged((0.3, W), (0, W)), key=0, index=0) == []  # shaped reward, both wrong
    failed = judged((1, R), (0, Verdict.GRADER_FAILED))
    assert DPO().pairs_of(failed, key=0, index=0) == []
    silent = judged((1, R), (0, W))
    silent.trajectories[1].turns[0].completion_ids = []
    assert DPO().pairs_of(silent, key=0, index=0) == []


def test_the_cap_draws_by_hash():
    group = judged(*[(1, R)] * 4, *[(0, W)] * 4)
    algo = DPO(pairs="all", cap=5)
    first = algo.pairs_of(group, key=1, index=0)
    assert len(set(first)) == 5 and first == algo.pairs_of(group, key=1, index=0)
    assert first != algo.pairs_of(group, key=2, index=0) or first != algo.pairs_of(group, key=3, index=0)


def test_each_trajectory_is_run_once_however_many_pairs_it_is_in():
    learner = Coupling()
    group = judged((1, R), (1, R), (0, W), (0, W), learner=learner)
    metrics = asyncio.run(DPO(pairs="all").update(policy_of(learner), [group]))
    assert metrics["pairs"] == 4 and metrics["rows"] == learner.rows_run == 4


def test_an_update_by_hand():
    """Trajectories say 1 and 2 after 0 twice; one step of size 1 from the reference moves each by beta / 2."""
    learner = Coupling(lr=1.0)
    group = judged((1, R), (0, W), learner=learner)
    for t in group.trajectories:
        t.turns[0].completion_ids, t.turns[0].logprobs = t.turns[0].completion_ids[:1], [-1.0]
    before = learner.table.detach().clone()
    learner.freeze_reference()
    metrics = asyncio.run(DPO(beta=0.2).update(policy_of(learner), [group]))
    moved = (learner.table.detach() - before)[0]
    # d/dlogits of log p(1) - log p(2) is e_1 - e_2, times beta sigmoid(0) = .1.
    assert moved.tolist() == pytest.approx([0, 0.1, -0.1, 0], abs=1e-6)
    assert metrics["pairs"] == 1 and metrics["optimizer_steps"] == 1


def test_minibatches_share_one_denominator():
    """Five groups of which one has four pairs: whichever minibatch a pair falls into, its weight is 2 / 8."""

    def run(minibatches, lr):
        learner = Coupling(lr=lr)
        before = learner.table.detach().clone()
        shapes = [[(1, R), (0, W)]] * 4 + [[(1, R), (1, R), (0, W), (0, N)]]
        groups = [judged(*shape, learner=learner) for shape in shapes]
        metrics = asyncio.run(DPO(minibatches=minibatches, pairs="all").update(policy_of(learner), groups))
        assert metrics["pairs"] == 8 and learner.version == metrics["optimizer_steps"] == minibatches
        return (learner.table.detach() - before) / lr, metrics

    whole, _ = run(1, 1e-4)  # with steps this small the two halves see the same policy
    halves, metrics = run(2, 1e-4)
    torch.testing.assert_close(halves, 2 * whole, rtol=1e-3, atol=1e-6)
    assert metrics["loss/pair"] == pytest.approx(math.log(2), rel=1e-3)


def test_ranks_add_up_to_one_learner():
    """Two ranks with 1 and 3 pairs: their gradients, added, are those of one learner with all four."""

    class Rank(Coupling):
        def total(self, sums):
            return {"pair": 4.0, "nll": 2.0 * sums["nll"]}

    shapes = [[(1, R), (0, W)]], [[(1, R), (0, W)], [(1, R), (0, W), (0, N)]]
    algo = DPO(pairs="all")

    def move(kind, shapes):
        learner = kind(lr=1.0)
        before = learner.table.detach().clone()
        groups = [judged(*shape, learner=learner) for shape in shapes]
        metrics = asyncio.run(algo.update(policy_of(learner), groups))
        return learner.table.detach() - before, metrics

    (one, a), (two, b) = move(Rank, shapes[0]), move(Rank, shapes[1])
    whole, metrics = move(Coupling, [*shapes[0], *shapes[1]])
    torch.testing.assert_close(one + two, whole, rtol=1e-6, atol=1e-9)
    assert a["pairs"] == 1 and b["pairs"] == 3
    assert a["loss/pair"] + b["loss/pair"] == pytest.approx(metrics["loss/pair"])


def test_nothing_to_learn_is_harmless():
    learner = Bigram()
    dead = Group(Task.of("t"), [Trajectory(Task.of("t"), [Turn([0], [1], [-1.0])], failure="died")])
    metrics = asyncio.run(DPO().update(policy_of(learner), [dead, judged((1, R), (1, R))]))
    assert learner.version == metrics["optimizer_steps"] == metrics["pairs"] == 0


# -- learning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DPO, IPO, DPOP])
def test_given_pairs_are_learnt(kind):
    policy = tiny(seed=1)
    pairs = [Pair.of(policy.renderer, *each) for each in [("a", "1", "2"), ("b", "2", "1"), ("c", "1 2", "3")]]
    history = kind().fit_pairs(policy, pairs * 4, epochs=25, batch_pairs=6)
    assert len(history) == 50 and history[-1]["pair/accuracy"] == 1 and policy.version == 50
    assert history[-1]["loss/pair"] < 0.6 * history[0]["loss/pair"]
    if kind is DPOP:  # the better answers have not become less likely
        assert history[-1]["pair/chosen"] > 0


def test_progress_is_reported_and_can_stop():
    seen = []
    history = DPO().fit_pairs(
        policy_of(Bigram()), PAIRS, epochs=3, batch_pairs=1, on_step=lambda i, n, m: seen.append((i, n)) or i == 2
    )
    assert seen == [(1, 9), (2, 9)] and len(history) == 2


def test_the_order_is_hashed_from_the_seed():
    def order(seed):
        learner = Coupling()
        DPO(seed=seed).fit_pairs(policy_of(learner), PAIRS * 3, batch_pairs=1)
        return [int(b.rows[0].unit) for b in learner.seen]

    assert order(1) == order(1) != order(2) and sorted(order(1)) == list(range(9))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"beta": 0}, "beta"),
        ({"rule": "kto"}, "rule"),
        ({"penalty": 1.0}, "penalty is read by"),
        ({"cap": 3}, "cap is read by"),
        ({"average": "sequence"}, "average"),
        ({"by": "length"}, "by"),
        ({"imitate": -1}, "imitate"),
    ],
)
def test_fields_that_cannot_work_are_refused(fields, word):
    with pytest.raises(UserError, match=word):
        DPO(**fields)


def test_no_pairs_and_masked_pairs_are_said():
    with pytest.raises(UserError, match="no pairs"):
        DPO().fit_pairs(policy_of(Bigram()), [])
    masked = Pair((Row.from_segments([([0, 1], 0.0)]),), PAIRS[0].rejected)
    with pytest.raises(UserError, match="no token with weight"):
        DPO().fit_pairs(policy_of(Bigram()), [masked])


def test_a_nan_elsewhere_poisons_nothing():
    bad = Pair((row([0], [1, 2]),), (row([0], [2]),))
    for r in (*bad.chosen, *bad.rejected):
        r.logprobs = np.full(len(r), np.nan, dtype=np.float32)
        r.advantage = np.full(len(r), np.nan, dtype=np.float32)
    for kind in (Coupling, Bigram):
        [metrics] = DPO().fit_pairs(policy_of(kind()), [bad])
        assert all(math.isfinite(v) for v in metrics.values())


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("dpo", {}),
        ("dpo", {"pairs": "all", "reference": "start"}),
        ("ipo", {}),
        ("dpop", {"penalty": 5.0}),
    ],
)
def test_it_learns_from_its_own_groups(name, fields):
    first, last, metrics = learn(algorithm(name, minibatches=2, **fields), 0, steps=25)
    assert first < 0.4 and last >= 0.7, (first, last)
    assert all(np.isfinite(v) for v in metrics.values()), metrics
