"""Sound set-ups, small enough to be examined in a second; the faults are planted in these."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import rlready as rl
from rlready.doctor import Setup
from rlready.envs.base import Env, Observation, Step
from rlready.policy.base import Batch, Loss, OptimizerConfig, Outputs, SamplingParams
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import bpe_tokenizer, word_tokenizer
from rlready.types import Message, Row, Task

COLOURS = ("red", "green", "blue", "grey")
THINGS = ("door", "lamp", "boat", "coat", "hat", "cup", "key", "box", "pen", "jar", "sky", "fox")
SHAPE = TinyConfig(dim=32, layers=1, heads=2, kv_heads=1, max_len=256)
SPECIALS = ("<s>", "<turn>", "<end>")


def question(i: int) -> Task:
    """What colour is a thing? The answer follows from the thing's place in the list."""
    thing, colour = THINGS[i % len(THINGS)], COLOURS[i % len(COLOURS)]
    return Task.of(f"what colour is the {thing} number {i}", answer=colour)


def right_word(task: Task, trajectory: Any) -> rl.Score:
    """Right where the answer is the one right word."""
    said = trajectory.turns[-1].text.strip() if trajectory.turns else ""
    if not said:
        return rl.Score.no_answer()
    return rl.Score.right() if said == task.data["answer"] else rl.Score.wrong()


def questions(n: int = 24, first: int = 0, score: Any = right_word, name: str = "colours") -> rl.TaskSet:
    return rl.TaskSet([question(i) for i in range(first, first + n)], score=score, name=name)


class Guess(Env):
    """Three guesses of a hidden colour; the reply says cold until it is right."""

    replies = "warm cold found it guess again"

    async def reset(self, task: Task, seed: int) -> Observation:
        self.secret, self.left = task.data["answer"], 3
        self.messages: tuple[Message, ...] = task.prompt
        return Observation(self.messages)

    async def step(self, action: str) -> Step:
        self.left -= 1
        right = action.strip() == self.secret
        said = Message("assistant", action)
        reply = Message.user("found it" if right else f"cold guess again {self.left}")
        self.messages = (*self.messages, said, reply)
        return Step(Observation(self.messages), float(right), terminated=right or self.left == 0)


class Memory(Guess):
    """The same game, told anew each time: every turn starts a fresh context."""

    async def step(self, action: str) -> Step:
        made = await super().step(action)
        self.messages = (Message.user(f"{self.messages[0].text} guess again {self.left}"),)
        return Step(Observation(self.messages), made.reward, made.terminated)


def renderer(kind: type[ChatRenderer] = ChatRenderer, *, bpe: bool = False, extra: str = "") -> ChatRenderer:
    texts = [question(i).prompt[0].text for i in range(60)] + [*COLOURS, Guess.replies, "0 1 2 3", extra]
    tokenizer = bpe_tokenizer(texts, 320, SPECIALS) if bpe else word_tokenizer(texts, SPECIALS)
    return kind(tokenizer, bos="<s>", turn="<turn>", end="<end>")


def warm_policy(made: ChatRenderer | None = None, shape: TinyConfig = SHAPE, lr: float = 3e-3) -> TinyPolicy:
    """A policy that says one colour and ends: as a warm start leaves it."""
    made = made or renderer()
    policy = TinyPolicy.create(made, shape, seed=1, optimizer=OptimizerConfig(lr=lr))
    policy.learner.load_state_dict(_warm(made, shape))
    policy.learner.configure(OptimizerConfig(lr=lr))
    policy.sync()
    return policy


_KNOWN: dict[Any, Any] = {}


def _warm(made: ChatRenderer, shape: TinyConfig) -> Any:
    key = (made.tokenizer.backend.to_str(), shape)
    if key in _KNOWN:
        return _KNOWN[key]
    policy = TinyPolicy.create(made, shape, seed=1, optimizer=OptimizerConfig(lr=1e-2))
    plain = ChatRenderer(made.tokenizer, bos=made.bos, turn=made.turn, end=made.end)
    for step in range(40):
        draw = random.Random(step)  # every colour is as likely as another
        rows = [_told(plain, i, draw) for i in range(24)]
        policy.learner.forward_backward(rows, nll, {"nll": float(sum(r.weights["nll"].sum() for r in rows))})
        policy.learner.step()
    return _KNOWN.setdefault(key, policy.learner.state_dict())


def _told(plain: ChatRenderer, i: int, draw: random.Random) -> Row:
    prompt, said = plain.render(question(i).prompt), plain.encode_completion(draw.choice(COLOURS))
    segments = [(prompt, 0.0), (said, 1.0)]
    for k in range(2):
        more = plain.extend(prompt, said, [Message.user(f"cold guess again {2 - k}")])
        reply = more[len(prompt) + len(said) :]
        prompt, said = more, plain.encode_completion(draw.choice(COLOURS))
        segments += [(reply, 0.0), (said, 1.0)]
    return Row.from_segments(segments)


def nll(outputs: Outputs, batch: Batch) -> Loss:
    return Loss(-(batch.weights["nll"] * outputs.logprobs).sum() / batch.denominators["nll"])


def chat(**changes: Any) -> Setup:
    """A question, one free answer."""
    policy = changes.pop("policy", None) or warm_policy()
    splits = {"dev": questions(12, 24, name="dev"), "test": questions(12, 36, name="test")}
    made = Setup(policy, questions(), params=SamplingParams(max_tokens=6), splits=splits, name="chat")
    return replace(made, **changes)


def choices(**changes: Any) -> Setup:
    """A question, and answers limited to the options."""
    tasks = [Task(question(i).prompt, {**question(i).data, "choices": list(COLOURS)}) for i in range(24)]
    made = Setup(changes.pop("policy", None) or warm_policy(), rl.TaskSet(tasks, score=right_word, name="choices"),
                 params=SamplingParams(max_tokens=6), name="choices")  # fmt: skip
    return replace(made, **changes)


def guess(**changes: Any) -> Setup:
    """Three turns in an environment that pays."""
    policy = changes.pop("policy", None) or warm_policy()
    tasks = rl.TaskSet([question(i) for i in range(24)], name="guess")
    made = Setup(policy, tasks, Guess, params=SamplingParams(max_tokens=6), max_steps=4, name="guess")
    return replace(made, **changes)


def few_threads() -> int:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    return before


__all__ = ["COLOURS", "Guess", "chat", "choices", "functools", "guess", "np", "questions", "renderer", "warm_policy"]
