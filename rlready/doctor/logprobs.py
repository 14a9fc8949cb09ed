"""Log-probabilities: do sampler and learner mean the same distribution, under every setting and after an update?

A gap is not only found but explained: the learner's log-probs are computed again under what could have gone wrong
(temperature 1, no truncation, a shift by one token), and the explanation that closes the gap is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rlready.aio import run_sync
from rlready.doctor.evidence import Evidence, parameters_of, put_back, room_of, single_precision
from rlready.errors import UserError
from rlready.findings import Findings, Where
from rlready.policy.base import Batch, Learner, Loss, Outputs, Sample, SampleRequest, SamplingParams
from rlready.rollout.compile import compile_groups
from rlready.types import FloatArray, Group, Row, Task, Trajectory, Turn

_PROBES = 4
_PROBE_TOKENS = 8


@dataclass(frozen=True)
class Gap:
    """How far two sides' log-probs of the same tokens are apart, in nats.

    Attributes:
        mean: of |learner - sampler|.
        most: the largest.
        kl: mean of the k3 estimate of KL(sampler || learner).
        row, token: where the largest is.
    """

    mean: float
    most: float
    kl: float
    row: int
    token: int

    @classmethod
    def of(cls, rows: Sequence[Row], learner: Sequence[FloatArray], shift: int = 0) -> Gap:
        """Over the sampled tokens of rows; `shift` compares with the learner's log-prob of a neighbour."""
        gaps, where = [], []
        for i, (row, values) in enumerate(zip(rows, learner, strict=True)):
            assert row.turn is not None
            for t in np.flatnonzero(row.turn >= 0):
                if 0 < t + shift < len(row) and row.turn[t + shift] >= 0:
                    gaps.append(float(values[t + shift]) - float(row.logprobs[t]))
                    where.append((i, int(t)))
        if not gaps:
            return cls(0.0, 0.0, 0.0, 0, 0)
        d = np.nan_to_num(np.asarray(gaps, dtype=np.float64), nan=50.0, posinf=50.0, neginf=-50.0)
        worst = int(np.abs(d).argmax())
        kl = float(np.mean(np.expm1(np.clip(d, -50, 20)) - d))
        return cls(float(np.abs(d).mean()), float(np.abs(d).max()), kl, *where[worst])

    def bad(self, single: bool) -> bool:
        """Beyond rounding: in single precision 1e-4 nats on average or a KL of 1e-6, in lower ones a KL of 0.01."""
        return (self.mean > 1e-4 or self.kl > 1e-6) if single else self.kl > 1e-2

    def __str__(self) -> str:
        """In words."""
        return f"{self.mean:.2g} nats on average, {self.most:.2g} at most, KL {self.kl:.2g}"


def sampled_rows(groups: Sequence[Group]) -> list[Row]:
    """Rows over every turn, trainable or not, with the log-probs that the sampler gave."""
    bare = [
        Group(g.task, [Trajectory(t.task, [_plain(turn) for turn in t.turns], reward=0.0) for t in g.valid])
        for g in groups
    ]
    return compile_groups(bare, streams=("nll",))


def _plain(turn: Turn) -> Turn:
    usable = turn.logprobs is not None and len(turn.logprobs) == turn.length and all(np.isfinite(turn.logprobs))
    return replace(turn, trainable=True, advantage=0.0, returns=None, value=None,
                   logprobs=list(turn.logprobs) if usable else [0.0] * turn.length)  # fmt: skip


def check_logprobs(evidence: Evidence, found: Findings) -> bool:
    """The first batch: are there log-probs, do they agree with the learner's, are they fresh?

    Returns:
        Whether there are log-probs, so that they can be looked at under other settings, too.
    """
    missing = _missing(evidence, found)
    _stale(evidence, found)
    learner = evidence.learner
    if learner is None or missing:
        return not missing
    _compare(evidence, learner, found)
    return True


