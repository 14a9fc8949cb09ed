"""Of several next steps, does an estimator know the better one?

At a state the policy goes on several times; the next step of each continuation is taken, equal ones once. The truth of
a step is the mean reward of many rollouts behind it. Every pair of steps whose truths differ is a question: which is
better? A coin is right half the time; an estimator that ties says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from rlready.errors import UserError
from rlready.policy.base import Policy, SampleRequest, SamplingParams
from rlready.rollout.gather import Progress
from rlready.rollout.probe import Reward, State, probe, unfinished_is_zero
from rlready.rollout.steps import SplitError, StepRule
from rlready.scoring import Scorer
from rlready.seeds import derive
from rlready.values.estimators import Estimator, Visited
from rlready.values.statistics import mean_and_error, numbered


@dataclass(frozen=True)
class Choice:
    """A state and the distinct next steps that its continuations took, as the states behind them."""

    visited: Visited
    after: tuple[State, ...]


@dataclass(frozen=True)
class Order:
    """How well an estimator orders steps. Shares, each with a standard error (`_se`), tasks being independent.

    Attributes:
        pairs: compared, those whose truths differ.
        accuracy: ordered as the truth is; a tie of the estimator is wrong.
        decided: the same among the pairs that the estimator does not tie; NaN where it ties all.
        ties: share of pairs that it ties.
        clear: as `accuracy`, among pairs whose truths differ by more than 2 standard errors.
        clear_pairs: how many those are.
        best: share of states at which its favourite is the truly best step; a tie for favourite counts in part.
        best_chance: the same for a blind choice.
    """

    name: str
    pairs: int
    accuracy: float
    accuracy_se: float
    decided: float
    decided_se: float
    ties: float
    clear: float
    clear_se: float
    clear_pairs: int
    best: float
    best_se: float
    best_chance: float


@dataclass
class Ranking:
    """Estimators compared on the same choices.

    Attributes:
        choices: states looked at.
        steps: next steps in all.
        rollouts: samples per truth.
        orders: by estimator.
        tokens, seconds: sampled and spent for the truth.
    """

    choices: int
    steps: int
    rollouts: int
    orders: dict[str, Order]
    tokens: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return asdict(self)


async def alternatives(
    policy: Policy,
    visited: Sequence[Visited],
    *,
    rule: StepRule,
    params: SamplingParams,
    seed: int,
    continuations: int = 5,
    least: int = 3,
) -> list[Choice]:
    """The choices at some states.

    A step that ends the answer is left out: its value is its score, which nobody need estimate.

    Args:
        policy: goes on.
        visited: where.
        rule: how answers are cut.
        params: as in training; `max_tokens` caps the whole answer.
        seed: of the continuations.
        continuations: per state.
        least: distinct next steps that a state must have.
    """
    if not params.stop_ids:
        params = replace(params, stop_ids=policy.renderer.stop_ids)
    places = [each for each in visited if len(each.state.said_ids) < params.max_tokens]
    requests = []
    for number, each in enumerate(places):
        state = each.state
        left = replace(params, max_tokens=params.max_tokens - len(state.said_ids))
        base = derive(seed, "alternatives", state.task.id, state.prompt_ids, state.said_ids)
        session = ("alternatives", seed, number)
        requests += [SampleRequest(list(state.ids), left, derive(base, i), session) for i in range(continuations)]
    samples = iter(await policy.sampler.sample(requests))
    for session in dict.fromkeys(request.session for request in requests):
        policy.sampler.release(session)
    out = []
    for each in places:
        state = each.state
        after: dict[State, None] = {}
        for sample in [next(samples) for _ in range(continuations)]:
            said = (*state.said_ids, *sample.completion_ids)
            try:
                starts = rule.starts(said, policy.renderer)
            except SplitError:
                continue
            end = next((start for start in starts if start > len(state.said_ids)), None)
            if end is not None:
                after[State(state.task, state.prompt_ids, said[:end])] = None
        if len(after) >= least:
            out.append(Choice(each, tuple(after)))
    return out


async def ranking(
    policy: Policy,
    choices: Sequence[Choice],
    estimators: Mapping[str, Estimator],
    *,
    score: Scorer,
    params: SamplingParams,
    seed: int,
    rollouts: int = 256,
    reward: Reward = unfinished_is_zero,
    on_progress: Progress | None = None,
) -> Ranking:
    """Compare how estimators order next steps.

    Args:
        policy: whose values.
        choices: as `alternatives` gives them.
        estimators: by name. Give probes a seed of their own, so that none of their samples is the truth's.
        score: grades, such as `tasks.score`.
        params: as in training.
        seed: of the truth.
        rollouts: per next step for the truth.
        reward: the number that a scored rollout counts with.
        on_progress: called with (steps done, steps) for the truth.

    Raises:
        UserError: there are no choices.
    """
    if not choices:
        raise UserError(
            "ranking: no state has enough distinct next steps that do not end the answer. Give more states, a higher "
            "temperature, or a rule that cuts answers finer."
        )
    flat = [state for choice in choices for state in choice.after]
    found = await probe(
        policy, flat, k=rollouts, params=params, score=score, seed=derive(seed, "truth"), reward=reward,
        on_progress=on_progress,
    )  # fmt: skip
    cuts = np.cumsum([len(choice.after) for choice in choices])[:-1]
    truth = np.split(np.asarray(found.means), cuts)
    error = np.split(np.asarray([each.error for each in found]), cuts)
    clusters = numbered([choice.visited.state.task.id for choice in choices]).tolist()
    orders = {}
    for name, estimator in estimators.items():
        values = np.split(np.asarray(await estimator(flat), dtype=np.float64), cuts)
        orders[name] = order(name, values, truth, error, clusters)
    return Ranking(len(choices), len(flat), rollouts, orders, found.tokens, found.seconds)


def order(
    name: str,
    values: Sequence[np.ndarray[Any, np.dtype[np.float64]]],
    truth: Sequence[np.ndarray[Any, np.dtype[np.float64]]],
    error: Sequence[np.ndarray[Any, np.dtype[np.float64]]],
    clusters: Sequence[int],
) -> Order:
    """Score an estimator's order of the steps of each choice.

    Args:
        name: the estimator's.
        values: its estimates, one array per choice.
        truth: likewise.
        error: standard errors of the truth likewise.
        clusters: task number of each choice.
    """
    right: list[float] = []
    tied: list[bool] = []
    clear: list[bool] = []
    of: list[int] = []
    best: list[float] = []
    chance: list[float] = []
    best_of: list[int] = []
    for v, q, se, cluster in zip(values, truth, error, clusters, strict=True):
        known = ~(np.isnan(v) | np.isnan(q))
        v, q, se = v[known], q[known], se[known]
        a, b = np.triu_indices(len(q), 1)
        differs = q[a] != q[b]
        a, b = a[differs], b[differs]
        right += (np.sign(v[a] - v[b]) == np.sign(q[a] - q[b])).astype(float).tolist()
        tied += (v[a] == v[b]).tolist()
        clear += (np.abs(q[a] - q[b]) > 2 * np.hypot(se[a], se[b])).tolist()
        of += [cluster] * len(a)
        if len(a):
            favourites = v == v.max()
            best.append(float((favourites & (q == q.max())).sum() / favourites.sum()))
            chance.append(float((q == q.max()).mean()))
            best_of.append(cluster)
    won, ties, sure, who = np.asarray(right), np.asarray(tied, bool), np.asarray(clear, bool), np.asarray(of, np.int64)
    return Order(
        name,
        len(won),
        *mean_and_error(won, who),
        *mean_and_error(won[~ties], who[~ties]),
        float(ties.mean()) if len(ties) else math.nan,
        *mean_and_error(won[sure], who[sure]),
        int(sure.sum()),
        *mean_and_error(np.asarray(best), np.asarray(best_of, np.int64)),
        float(np.mean(chance)) if chance else math.nan,
    )
