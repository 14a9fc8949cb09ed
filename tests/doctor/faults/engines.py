"""Faults of samplers and learners: log-probs, weights, caches, padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlready.doctor import Setup
from rlready.policy.base import Policy, Sample, SampleRequest, SamplingParams
from rlready.policy.tiny.sampler import TinySampler
from rlready.rollout.compile import compile_groups
from rlready.types import FloatArray, Group, Row, Task, Trajectory, Turn
from tests.doctor.faults.healthy import chat, guess, warm_policy
from tests.doctor.faults.losses import Right
from tests.doctor.faults.registry import fault
from tests.doctor.faults.tokens import rolled_out


class Wrapped:
    """A sampler around a sound one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        return [self.change(r, s) for r, s in zip(requests, await self.inner.sample(requests), strict=True)]

    def change(self, request: SampleRequest, sample: Sample) -> Sample:
        return sample


def with_sampler(kind: Any, policy: Any = None) -> Policy:
    policy = policy or warm_policy()
    return Policy(kind(policy.sampler), policy.renderer, policy.learner)


def rated(learner: Any, request: SampleRequest, sample: Sample, temperature: float = 1.0) -> list[float]:
    """The learner's log-probs of a sample over the whole vocabulary."""
    n = len(request.prompt_ids)
    turn = Turn(request.prompt_ids, sample.completion_ids, [-1.0] * len(sample.completion_ids), temperature=temperature,
                advantage=0.0)  # fmt: skip
    rows = compile_groups([Group(Task(id="t"), [Trajectory(Task(id="t"), [turn], reward=0.0)])], streams=("nll",))
    return [float(x) for x in learner.logprobs(rows)[0][n:]]


@fault("trl#4159", "Sampled at temperature 0.6, log-probs taken at temperature 1", "temperature")
def temperature_on_one_side() -> Setup:
    policy = warm_policy()

    class Untempered(Wrapped):
        def change(self, request: SampleRequest, sample: Sample) -> Sample:
            return replace(sample, logprobs=rated(policy.learner, request, sample))

    return chat(policy=with_sampler(Untempered, policy), params=SamplingParams(temperature=0.6, max_tokens=6))


@fault("trl#6789", "Top-p is renormalised by the engine and not by the trainer", "truncation")
def top_p_on_one_side() -> Setup:
    class Forgets(Wrapped):
        def change(self, request: SampleRequest, sample: Sample) -> Sample:
            return replace(sample, support=None)

    return chat(policy=with_sampler(Forgets), params=SamplingParams(top_p=0.7, max_tokens=6))


@fault("trl#6789, the other way round", "Log-probs over all ids, top-k renormalised by the trainer", "truncation")
def top_k_on_the_other_side() -> Setup:
    policy = warm_policy()

    class Raw(Wrapped):
        def change(self, request: SampleRequest, sample: Sample) -> Sample:
            return replace(sample, logprobs=rated(policy.learner, request, sample, request.params.temperature))

    return chat(policy=with_sampler(Raw, policy), params=SamplingParams(top_k=2, max_tokens=6))


@fault("miles PR#2075", "Rollouts go on with the base weights after every update", "sync")
def weights_never_loaded() -> Setup:
    class Base(Wrapped):
        def load(self, state: Mapping[str, Any], version: int) -> None:
            """The adapter is registered and never used."""

    return chat(policy=with_sampler(Base))


@fault("NeMo-RL PR#4018", "The prefix cache survives the change of weights", "sync")
def stale_prefixes() -> Setup:
    policy = warm_policy()

    class Keeps(Wrapped):
        def __init__(self, inner: Any) -> None:
            super().__init__(inner)
            self.old = TinySampler(inner.config, policy.learner.weights())
            self.known: set[Any] = set()
            self.loads = 0

        def load(self, state: Mapping[str, Any], version: int) -> None:
            self.loads += 1
            self.inner.load(state, version)

        async def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
            out = []
            for request in requests:  # a longer prompt of a known session reads keys and values of the old weights
                stale = len(request.prompt_ids) > 9 and tuple(request.prompt_ids[:9]) in self.known
                out += await (self.old if stale else self.inner).sample([request])
                self.known.add(tuple(request.prompt_ids[:9]))
            return out

    return chat(policy=with_sampler(Keeps, policy))


@fault("trl#6945", "Asynchronous rollouts are nine updates old and are not corrected", "stale")
def lag_without_correction() -> Setup:
    policy = warm_policy()
    made = guess(policy=policy, algorithm=Right())
    groups = rolled_out(made)
    for group in groups:
        for trajectory in group:
            for turn in trajectory.turns:
                turn.advantage = 1.0
    rows = compile_groups(groups)
    for _ in range(9):
        policy.learner.forward_backward(rows, Right().loss, {"policy": 100.0, "policy/run": 100.0})
        policy.learner.step()
    return replace(made, collect=lambda: groups)


@fault("OpenRLHF#217", "Left padding shifts positions and is attended to", "padding")
def left_padding() -> Setup:
    policy = warm_policy()
    learner = policy.learner
    plain = learner.logprobs

    def padded(rows: Sequence[Row], **which: Any) -> list[FloatArray]:
        width = max((len(row) for row in rows), default=0)
        wide = [_left(row, width - len(row)) for row in rows]
        return [v[width - len(r) :] for r, v in zip(rows, plain(wide, **which), strict=True)]

    learner.logprobs = padded
    return guess(policy=policy)


def _left(row: Row, n: int) -> Row:
    def pad(column: Any, fill: float) -> Any:
        return np.concatenate([np.full(n, fill, dtype=column.dtype), column])

    return replace(
        row, tokens=pad(row.tokens, 0), logprobs=pad(row.logprobs, 0), advantage=pad(row.advantage, 0),
        temperature=pad(row.temperature, 1), weights={k: pad(w, 0) for k, w in row.weights.items()},
        turn=None if row.turn is None else pad(row.turn, -1),
        support_of=None if row.support_of is None else pad(row.support_of, -1),
    )  # fmt: skip
