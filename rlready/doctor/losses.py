"""The loss, as the first update called it: invariant to padding, splitting and NaN, and pulling the right way.

Most checks need no model. A loss is a function of log-probs, so it is differentiated with respect to those, on the
batch that was recorded. What its expectation pulls towards is computed exactly on a policy that can be enumerated: one
token out of six, every token a row, weighted by its probability.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlready.algorithms.base import trajectories_of
from rlready.doctor.evidence import (
    Call,
    Evidence,
    clear,
    parameters_of,
    record_update,
    replay,
    single_precision,
)
from rlready.doctor.logprobs import place
from rlready.errors import UserError
from rlready.findings import Findings, Where
from rlready.policy.base import Batch, Learner, Loss, Outputs
from rlready.policy.tiny.batching import pad
from rlready.types import Row

_VOCAB = 6
_PAD = 7


def check_losses(evidence: Evidence, found: Findings) -> None:
    """All checks of the recorded update's loss."""
    if evidence.failed:
        found.error("update", f"The first update raised {evidence.failed.rstrip('.')}.", Where(place="update()"))
    if evidence.learner is None or not evidence.calls:
        return
    call = evidence.calls[0]
    _ratio(evidence, call, found)
    try:
        _invariances(evidence, call, found)
    except (ValueError, TypeError, KeyError, AssertionError, IndexError, RuntimeError, UserError) as error:
        found.note("update", f"The loss could not be probed by itself ({type(error).__name__}: {error}).")
    try:
        _policy_gradient(evidence, found)
        _kl(evidence, found)
    except (ValueError, TypeError, KeyError, AssertionError, IndexError, RuntimeError, UserError) as error:
        found.note("policy gradient", f"It could not be computed on a toy policy ({type(error).__name__}: {error}).")
    _learner_padding(evidence, found)
    if parameters_of(evidence.learner):
        _learner_accumulation(evidence, call, found)
        _slope(evidence, found)


def _ratio(evidence: Evidence, call: Call, found: Findings) -> None:
    """The ratio that the loss reads must be 1, since nothing was learned yet."""
    if any(f.check in ("log-probs", "temperature", "truncation", "alignment", "no log-probs", "stale")
           for f in found.errors):  # fmt: skip
        return
    mean, most = (call.metrics.get(f"ratio/{name}") for name in ("mean", "max"))
    learner = evidence.learner
    assert learner is not None
    bound = 1e-3 if single_precision(learner) else 0.05
    if mean is not None and abs(mean - 1) > bound:
        extra = "" if most is None else f", {most:.4g} at most"
        found.error("ratio", f"Before the first step the loss reads a ratio of {mean:.4g} on average{extra}.",
                    Where(place="first minibatch"))  # fmt: skip
    elif mean is not None:
        found.note("ratio", f"The ratio is {mean:.6g} before the first step.")


# ---- the loss as a function of log-probs


class _Ones(defaultdict[str, float]):
    def __init__(self) -> None:
        super().__init__(lambda: 1.0)


def _probe(
    loss: Callable[[Outputs, Batch], Loss],
    rows: Sequence[Row],
    denominators: Mapping[str, float],
    asks: Mapping[str, bool],
    change: Callable[[Batch, Outputs], tuple[Batch, Outputs]] | None = None,
    shift: float = 0.0,
) -> tuple[float, Tensor]:
    """Value of a loss on rows whose learner agrees with their log-probs, and its gradient by log-prob, [B, T]."""
    batch, live = pad(rows, denominators)
    base = torch.where(live, batch.logprobs + shift, 0.0)
    zeros = torch.zeros_like(base)
    outputs = Outputs(
        base,
        entropy=-base if asks["entropy"] else None,
        values=(zeros if batch.values is None else batch.values.clone()) if asks["values"] else None,
        reference=base - 0.1 * live if asks["reference"] else None,
    )
    if change is not None:
        batch, outputs = change(batch, outputs)
    leaf = outputs.logprobs.detach().clone().requires_grad_()
    outputs.logprobs = leaf
    total = loss(outputs, batch).total
    (grad,) = torch.autograd.grad(total, leaf, allow_unused=True) if total.requires_grad else (None,)
    return float(total.detach()), zeros if grad is None else grad.detach()