def _compare(evidence: Evidence, learner: Learner, found: Findings) -> None:
    rows = sampled_rows(evidence.groups)
    if not rows:
        return
    try:
        now = learner.logprobs(rows)
    except (ValueError, UserError) as error:
        found.error("truncation", f"The learner cannot rate what was sampled: {error}")
        return
    single = single_precision(learner)
    gap = Gap.of(rows, now)
    if not gap.bad(single):
        found.note("log-probs", f"Sampler and learner agree on {_count(rows)} tokens: {gap}.")
        return
    explain(evidence, rows, gap, found, "the first batch", _cuts(evidence.setup.params))


def _cuts(params: SamplingParams) -> bool:
    """Whether ids are cut from the vocabulary by the sampler."""
    return params.temperature != 0 and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)


def explain(evidence: Evidence, rows: list[Row], gap: Gap, found: Findings, what: str, cuts: bool) -> None:
    """Name what closes a gap; `cuts`: whether the sampler was told to cut the vocabulary."""
    learner = evidence.learner
    assert learner is not None
    where = place(evidence, rows[gap.row], gap.token)
    single = single_precision(learner)

    def closes(change: Callable[[Row], Row] | None, shift: int = 0) -> bool:
        changed = rows if change is None else [change(row) for row in rows]
        try:
            other = Gap.of(changed, learner.logprobs(changed), shift)
        except (ValueError, UserError):
            return False
        return other.mean < 0.1 * gap.mean and not (single and other.mean > 2e-3)

    ones = [row for row in rows if (row.temperature != 1).any()]
    if ones and closes(_untempered):
        t = float(next(v for row in ones for v in row.temperature if v != 1))
        found.error(
            "temperature",
            f"In {what} the sampler's log-probs are those at temperature 1, while it samples at {t:g}: {gap}.", where,
        )  # fmt: skip
    elif any(row.support_of is not None for row in rows) and (closes(_open) or closes(lambda r: _open(_untempered(r)))):
        found.error(
            "truncation", f"In {what} the sampler's log-probs are not renormalised over what top-k, top-p or choices "
            f"left, and the learner's are: {gap}.", where,
        )  # fmt: skip
    elif closes(None, 1) or closes(None, -1):
        found.error("alignment", f"In {what} the sampler's log-probs are those of the token beside: {gap}.", where)
    elif not ones and _tempered(rows, learner, gap) is not None:
        found.error(
            "temperature",
            f"In {what} the sampler's log-probs are those at temperature {_tempered(rows, learner, gap):g}, while the "
            f"turns say 1: {gap}.", where,
        )  # fmt: skip
    elif _cut(rows, learner, 0.05 if cuts and all(row.support_of is None for row in rows) else 0.5):
        found.error(
            "truncation", f"In {what} every log-prob of the sampler is above the learner's, as if top-k, top-p or "
            f"choices were renormalised and the set they left (Turn.support) was not kept: {gap}.", where,
        )  # fmt: skip
    else:
        found.error("log-probs", f"In {what} sampler and learner disagree: {gap}.", where)


def _untempered(row: Row) -> Row:
    return replace(row, temperature=np.ones_like(row.temperature))


def _open(row: Row) -> Row:
    return replace(row, support_of=None, supports=())


def _tempered(rows: list[Row], learner: Learner, gap: Gap) -> float | None:
    """The one temperature on the learner's side that closes the gap, if there is one."""
    for t in (0.5, 0.6, 0.7, 0.8, 0.9, 1.2, 1.5, 2.0):
        changed = [replace(row, temperature=np.full_like(row.temperature, t)) for row in rows]
        if Gap.of(changed, learner.logprobs(changed)).mean < 0.05 * gap.mean:
            return t
    return None


def _cut(rows: list[Row], learner: Learner, share: float) -> bool:
    """Whether the sampler's log-probs are never below the learner's, and above in more than a share of tokens."""
    d = np.concatenate(
        [row.logprobs[row.turn >= 0] - v[row.turn >= 0] for row, v in zip(rows, learner.logprobs(rows), strict=True)
         if row.turn is not None]
    )  # fmt: skip
    return bool(len(d) >= 4 and d.min() > -1e-3 and np.mean(d > 1e-4) > share)


