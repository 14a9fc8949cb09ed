"""The policy gradient that most algorithms are a combination of: one definition, every difference a field.

    L = mean of trust(ratio, A)  +  kl x mean of KL  +  behaviour x mean of log^2(pi / mu)  -  entropy x mean of H
        + observe x mean of -log pi(reply)  +  imitate x mean of -log pi(right answer)

A is credit (see `credit`), the ratio is that of `streams`, what is made of it stands in `trust`; corrections for a
stale or foreign sampler in `mismatch`, the KL in `kl`, what a mean is over in `base`. mu is the sampler as it sampled:
temperature, truncation and masks included. With the defaults this is REINFORCE with a group's mean as baseline and
importance weights, one update per batch: the most stable choice of 2512.01374 and 2603.18756.

**One trajectory, many rows.** Where a context was rewritten, a trajectory has several rows. What is said of a whole
trajectory is then said over all its rows: the ratio of "sequence" and "geometric", `opsm`, the masks of `mismatch`,
`veto`. The first three read the present policy, so such rows are made one unit (`Row.unit`) and run in one micro-batch;
a learner that does not keep units together is refused where a trajectory has several rows.

**Zero advantages.** Where no other stream asks for the row, a row whose advantages are all 0 has loss 0 and gradient 0.
It is then not run at all (a group that is all right or all wrong costs nothing, nor does a masked one), but it still
counts in the denominators, which are taken before. The update is therefore the same as with it, and a test holds that.

Left out, and why: an adaptive KL coefficient (it makes two runs with the same fields incomparable).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from rlready.algorithms import kl as kl_terms
from rlready.algorithms.base import Algorithm, Average, only_valid, run_mean, run_means, trajectories_of
from rlready.algorithms.credit import CREDITS, WITHIN, Advantage, Doubles, centre
from rlready.algorithms.kl import Estimator, Gradient, Place
from rlready.algorithms.mismatch import Mismatch, bounds, factors
from rlready.algorithms.policy_fields import check
from rlready.algorithms.policy_loss import Parts, assemble
from rlready.errors import UserError
from rlready.policy.base import Batch, Learner, Loss, Outputs, Policy, beside, require_learner
from rlready.rollout.compile import OBSERVE
from rlready.types import Group, Row, Trajectory

Ratio = Literal["none", "token", "sequence", "geometric"]
Trust = Literal["none", "clip", "cispo", "sapo", "tv"]
Anchor = Literal["sampler", "start", "interpolated"]
Truncated = Literal["keep", "zero", "mask"]
BEHAVIOUR, IMITATE = "behaviour", "imitate"


@dataclass(frozen=True)
class PolicyGradient(Algorithm):
    """Any combination of the fields; a new rule of credit subclasses it and defines `credit`.

    A field that the chosen rules do not read must keep its default.

    Attributes:
        advantage: credit of a trajectory, see `credit`. "mean", as dividing by a group's deviation favours tasks that
            are nearly always or nearly never solved (2503.20783) and blows up rare or shaped rewards.
        reward_cap: the virtual best reward of "ngrpo".
        std_floor: least divisor of "std", "batch_std", "ngrpo", in units of reward; ours.
        decay: of the baseline of "running"; ours.
        ratio: "none", plain -A log pi; "token", pi / anchor of each token; "sequence", of a trajectory, normalised by
            its length (GSPO, 2507.18071); "geometric", the geometric mean of clipped token ratios (GMPO, 2507.20673).
        trust: what bounds the ratio, see `trust`. "none" suits one update per batch (2512.01374).
        clip_low, clip_high: widths of "clip" below and above 1 (of log r for "geometric"); None leaves a side open. 0.2
            is PPO's (1707.06347).
        dual_clip: bound c > 1 of "clip" on a token with A < 0 whose ratio exploded (1912.09729; 3 there), or None.
        cap: of "cispo", the ratio's own cap, not 1 + cap (2510.13786).
        tau_high, tau_low: of "sapo", for A > 0 and A < 0 (2511.20347).
        delta: of "tv", a difference of probabilities (2602.04879; 0.2 in prime-rl).
        behaviour: coefficient of log^2(pi / mu), which keeps the policy near its sampler; 1e-3 in prime-rl.
        anchor: what the ratio is against. "sampler": mu, so one ratio holds lag and mismatch. "start": the policy at
            the start of the update, for one more pass (decoupled, 2110.00641). "interpolated": between mu and pi by
            versions in place of that pass (AReaL), see `streams.interpolated`.
        mismatch: correction of w = pi_start / mu, see `mismatch`; "truncate" only where the ratio is not against mu.
            All but "truncate" with anchor="interpolated" take one more pass.
        mismatch_low, mismatch_high: its bounds; None for the rule's own.
        veto: least w of a token, or its trajectory is masked (slime, 1e-4); None for none.
        opsm: drop trajectories with A < 0 whose mean log(mu / pi) is above it (DeepSeek-V3.2, 2512.02556; TRL suggests
            0.5); None for none.
        kl: coefficient of KL(pi || frozen reference); 0, the default of the practice, never asks the reference.
        kl_estimator: k1, k2, k3 of the loss; the reward has k1. See `kl`.
        kl_in: "loss", or "reward" (k1 per token, each answering for what follows; then it is in `Turn.costs`).
        kl_gradient: "exact", or "naive" as GRPO and VinePPO were published: biased with k1 and k3, see `kl`.
        kl_average: what the KL's mean is over; None: `average`.
        kl_clamp: bound on a token's estimate in the loss; None for none.
        entropy: coefficient of the entropy bonus.
        observe: coefficient of the cross-entropy on the environment's replies, so that the policy learns to predict
            what its actions lead to (ECHO, 2605.24517; 0.05 there). Its mean is its own: over the replies' tokens where
            the policy's is over tokens or "constant", else over what the policy's is.
        imitate: coefficient of the cross-entropy on the tokens of trajectories whose verdict is right, over their own
            count (VAPO, 2504.05118; 0.1 there).
        truncated: what an answer that a length cap stopped is worth. "keep": as graded, as graders give an unfinished
            answer nothing and dialects without an end token always stop by length; "zero": at most 0; "mask": not
            trained on, but in the group's statistics (DAPO's overlong filter, 2503.14476).
        drop_uniform: leave groups out whose rewards are all alike (DAPO's dynamic sampling; Magistral), so that they
            count in no deviation and no denominator. A gate (`curriculum.ZeroSignal`) refuses them before, and refills.
    """

    advantage: Advantage = "mean"
    reward_cap: float = 1.0
    std_floor: float = 1e-3
    decay: float = 0.9
    ratio: Ratio = "token"
    trust: Trust = "none"
    clip_low: float | None = 0.2
    clip_high: float | None = 0.2
    dual_clip: float | None = None
    cap: float = 5.0
    tau_high: float = 1.0
    tau_low: float = 1.05
    delta: float = 0.2
    behaviour: float = 0.0
    anchor: Anchor = "sampler"
    mismatch: Mismatch = "none"
    mismatch_low: float | None = None
    mismatch_high: float | None = None
    veto: float | None = None
    opsm: float | None = None
    kl: float = 0.0
    kl_estimator: Estimator = "k3"
    kl_in: Place = "loss"
    kl_gradient: Gradient = "exact"
    kl_average: Average | None = None
    kl_clamp: float | None = None
    entropy: float = 0.0
    observe: float = 0.0
    imitate: float = 0.0
    truncated: Truncated = "keep"
    drop_uniform: bool = False
    _state: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    reads_costs: ClassVar[bool] = False
    """Whether `credit` reads `Turn.costs` itself (a critic's rewards); else they are deducted from what it writes."""
    reads_advantage: ClassVar[bool] = True
    """Whether `credit` reads the field `advantage`; where it does not, setting it is an error."""
    credit_reads: ClassVar[tuple[str, ...]] = ()
    """Fields of the rules of `advantage` that a `credit` reads which does not read `advantage` itself."""

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: a field has a value that cannot work, or one that no rule reads.
        """
        super().__post_init__()
        check(self, own_credit=type(self).credit is not PolicyGradient.credit)

    # -- what it needs -------------------------------------------------------------------------------------------------

    @property
    def max_lag(self) -> int:
        """8 where the trust region is one against the sampler (prime-rl), 2 with a ratio (NeMo-RL, AReaL), else 0."""
        if self.ratio == "none":
            return 0
        return 8 if self.trust in ("tv", "cispo") else 2

    @property
    def least_group(self) -> int:
        """2 where the rule of `advantage` is over a group; a credit of one's own says so itself."""
        return 2 if type(self).credit is PolicyGradient.credit and self.advantage in WITHIN else 1

    @property
    def streams(self) -> tuple[str, ...]:
        """Policy, and those whose coefficient is not 0."""
        more = {
            "kl": self.kl if self.kl_in == "loss" else 0.0,
            BEHAVIOUR: self.behaviour,
            "entropy": self.entropy,
            OBSERVE: self.observe,
            IMITATE: self.imitate,
        }
        return ("policy", *(name for name, coefficient in more.items() if coefficient))

    @property
    def needs_entropy(self) -> bool:
        """Only for the bonus."""
        return bool(self.entropy)

    @property
    def needs_reference(self) -> bool:
        """Only for the KL."""
        return bool(self.kl)

    @property
    def reads_reference(self) -> bool:
        """Only for the KL in the loss; in the reward it is asked once, before credit."""
        return bool(self.kl) and self.kl_in == "loss"

    @property
    def couples(self) -> bool:
        """Whether the loss of a token depends on the present policy at other tokens of its trajectory."""
        return self.ratio in ("sequence", "geometric") or self.opsm is not None

    @property
    def memory(self) -> dict[str, float]:
        """What the running baseline remembers."""
        return self._state

    def averaging(self, stream: str) -> tuple[Average, float]:
        """The KL may have its own; a "constant", which is a length of completions, says nothing of other tokens."""
        if stream == "kl" and self.kl_average is not None:
            return self.kl_average, self.constant
        if stream in (OBSERVE, IMITATE) and self.average == "constant":
            return "token", 1.0
        return self.average, self.constant

    # -- before the loss -----------------------------------------------------------------------------------------------

    def reward(self, trajectory: Trajectory) -> float:
        """The number that credit reads."""
        if self.truncated == "zero" and trajectory.cut_off:
            return min(trajectory.reward, 0.0)
        return trajectory.reward

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """The rule of the field `advantage`."""
        valid = [group.valid for group in groups]
        rewards: list[Doubles] = [np.asarray([self.reward(t) for t in each], dtype=np.float64) for each in valid]
        for trajectories, advantages in zip(valid, CREDITS[self.advantage](rewards, self), strict=True):
            for trajectory, advantage in zip(trajectories, advantages.tolist(), strict=True):
                trajectory.assign(advantage)

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        """As `Algorithm.update`; costs of a KL in the reward are there before credit, and deducted after it."""
        groups = only_valid(groups)
        if self.drop_uniform:
            groups = self._spread(groups)
        in_reward = bool(self.kl) and self.kl_in == "reward"
        noted = await beside(policy, kl_terms.charge, policy, groups, self.kl) if in_reward else {}
        await self.credit(groups, policy)
        if in_reward and not self.reads_costs:
            kl_terms.deduct(groups)
        return await beside(policy, lambda: self.fit(policy, self.compile(groups))) | noted

    def _spread(self, groups: Sequence[Group]) -> list[Group]:
        """Groups whose rewards differ; the advantages of the others are 0."""
        kept = []
        for group in groups:
            if centre([self.reward(t) for t in group]).any():
                kept.append(group)
                continue
            for trajectory in group:
                trajectory.assign(0.0)
        return kept

    def compile(self, groups: Sequence[Group]) -> list[Row]:
        """Rows; those of masked answers are left out, and only right answers are imitated."""
        rows = super().compile(groups)
        if self.truncated == "keep" and not self.imitate:
            return rows
        trajectories = [t for group in groups for t in group.trajectories]
        if self.truncated == "mask":
            rows = [row for row in rows if not trajectories[row.trajectory].cut_off]
        if self.imitate:
            for row in rows:
                row.weights[IMITATE] *= np.float32(trajectories[row.trajectory].success)
        return rows

    def prepare(self, policy: Policy, rows: Sequence[Row]) -> tuple[list[Row], dict[str, float]]:
        """Log the advantages over all trained tokens, and apply what compares the start of the update with mu.

        Raises:
            UserError: the loss couples the rows of a trajectory, and the learner does not keep them together.
        """
        learner = require_learner(policy)
        advantages = np.concatenate([row.advantage[row.weights["policy"] > 0] for row in rows]).astype(np.float64)
        noted: dict[str, float] = {}
        if len(advantages):
            noted = {"advantage/mean": float(advantages.mean()), "advantage/std": float(advantages.std())}
        out = self._coupled(learner, rows) if self.couples else list(rows)
        late = self.mismatch == "truncate" and self.anchor == "interpolated"  # then the loss has it, without a pass
        if self.anchor != "start" and self.veto is None and (self.mismatch == "none" or late):
            return out, noted
        return self._corrected(out, learner, "none" if late else self.mismatch, noted)

    def _coupled(self, learner: Learner, rows: Sequence[Row]) -> list[Row]:
        out: list[Row] = []
        for unit in trajectories_of(rows):
            if len(unit) > 1 and not getattr(learner, "keeps_units", False):
                raise UserError(
                    f"{type(self).__name__}: trajectory {unit[0].trajectory} has {len(unit)} rows, and "
                    f'ratio="{self.ratio}" or opsm is over all of them, but a {type(learner).__name__} may run them '
                    'apart. Use ratio="token" without opsm.'
                )
            out += [replace(row, unit=row.trajectory) for row in unit] if len(unit) > 1 else unit
        return out

    def _corrected(
        self, rows: Sequence[Row], learner: Learner, rule: Mismatch, noted: dict[str, float]
    ) -> tuple[list[Row], dict[str, float]]:
        """Rows with the start's log-probs, and with advantages that the rule weighted or masked."""
        start = {id(row): logprobs for row, logprobs in zip(rows, learner.logprobs(rows), strict=True)}
        out: dict[int, Row] = {}
        every: list[Doubles] = []
        for unit in trajectories_of(rows):
            masks = [row.weights["policy"] > 0 for row in unit]
            gaps = [(start[id(row)] - row.logprobs)[mask] for row, mask in zip(unit, masks, strict=True)]
            each = factors(
                np.concatenate(gaps).astype(np.float64), rule, self.mismatch_low, self.mismatch_high,
                veto=self.veto, weigh=self.anchor != "sampler",
            )  # fmt: skip
            every.append(each)
            cuts = np.cumsum([len(gap) for gap in gaps])[:-1]
            for row, mask, part in zip(unit, masks, np.split(each, cuts), strict=True):
                # The loss is positively homogeneous in A, so weighting the loss is weighting the advantage.
                advantage = row.advantage.copy()
                advantage[mask] *= part.astype(np.float32)
                kept = np.where(mask, start[id(row)], 0.0).astype(np.float32) if self.anchor == "start" else None
                out[id(row)] = replace(row, advantage=advantage, start=kept)
        factor = np.concatenate(every)
        if len(factor) and (rule not in ("none", "truncate") or self.veto is not None):
            noted = noted | {"masked": float(np.mean(factor == 0))}
        if len(factor) and rule == "truncate":
            cap = bounds(rule, None, self.mismatch_high)[1]
            noted = noted | {"mismatch/capped": float(np.mean(factor >= (cap or 0.0)))}
        return [out[id(row)] for row in rows], noted

    def needed(self, row: Row) -> bool:
        """False where no stream but the policy's has weight and every advantage is 0."""
        if np.any(row.advantage * row.weights["policy"]):
            return True
        return len(row.weights) > 1 and any(np.any(w) for name, w in row.weights.items() if name != "policy")

    def useful(self, unit: Sequence[Row]) -> list[Row]:
        """Rows that the loss couples are run together or not at all."""
        kept = super().useful(unit)
        return list(unit) if kept and self.couples else kept

    # -- the loss ------------------------------------------------------------------------------------------------------

    def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
        """Per-token losses of the streams."""
        parts = assemble(self, outputs, batch)
        self.__dict__["_parts"] = parts  # for the metrics of `loss`, which takes it away
        out = {"policy": parts.loss}
        if self.reads_reference:
            assert outputs.reference is not None
            new, reference = (torch.where(parts.mask, x, 0.0) for x in (outputs.logprobs, outputs.reference))
            out["kl"] = self.kl * kl_terms.kl_loss(
                new, reference, parts.gap, self.kl_estimator, self.kl_gradient, self.kl_clamp
            )
        if self.behaviour:
            out[BEHAVIOUR] = self.behaviour * parts.gap.square()
        if self.entropy:
            assert outputs.entropy is not None
            out["entropy"] = -self.entropy * outputs.entropy
        for name, coefficient in ((OBSERVE, self.observe), (IMITATE, self.imitate)):
            if coefficient:
                out[name] = -coefficient * outputs.logprobs
        return out

    def loss(self, outputs: Outputs, batch: Batch) -> Loss:
        """The streams' sum, and what a person watches: ratio, clip, KL to behaviour and reference, entropy.

        `kl/behaviour` is the k3 estimate of KL(mu || pi) over the tokens that were run. `entropy` is exact where the
        bonus is on, else the mean of -log pi, its unbiased estimate while pi is near mu.
        """
        result = super().loss(outputs, batch)
        given: Parts | None = self.__dict__.pop("_parts", None)
        with torch.no_grad():
            parts = assemble(self, outputs, batch) if given is None else given
            ratio, gap = parts.ratio.detach(), parts.gap.detach()
            entropy = -outputs.logprobs if outputs.entropy is None else outputs.entropy
            each = {
                "ratio/mean": ratio,
                "clip/fraction": parts.clipped,
                "kl/behaviour": torch.expm1(gap) - gap,
                "entropy": entropy,
            }
            if parts.dropped is not None:
                each["opsm"] = parts.dropped
            if outputs.reference is not None:
                each["kl/reference"] = kl_terms.kl_value(outputs.logprobs, outputs.reference, self.kl_estimator)
            result.metrics |= run_means("policy", each, batch)
            result.metrics["ratio/max"] = torch.where(parts.mask, ratio, 0.0).amax()
            if self.observe:
                result.metrics["observe/nll"] = run_mean(OBSERVE, -outputs.logprobs, batch)
        return result

    def watch(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor | float]:
        """How far the start of the update is from the sampler: moments of w = pi_start / mu over the tokens run."""
        mask = batch.weights["policy"] > 0
        gap = torch.where(mask, outputs.logprobs - batch.logprobs, 0.0).clamp(-20, 20)
        w = gap.exp()
        each = {
            "mismatch/kl": torch.expm1(gap) - gap,
            "mismatch/mean": w,
            "mismatch/square": w.square(),
            "mismatch/abs": gap.abs().exp(),
        }
        if self.opsm is not None:
            dropped = assemble(self, outputs, batch).dropped
            assert dropped is not None
            each["mismatch/opsm"] = dropped
        peak = torch.where(mask, w, 0.0).amax()
        return {**run_means("policy", each, batch), "mismatch/max": peak}

    def fit(self, policy: Policy, rows: Sequence[Row]) -> dict[str, float]:
        """As `Algorithm.fit`; `mismatch/std` and `mismatch/ess` are made of the first minibatch's moments.

        `masked` is the share of trained tokens that `mismatch`, `veto` and, in the first minibatch, `opsm` took out.
        """
        out = super().fit(policy, rows)
        if "mismatch/opsm" in out:
            out["masked"] = out.get("masked", 0.0) + out.pop("mismatch/opsm")
        square = out.pop("mismatch/square", None)
        if square:
            mean = out["mismatch/mean"]
            out["mismatch/std"] = max(0.0, square - mean**2) ** 0.5
            out["mismatch/ess"] = mean**2 / square
        return out

    def state_dict(self) -> dict[str, Any]:
        """The running mean, where there is one."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._state.clear()
        self._state.update(state)
