"""The clipped policy gradient that most algorithms are a `credit` of.

    L = mean of -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)  +  kl x mean of KL  -  entropy x mean of H
        + observe x mean of -log pi(reply)

with r = pi / pi_old and pi_old the behaviour policy, as sampled (temperature, truncation and masks included). The
formulas and their sources stand in `streams`; what a mean is over, in `base`.

Left out, and why:
- A KL penalty inside the reward: it needs the reference's log-probs before `credit`; as a stream of its own it keeps
  its weight apart from the advantage's normalisation.
- An adaptive KL coefficient: it makes two runs with the same fields incomparable.
- Hard masking of tokens or sequences by their ratio: the truncated correction keeps every token and bounds its weight.

Zero advantages: where no other stream asks for the row, a row whose advantages are all 0 has loss 0 and gradient 0. It
is then not run at all (a group that is all right or all wrong costs nothing), but it still counts in the denominators,
which are taken before rows are dropped. The update is therefore the same as with it, and a test holds that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rlready.algorithms.base import Algorithm, denominators, run_mean
from rlready.algorithms.streams import LOG_RATIO_BOUND, Estimator, Importance, kl_loss, kl_value, log_ratio, surrogate
from rlready.errors import UserError
from rlready.policy.base import Batch, Loss, Outputs, Policy, require_learner
from rlready.rollout.compile import OBSERVE
from rlready.types import Row


@dataclass(frozen=True)
class PolicyGradient(Algorithm):
    """Subclass and define `credit`; the rest is fields.

    Attributes:
        clip_low, clip_high: widths of the clip below and above 1; None leaves that side open.
        dual_clip: bound c > 1 on the loss of a token with negative advantage whose ratio has exploded; None for none.
        importance: ratio per token, or per row as its length-normalised geometric mean.
        kl: coefficient of KL(pi || frozen reference); 0 spends no forward pass on the reference.
        kl_estimator: k1, k2 or k3; all have the gradient of the KL.
        entropy: coefficient of the entropy bonus.
        correction: cap C of the truncated importance weight min(pi_start / pi_old, C), for behaviour log-probs that are
            stale or came from another engine (Yao et al. 2025, "truncated importance sampling"; cf. decoupled PPO,
            arXiv 2110.00641). pi_start is the learner's own policy at the start of the update, which then takes
            pi_old's place in the clipped ratio. None: off. It costs one more forward pass.
        observe: coefficient of the cross-entropy on the environment's replies, so that the policy learns to predict
            what its actions lead to (ECHO, arXiv 2605.24517; 0.05 there); 0 is off. Its mean is its own: over the
            replies' tokens where the policy's is over tokens or "constant", else by row or trajectory as the policy's.
            Rows whose advantages are all 0 are then run for it.
    """

    clip_low: float | None = 0.2
    clip_high: float | None = 0.2
    dual_clip: float | None = None
    importance: Importance = "token"
    kl: float = 0.0
    kl_estimator: Estimator = "k3"
    entropy: float = 0.0
    correction: float | None = None
    observe: float = 0.0

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: a field has a value that cannot work.
        """
        super().__post_init__()
        name = type(self).__name__
        if self.importance not in ("token", "sequence"):
            raise UserError(f'{name}: importance="{self.importance}" is unknown; choose token or sequence.')
        if self.kl_estimator not in ("k1", "k2", "k3"):
            raise UserError(f'{name}: kl_estimator="{self.kl_estimator}" is unknown; choose k1, k2 or k3.')
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise UserError(f"{name}: dual_clip={self.dual_clip} must be above 1 (3 is usual), or None.")
        for field in ("clip_low", "clip_high", "correction", "kl", "observe"):
            if (getattr(self, field) or 0.0) < 0:
                raise UserError(f"{name}: {field}={getattr(self, field)} must not be negative.")

    @property
    def streams(self) -> tuple[str, ...]:
        """Policy, and those whose coefficient is not 0."""
        more = {"kl": self.kl, "entropy": self.entropy, OBSERVE: self.observe}
        return ("policy", *(name for name, coefficient in more.items() if coefficient))

    @property
    def needs_entropy(self) -> bool:
        """Only for the bonus."""
        return bool(self.entropy)

    @property
    def needs_reference(self) -> bool:
        """Only for the KL."""
        return bool(self.kl)

    def needed(self, row: Row) -> bool:
        """False where only the policy stream is on and every advantage is 0."""
        return self.streams != ("policy",) or bool(np.any(row.advantage * row.weights["policy"]))

    def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
        """Per-token losses of the streams policy, kl, entropy and observe."""
        # Columns are masked before the formulas: a nan outside the mask would turn a gradient of 0 into nan.
        mask = batch.weights["policy"] > 0
        advantage = torch.where(mask, batch.advantage, 0.0)
        log_r = log_ratio(outputs.logprobs, batch.logprobs, mask, self.importance)
        loss, _ = surrogate(log_r.exp(), advantage, self.clip_low, self.clip_high, self.dual_clip)
        out = {"policy": loss}
        if self.kl:
            assert outputs.reference is not None
            each = log_ratio(outputs.logprobs, batch.logprobs, mask, "token")
            new, reference = (torch.where(mask, x, 0.0) for x in (outputs.logprobs, outputs.reference))
            out["kl"] = self.kl * kl_loss(new, reference, each, self.kl_estimator)
        if self.entropy:
            assert outputs.entropy is not None
            out["entropy"] = -self.entropy * outputs.entropy
        if self.observe:
            out[OBSERVE] = -self.observe * outputs.logprobs
        return out

    def weigh(self, rows: Sequence[Row]) -> dict[str, float]:
        """As `Algorithm.weigh`; a "constant", which is a length of completions, says nothing of replies."""
        out = super().weigh(rows)
        if self.observe and self.average == "constant":
            out[OBSERVE] = denominators(rows, "token", 1.0)[OBSERVE]
        return out

    def loss(self, outputs: Outputs, batch: Batch) -> Loss:
        """The streams' sum, and what a person watches: ratio, clip, KL to behaviour and reference, entropy.

        `kl/behaviour` is the k3 estimate of KL(pi_old || pi) over the tokens that were run. `entropy` is exact where
        the bonus is on, else the mean of -log pi, its unbiased estimate while pi is near pi_old.
        """
        result = super().loss(outputs, batch)
        with torch.no_grad():
            mask = batch.weights["policy"] > 0
            log_r = log_ratio(outputs.logprobs, batch.logprobs, mask, self.importance)
            ratio = log_r.exp()
            _, clipped = surrogate(ratio, batch.advantage, self.clip_low, self.clip_high, self.dual_clip)
            entropy = -outputs.logprobs if outputs.entropy is None else outputs.entropy
            result.metrics |= {
                "ratio/mean": run_mean("policy", ratio, batch),
                "ratio/max": ratio[mask].max() if mask.any() else torch.tensor(1.0),
                "clip/fraction": run_mean("policy", clipped.to(ratio.dtype), batch),
                "kl/behaviour": run_mean("policy", ratio - 1 - log_r, batch),
                "entropy": run_mean("policy", entropy, batch),
            }
            if self.observe:
                result.metrics["observe/nll"] = run_mean(OBSERVE, -outputs.logprobs, batch)
            if outputs.reference is not None:
                value = kl_value(outputs.logprobs, outputs.reference, self.kl_estimator)
                result.metrics["kl/reference"] = run_mean("policy", value, batch)
        return result

    def prepare(self, policy: Policy, rows: Sequence[Row]) -> tuple[list[Row], dict[str, float]]:
        """Log the advantages over all trained tokens, and apply the truncated correction where it is on."""
        advantages = np.concatenate([row.advantage[row.weights["policy"] > 0] for row in rows]).astype(np.float64)
        noted: dict[str, float] = {}
        if len(advantages):
            noted = {"advantage/mean": float(advantages.mean()), "advantage/std": float(advantages.std())}
        if self.correction is None or not len(advantages):
            return list(rows), noted
        start = require_learner(policy).logprobs(rows)
        corrected, factors = [], []
        for row, logprobs in zip(rows, start, strict=True):
            mask = row.weights["policy"] > 0
            gap = np.where(mask, logprobs - row.logprobs, 0.0)
            if self.importance == "sequence":
                gap = np.where(mask, gap.sum() / max(1, mask.sum()), 0.0)
            factor = np.minimum(np.exp(np.clip(gap, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)), self.correction)
            factors.append(factor[mask])
            # The loss is positively homogeneous in A, so weighting the loss is weighting the advantage.
            advantage = (row.advantage * factor).astype(np.float32)
            old = np.where(mask, logprobs, row.logprobs).astype(np.float32)
            corrected.append(replace(row, advantage=advantage, logprobs=old))
        factor = np.concatenate(factors)
        capped = float(np.mean(factor >= self.correction))
        return corrected, noted | {"correction/mean": float(factor.mean()), "correction/capped": capped}
