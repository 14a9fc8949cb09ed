"""What a loss pulls towards, exactly, on a policy that can be enumerated: one token out of six.

Every token is a row, weighted by its probability, so the gradient of the loss by the policy's logits is its expectation
on the policy's own samples. It is compared with finite differences of what is meant: the expected advantage, and
KL(pi || reference).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlready.doctor.evidence import Evidence, parameters_of, record_update
from rlready.doctor.learner import moved
from rlready.findings import Findings, Where
from rlready.policy.base import Outputs
from rlready.policy.tiny.batching import pad
from rlready.types import Row

_VOCAB = 6


def check_policy_gradient(evidence: Evidence, found: Findings) -> None:
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


def check_kl(evidence: Evidence, found: Findings) -> None:
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
    with moved(learner, [torch.randn(p.shape, generator=generator) for p in weights], 0.05):
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


class _Ones(defaultdict[str, float]):
    def __init__(self) -> None:
        super().__init__(lambda: 1.0)


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


def _compare(grad: Tensor, wanted: Tensor) -> tuple[float, float]:
    """Cosine, and size relative to what was wanted."""
    a, b = float(grad.norm()), float(wanted.norm())
    return (float(grad @ wanted) / (a * b) if a > 0 else 0.0), a / b
