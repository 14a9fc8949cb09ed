"""The nouns that everything else is written in. This module imports nothing of ours but errors and seeds.

A *task* is posed to a policy, which answers it in *turns*. A turn is one model call, the atom: the exact token ids that
went in, the exact ids that came out, and the log-probabilities under which they were sampled. Text is never
re-tokenised to train. A *trajectory* is a forest of turns: `Turn.parent` names the turn whose context this one
continues, or None where a context starts afresh (a rewritten memory, a new chunk). A chain is the common case, a tree
has several children per turn.

A *group* holds the trajectories of one task. `rollout.compile` turns groups into *rows*, the sequences that are trained
on.

    Task -> Turn, Turn, ... = Trajectory -> Group -> Row -> Learner

Token alignment, everywhere: position t of an array describes token t itself. `logprobs[t]` is log p(token t |
tokens < t).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
Role = Literal["system", "user", "assistant", "tool"]
Stop = Literal["end", "length", "tool", "error"]


class Verdict(StrEnum):
    """What a grader concluded: `RIGHT`, `WRONG` and `NO_ANSWER` are judgements, `GRADER_FAILED` is an accident."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    GRADER_FAILED = "grader_failed"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a message's content: text, or an image given by a path or as encoded bytes."""

    kind: Literal["text", "image"]
    text: str = ""
    image: bytes | str | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made: the tool's name and its arguments as the JSON text that was written."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. `content` is text, or parts where images are involved."""

    role: Role
    content: str | tuple[Part, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The message's text, its image parts left out."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if part.kind == "text")

    @classmethod
    def user(cls, text: str) -> Message:
        """A user message."""
        return cls("user", text)

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping; image bytes are replaced by their hash."""
        content: Any = self.content
        if not isinstance(content, str):
            content = [
                {"kind": p.kind, "text": p.text}
                if p.kind == "text"
                else {"kind": "image", "image": p.image if isinstance(p.image, str) else _digest(p.image or b"")}
                for p in content
            ]
        out: dict[str, Any] = {"role": self.role, "content": content}
        if self.tool_calls:
            out["tool_calls"] = [{"name": c.name, "arguments": c.arguments, "id": c.id} for c in self.tool_calls]
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        return out

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Message:
        """Inverse of `to_json` (images come back as the path or hash that was written)."""
        content = record["content"]
        if not isinstance(content, str):
            content = tuple(Part(p["kind"], p.get("text", ""), p.get("image")) for p in content)
        calls = tuple(ToolCall(c["name"], c["arguments"], c.get("id", "")) for c in record.get("tool_calls", ()))
        return cls(record["role"], content, calls, record.get("tool_call_id"))


@dataclass(frozen=True)
class Task:
    """A problem, frozen. Two tasks with the same prompt and data have the same id.

    Attributes:
        prompt: the messages the policy starts from. May be empty where the environment's reset gives the first
            observation.
        data: what the grader or environment needs (gold answer, seed, file name). JSON-ready values only.
        meta: what the user may want to select by (source, difficulty); not part of the identity.
        id: content hash unless given.
    """

    prompt: tuple[Message, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""

    def __post_init__(self) -> None:
        """Derive the content-hashed id.

        Raises:
            TypeError: the prompt is a text, not messages.
        """
        given: object = self.prompt
        if isinstance(given, str):
            raise TypeError('the prompt of a Task is a tuple of messages; Task.of("...", answer=...) takes a text')
        if not self.id:
            body = json.dumps([[m.to_json() for m in self.prompt], self.data], sort_keys=True, default=str)
            object.__setattr__(self, "id", _digest(body.encode()))

    def __hash__(self) -> int:
        """Hash by id."""
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        """Tasks are equal when their ids are."""
        return isinstance(other, Task) and other.id == self.id

    @classmethod
    def of(cls, text: str, **data: Any) -> Task:
        """A task with one user message: `Task.of("2+2=", answer="4")`."""
        return cls((Message.user(text),), data)

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return {
            "id": self.id,
            "prompt": [m.to_json() for m in self.prompt],
            "data": dict(self.data),
            "meta": dict(self.meta),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Task:
        """Inverse of `to_json`."""
        prompt = tuple(Message.from_json(m) for m in record["prompt"])
        return cls(prompt, record.get("data", {}), record.get("meta", {}), record.get("id", ""))


@dataclass(frozen=True, slots=True)
class Score:
    """What a task set says of a trajectory: a number, a verdict, and named parts of the number."""

    value: float
    verdict: Verdict = Verdict.RIGHT
    parts: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @classmethod
    def right(cls, value: float = 1.0, **parts: float) -> Score:
        """A right answer."""
        return cls(value, Verdict.RIGHT, parts)

    @classmethod
    def wrong(cls, value: float = 0.0, **parts: float) -> Score:
        """A wrong answer."""
        return cls(value, Verdict.WRONG, parts)

    @classmethod
    def no_answer(cls, value: float = 0.0, **parts: float) -> Score:
        """Nothing that could be judged was given."""
        return cls(value, Verdict.NO_ANSWER, parts)

    @classmethod
    def failed(cls, note: str) -> Score:
        """The grader itself failed; the trajectory is excluded from training and counted."""
        return cls(math.nan, Verdict.GRADER_FAILED, note=note)


@dataclass(eq=False, slots=True, repr=False)
class Turn:
    """One model call.

    Attributes:
        prompt_ids: every token id the model saw, the whole context.
        completion_ids: every token id it produced, stop token included where one was sampled.
        logprobs: behaviour log-probabilities of `completion_ids` under the distribution that was actually sampled from
            (temperature, truncation and masks applied); empty where they are unknown (demonstrations).
        parent: index in the trajectory of the turn whose context this one continues; None for a fresh context.
        reward: reward given by the environment after this turn.
        tag: role or stage ("", "probe", "plan", ...).
        trainable: False for tokens that are sampled to measure, never to train.
        version: policy version that sampled it; a list (one per token) where weights changed in flight.
        stop: why it ended.
        temperature: the sampling temperature, which the learner applies as well.
        support: for each token the ids that could have been sampled, where top-k, top-p or a mask cut the vocabulary;
            None where all could. The learner renormalises over the same set.
        entropy, value: per token, optional.
        advantage: a number for the turn or one per token; None means unassigned, which is not zero.
        returns: regression target of the value head, like advantage.
        costs: per token, subtracted from the token's reward where credit is given (KL in the reward); optional.
        context: the messages new since the parent turn, for people and for other tools' formats.
        text: the decoded completion.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float] = field(default_factory=list)
    parent: int | None = None
    reward: float = 0.0
    tag: str = ""
    trainable: bool = True
    version: int | list[int] = 0
    stop: Stop = "end"
    temperature: float = 1.0
    support: list[IntArray | None] | None = None
    entropy: list[float] | None = None
    value: list[float] | None = None
    advantage: float | list[float] | None = None
    returns: float | list[float] | None = None
    costs: list[float] | None = None
    media: tuple[Part, ...] = ()
    context: tuple[Message, ...] = ()
    text: str = ""

    def __repr__(self) -> str:
        """Short: asyncio formats results in places, and a full dump costs more than the rollout."""
        return f"<Turn {self.text!r} of {self.length} tokens after {len(self.prompt_ids)}, stop={self.stop}>"

    @property
    def length(self) -> int:
        """Number of completion tokens."""
        return len(self.completion_ids)

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping; unset fields are left out."""
        out: dict[str, Any] = {}
        for f in fields(self):
            v = getattr(self, f.name)
            if f.name in ("prompt_ids", "completion_ids", "logprobs"):
                out[f.name] = v
            elif f.name == "context":
                out["context"] = [m.to_json() for m in v]
            elif f.name == "support":
                if v is not None:
                    out["support"] = [None if s is None else [int(i) for i in s] for s in v]
            elif f.name != "media" and v != f.default:
                out[f.name] = v
        return out

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Turn:
        """Inverse of `to_json`, media excepted."""
        kw = dict(record)
        kw["context"] = tuple(Message.from_json(m) for m in record.get("context", ()))
        if record.get("support") is not None:
            kw["support"] = [None if s is None else np.asarray(s, dtype=np.int64) for s in record["support"]]
        return cls(**kw)


@dataclass(eq=False, repr=False)
class Trajectory:
    """One episode: its task, its turns in sampling order, and how it was judged.

    Attributes:
        reward: the number that is trained on. NaN until scored.
        scores: named parts of the reward and anything else worth plotting.
        verdict: the grader's; None until scored.
        failure: why the episode is not to be trusted (environment died, deadline, unparsable dream); it is excluded
            from training and counted. None for a good episode.
        seed: the episode's environment seed, shared by its group.
        truncated: True where a step or length cap ended it.
        env_steps: environment transitions it spent.
        info: free-form, JSON-ready.
        timings: seconds by phase (boot, sample, env, score).
    """

    task: Task
    turns: list[Turn] = field(default_factory=list)
    reward: float = math.nan
    scores: dict[str, float] = field(default_factory=dict)
    verdict: Verdict | None = None
    failure: str | None = None
    seed: int = 0
    truncated: bool = False
    env_steps: int = 0
    info: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Short, see `Turn`."""
        return f"<Trajectory of task {self.task.id}: {len(self.turns)} turns, reward {self.reward:g}>"

    @property
    def excluded(self) -> bool:
        """True where the episode or its grading failed: it must not be trained on, nor counted as wrong."""
        return self.failure is not None or self.verdict is Verdict.GRADER_FAILED or math.isnan(self.reward)

    @property
    def success(self) -> bool:
        """True where the verdict is right."""
        return self.verdict is Verdict.RIGHT

    @property
    def cut_off(self) -> bool:
        """True where a trainable turn was stopped by the length cap, and not by the policy."""
        return any(turn.stop == "length" and turn.trainable for turn in self.turns)

    @property
    def length(self) -> int:
        """Completion tokens over all turns."""
        return sum(turn.length for turn in self.turns)

    def assign(self, advantage: float | Sequence[float]) -> None:
        """Give every trainable turn an advantage: one for all, or one per trainable turn in order.

        Raises:
            ValueError: the sequence has another length than the number of trainable turns.
        """
        turns = [t for t in self.turns if t.trainable]
        each = [float(advantage)] * len(turns) if isinstance(advantage, (int, float, np.floating)) else list(advantage)
        for turn, value in zip(turns, each, strict=True):
            turn.advantage = float(value)

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping, one line of `trajectories.jsonl`."""
        return {
            "task": self.task.to_json(),
            "turns": [t.to_json() for t in self.turns],
            "reward": None if math.isnan(self.reward) else self.reward,
            "scores": self.scores,
            "verdict": self.verdict,
            "failure": self.failure,
            "seed": self.seed,
            "truncated": self.truncated,
            "env_steps": self.env_steps,
            "info": self.info,
            "timings": self.timings,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        kw = dict(record)
        kw["task"] = Task.from_json(record["task"])
        kw["turns"] = [Turn.from_json(t) for t in record["turns"]]
        kw["reward"] = math.nan if record["reward"] is None else float(record["reward"])
        kw["verdict"] = None if record["verdict"] is None else Verdict(record["verdict"])
        return cls(**kw)


@dataclass(eq=False, repr=False)
class Group:
    """The trajectories of one task under one environment seed."""

    task: Task
    trajectories: list[Trajectory] = field(default_factory=list)

    def __repr__(self) -> str:
        """Short, see `Turn`."""
        return f"<Group of task {self.task.id}: {len(self.trajectories)} trajectories>"

    @property
    def valid(self) -> list[Trajectory]:
        """The trajectories that may be trained on."""
        return [t for t in self.trajectories if not t.excluded]

    @property
    def rewards(self) -> FloatArray:
        """Rewards of the valid trajectories, in the order of `valid`."""
        return np.asarray([t.reward for t in self.valid], dtype=np.float32)

    @property
    def variance(self) -> float:
        """Population variance of the valid rewards; 0 where fewer than two are valid."""
        return float(self.rewards.var()) if len(self.valid) > 1 else 0.0

    def __iter__(self) -> Iterator[Trajectory]:
        """Over all trajectories, failed ones included."""
        return iter(self.trajectories)

    def __len__(self) -> int:
        """Number of trajectories, failed ones included."""
        return len(self.trajectories)


@dataclass(eq=False)
class Row:
    """One training sequence; every array has shape [N].

    Attributes:
        tokens: token ids.
        weights: loss weight of each token per named stream ("policy", "nll", "kl", "value"); 0 for context.
        logprobs: behaviour log-probabilities (0 where the token was not sampled).
        advantage: per token (0 where not sampled).
        temperature: sampling temperature per token (1 where not sampled).
        returns, values: value-head targets and old predictions, where an algorithm set them.
        support_of: for each token an index into `supports`, or -1 where the whole vocabulary was open.
        supports: the distinct sets of ids that sampling was limited to.
        turn: index of the turn each token was sampled in, -1 for context.
        version: policy version each token was sampled with, -1 for context.
        start: log-probabilities under the policy at the start of the update, where an algorithm asked the learner.
        trajectory: index of the trajectory in the batch that was compiled, so that a mean over trajectories stays
            possible after one became many rows. -1 for rows that came from none.
        group: index of the group likewise.
        unit: rows of one unit (not negative) are computed in one micro-batch by a learner that `keeps_units`, so that
            a loss may couple them (pairs of preferences). -1 for rows that stand alone.
    """

    tokens: IntArray
    weights: dict[str, FloatArray]
    logprobs: FloatArray
    advantage: FloatArray
    temperature: FloatArray
    returns: FloatArray | None = None
    values: FloatArray | None = None
    support_of: IntArray | None = None
    supports: tuple[IntArray, ...] = ()
    turn: IntArray | None = None
    version: IntArray | None = None
    start: FloatArray | None = None
    trajectory: int = -1
    group: int = -1
    unit: int = -1

    def __len__(self) -> int:
        """N, the number of tokens."""
        return len(self.tokens)

    @classmethod
    def from_segments(cls, segments: Sequence[tuple[Sequence[int], float]], *, stream: str = "nll") -> Row:
        """A supervised row: consecutive segments of token ids, each with its loss weight (0 masks it).

        The first token can never be predicted, so its weight is set to 0.
        """
        tokens = np.concatenate([np.asarray(ids, dtype=np.int64) for ids, _ in segments])
        weight = np.concatenate([np.full(len(ids), w, dtype=np.float32) for ids, w in segments])
        weight[:1] = 0.0
        n = len(tokens)
        zeros = np.zeros(n, dtype=np.float32)
        return cls(tokens, {stream: weight}, zeros, zeros.copy(), np.ones(n, dtype=np.float32))


@dataclass(eq=False, slots=True)
class Transition:
    """One environment step, as control agents and experience models learn from it."""

    obs: Any
    action: Any
    reward: float
    next_obs: Any
    terminated: bool = False
    truncated: bool = False
    cost: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