def _by_token(rows: Sequence[Row], grad: Tensor) -> np.ndarray[Any, Any]:
    return np.concatenate([grad[i, : len(row)].numpy() for i, row in enumerate(rows)])


def _invariances(evidence: Evidence, call: Call, found: Findings) -> None:
    rows = _with_signal(call.rows)[:64]
    asks, divisors = call.asks, call.denominators
    value, grad = _probe(call.loss, rows, divisors, asks)
    whole = _by_token(rows, grad)
    size = float(np.abs(whole).max()) or 1.0
    first = place(evidence, rows[0])

    # padding: columns without weight behind every row
    def wider(batch: Batch, outputs: Outputs) -> tuple[Batch, Outputs]:
        return _widen(batch), _widen(outputs)

    padded, padded_grad = _probe(call.loss, rows, divisors, asks, wider)
    gap = float(np.abs(_by_token(rows, padded_grad) - whole).max())
    if _apart(value, padded) or gap > 1e-3 * size:
        found.error(
            "padding", f"{_PAD} columns of padding change the loss from {value:.5g} to {padded:.5g}, and a token's "
            f"gradient by up to {gap / size:.0%}.", first,
        )  # fmt: skip

    # accumulation: the same trajectories, one by one, with the same denominators
    units = trajectories_of(rows)  # rows of one trajectory may share a ratio, and stay together
    rows_by_unit = [row for unit in units for row in unit]
    parts = [_probe(call.loss, unit, divisors, asks) for unit in units]
    split = np.concatenate([_by_token(unit, g) for unit, (_, g) in zip(units, parts, strict=True)])
    whole = _by_token(rows_by_unit, _probe(call.loss, rows_by_unit, divisors, asks)[1])
    gap = float(np.abs(split - whole).max())
    total = sum(v for v, _ in parts)
    if len(units) > 1 and (_apart(value, total) or gap > 1e-3 * size):
        found.error(
            "accumulation", f"In {len(units)} micro-batches the loss is {total:.5g}, in one it is {value:.5g}; a "
            f"token's gradient changes by up to {gap / size:.0%}.", first,
        )  # fmt: skip

    # NaN where nothing has weight
    def poison(batch: Batch, outputs: Outputs) -> tuple[Batch, Outputs]:
        dead = torch.stack([w == 0 for w in batch.weights.values()]).all(0)
        return _poison(batch, dead), _poison(outputs, dead)

    if any((np.stack(list(row.weights.values())) == 0).all(0).any() for row in rows):
        poisoned, poisoned_grad = _probe(call.loss, rows, divisors, asks, poison)
        alive = ~torch.isfinite(poisoned_grad)
        if not np.isfinite(poisoned) or alive.any():
            at = int(torch.nonzero(alive)[0][1]) if alive.any() else None
            found.error("masked nan", f"NaN on context tokens makes the loss {poisoned:g}.",
                        replace(first, token=at))  # fmt: skip
    _length(evidence, call, rows, found)


def _with_signal(rows: Sequence[Row]) -> list[Row]:
    """Rows with advantages of unequal size and both signs, so that no term of the loss is idle."""
    out = []
    for i, row in enumerate(rows):
        at = row.logprobs != 0
        advantage = np.where(at, (1.0 + 0.5 * (i % 3)) * (-1) ** i, 0.0).astype(np.float32)
        changes: dict[str, Any] = {"advantage": advantage}
        if row.returns is not None:
            changes["returns"] = row.returns + np.float32(0.5)
        out.append(replace(row, **changes))
    return out


