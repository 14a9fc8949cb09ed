"""Faults without a public report, so that every check of the doctor is seen at work."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import rlready as rl
from rlready.algorithms import GRPO
from rlready.doctor import Setup
from rlready.envs.base import Observation
from rlready.policy.base import Batch, Outputs, Policy, Sample, SampleRequest, SamplingParams
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig
from rlready.types import Group, Message, Row, Task
from tests.doctor.faults.engines import Wrapped, with_sampler
from tests.doctor.faults.healthy import Guess, chat, guess, question, questions, renderer, warm_policy
from tests.doctor.faults.losses import Right
from tests.doctor.faults.registry import Fault

MORE: list[Fault] = []


def planted(check: str, says: str, level: Any = "error") -> Any:
    def add(build: Any) -> Any:
        MORE.append(Fault("ours", says, check, level, build))
        return build

    return add


@planted("round trip", "decoding loses capitals")
def lower_case() -> Setup:
    class Loses(ChatRenderer):
        def decode(self, completion_ids: Sequence[int]) -> str:
            return super().decode(completion_ids).replace("w", "v")

    return chat(policy=warm_policy(renderer(Loses)))


@planted("round trip", "the renderer raises")
def renderer_raises() -> Setup:
    class Raises(ChatRenderer):
        def render(self, messages: Sequence[Message]) -> list[int]:
            raise KeyError("no such role")

    return chat(policy=warm_policy(renderer(Raises)))


@planted("rendering", "rendered afresh, the assistant's turns are gone", "warning")
def strips_turns() -> Setup:
    class Strips(ChatRenderer):
        def render(self, messages: Sequence[Message]) -> list[int]:
            return super().render([m for m in messages if m.role != "assistant"])

    return chat(policy=warm_policy(renderer(Strips)))


@planted("prompts", "prompts are longer than the model")
def no_room() -> Setup:
    shape = TinyConfig(dim=32, layers=1, heads=2, kv_heads=1, max_len=12)
    from rlready.policy.tiny import TinyPolicy

    return chat(policy=TinyPolicy.create(renderer(), shape))


@planted("trained twice", "every row is given twice")
def rows_twice() -> Setup:
    class Twice(Right):
        def prepare(self, policy: Policy, rows: Sequence[Row]) -> tuple[list[Row], dict[str, float]]:
            return [*rows, *(replace(row) for row in rows)], {}

    return chat(algorithm=Twice())


@planted("mask", "every second trajectory is lost on the way to the rows")
def rows_lost() -> Setup:
    class Loses(Right):
        def prepare(self, policy: Policy, rows: Sequence[Row]) -> tuple[list[Row], dict[str, float]]:
            return list(rows)[::2], {}

    return guess(algorithm=Loses())


@planted("no log-probs", "the engine gives zeros")
def zeros() -> Setup:
    class Zeros(Wrapped):
        def change(self, request: SampleRequest, sample: Sample) -> Sample:
            return replace(sample, logprobs=[0.0] * len(sample.logprobs))

    return chat(policy=with_sampler(Zeros))


@planted("no log-probs", "the engine gives none")
def none_at_all() -> Setup:
    class Bare(Wrapped):
        def change(self, request: SampleRequest, sample: Sample) -> Sample:
            return replace(sample, logprobs=[])

    return chat(policy=with_sampler(Bare))


@planted("no log-probs", "the engine gives None")
def none_for_a_list() -> Setup:
    class Nothing(Wrapped):
        def change(self, request: SampleRequest, sample: Sample) -> Sample:
            return replace(sample, logprobs=None)  # type: ignore[arg-type]

    return chat(policy=with_sampler(Nothing))


@planted("no log-probs", "one log-prob of each answer is NaN")
def nan_logprobs() -> Setup:
    class Nan(Wrapped):
        def change(self, request: SampleRequest, sample: Sample) -> Sample:
            return replace(sample, logprobs=[*sample.logprobs[:-1], float("nan")])

    return chat(policy=with_sampler(Nan))


@planted("sync", "the sampler raises when it gets the weights of a later update")
def load_raises() -> Setup:
    class Refuses(Wrapped):
        loads = 0

        def load(self, state: Mapping[str, Any], version: int) -> None:
            self.loads += 1
            if self.loads == 3:
                raise ConnectionError("the engine is gone")
            self.inner.load(state, version)

    return chat(policy=with_sampler(Refuses))


@planted("update", "the policy has no learner", "warning")
def no_learner() -> Setup:
    policy = warm_policy()
    return chat(policy=Policy(policy.sampler, policy.renderer))


@planted("alignment", "log-probs are those of the token before")
def shifted() -> Setup:
    class Shifted(Wrapped):
        def change(self, request: SampleRequest, sample: Sample) -> Sample:
            return replace(sample, logprobs=[-2.5, *sample.logprobs[:-1]])

    from rlready.policy.tiny import TinyPolicy

    policy = TinyPolicy.create(renderer(), TinyConfig(dim=32, layers=1, heads=2, kv_heads=1, max_len=256), seed=2)
    with torch.no_grad():
        for p in policy.learner.model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    return guess(policy=with_sampler(Shifted, policy), params=SamplingParams(max_tokens=12))


@planted("temperature", "the sampler has a temperature of its own")
def own_temperature() -> Setup:
    class Cool(Wrapped):
        async def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
            cool = [replace(r, params=replace(r.params, temperature=0.6 * r.params.temperature)) for r in requests]
            return await self.inner.sample(cool)

    return chat(policy=with_sampler(Cool))


@planted("log-probs", "the sampler has other weights")
def other_weights() -> Setup:
    class Noisy(Wrapped):
        def load(self, state: Mapping[str, Any], version: int) -> None:
            generator = torch.Generator().manual_seed(0)
            self.inner.load(
                {k: v + 0.05 * torch.randn(v.shape, generator=generator) for k, v in state.items()}, version
            )

    return chat(policy=with_sampler(Noisy))


@planted("stale", "more lag is allowed than the algorithm tolerates")
def too_much_lag() -> Setup:
    return chat(algorithm=Right(), max_lag=5)


@planted("ratio", "the loss reads log-probs that were changed")
def other_logprobs() -> Setup:
    class Rounds(GRPO):
        def prepare(self, policy: Policy, rows: Sequence[Row]) -> tuple[list[Row], dict[str, float]]:
            rows, noted = super().prepare(policy, rows)
            return [
                replace(r, logprobs=np.where(r.logprobs != 0, r.logprobs - 0.25, 0).astype(np.float32)) for r in rows
            ], noted

    return chat(algorithm=Rounds())


@planted("update", "the update raises")
def raises() -> Setup:
    class Raises(Right):
        async def credit(self, groups: list[Group], policy: Policy) -> None:
            raise KeyError("advantage")

    return chat(algorithm=Raises())


@planted("advantage sign", "the loss lacks its minus")
def plus() -> Setup:
    class Plus(Right):
        def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
            return {"policy": -super().terms(outputs, batch)["policy"]}

    return chat(algorithm=Plus())


@planted("policy gradient", "the loss squares the advantage of bad answers away")
def only_good() -> Setup:
    class Good(Right):
        def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
            good = torch.where(batch.weights["policy"] > 0, batch.advantage, 0.0).clamp(min=0).square()
            return {"policy": -self.ratio(outputs, batch) * good}

    return chat(algorithm=Good())


@planted("gradient", "the backward pass forgets a part")
def lost_gradient() -> Setup:
    policy = warm_policy()
    learner = policy.learner
    plain = learner.forward_backward

    def forgets(*args: Any, **kwargs: Any) -> dict[str, float]:
        out = plain(*args, **kwargs)
        for p in list(learner.model.parameters())[:1]:
            if p.grad is not None:
                p.grad.mul_(0.5)
        return out

    learner.forward_backward = forgets
    return chat(policy=policy)


@planted("accumulation", "the learner divides by the rows of each call")
def learner_means() -> Setup:
    policy = warm_policy()
    learner = policy.learner
    plain = learner.forward_backward

    def means(rows: Sequence[Row], loss: Any, denominators: Mapping[str, float], **asks: Any) -> dict[str, float]:
        return plain(rows, loss, {k: v * len(rows) / 10 for k, v in denominators.items()}, **asks)

    learner.forward_backward = means
    return chat(policy=policy)


@planted("credit", "advantages fall as rewards rise")
def falls() -> Setup:
    class Falls(Right):
        async def credit(self, groups: list[Group], policy: Policy) -> None:
            await super().credit(groups, policy)
            for turn in (u for group in groups for t in group for u in t.turns):
                turn.advantage = -turn.advantage

    return chat(algorithm=Falls())


@planted("spread", "all answers of a question earn the same", "warning")
def uniform() -> Setup:
    return chat(tasks=questions(score=lambda task, t: float(len(task.data["answer"]) > 3) * 0.5))


@planted("trivial answers", "a constant is right nearly always")
def constant() -> Setup:
    tasks = rl.TaskSet([Task(question(i).prompt, {"answer": "red"}) for i in range(24)],
                       score=lambda task, t: float(t.turns[-1].text != "1" and bool(t.turns[-1].text)))  # fmt: skip
    return chat(tasks=tasks)


@planted("reward", "the reward is drawn")
def drawn() -> Setup:
    return chat(tasks=questions(score=lambda task, t: random.random()))


@planted("environment", "the same seed and actions give another episode")
def not_repeatable() -> Setup:
    class Drawn(Guess):
        async def reset(self, task: Task, seed: int) -> Observation:
            made = await super().reset(task, seed)
            self.messages = (*made.messages, Message.user(f"guess {random.randrange(4)}"))
            return Observation(self.messages)

    return guess(env=Drawn)


@planted("no answer", "most answers hold nothing to judge", "warning")
def nothing_to_judge() -> Setup:
    def reward(task: Task, trajectory: Any) -> rl.Score:
        said = trajectory.turns[-1].text
        if said == task.data["answer"]:
            return rl.Score.right()
        return rl.Score.no_answer()

    return chat(tasks=questions(score=reward))


@planted("leaks", "the test set holds training questions")
def leak() -> Setup:
    same = [Task.of(f"What colour is the {THING}, number {i}?", answer="red") for i, THING in ((0, "door"), (5, "cup"))]
    return chat(splits={"test": rl.TaskSet([*same, *list(questions(8, 40))])})
