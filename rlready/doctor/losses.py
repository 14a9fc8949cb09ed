"""The loss, as the first update called it: invariant to padding, splitting and NaN, with a ratio that is 1.

These checks need no model. A loss is a function of log-probs, so it is differentiated with respect to those, on the
batch that was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlready.doctor.evidence import Call, Evidence, parameters_of, single_precision
from rlready.doctor.learner import check_accumulation, check_padding, check_slope, units_of, with_signal
from rlready.doctor.logprobs import place
from rlready.doctor.pull import check_kl, check_policy_gradient
from rlready.errors import UserError
from rlready.findings import Findings, Where
from rlready.policy.base import Batch, Loss, Outputs
from rlready.policy.tiny.batching import pad
from rlready.types import Row

_PAD = 7
_UNKNOWN = (ValueError, TypeError, KeyError, AssertionError, IndexError, RuntimeError, AttributeError, UserError)


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
    except _UNKNOWN as error:
        found.warning("update", f"The loss could not be probed by itself ({type(error).__name__}: {error}).", Where())
    try:
        check_policy_gradient(evidence, found)
        check_kl(evidence, found)
    except _UNKNOWN as error:
        found.warning(
            "policy gradient", f"It could not be computed on a toy policy ({type(error).__name__}: {error}).", Where()
        )
    check_padding(evidence, found)
    if parameters_of(evidence.learner):
        check_accumulation(evidence, call, found)
        check_slope(evidence, found)


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
    units = units_of(with_signal(call.rows), 64)
    rows = [row for unit in units for row in unit]
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

    # accumulation: the same units, one by one, with the same denominators
    parts = [_probe(call.loss, unit, divisors, asks) for unit in units]
    split = np.concatenate([_by_token(unit, g) for unit, (_, g) in zip(units, parts, strict=True)])
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
