"""The value of a state by trying: mean reward of k fresh samples that go on from it.

A text environment can be put back to any prefix of an answer, so V(prefix) needs no critic (VinePPO, arXiv 2410.01679,
sec. 4). Four things keep the estimate honest and cheap:

- A prefix is the token ids that were sampled. It is never written out and read in again.
- A probe draws from the policy that acts now, at the training's settings, and with what the prefix has left of
  `max_tokens`: so its mean estimates the expected reward of the very episode that is being trained on.
- Equal states of a batch share one estimate, so that all answers to one question agree on where they started.
- States that extend one another form a chain, and a chain is one session of the sampler. Its longest state is sampled
  first, then the others, the longest first: each finds all of its prefix computed. A sampler that knows no sessions
  loses nothing by it.

Samples are scored as one answer, prefix and continuation together. What the grader could not judge is left out and
counted. Nothing here is trained on.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from rlready.envs.base import EnvFactory
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError
from rlready.policy.base import Policy, Sample, SampleRequest, SamplingParams
from rlready.rollout.gather import Progress, counted, together
from rlready.scoring import Scorer
from rlready.seeds import derive
from rlready.types import Score, Task, Trajectory, Turn, Verdict

ACTIVE_CHAINS = 256
"""Chains sampled at once: their prefixes stay in the sampler's cache meanwhile."""

_sessions = itertools.count()
Reward = Callable[[Trajectory], float]


@dataclass(frozen=True, slots=True)
class State:
    """Where an answer stands: the prompt, and what was said so far, as token ids."""

    task: Task
    prompt_ids: tuple[int, ...]
    said_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, task: Task, turn: Turn, tokens: int) -> State:
        """The state after the first so many tokens of a turn's completion."""
        return cls(task, tuple(turn.prompt_ids), tuple(turn.completion_ids[:tokens]))

    @property
    def ids(self) -> tuple[int, ...]:
        """The whole context."""
        return self.prompt_ids + self.said_ids


@dataclass(frozen=True, slots=True)
class Estimate:
    """What k samples from a state came to.

    Attributes:
        mean: their mean reward; NaN where no sample could be judged.
        values: reward of each judged sample, in the order of sampling.
        tokens: tokens sampled.
        failed: samples that the grader could not judge.
        unfinished: samples that were stopped by length.
    """

    mean: float
    values: tuple[float, ...]
    tokens: int
    failed: int = 0
    unfinished: int = 0

    @property
    def error(self) -> float:
        """Standard error of the mean; NaN for fewer than two values."""
        n = len(self.values)
        return float(np.std(self.values, ddof=1)) / math.sqrt(n) if n > 1 else math.nan


class Estimates(list[Estimate]):
    """One estimate per state asked for, in order, and what they cost together.

    Attributes:
        distinct: states that were sampled; the others were equal to one of these.
        tokens: tokens sampled.
        computed, reused: prompt tokens that the sampler computed, and those it found in its cache; NaN where it does
            not say.
        failed: samples that the grader could not judge.
        unfinished: samples that were stopped by length.
        seconds: wall-clock time.
    """

    distinct: int = 0
    tokens: int = 0
    computed: float = math.nan
    reused: float = math.nan
    failed: int = 0
    unfinished: int = 0
    seconds: float = 0.0

    @property
    def shared(self) -> float:
        """Share of the states that needed no samples of their own."""
        return 1 - self.distinct / len(self) if self else 0.0

    @property
    def means(self) -> list[float]:
        """The estimates alone."""
        return [each.mean for each in self]


def unfinished_is_zero(trajectory: Trajectory) -> float:
    """The reward as graded, but 0 for an answer that was stopped by length (VinePPO's unfinished penalty)."""
    return 0.0 if trajectory.turns[-1].stop == "length" else trajectory.reward


def as_graded(trajectory: Trajectory) -> float:
    """The reward as graded, whatever ended the answer: for dialects without an end token."""
    return trajectory.reward


def answers_of(env: EnvFactory, what: str) -> ChatEnv:
    """One environment, which must pose a question and take one free answer: such answers can be gone on from anywhere.

    Args:
        env: makes it.
        what: who asks, for the message.

    Raises:
        UserError: it has turns, or limits the answers to choices.
    """
    made = env()
    if not isinstance(made, ChatEnv):
        raise UserError(
            f"{what} puts an answer back to any of its prefixes, which a {type(made).__name__} cannot do. Use it where "
            "a task is one question and its answer (ChatEnv); ppo, with its critic, is for agents of many turns."
        )
    if made.choices is not None:
        raise UserError(f"{what} needs answers that are written freely; these are limited to choices. Use grpo there.")
    return made


