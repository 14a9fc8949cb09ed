"""A language whose values are known: an answer says H and T until `.`, and the share of H is its reward.

The sampler draws H with probability `p` and ends after `length` tokens, so from a prefix with h heads in n tokens the
value is (h + (length - n) p) / length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlready.policy.base import Policy, Sample, SampleRequest
from rlready.policy.render import ChatRenderer
from rlready.policy.tokenize import word_tokenizer
from rlready.rollout.probe import State
from rlready.seeds import hashed_uniform
from rlready.tasks.base import TaskSet
from rlready.types import Score, Task, Trajectory

RENDER = ChatRenderer(word_tokenizer(["H", "T", "toss", "again", "."], ("<s>", ">", "<end>")), end="<end>")
H, T, DOT, END = (RENDER.tokenizer.id(word) for word in ("H", "T", ".", "<end>"))


class Coin:
    """Draws by the request's own noise; remembers what it was asked."""

    def __init__(self, p: float = 0.3, length: int = 6) -> None:
        self.p, self.length = p, length
        self.version = 0
        self.requests: list[SampleRequest] = []
        self.released: list[Any] = []

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        self.requests += requests
        return [self._one(request) for request in requests]

    def _one(self, request: SampleRequest) -> Sample:
        said = [i for i in request.prompt_ids if i in (H, T)]
        ids: list[int] = []
        while len(said) + len(ids) < self.length:
            if len(ids) == request.params.max_tokens:
                return Sample(ids, [-1.0] * len(ids), "length")
            ids.append(H if hashed_uniform(request.seed, len(ids)) < self.p else T)
        if len(ids) == request.params.max_tokens:
            return Sample(ids, [-1.0] * len(ids), "length")
        ids.append(END)
        return Sample(ids, [-1.0] * len(ids), "end")

    def load(self, state: Mapping[str, Any], version: int) -> None:
        self.version = version

    def release(self, session: Any) -> None:
        self.released.append(session)


def share(task: Task, trajectory: Trajectory) -> float:
    """The share of heads."""
    words = trajectory.turns[0].text.split()
    return words.count("H") / max(1, len(words))


async def fails_on_tails(task: Task, trajectory: Trajectory) -> Score:
    """A grader that breaks where the answer ends with T."""
    if trajectory.turns[0].text.endswith("T"):
        return Score.failed("cannot read tails")
    return Score.right(1.0)


def policy(**options: Any) -> Policy:
    return Policy(Coin(**options), RENDER)


def tasks(score: Any = share, n: int = 2) -> TaskSet:
    return TaskSet([Task.of(" ".join(["toss", *["again"] * i])) for i in range(n)], score, name="coins")


def state(task: Task, said: str = "") -> State:
    """A state by what was said in words, such as "H T"."""
    return State(task, tuple(RENDER.render(task.prompt)), tuple(RENDER.tokenizer.encode(said)))


def value(said: str, p: float = 0.3, length: int = 6) -> float:
    words = said.split()
    return (words.count("H") + (length - len(words)) * p) / length