def _missing(evidence: Evidence, found: Findings) -> bool:
    """Log-probs that are not there, all 0, or no log-probs."""
    total = bare = zero = 0
    first: Where | None = None
    for i, trajectory, j, turn in evidence.turns():
        if not turn.trainable or not turn.length or trajectory.excluded:
            continue
        total += turn.length
        given = turn.logprobs or []  # a sampler of one's own may give None
        lacking = len(given) != turn.length or not all(np.isfinite(given)) or max(given) > 1e-3
        free = [k for k in range(turn.length) if turn.support is None or turn.support[k] is None
                or len(turn.support[k]) > 1]  # type: ignore[arg-type]  # fmt: skip
        nothing = not lacking and bool(free) and all(given[k] == 0 for k in free)
        bare += turn.length * lacking
        zero += turn.length * nothing
        if (lacking or nothing) and first is None:
            first = Where(task=trajectory.task.id, trajectory=i, turn=j)
    if bare:
        found.error(
            "no log-probs",
            f"{bare} of {total} sampled tokens have no behaviour log-prob, or one that is not finite or above 0.",
            first,
        )  # fmt: skip
    elif zero > 0.5 * total:
        found.error(
            "no log-probs", f"The behaviour log-probs of {zero} of {total} sampled tokens are exactly 0.", first
        )
    return bool(bare) or zero > 0.5 * total


def _stale(evidence: Evidence, found: Findings) -> None:
    """Lag, as it is declared and as it is seen in the first batch."""
    tolerated = evidence.algorithm.max_lag
    name = type(evidence.algorithm).__name__
    learner = evidence.learner
    seen, first = 0, None
    for i, trajectory, j, turn in evidence.turns():
        version = turn.version if isinstance(turn.version, int) else min(turn.version, default=0)
        lag = (learner.version if learner is not None else evidence.policy.version) - version
        if turn.length and lag > seen:
            seen, first = lag, Where(task=trajectory.task.id, trajectory=i, turn=j)
    if seen > tolerated:
        found.error("stale", f"The first batch is up to {seen} updates old, and {name} tolerates {tolerated:g}.", first)
    elif evidence.setup.max_lag > tolerated:
        found.error(
            "stale", f"max_lag is {evidence.setup.max_lag}, and {name} tolerates {tolerated:g} updates of lag.", Where()
        )


def check_settings(evidence: Evidence, found: Findings) -> None:
    """Temperature, top-k and top-p by probe requests; a fault here is an error where the set-up uses the setting."""
    learner = evidence.learner
    if learner is None:
        return
    own = evidence.setup.params
    prompts = _prompts(evidence)
    if not prompts:
        return
    for name, params in (
        ("temperature 0.7", SamplingParams(temperature=0.7)),
        ("top_k=3", SamplingParams(top_k=3)),
        ("top_p=0.8", SamplingParams(top_p=0.8)),
    ):
        params = replace(params, max_tokens=_PROBE_TOKENS, stop_ids=own.stop_ids)
        used = own.temperature != 1 if "temp" in name else own.top_k > 0 if "top_k" in name else own.top_p < 1
        one = Findings("probe")
        try:
            samples = _sample(evidence, prompts, params)
        except (UserError, ValueError) as error:
            one.warning("log-probs", f"The sampler refuses {name}: {error}")
            samples = []
        if samples:
            rows = _rows(prompts, samples, params.temperature)
            bare = all(s.support is None or all(x is None for x in s.support) for s in samples)
            try:
                gap = Gap.of(rows, learner.logprobs(rows))
                if gap.bad(single_precision(learner)):
                    explain(evidence, rows, gap, one, f"a probe at {name}", _cuts(params))
                elif bare and "top" in name:
                    one.error("truncation", f"A probe at {name} came back without the ids that were left to draw from.")
            except (UserError, ValueError) as error:
                one.error("truncation", f"The learner cannot rate a probe at {name}: {error}")
        for finding in one:
            finding = replace(finding, where=finding.where or Where(place=f"probe at {name}"))
            found.add(finding if used else replace(finding, level="warning"))