async def probe(
    policy: Policy,
    states: Sequence[State],
    *,
    k: int,
    params: SamplingParams,
    score: Scorer,
    seed: int,
    reward: Reward = unfinished_is_zero,
    deadline: float | None = 60.0,
    on_progress: Progress | None = None,
) -> Estimates:
    """Estimate the value of states.

    Args:
        policy: whose value; the weights that its sampler holds now.
        states: any, equal ones included.
        k: samples per distinct state.
        params: as in training. `max_tokens` is the whole answer's cap, the prefix included; stop ids default to the
            renderer's.
        score: grades an answer, such as `tasks.score`.
        seed: of the samples. The samples of a state are a function of it, of the state and of the weights.
        reward: the number that a scored sample counts with.
        deadline: seconds that the grading of one sample may take; later it has failed.
        on_progress: called with (states done, distinct states).

    Returns:
        An estimate per state, in order; equal states have the same object.

    Raises:
        UserError: k is below 1, or decoding is limited to choices, whose prefixes the sampler cannot go on from.
    """
    if k < 1:
        raise UserError(f"probe: k={k} must be at least 1 sample per state.")
    if params.choices is not None:
        raise UserError("probe: answers limited to choices cannot be continued from a prefix; give params without.")
    began = perf_counter()
    before = _counters(policy)
    distinct = list(dict.fromkeys(states))
    work = _Probing(
        policy, k, params if params.stop_ids else replace(params, stop_ids=policy.renderer.stop_ids),
        score, seed, reward, deadline, counted(on_progress, 0, len(distinct)),
    )  # fmt: skip
    await together([work.chain(chain) for chain in chains_of(distinct)])
    out = Estimates(work.done[state] for state in states)
    out.distinct = len(distinct)
    found = list(work.done.values())
    out.tokens = sum(e.tokens for e in found)
    out.failed = sum(e.failed for e in found)
    out.unfinished = sum(e.unfinished for e in found)
    after = _counters(policy)
    out.computed, out.reused = (b - a for a, b in zip(before, after, strict=True))
    out.seconds = perf_counter() - began
    return out


def chains_of(states: Sequence[State]) -> list[list[State]]:
    """Distinct states in chains, each state a prefix of the one before it; every state is in one chain."""
    ordered = sorted(states, key=lambda state: (state.task.id, state.ids, state.said_ids))
    chains: list[list[State]] = []
    # In this order whatever extends a state stands right behind it.
    for state in reversed(ordered):
        last = chains[-1][-1] if chains else None
        if last is not None and last.task == state.task and last.ids[: len(state.ids)] == state.ids:
            chains[-1].append(state)
        else:
            chains.append([state])
    return chains


@dataclass
class _Probing:
    """One call of `probe`."""

    policy: Policy
    k: int
    params: SamplingParams
    score: Scorer
    seed: int
    reward: Reward
    deadline: float | None
    report: Callable[[], None]
    done: dict[State, Estimate] = field(default_factory=dict)
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ACTIVE_CHAINS))

    async def chain(self, states: list[State]) -> None:
        """Sample and score the states of a chain, the longest first."""
        sampler = self.policy.sampler
        session = ("probe", next(_sessions))
        async with self.slots:
            try:
                requests = {state: self.requests(state, session) for state in states}
                flat = [request for each in requests.values() for request in each]
                samples = await sampler.sample(flat[:1])
                samples += await sampler.sample(flat[1:])
            finally:
                sampler.release(session)
        drawn = iter(samples)
        for state, asked in requests.items():
            # A prefix that has used up the cap is an answer already, cut off.
            ended = [Sample([], [], "length")] * (0 if asked else 1)
            self.done[state] = await self.estimate(state, [next(drawn) for _ in asked] or ended)
            self.report()

    def requests(self, state: State, session: object) -> list[SampleRequest]:
        """The requests of a state; none where no token may follow."""
        left = self.params.max_tokens - len(state.said_ids)
        if left < 1:
            return []
        params = replace(self.params, max_tokens=left)
        base = derive(self.seed, "probe", state.task.id, state.prompt_ids, state.said_ids)
        ids = list(state.ids)
        return [SampleRequest(ids, params, derive(base, i), session) for i in range(self.k)]

    async def estimate(self, state: State, samples: Sequence[Sample]) -> Estimate:
        """Score samples and sum up."""
        scored = await together([self.scored(state, sample) for sample in samples])
        values = tuple(float(self.reward(t)) for t in scored if not t.excluded)
        return Estimate(
            mean=sum(values) / len(values) if values else math.nan,
            values=values,
            tokens=sum(len(sample.completion_ids) for sample in samples),
            failed=len(scored) - len(values),
            unfinished=sum(sample.stop == "length" for sample in samples),
        )

    async def scored(self, state: State, sample: Sample) -> Trajectory:
        """The whole answer as a graded trajectory of one turn, just as training grades one."""
        ids = [*state.said_ids, *sample.completion_ids]
        text = self.policy.renderer.decode(ids)
        turn = Turn(
            list(state.prompt_ids), ids, version=sample.version, stop=sample.stop,
            temperature=self.params.temperature, context=state.task.prompt, text=text,
        )  # fmt: skip
        trajectory = Trajectory(state.task, [turn], info={"last_reply": ""})  # as an episode of one turn leaves it
        try:
            async with asyncio.timeout(self.deadline) as limit:
                judged = await self.score(state.task, trajectory)
        except TimeoutError:
            if not limit.expired():
                raise
            judged = Score.failed(f"grading took more than {self.deadline:g} s")
        if judged.verdict is not Verdict.GRADER_FAILED and not math.isfinite(judged.value):
            judged = Score.failed(f"the scorer returned {judged.value}")
        trajectory.reward, trajectory.verdict, trajectory.scores = judged.value, judged.verdict, dict(judged.parts)
        return trajectory


def _counters(policy: Policy) -> tuple[float, float]:
    """Prompt tokens computed and reused so far, by the sampler's own count."""
    stats = getattr(policy.sampler, "stats", None)
    computed, reused = (getattr(stats, name, math.nan) for name in ("prefill_tokens", "reused_tokens"))
    return float(computed), float(reused)
