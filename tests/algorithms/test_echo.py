"""Observation prediction (ECHO): which tokens are weighed, what their gradient is, and what it does to learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rlready.aio import run_sync
from rlready.algorithms import GRPO, PPO, RLOO, SFT, Reinforce, nll
from rlready.algorithms.base import Algorithm, run_weights
from rlready.algorithms.streams import log_ratio
from rlready.algorithms.trust import surrogate
from rlready.curriculum.samplers import Uniform
from rlready.envs.base import Env, Observation, Step
from rlready.errors import UserError
from rlready.policy.base import Batch, OptimizerConfig, Outputs, SamplingParams
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import word_tokenizer
from rlready.rollout.collect import Collector
from rlready.rollout.compile import compile_groups, compile_trajectory
from rlready.tasks.base import TaskSet
from rlready.types import Group, Message, Row, Task, Trajectory, Turn, Verdict

torch.set_num_threads(1)
DIGITS = [str(d) for d in range(5)]
ECHOES = [f"echo_{d}" for d in range(5)]


def T(prompt: str, completion: str, parent: int | None = None, **kw) -> Turn:
    kw.setdefault("logprobs", [-0.5] * len(completion))
    kw.setdefault("advantage", 1.0)
    return Turn([ord(c) for c in prompt], [ord(c) for c in completion], parent=parent, **kw)


def probe(prompt: str, completion: str, parent: int) -> Turn:
    return T(prompt, completion, parent, trainable=False, logprobs=[], advantage=None)


def episode(turns: Sequence[Turn]) -> Trajectory:
    return Trajectory(Task.of("a task"), list(turns), reward=1.0, verdict=Verdict.RIGHT)


def weighed(row: Row) -> tuple[str, str]:
    return "".join(map(chr, row.tokens)), "".join("o" if w else "." for w in row.weights["observe"])


# Context is in small letters, what was sampled in capitals. Expected: the tokens, and which are observations.
MATRIX = {
    "one turn sees nothing new": ([T("ab", "XY")], [("abXY", "....")]),
    "tool chain: replies, never the first prompt": (
        [T("ab", "X"), T("abXcd", "YZ", 0), T("abXcdYZe", "W", 1)],
        [("abXcdYZeW", "...oo..o.")],
    ),
    "nothing came back": ([T("a", "X"), T("aX", "Y", 0)], [("aXY", "...")]),
    "a rewritten context was not said by the environment": (
        [T("ab", "X"), T("cXd", "Y", None), T("ae", "Z", 0)],
        [("abX", "..."), ("cXdY", "...."), ("aeZ", "...")],
    ),
    "a reply that two branches share is weighed once": (
        [T("a", "X"), T("aXb", "Y", 0), T("aXb", "Z", 0)],
        [("aXbY", "..o."), ("aXbZ", "....")],
    ),
    "another reply to the same parent is another observation": (
        [T("a", "X"), T("aXb", "Y", 0), T("aXc", "Z", 0)],
        [("aXbY", "..o."), ("aXcZ", "..o.")],
    ),
    "a probe's question is not the environment's": (
        [T("a", "X"), probe("aXq", "P", 0), T("aXb", "Y", 0)],
        [("aXbY", "..o.")],
    ),
}


@pytest.mark.parametrize("name", MATRIX)
def test_which_tokens_are_observations(name: str) -> None:
    turns, expected = MATRIX[name]
    rows = compile_trajectory(episode(turns), streams=("policy", "observe"))
    assert [weighed(row) for row in rows] == expected
    for row in rows:  # the other streams are as they would be without it
        alone = next(r for r in compile_trajectory(episode(turns)) if np.array_equal(r.tokens, row.tokens))
        assert np.array_equal(alone.weights["policy"], row.weights["policy"])
        assert set(row.temperature[row.weights["observe"] > 0]) <= {1.0}


def test_every_branch_weighs_a_shared_reply_where_every_branch_trains_shared_turns() -> None:
    turns = [T("a", "X"), T("aXb", "Y", 0), T("aXb", "Z", 0)]
    rows = compile_trajectory(episode(turns), streams=("observe",), shared="every")
    assert [weighed(row) for row in rows] == [("aXbY", "..o."), ("aXbZ", "..o.")]


class Say(Env):
    """Two turns: say a digit, hear its echo; paid is the task's digit said last."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.task, self.said, self.messages = task, 0, task.prompt
        return Observation(self.messages, DIGITS)

    async def step(self, action: str) -> Step:
        self.said += 1
        self.messages = (*self.messages, Message("assistant", action), Message.user(f"echo_{action}"))
        done = self.said == 2
        right = done and action == self.task.data["digit"]
        return Step(Observation(self.messages, DIGITS), float(right), terminated=done)


TASKS = TaskSet([Task.of(f"digit {d}", digit=d) for d in DIGITS], name="digits")


def tiny(seed: int, lr: float = 5e-3, micro_tokens: int = 1024, value_head: bool = False) -> TinyPolicy:
    renderer = ChatRenderer(word_tokenizer(["digit", *DIGITS, *ECHOES]))
    config = TinyConfig(dim=32, layers=1, heads=2, max_len=32, value_head=value_head)
    policy = TinyPolicy.create(renderer, config, seed, OptimizerConfig(lr=lr))
    policy.learner.micro_tokens = micro_tokens
    return policy


def play(policy: TinyPolicy, seed: int, group_size: int = 8) -> list[Group]:
    sampler = Uniform(TASKS, seed)
    return Collector(
        policy, Say, TASKS, sampler, group_size=group_size, params=SamplingParams(), seed=seed
    ).collect_sync(5)


