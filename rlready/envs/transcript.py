"""What an episode looked like, and where two differ; the judgements that `check_env` is made of."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from rlready.envs.base import Observation, Step
from rlready.types import Message, Task


@dataclass
class Transcript:
    """One episode: observations [n + 1], actions [n] and steps [n]."""

    task: Task
    seed: int
    observations: list[Observation]
    actions: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def add(self, action: str, step: Step) -> None:
        """Append an action and what it led to."""
        self.actions.append(action)
        self.steps.append(step)
        self.observations.append(step.observation)

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"task {self.task.id}, step {len(self.actions) + 1}"

    def difference(self, other: Transcript) -> str | None:
        """The first difference in words, or None."""
        if len(self.steps) != len(other.steps):
            return f"one ended after {len(self.steps)} steps, the other after {len(other.steps)}"
        for i, (a, b) in enumerate(zip(self.observations, other.observations, strict=True)):
            where = "the first observation" if i == 0 else f"the observation after step {i}"
            if a.messages != b.messages:
                return f"{where} was {_tail(a, b)}, then {_tail(b, a)}"
            if a.actions != b.actions:
                return f"{where} offered other actions"
            if i:
                x, y = self.steps[i - 1], other.steps[i - 1]
                if x.reward != y.reward:
                    return f"step {i} paid {x.reward}, then {y.reward}"
                if (x.terminated, x.truncated) != (y.terminated, y.truncated):
                    return f"step {i} ended the episode once, and once not"
        return None


def _tail(one: Observation, other: Observation) -> str:
    """The first message of `one` that differs, from a little before where it differs."""
    for a, b in zip(one.messages, (*other.messages, *[Message.user("")] * len(one.messages)), strict=False):
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a.text, b.text, strict=False)) if x != y), 0)
            start = max(0, at - 20)
            return repr(("..." if start else "") + a.text[start : start + 60])
    return f"{len(one.messages)} messages"


def observation_problems(observation: Any) -> list[str]:
    """What keeps an observation from being used."""
    if not isinstance(observation, Observation):
        return [f"it is a {type(observation).__name__}, not an Observation"]
    if not observation.messages:
        return ["it has no messages"]
    messages: tuple[Any, ...] = observation.messages
    for i, message in enumerate(messages):
        if not isinstance(message, Message):
            return [f"message {i} is a {type(message).__name__}, not a Message"]
    actions = observation.actions
    if actions is not None:
        if not actions:
            return ["its actions are an empty list; None means that any text may be written"]
        for action in actions:
            if not isinstance(action, str) or not action.strip():
                return [f"the action {action!r} is no text or empty"]
        if len(set(actions)) != len(actions):
            return ["an action stands twice in its list"]
    return _info_problems(observation.info)


def step_problems(step: Any) -> list[str]:
    """What keeps a step from being used."""
    if not isinstance(step, Step):
        return [f"it is a {type(step).__name__}, not a Step"]
    problems = observation_problems(step.observation)
    try:
        finite = math.isfinite(step.reward)
    except TypeError:
        return [*problems, f"its reward is {step.reward!r}, not a number"]
    if not finite:
        problems.append(f"its reward is {step.reward}")
    for name in ("terminated", "truncated"):
        value = getattr(step, name)
        if not isinstance(value, bool):
            problems.append(f"{name} is {value!r}, not a bool")
    return [*problems, *_info_problems(step.info)]


def _info_problems(info: Any) -> list[str]:
    if not isinstance(info, dict):
        return [f"its info is a {type(info).__name__}, not a dict"]
    try:
        json.dumps(info, default=lambda value: value.tolist())  # NumPy's numbers and arrays are fine
    except (TypeError, ValueError, AttributeError, RecursionError):
        return [f"its info holds what cannot be logged as JSON (keys: {', '.join(map(str, info))})"]
    return []


def context_problems(log: Transcript) -> tuple[list[str], list[int], list[int]]:
    """Whether each context continues or replaces the one before.

    Returns:
        Problems in words, the steps after which it was rewritten, and those after which it was continued.
    """
    problems: list[str] = []
    rewritten: list[int] = []
    extended: list[int] = []
    for i, action in enumerate(log.actions, start=1):
        before, after = log.observations[i - 1].messages, log.observations[i].messages
        n = len(before)
        if len(after) <= n or after[:n] != before:
            rewritten.append(i)
            continue
        extended.append(i)
        said = after[n]
        if said.role != "assistant":
            problems.append(
                f"After step {i} the context goes on without what the policy said: after the earlier messages comes a "
                f'"{said.role}" message, not the action. Put Message("assistant", action) there'
            )
        elif said.text.strip() != action.strip():
            problems.append(
                f"After step {i} the context says that the policy wrote {said.text[:40]!r}, but it wrote "
                f"{action[:40]!r}. "
                "What was sampled must stand there unchanged, or it is trained on text that it never wrote"
            )
    return problems, rewritten, extended