def _length(evidence: Evidence, call: Call, rows: Sequence[Row], found: Findings) -> None:
    """Off policy by the same log-ratio at every token, the weight of a token must not grow with the row's length."""
    names = [s for s in ("policy",) if s in rows[0].weights]
    if not names:
        return
    row = max(rows, key=lambda r: int((r.weights["policy"] > 0).sum()))
    at = np.flatnonzero(row.weights["policy"] > 0)
    if len(at) < 4:
        return
    grew = []
    for sign in (1.0, -1.0):
        # With A > 0 the ratio goes down and with A < 0 up, where no clip cuts the gradient.
        advantage = np.where(row.weights["policy"] > 0, sign, 0.0).astype(np.float32)
        one = [replace(row, advantage=advantage)]
        shift = -0.02 * sign
        still, moved = (_probe(call.loss, one, call.denominators, call.asks, shift=s)[1][0, at] for s in (0.0, shift))
        where = still.abs() > 1e-12
        if where.any() and bool((moved[where] / still[where] > 0).all()):
            grew.append(float((torch.log(moved[where] / still[where]) / shift).mean()))
    if grew and max(grew) > max(2.0, 0.5 * len(at)):
        found.error(
            "sequence ratio", f"Where every token's log-ratio is x, the ratio of a row of {len(at)} tokens is "
            f"exp({max(grew):.3g} x): it is summed over the row, not averaged.", place(evidence, row, int(at[0])),
        )  # fmt: skip


def _widen(part: Any) -> Any:
    """A batch or outputs with columns of zeros behind."""
    changes: dict[str, Any] = {}
    for f in fields(part):
        value = getattr(part, f.name)
        if isinstance(value, Tensor) and value.ndim == 2:
            changes[f.name] = _columns(value, 1.0 if f.name == "temperature" else 0.0)
        elif f.name == "weights":
            changes[f.name] = {k: _columns(v, 0.0) for k, v in value.items()}
    return replace(part, **changes)


def _columns(value: Tensor, fill: float) -> Tensor:
    return torch.cat([value, torch.full((len(value), _PAD), fill).to(value)], 1)


def _poison(part: Any, dead: Tensor) -> Any:
    changes = {
        f.name: torch.where(dead, torch.nan, value)
        for f in fields(part)
        if isinstance(value := getattr(part, f.name), Tensor)
        and value.shape == dead.shape
        and value.is_floating_point()
        and f.name != "temperature"
    }  # fmt: skip
    return replace(part, **changes)


def _apart(a: float, b: float) -> bool:
    return not np.isclose(a, b, rtol=1e-3, atol=1e-6)


# ---- what the loss pulls towards, exactly