def gradients(policy: TinyPolicy, algorithm: Algorithm, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    rows, _ = algorithm.prepare(policy, rows)
    rows = algorithm.reweigh(rows)
    policy.learner.forward_backward(rows, algorithm.loss, algorithm.weigh(rows) | run_weights(rows))
    out = {n: p.grad.clone() for n, p in policy.learner.model.named_parameters() if p.grad is not None}
    policy.learner.model.zero_grad()
    return out


def settled(groups: list[Group], advantage: float = 0.0) -> list[Group]:
    for group in groups:
        for trajectory in group:
            trajectory.assign(advantage)
    return groups


@pytest.mark.parametrize("average", ["token", "sequence", "trajectory", "constant"])
def test_its_gradient_is_that_of_cross_entropy_on_the_replies(average: str) -> None:
    policy = tiny(0)
    groups = settled(play(policy, 1))
    algorithm = GRPO(average=average, constant=7.0 if average == "constant" else 1.0, observe=0.3)
    mine = gradients(policy, algorithm, compile_groups(groups, streams=("policy", "observe")))
    rows = compile_groups(groups, streams=("observe",))
    for row in rows:
        row.weights = {"nll": row.weights["observe"]}
    theirs = gradients(policy, SFT(average="token" if average == "constant" else average), rows)
    assert max(float(g.abs().max()) for g in theirs.values()) > 1e-3
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], 0.3 * gradient, rtol=1e-4, atol=1e-6)


def test_padding_and_micro_batches_change_nothing() -> None:
    one, many = tiny(0, micro_tokens=100_000), tiny(0, micro_tokens=1)
    groups = play(one, 1)
    for i, group in enumerate(groups):
        settled([group], 0.5 - i)
    groups[0].trajectories[0].turns = groups[0].trajectories[0].turns[:1]  # rows of different lengths
    rows = compile_groups(groups, streams=("policy", "observe"))
    a, b = (gradients(p, GRPO(observe=0.2), rows) for p in (one, many))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-6)


@dataclass(frozen=True)
class Before(GRPO):
    """GRPO as it is without the option: the clipped surrogate and nothing else."""

    @property
    def streams(self) -> tuple[str, ...]:
        return ("policy",)

    def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
        mask = batch.weights["policy"] > 0
        log_r = log_ratio(outputs.logprobs, batch.logprobs, mask)
        advantage = torch.where(mask, batch.advantage, 0.0)
        return {"policy": surrogate(log_r.exp(), advantage, self.clip_low, self.clip_high, self.dual_clip)[0]}

    def weigh(self, rows: Sequence[Row]) -> dict[str, float]:
        return Algorithm.weigh(self, rows)


def test_a_coefficient_of_zero_changes_no_bit() -> None:
    policies = []
    for algorithm in (GRPO(minibatches=2, observe=0.0), Before(minibatches=2)):
        policy = tiny(3)
        for seed in range(3):
            run_sync(algorithm.update(policy, play(policy, seed)))
        policies.append(policy.learner.weights())
    assert all(torch.equal(policies[0][name], policies[1][name]) for name in policies[0])


def test_groups_without_signal_still_teach_it() -> None:
    policy = tiny(0)
    groups = play(policy, 1)
    for group in groups:
        for trajectory in group:
            trajectory.reward = 1.0
    silent = run_sync(GRPO().update(tiny(0), groups))
    spoken = run_sync(GRPO(observe=0.05).update(policy, groups))
    assert silent["rows_skipped"] == len(TASKS) * 8 - 1 and silent["grad_norm"] == 0.0
    assert spoken["rows_skipped"] == 0 and spoken["grad_norm"] > 0
    assert spoken["loss/observe"] == pytest.approx(0.05 * spoken["observe/nll"])


def test_a_negative_coefficient_is_refused() -> None:
    with pytest.raises(UserError, match="observe=-1 must not be negative"):
        GRPO(observe=-1)


def replies_nll(policy: TinyPolicy, groups: list[Group]) -> float:
    rows = compile_groups(groups, streams=("observe",))
    for row in rows:
        row.weights = {"nll": row.weights["observe"]}
    return nll(policy, rows)


@pytest.mark.parametrize("algorithm", [RLOO(observe=1.0), Reinforce(observe=1.0), PPO(observe=1.0)])
def test_every_policy_gradient_algorithm_has_it_by_one_field(algorithm: Algorithm) -> None:
    policy = tiny(0, lr=1e-2, value_head=algorithm.needs_values)
    seen = [run_sync(algorithm.update(policy, play(policy, step, 4)))["observe/nll"] for step in range(8)]
    assert seen[-1] < 0.7 * seen[0]


def test_replies_become_predictable_and_reward_is_learnt_as_well() -> None:
    out = {}
    held_out = play(tiny(9), 99)  # another policy's episodes
    for coefficient in (0.0, 0.05):
        rewards, losses = [], []
        for seed in (0, 1):
            policy = tiny(seed)
            algorithm = GRPO(minibatches=2, observe=coefficient)
            for step in range(40):
                run_sync(algorithm.update(policy, play(policy, 100 * seed + step)))
            rewards.append(float(np.mean([t.reward for g in play(policy, 7777) for t in g])))
            losses.append(replies_nll(policy, held_out))
        out[coefficient] = float(np.mean(rewards)), float(np.mean(losses))
    (plain, blind), (reward, seeing) = out[0.0], out[0.05]
    assert seeing < 0.9 and seeing < 0.5 * blind  # nats; without the option nothing is learnt of them
    assert reward > 0.75 and reward > plain - 0.15