def check_sync(evidence: Evidence, found: Findings) -> None:
    """After an update, does the sampler act with the learner's weights, in old sessions too?"""
    learner, policy = evidence.learner, evidence.policy
    prompts = _prompts(evidence)
    if learner is None or not prompts or (evidence.setup.collect is not None and not hasattr(policy.sampler, "sample")):
        return
    params = SamplingParams(max_tokens=_PROBE_TOKENS, stop_ids=evidence.setup.params.stop_ids)
    single = single_precision(learner)
    before = _sample(evidence, prompts, params)
    clean = not Gap.of(rows := _rows(prompts, before), learner.logprobs(rows)).bad(single)
    if not clean:
        return  # told by the other checks
    old = learner.logprobs(rows)
    with put_back(policy):
        learner.forward_backward(rows, _nll, {"nll": 1.0, "nll/run": 1.0})
        learner.step()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in parameters_of(learner):
                noise = torch.randn(p.shape, generator=generator).to(p)
                p.add_(0.1 * noise * (p.float().std(correction=0).to(p) + 0.05))
        moved = float(np.mean([np.abs(a - b).mean() for a, b in zip(old, learner.logprobs(rows), strict=True)]))
        policy.sync()
        fresh = _sample(evidence, prompts, params)
        longer = [p + s.completion_ids[:-1] for p, s in zip(prompts, before, strict=True)]
        kept = _sample(evidence, longer, params, "kept")
        gaps = []
        for asked, samples in ((prompts, fresh), (longer, kept)):
            rows = _rows(asked, samples)
            gaps.append(Gap.of(rows, learner.logprobs(rows)))
        version = policy.sampler.version
        expected = learner.version
    where = Where(place="the first turns' prompts, after one update")
    if moved < 1e-4:
        return
    if gaps[0].bad(single):
        found.error(
            "sync",
            f"After an update the sampler does not act with the learner's weights ({gaps[0]}; the update itself moved "
            f"log-probs by {moved:.2g}).", where,
        )  # fmt: skip
    elif gaps[1].bad(single):
        found.error("sync", f"After an update the sampler goes on from caches of the old weights ({gaps[1]}).", where)
    elif version != expected:
        found.warning("sync", f"After an update the sampler says version {version}, the learner {expected}.", where)


def _nll(outputs: Outputs, batch: Batch) -> Loss:
    return Loss(-(batch.weights["nll"] * outputs.logprobs).sum())


def _prompts(evidence: Evidence) -> list[list[int]]:
    firsts = [turn.prompt_ids for _, t, j, turn in evidence.turns() if j == 0 and turn.prompt_ids and not t.excluded]
    distinct = {tuple(p): p for p in firsts}
    longest = room_of(evidence.policy)
    return [p for p in distinct.values() if len(p) + 2 * _PROBE_TOKENS < longest][:_PROBES]


def _sample(
    evidence: Evidence, prompts: Sequence[list[int]], params: SamplingParams, session: str = ""
) -> list[Sample]:
    """One completion per prompt; sessions are kept under the prompt's number, to see caches at work."""
    sampler = evidence.policy.sampler
    requests = [SampleRequest(p, params, seed=i, session=("doctor", i)) for i, p in enumerate(prompts)]
    samples = run_sync(sampler.sample(requests))
    if session:
        for request in requests:
            sampler.release(request.session)
    return samples


def _rows(prompts: Sequence[list[int]], samples: Sequence[Sample], temperature: float = 1.0) -> list[Row]:
    turns = [
        Turn(p, s.completion_ids, list(s.logprobs), temperature=temperature, support=s.support, advantage=0.0)
        for p, s in zip(prompts, samples, strict=True)
    ]
    task = Task(id="probe")
    return compile_groups([Group(task, [Trajectory(task, [turn], reward=0.0) for turn in turns])], streams=("nll",))


def place(evidence: Evidence, row: Row, token: int | None = None) -> Where:
    """Where a row's token is in the batch; rows of probes have no place there."""
    valid = evidence.valid
    if not 0 <= row.trajectory < len(valid):
        return Where(token=token)
    trajectory = valid[row.trajectory]
    index = next(i for i, t in enumerate(evidence.trajectories) if t is trajectory)
    turn = None if row.turn is None or token is None else int(row.turn[token])
    return Where(
        task=trajectory.task.id, trajectory=index, turn=turn if turn is None or turn >= 0 else None, token=token
    )


def _count(rows: Sequence[Row]) -> int:
    return int(sum((row.turn >= 0).sum() for row in rows if row.turn is not None))