def _toy(evidence: Evidence, advantage: np.ndarray[Any, Any], reference: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradient of the expected loss by the logits of a six-token policy, [V], and the policy's logits."""
    generator = torch.Generator().manual_seed(3)
    theta = torch.randn(_VOCAB, generator=generator, dtype=torch.float64).requires_grad_()
    log_pi = torch.log_softmax(theta, 0)
    known = log_pi.detach()
    pi = known.exp()
    algorithm = evidence.algorithm
    asks = evidence.calls[0].asks
    rows = []
    for a in range(_VOCAB):
        weight = np.asarray([0.0, float(pi[a])], dtype=np.float32)
        column = np.asarray([0.0, 1.0], dtype=np.float32)
        row = Row(
            np.asarray([0, a], dtype=np.int64), {s: weight.copy() for s in algorithm.streams},
            column * float(known[a]), column * np.float32(advantage[a]), np.ones(2, dtype=np.float32),
            returns=0 * column, values=0 * column, turn=np.asarray([-1, 0]), trajectory=a, group=0,
        )  # fmt: skip
        rows.append(replace(row, version=np.asarray([-1, 0]), start=row.logprobs.copy()))
    batch, _ = pad(rows, _Ones())
    table = torch.stack([torch.zeros_like(log_pi), log_pi], 1)
    outputs = Outputs(table)
    with torch.no_grad():
        plain = table.detach()
        entropy = -(pi * known).sum().expand(_VOCAB)
        if asks["entropy"]:
            outputs.entropy = torch.stack([0 * entropy, entropy], 1)
        if asks["values"]:
            outputs.values = torch.zeros_like(plain)
        if asks["reference"]:
            outputs.reference = plain if reference is None else torch.stack([0 * reference, reference], 1)
    batch = replace(batch, logprobs=plain.clone())
    total = algorithm.loss(outputs, batch).total
    (grad,) = torch.autograd.grad(total, theta, allow_unused=True) if total.requires_grad else (None,)
    return torch.zeros_like(theta) if grad is None else grad.detach(), theta.detach()


def _numeric(objective: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """Central differences of a function of logits, [V]."""
    step = 1e-5
    eye = torch.eye(len(theta), dtype=theta.dtype) * step
    return torch.stack([(objective(theta + e) - objective(theta - e)) / (2 * step) for e in eye])


def _policy_gradient(evidence: Evidence, found: Findings) -> None:
    """On its own samples, the expected gradient is that of the expected advantage, taken by finite differences."""
    if "policy" not in evidence.algorithm.streams:
        return
    advantage = np.asarray([1.0, -0.5, 0.25, 0.0, -1.0, 0.5])
    idle, theta = _toy(evidence, np.zeros(_VOCAB), None)
    grad = _toy(evidence, advantage, None)[0] - idle
    a = torch.as_tensor(advantage)
    wanted = -_numeric(lambda t: (torch.softmax(t, 0) * a).sum(), theta)
    cosine, size = _compare(grad, wanted)
    name = type(evidence.algorithm).__name__
    where = Where(place=f"{name}.loss, on a policy of one token in {_VOCAB}")
    if size < 1e-9:
        found.error("policy gradient", "The policy loss has no gradient at all.", where)
    elif cosine < 0:
        found.error(
            "advantage sign", f"A step along the gradient makes answers with a positive advantage less likely (cosine "
            f"{cosine:.2f} with the policy gradient).", where,
        )  # fmt: skip
    elif cosine < 0.99:
        found.error(
            "policy gradient", f"The expected gradient is not the policy gradient (cosine {cosine:.3f}).", where
        )
    else:
        found.note("policy gradient", f"The expected gradient is {size:.3g} times the numeric policy gradient.")


def _kl(evidence: Evidence, found: Findings) -> None:
    """The KL term's expected gradient against that of KL(pi || reference), by finite differences."""
    algorithm = evidence.algorithm
    coefficient = float(getattr(algorithm, "kl", 0.0) or 0.0)
    if not coefficient:
        return
    if getattr(algorithm, "kl_in", "loss") == "reward":
        _kl_in_reward(evidence, found)
        return
    name = type(algorithm).__name__
    where = Where(place=f"{name}.loss, on a policy of one token in {_VOCAB}")
    if not evidence.calls[0].asks["reference"]:
        found.error("KL ignored", f"kl is {coefficient:g}, and the update asks for no reference.", where)
        return
    none, theta = _toy(evidence, np.zeros(_VOCAB), None)
    phi = torch.log_softmax(theta + torch.tensor([0.6, -0.4, 0.3, -0.2, 0.5, -0.7], dtype=torch.float64), 0)
    grad = _toy(evidence, np.zeros(_VOCAB), phi)[0] - none

    def kl(t: Tensor) -> Tensor:
        log_pi = torch.log_softmax(t, 0)
        return (log_pi.exp() * (log_pi - phi)).sum()

    wanted = coefficient * _numeric(kl, theta)
    cosine, size = _compare(grad, wanted)
    told = f"kl={coefficient:g}: "
    if size < 1e-6:
        found.error("KL ignored", f"{told}the KL term has no gradient.", where)
    elif cosine < -0.2:
        found.error("KL sign", f"{told}the KL term pushes away from the reference (cosine {cosine:.2f}).", where)
    elif cosine < 0.995 or not 0.5 < size < 2:
        is_not = (
            f"the expected gradient of the KL term is not the KL's (cosine {cosine:.3f}, {size:.2f} times its size)"
        )
        if getattr(algorithm, "kl_gradient", "") == "naive":
            found.note("KL gradient", f'{told}{is_not}; kl_gradient="naive" is biased, as published.', where)
        else:
            found.error(
                "KL gradient", f"{told}{is_not}, as where an estimate is differentiated without its score term.", where
            )


def _kl_in_reward(evidence: Evidence, found: Findings) -> None:
    """Against a reference that is a step away, tokens that the policy likes more than it must lose advantage.

    The update is recorded once more with such a reference. A token answers for its own and all later costs, so what it
    lost is compared with the sum of log pi - log reference from it on.
    """
    learner = evidence.learner
    assert learner is not None
    weights = parameters_of(learner)
    if not weights:
        return
    generator = torch.Generator().manual_seed(5)
    with _moved(learner, [torch.randn(p.shape, generator=generator) for p in weights], 0.05):
        learner.freeze_reference()
    again = replace(evidence, calls=[], rows=[], metrics={}, failed="")
    record_update(again)
    where = Where(place=f"{type(evidence.algorithm).__name__}.update, against a reference a step away")
    plain = {(r.trajectory, len(r)): r.advantage for r in evidence.rows}
    lost: list[float] = []
    owed: list[float] = []
    for row in again.rows:
        before = plain.get((row.trajectory, len(row)))
        if before is None:
            continue
        at = row.weights["policy"] > 0
        cost = (row.logprobs - learner.logprobs([row], which="reference")[0])[at].astype(np.float64)
        lost += list((before - row.advantage)[at])
        owed += list(cost[::-1].cumsum()[::-1])
    if len(lost) < 8:
        return
    agree = float(np.corrcoef(lost, owed)[0, 1]) if float(np.std(lost)) > 1e-9 else 0.0
    if float(np.std(lost)) < 1e-9:
        found.error("KL ignored", "Another reference changes no advantage.", where)
    elif agree < -0.2:
        found.error(
            "KL sign", f"Tokens gain advantage where they leave the reference (correlation {agree:.2f} of what they "
            "lose with what they cost).", where,
        )  # fmt: skip
    else:
        found.note("KL sign", f"What the KL in the reward takes goes with what tokens cost (correlation {agree:.2f}).")


def _compare(grad: Tensor, wanted: Tensor) -> tuple[float, float]:
    """Cosine, and size relative to what was wanted."""
    a, b = float(grad.norm()), float(wanted.norm())
    return (float(grad @ wanted) / (a * b) if a > 0 else 0.0), a / b


# ---- the learner


def _learner_padding(evidence: Evidence, found: Findings) -> None:
    """A row's log-probs must not depend on the rows beside it."""
    learner = evidence.learner
    assert learner is not None
    rows = sorted({id(r): r for r in evidence.rows}.values(), key=len)[:: max(1, len(evidence.rows) // 8)][:8]
    if len(rows) < 2:
        return
    long = _lengthened(evidence, rows[-1])
    together = learner.logprobs([*rows, long])
    worst, where = 0.0, Where()
    for row, beside in zip(rows, together, strict=False):
        (alone,) = learner.logprobs([row])
        gap = np.abs(np.asarray(alone) - np.asarray(beside))[1:]
        if len(gap) and float(gap.max()) > worst:
            worst, where = float(gap.max()), place(evidence, row, 1 + int(gap.argmax()))
    if worst > (1e-3 if single_precision(learner) else 0.3):
        found.error(
            "padding",
            f"A row's log-probs change by up to {worst:.2g} nats with the length of the rows beside it.",
            where,
        )


def _lengthened(evidence: Evidence, row: Row) -> Row:
    """A row that is longer than all others, for padding."""
    longest = getattr(getattr(evidence.policy.sampler, "config", None), "max_len", 10**9)
    n = min(2 * len(row) + 8, longest)
    tokens = np.resize(row.tokens, n)
    zeros = np.zeros(n, dtype=np.float32)
    return Row(tokens, {}, zeros, zeros.copy(), np.ones(n, dtype=np.float32))


def _learner_accumulation(evidence: Evidence, call: Call, found: Findings) -> None:
    """The learner's own gradient, rows at once and in three parts; and it must raise what has A > 0."""
    learner = evidence.learner
    assert learner is not None
    rows = _with_signal(call.rows)[:24]
    if len(rows) >= 3 and not any(f.check in ("accumulation", "padding") for f in found.errors):
        units = trajectories_of(rows)
        third = max(1, len(units) // 3)
        cut = [[r for u in part for r in u] for part in (units[:1], units[1 : 1 + third], units[1 + third :])]
        whole, parts = replay(learner, call, [rows]), replay(learner, call, [part for part in cut if part])
        a, b = (torch.cat([g.flatten() for g in grads]).double() for grads in (whole, parts))
        gap = float((a - b).norm() / a.norm().clamp(min=1e-30))
        if gap > (1e-3 if single_precision(learner) else 0.05):
            found.error(
                "accumulation", f"The learner's gradient changes by {gap:.1%} when rows come in three micro-batches.",
                place(evidence, rows[0]),
            )  # fmt: skip
    if "policy" in rows[0].weights:
        _step_raises(evidence, call, learner, rows, found)


def _step_raises(evidence: Evidence, call: Call, learner: Learner, rows: Sequence[Row], found: Findings) -> None:
    """A small step on one row with A > 0 must make it likelier."""
    if any(f.check in ("advantage sign", "policy gradient") for f in found.errors):
        return
    row = max(rows, key=lambda r: float((r.weights["policy"] > 0).sum()))
    at = row.weights["policy"] > 0
    one = replace(row, advantage=np.where(at, 1.0, 0.0).astype(np.float32))
    free = float(np.abs(row.logprobs[at]).sum())
    if free < 1e-3:
        return  # nothing to choose: it cannot become likelier
    grads = replay(learner, call, [[one]])
    norm = float(torch.sqrt(torch.stack([g.square().sum() for g in grads]).sum()))
    if norm < 1e-12:
        return
    before = float(learner.logprobs([one])[0][at].sum())
    with _moved(learner, grads, -0.02 / norm):
        later = float(learner.logprobs([one])[0][at].sum())
    if later <= before - 1e-4:
        found.error(
            "advantage sign", f"A step on one trajectory with a positive advantage changed its log-prob from "
            f"{before:.4g} to {later:.4g}.", place(evidence, row),
        )  # fmt: skip


class _moved:
    """The learner's weights a step further along a direction, inside the block."""

    def __init__(self, learner: Learner, direction: Sequence[Tensor], size: float) -> None:
        self.parameters = parameters_of(learner)
        self.direction, self.size = direction, size

    def __enter__(self) -> None:
        with torch.no_grad():
            self.before = [p.detach().clone() for p in self.parameters]
            for p, g in zip(self.parameters, self.direction, strict=True):
                p.add_(g.to(p), alpha=self.size)

    def __exit__(self, *_: object) -> None:
        with torch.no_grad():
            for p, old in zip(self.parameters, self.before, strict=True):
                p.copy_(old)


def _slope(evidence: Evidence, found: Findings) -> None:
    """The learner's backward pass against central differences of its own log-probs, in three random directions."""
    learner = evidence.learner
    assert learner is not None
    if not single_precision(learner):
        return
    rows = [replace(r, weights={"nll": (r.logprobs != 0).astype(np.float32)}, returns=None, values=None)
            for r in evidence.rows[:6]]  # fmt: skip
    rows = [r for r in rows if r.weights["nll"].any()]
    if not rows:
        return
    call = Call(rows, _mean_nll, {"nll": 1.0}, {"entropy": False, "values": False, "reference": False})
    grads = replay(learner, call, [rows])
    clear(learner)
    norm = float(torch.sqrt(torch.stack([g.square().sum() for g in grads]).sum()))
    if norm < 1e-9:
        return

    def value() -> float:
        return -sum(float((v * r.weights["nll"]).sum(dtype=np.float64)) for r, v in
                    zip(rows, learner.logprobs(rows), strict=True))  # fmt: skip

    generator = torch.Generator().manual_seed(11)
    worst = 0.0
    for _ in range(3):
        noise = [torch.randn(g.shape, generator=generator) for g in grads]
        length = float(torch.sqrt(torch.stack([n.square().sum() for n in noise]).sum()))
        direction = [n / length + 0.5 * g / norm for n, g in zip(noise, grads, strict=True)]
        expected = float(sum((d * g).sum() for d, g in zip(direction, grads, strict=True)))
        sides = []
        for size in (2e-3, -2e-3):
            with _moved(learner, direction, size):
                sides.append(value())
        worst = max(worst, abs((sides[0] - sides[1]) / 4e-3 - expected) / max(abs(expected), 1e-9))
    if worst > 0.05:
        found.error(
            "gradient", f"The learner's gradient is off its log-probs' slope by {worst:.0%} (central differences).",
            Where(place=type(learner).__name__),
        )  # fmt: skip
    else:
        found.note("gradient", f"The learner's gradient is the slope of its log-probs, within {worst:.2%}.")


def _mean_nll(outputs: Outputs, batch: Batch) -> Loss:
    return Loss(-(batch.weights["nll"] * outputs.logprobs).sum())
