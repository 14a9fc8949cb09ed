"""The learner: padding and micro-batches change nothing, its gradient is a slope, and a step does what it should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlready.doctor.evidence import Call, Evidence, clear, parameters_of, replay, room_of, single_precision
from rlready.doctor.logprobs import place
from rlready.findings import Findings, Where
from rlready.policy.base import Batch, Learner, Loss, Outputs
from rlready.types import Row


def check_padding(evidence: Evidence, found: Findings) -> None:
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
    n = min(2 * len(row) + 8, room_of(evidence.policy))
    tokens = np.resize(row.tokens, n)
    zeros = np.zeros(n, dtype=np.float32)
    return Row(tokens, {}, zeros, zeros.copy(), np.ones(n, dtype=np.float32))


def check_accumulation(evidence: Evidence, call: Call, found: Findings) -> None:
    """The learner's own gradient, rows at once and in three parts; and it must raise what has A > 0."""
    learner = evidence.learner
    assert learner is not None
    units = units_of(with_signal(call.rows), 24)
    rows = [row for unit in units for row in unit]
    if len(rows) >= 3 and not any(f.check in ("accumulation", "padding") for f in found.errors):
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
    with moved(learner, grads, -0.02 / norm):
        later = float(learner.logprobs([one])[0][at].sum())
    if later <= before - 1e-4:
        found.error(
            "advantage sign", f"A step on one trajectory with a positive advantage changed its log-prob from "
            f"{before:.4g} to {later:.4g}.", place(evidence, row),
        )  # fmt: skip


def check_slope(evidence: Evidence, found: Findings) -> None:
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
            with moved(learner, direction, size):
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


def units_of(rows: Sequence[Row], most: int) -> list[list[Row]]:
    """Rows that a loss may couple, together: of one unit, or of one trajectory; as many as `most` rows hold whole."""
    units: dict[tuple[str, int], list[Row]] = {}
    for i, row in enumerate(rows):
        key = ("unit", row.unit) if row.unit >= 0 else ("trajectory", row.trajectory)
        units.setdefault(key if key[1] >= 0 else ("row", i), []).append(row)
    out: list[list[Row]] = []
    for unit in units.values():
        if out and sum(map(len, out)) + len(unit) > most:
            break
        out.append(unit)
    return out


def with_signal(rows: Sequence[Row]) -> list[Row]:
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


class moved:
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
