"""Faults of renderers and masks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlready.aio import run_sync
from rlready.curriculum.samplers import Uniform
from rlready.doctor import Setup
from rlready.policy.base import OptimizerConfig, SamplingParams
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyPolicy
from rlready.rollout.collect import Collector
from rlready.types import Group, Message
from tests.doctor.faults.healthy import SHAPE, Guess, chat, guess, renderer, warm_policy
from tests.doctor.faults.registry import fault


@fault("trl#5224", "A tool loop decodes and encodes again what was sampled", "re-encoded")
def decoded_and_encoded() -> Setup:
    class Again(ChatRenderer):
        def extend(self, prompt_ids: list[int], completion_ids: list[int], new: Sequence[Message]) -> list[int]:
            return super().extend(prompt_ids, self.encode_completion(self.decode(completion_ids)), new)

    made = renderer(Again, bpe=True)
    policy = TinyPolicy.create(made, SHAPE, optimizer=OptimizerConfig(lr=1e-3))  # its tokens follow no merge rule
    return guess(policy=policy)


@fault("verl#6719", "A chat template that is not append-only changes its head with every turn", "prefix")
def template_with_a_changing_head() -> Setup:
    class Numbered(ChatRenderer):
        def extend(self, prompt_ids: list[int], completion_ids: list[int], new: Sequence[Message]) -> list[int]:
            ids = super().extend(prompt_ids, completion_ids, new)
            return [ids[0], *self.tokenizer.encode("2"), *ids[1:]]

    return guess(policy=warm_policy(renderer(Numbered)))


@fault("verl#5576", "Thinking is kept in training and stripped when served", "thinking", "warning")
def thoughts_stripped_on_one_side() -> Setup:
    class Strips(ChatRenderer):
        def render(self, messages: Sequence[Message]) -> list[int]:
            bare = [
                Message(m.role, re.sub(r"<think>.*?</think>\s*", "", m.text)) if m.role == "assistant" else m
                for m in messages
            ]
            return super().render(bare)

    return guess(policy=warm_policy(renderer(Strips, bpe=True)))


@fault("SkyRL#2075", "A template drops the head of each observation", "observation")
def observation_without_its_head() -> Setup:
    class Drops(ChatRenderer):
        def extend(self, prompt_ids: list[int], completion_ids: list[int], new: Sequence[Message]) -> list[int]:
            short = [Message(m.role, " ".join(m.text.split()[1:])) for m in new]
            return super().extend(prompt_ids, completion_ids, short)

    return guess(policy=warm_policy(renderer(Drops)))


@fault("NeMo-RL#2821", "Past assistant turns stand in the context twice", "duplicated")
def assistant_turns_twice() -> Setup:
    class Twice(ChatRenderer):
        def extend(self, prompt_ids: list[int], completion_ids: list[int], new: Sequence[Message]) -> list[int]:
            said = Message("assistant", self.decode(completion_ids))
            return super().extend(prompt_ids, completion_ids, (said, *new))

    return guess(policy=warm_policy(renderer(Twice, bpe=True)), params=SamplingParams(max_tokens=12))


def rolled_out(setup: Setup) -> list[Group]:
    """What our own collector brings."""
    collector = Collector(
        setup.policy, setup.env or Guess, setup.tasks, Uniform(setup.tasks, 0), group_size=setup.group_size,
        params=setup.params, max_steps=setup.max_steps,
    )  # fmt: skip
    done: list[Group] = []

    async def work() -> None:
        done.extend(await collector.collect(setup.groups))

    run_sync(work())
    return done


@fault("ART#127", "The assistant mask is all zeros", "mask")
def mask_of_zeros() -> Setup:
    made = guess()

    def collect() -> list[Group]:
        groups = rolled_out(made)
        for group in groups:
            for trajectory in group:
                for turn in trajectory.turns:
                    turn.trainable = False
        return groups

    return replace(made, collect=collect)


def chat_with(algorithm: Any, **changes: Any) -> Setup:
    return chat(algorithm=algorithm, **changes)
