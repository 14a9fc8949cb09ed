"""The formulas of the loss streams, as pure functions of tensors; no algorithm, no averaging, no reduction.

Every tensor is [B, T], aligned with tokens; log-probabilities are natural, ratios are pi / pi_old.
"""

from __future__ import annotations

from typing import Literal

import torch

Importance = Literal["token", "sequence"]
Estimator = Literal["k1", "k2", "k3"]
# exp(20) = 5e8 is beyond any use of a ratio, and its square still fits float32. Further out the gradient is 0.
LOG_RATIO_BOUND = 20.0


def log_ratio(new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor, importance: Importance) -> torch.Tensor:
    """log(pi / pi_old), 0 where `mask` is False, bounded to +-20.

    token:     log pi(t) - log pi_old(t), each token its own.
    sequence:  every token carries its row's mean log-ratio, so the ratio is the length-normalised geometric mean of
               GSPO (arXiv 2507.18071, eq. 7). Its gradient is that of GSPO-token (eq. 13-14), the value of the mean
               with each token's own gradient: the same as GSPO where a row has one advantage, and still right where it
               has several.
    """
    each = torch.where(mask, new - old, 0.0)
    if importance == "sequence":
        mean = (each.detach().sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)).expand_as(each)
        each = torch.where(mask, mean + each - each.detach(), 0.0)
    return each.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def surrogate(
    ratio: torch.Tensor, advantage: torch.Tensor, low: float | None, high: float | None, dual: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's clipped objective, negated, and where the clip took the gradient away.

        L = -min(r A, clip(r, 1 - low, 1 + high) A)             PPO, arXiv 1707.06347, eq. 7 (one epsilon there)
        L = -max(min(...), c A)  where A < 0                    dual clip, arXiv 1912.09729

    Args:
        ratio: r.
        advantage: A.
        low: width of the lower bound; None leaves that side open.
        high: width of the upper bound ("clip-higher" of DAPO, arXiv 2503.14476, where it is above `low`).
        dual: c > 1, or None.

    Returns:
        (loss, clipped): floats and booleans.
    """
    bounded = ratio.clamp(-torch.inf if low is None else 1 - low, torch.inf if high is None else 1 + high)
    plain = ratio * advantage
    objective = torch.minimum(plain, bounded * advantage)
    if dual is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, dual * advantage), objective)
    return -objective, objective.detach() != plain.detach()


def kl_value(new: torch.Tensor, reference: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """One-sample estimates of KL(pi || reference) for a token drawn from pi.

    From J. Schulman, "Approximating KL divergence" (2020). With d = log pi - log reference:  k1 = d (unbiased, noisy,
    may be negative);  k2 = d^2 / 2 (biased, low variance); k3 = exp(-d) - 1 + d (unbiased, never negative).
    """
    d = new - reference
    if estimator == "k1":
        return d
    return d.square() / 2 if estimator == "k2" else torch.expm1((-d).clamp(max=LOG_RATIO_BOUND)) + d


def kl_loss(new: torch.Tensor, reference: torch.Tensor, log_r: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """A loss whose value estimates KL(pi || reference) and whose gradient is, in expectation, the gradient of that KL.

    The tokens were drawn from pi_old, and KL is an expectation under pi, so differentiating the estimate alone forgets
    that pi also chose the sample: E[grad k1] is 0, and E[grad k3] is the gradient of the other KL. The importance ratio
    r = pi / pi_old brings the missing score term: grad (r k) = r (k grad log pi + grad k). Sample by sample that is

        k1:  r (d + 1) grad log pi        k3:  r d grad log pi        k2, with r held constant:  r d grad log pi

    and E_old[r d grad log pi] = grad KL, since E[grad log pi] = 0. So the three differ in their value and in variance,
    not in what they pull towards. (DeepSeek-V3.2, arXiv 2512.02556, corrects k3 in the same way.) `log_r` is per token.
    """
    k = kl_value(new, reference, estimator)
    ratio = log_r.exp()
    return (ratio.detach() if estimator == "k2" else ratio) * k


def value_loss(
    values: torch.Tensor, returns: torch.Tensor, old: torch.Tensor | None, clip: float | None
) -> torch.Tensor:
    """Squared error of the critic, optionally with its change since sampling clipped.

    L = max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2)   (OpenAI baselines' ppo2; PPO's own eq. 9 has no clip)
    """
    error = (values - returns).square()
    if clip is None or old is None:
        return error
    bounded = old + (values - old).clamp(-clip, clip)
    return torch.maximum(error, (bounded - returns).square())
