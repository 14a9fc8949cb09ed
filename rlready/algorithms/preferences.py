"""Learning from pairs: DPO, IPO and DPO-positive, on pairs that are given or found within groups.

With h = log pi(y) - log pi_ref(y) of a whole completion y, w the better and l the worse of a pair, and m = h_w - h_l:

    dpo     -log sigmoid(beta m)                                       arXiv 2305.18290, eq. 7
    ipo     (m - 1 / (2 beta))^2                                       arXiv 2310.12036, eq. 17; beta is its tau
    dpop    -log sigmoid(beta (m - penalty max(0, -h_w)))              arXiv 2402.13228 ("Smaug", DPO-positive)

averaged over the pairs of a minibatch. DPO may lower the likelihood of *both* completions as long as their gap grows;
DPO-positive charges for a better one that falls below the reference, and `imitate` pulls it up.

**A loss that couples rows.** The rows of a pair, or of a group whose trajectories meet in several pairs, are one unit
(`Row.unit`). A learner that `keeps_units` computes them in one micro-batch and the loss is differentiated as it stands;
each trajectory is run once, however many pairs it is in, and what the rows have in common (the prompt) is computed
once. With any other learner the loss is linearised first: its derivative with respect to each h, from a pass without
gradients, becomes the weight of that trajectory's log-likelihood. Both give the same gradient, whatever the cut into
micro-batches, and a test holds it. The reference's log-probs are taken once per fit.

Left out, and why: label smoothing (the noise of a verifier's labels is the verifier's to mend), and a learnt reward
model (`fit_pairs` takes whatever judged the pairs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch.nn import functional as F

from rlready.algorithms.base import UNLIMITED, Algorithm, stream_sum
from rlready.algorithms.pairs import PAIR, Pair, Table, likelihood, rows_of
from rlready.errors import UserError
from rlready.policy.base import Batch, Learner, Loss, LossFn, Outputs, Policy, Which, beside, require_learner
from rlready.policy.supervised import OnStep
from rlready.rollout.compile import compile_groups
from rlready.seeds import np_rng
from rlready.types import Group, IntArray, Row, Trajectory, Verdict

Rule = Literal["dpo", "ipo", "dpop"]


def preference_loss(
    rule: Rule, chosen: torch.Tensor, rejected: torch.Tensor, beta: float, penalty: float = 0.0
) -> torch.Tensor:
    """The loss of each pair, [P].

    Args:
        rule: see the module.
        chosen: h_w, [P], nats: log-likelihood of the better completion against the reference.
        rejected: h_l, [P].
        beta: inverse strength of the tie to the reference.
        penalty: DPO-positive's lambda.
    """
    margin = chosen - rejected
    if rule == "ipo":
        return (margin - 1 / (2 * beta)).square()
    if rule == "dpop":
        margin = margin - penalty * F.relu(-chosen)
    return F.softplus(-beta * margin)


@dataclass(frozen=True)
class DPO(Algorithm):
    """Direct preference optimisation; `IPO` and `DPOP` have other defaults.

    Attributes:
        rule: the loss, see the module.
        beta: tie to the reference; 0.1 in DPO's and IPO's papers.
        penalty: DPO-positive's lambda; read by rule="dpop" alone.
        length_normalised: h is the mean over a completion's tokens instead of the sum.
        imitate: coefficient of the better completions' negative log-likelihood, a mean over their own tokens
            (arXiv 2404.19733, eq. 1, has 1); 0 is off.
        reference: "frozen", the learner's frozen reference, or "start", the policy as it is when an update begins
            (each update is then a DPO of its own, as in arXiv 2404.19733).
        pairs: found in a group: "best-worst", the trajectories of highest and lowest reward, or "all".
        cap: most pairs of a group, drawn by hash where there are more; read by pairs="all" alone.
        by: "verdict" pairs right trajectories with wrong or unanswered ones, so that a shaped reward makes no pair of
            two wrong answers; "reward" pairs any two whose rewards differ.
    """

    paper: ClassVar[str] = "2305.18290"
    when: ClassVar[str] = "pairs that someone judged; in groups, the best against the worst"
    assigns: ClassVar[str] = "-log sigmoid of a pair's margin"

    rule: Rule = "dpo"
    beta: float = 0.1
    penalty: float = 0.0
    length_normalised: bool = False
    imitate: float = 0.0
    reference: Literal["frozen", "start"] = "frozen"
    pairs: Literal["best-worst", "all"] = "best-worst"
    cap: int = 8
    by: Literal["verdict", "reward"] = "verdict"

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: a field has a value that cannot work, or is not read by the rule that was chosen.
        """
        super().__post_init__()
        name = type(self).__name__
        known = {"rule": ("dpo", "ipo", "dpop"), "reference": ("frozen", "start"), "pairs": ("best-worst", "all"),
                 "by": ("verdict", "reward")}  # fmt: skip
        for key, values in known.items():
            if getattr(self, key) not in values:
                raise UserError(f'{name}: {key}="{getattr(self, key)}" is unknown; choose one of {", ".join(values)}.')
        if not self.beta > 0:
            raise UserError(f"{name}: beta={self.beta} must be positive; 0.1 is usual.")
        if self.imitate < 0 or self.penalty < 0:
            raise UserError(f"{name}: imitate={self.imitate} and penalty={self.penalty} must not be negative.")
        if self.penalty and self.rule != "dpop":
            raise UserError(f'{name}: penalty is read by rule="dpop" only, and the rule is "{self.rule}".')
        if self.cap < 1:
            raise UserError(f"{name}: cap={self.cap} must be at least 1.")
        if self.pairs != "all" and self.cap != type(self).cap:
            raise UserError(f'{name}: cap is read by pairs="all" only, and pairs is "{self.pairs}".')
        if self.average != type(self).average or self.constant != type(self).constant:
            raise UserError(f"{name}: the mean is over pairs; average and constant are not read.")

    @property
    def streams(self) -> tuple[str, ...]:
        """The one stream, "pair"; weights of "nll" are added where `imitate` asks for them."""
        return (PAIR,)

    @property
    def needs_reference(self) -> bool:
        """Whether the learner must hold a frozen reference."""
        return self.reference == "frozen"

    @property
    def reads_reference(self) -> bool:
        """Its log-probs are taken once per fit, not in the loss."""
        return False

    @property
    def max_lag(self) -> int:
        """Any: what is better remains so whoever said it."""
        return UNLIMITED

    @property
    def least_group(self) -> int:
        """2: pairs are found within groups."""
        return 2

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """Nothing to assign: a pair is judged as a whole."""

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        """Learn from the pairs within groups."""
        learner = require_learner(policy)
        kept: list[Group] = []
        chosen: list[IntArray] = []  # by kept group, pairs of trajectory numbers over all kept groups
        count = 0
        for g, group in enumerate(groups):
            found = self.pairs_of(group, key=learner.version, index=g)
            if not found:
                continue
            used = sorted({i for pair in found for i in pair})
            place = {i: count + k for k, i in enumerate(used)}
            kept.append(Group(group.task, [group.valid[i] for i in used]))
            chosen.append(np.asarray([[place[i], place[j]] for i, j in found], dtype=np.int64))
            count += len(used)
        return await beside(policy, lambda: self._learn(policy, kept, chosen, count))

    def _learn(self, policy: Policy, groups: Sequence[Group], pairs: list[IntArray], count: int) -> dict[str, float]:
        """Steps on the pairs of groups, then hand the new weights to the sampler.

        Args:
            policy: with a learner.
            groups: of the trajectories that are in a pair, `count` of them.
            pairs: by group, see `Table`.
            count: trajectories of all groups.
        """
        learner = require_learner(policy)
        rows = [replace(row, unit=row.group) for row in compile_groups(groups, streams=self.streams)]
        which: Which = "reference" if self.reference == "frozen" else "current"
        table = Table.of(learner, rows, pairs, count, which, self.length_normalised)
        batches: list[IntArray] = []
        for epoch in range(self.epochs if len(groups) else 0):
            order = np_rng(self.seed, "minibatch", learner.version, epoch).permutation(len(groups))
            batches += np.array_split(order, min(self.minibatches, len(groups)))
        history = self._steps(learner, table, batches, whole=True)
        policy.sync()
        return _mean(history) | {
            "pairs": float(sum(len(each) for each in pairs)),
            "rows": float(len(rows)),
            "tokens": float(sum(len(row) for row in rows)),
            "optimizer_steps": float(len(history)),
        }

    def pairs_of(self, group: Group, *, key: int, index: int) -> list[tuple[int, int]]:
        """Pairs (better, worse) of indices into `group.valid`.

        Args:
            group: of trajectories.
            key: seeds the draw of a capped group, with the field `seed` and `index`.
            index: the group's place in the update.
        """
        valid = group.valid
        pairs = [(i, j) for i, a in enumerate(valid) for j, b in enumerate(valid) if self._beats(a, b)]
        if not pairs:
            return []
        if self.pairs == "best-worst":
            return [max(pairs, key=lambda p: (valid[p[0]].reward - valid[p[1]].reward, -p[0], -p[1]))]
        if len(pairs) > self.cap:
            drawn = np_rng(self.seed, "pairs", key, index).choice(len(pairs), self.cap, replace=False)
            pairs = [pairs[i] for i in sorted(drawn.tolist())]
        return pairs

    def _beats(self, a: Trajectory, b: Trajectory) -> bool:
        if not (_said(a) and _said(b)):
            return False
        if self.by == "reward":
            return a.reward > b.reward
        return a.success and b.verdict in (Verdict.WRONG, Verdict.NO_ANSWER)

    def fit_pairs(
        self,
        policy: Policy,
        pairs: Sequence[Pair],
        *,
        epochs: int | None = None,
        batch_pairs: int = 32,
        seed: int | None = None,
        which: Which = "current",
        on_step: OnStep | None = None,
    ) -> list[dict[str, float]]:
        """Learn from given pairs, one optimizer step per batch, then hand the new weights to the sampler.

        Args:
            policy: with a learner.
            pairs: what to learn from.
            epochs: passes; default: the field `epochs`.
            batch_pairs: pairs per optimizer step.
            seed: of the order, which is hashed from (seed, epoch); default: the field `seed`.
            which: the reference: "current", the policy as it is now, or "reference", the learner's frozen one.
            on_step: called after each step with (step from 1, steps in all, metrics); returning True ends the training.

        Returns:
            Each step's metrics: `loss/pair` (and `loss/nll`), `pair/accuracy` (share with m > 0), `pair/margin`,
            `pair/chosen`, `pair/rejected` (means of m, h_w, h_l in nats), `grad_norm`, `lr`.

        Raises:
            UserError: there are no pairs, or a row of one has no token with weight.
            ValueError: the policy has no learner.
            FloatingPointError: a gradient was not finite; the sampler still has the weights of before.
        """
        if not pairs:
            raise UserError(f"{type(self).__name__}: there are no pairs to learn from.")
        learner = require_learner(policy)
        epochs, seed = self.epochs if epochs is None else epochs, self.seed if seed is None else seed
        rows, table_pairs = rows_of(pairs)
        table = Table.of(learner, rows, table_pairs, 2 * len(pairs), which, self.length_normalised)
        batches: list[IntArray] = []
        for epoch in range(epochs):
            order = np_rng(seed, "pairs", epoch).permutation(len(pairs))
            batches += [order[i : i + batch_pairs] for i in range(0, len(order), batch_pairs)]
        history = self._steps(learner, table, batches, on_step=on_step)
        policy.sync()
        return history

    def _steps(
        self,
        learner: Learner,
        table: Table,
        batches: Sequence[IntArray],
        *,
        whole: bool = False,
        on_step: OnStep | None = None,
    ) -> list[dict[str, float]]:
        """One optimizer step per batch of units.

        Args:
            learner: takes the steps.
            table: what is fitted.
            batches: indices of units.
            whole: means are over the update: the denominators of all batches are the same, so that how the units fall
                into minibatches changes no pair's weight. Otherwise they are over each batch.
            on_step: see `fit_pairs`.
        """
        history: list[dict[str, float]] = []
        direct = bool(getattr(learner, "keeps_units", False))
        if self.imitate:
            table.imitate()
        common = table.divisors(learner, range(len(table.rows)), min(self.minibatches, len(table.rows)))
        for number, units in enumerate(batches, 1):
            rows = [row for unit in units for row in table.rows[unit]]
            divisors = common if whole else table.divisors(learner, units)
            noted: dict[str, float] = {}
            if direct:
                loss = self._coupled(table)
            else:
                rows, noted = self._linearise(learner, table, rows, units, divisors[PAIR])
                loss = self._linear
            metrics = learner.forward_backward(rows, loss, divisors)
            history.append(metrics | noted | learner.step())
            if on_step is not None and on_step(number, len(batches), history[-1]):
                break
        return history

    def _coupled(self, table: Table) -> LossFn:
        """The loss of a micro-batch that holds whole units."""

        def loss(outputs: Outputs, batch: Batch) -> Loss:
            weight = batch.weights[PAIR]
            each = (weight * torch.where(weight > 0, outputs.logprobs, 0.0)).sum(1)
            slots: dict[int, int] = {}
            index = [slots.setdefault(row.trajectory, len(slots)) for row in batch.rows]
            sums = each.new_zeros(len(slots)).index_add(0, torch.tensor(index), each)
            units = dict.fromkeys(row.unit for row in batch.rows)
            total, metrics = self._value(table, sums, slots, units, batch.denominators[PAIR])
            if self.imitate:
                nll = self.imitate * stream_sum("nll", -outputs.logprobs, batch)
                total, metrics["loss/nll"] = total + nll, nll.detach()
            return Loss(total, metrics)

        return loss

    def _linear(self, outputs: Outputs, batch: Batch) -> Loss:
        """The linearised loss: `advantage` holds each token's share of the derivative."""
        weight = batch.weights[PAIR]
        mask = weight > 0
        slope = torch.where(mask, batch.advantage, 0.0)
        total = (weight * slope * torch.where(mask, outputs.logprobs, 0.0)).sum()
        if not self.imitate:
            return Loss(total)
        nll = self.imitate * stream_sum("nll", -outputs.logprobs, batch)
        return Loss(total + nll, {"loss/nll": nll.detach()})

    def _linearise(
        self, learner: Learner, table: Table, rows: Sequence[Row], units: IntArray, count: float
    ) -> tuple[list[Row], dict[str, float]]:
        """Rows whose `advantage` is the loss's derivative by their log-likelihood, and the loss's own metrics."""
        slots: dict[int, int] = {}
        index = [slots.setdefault(row.trajectory, len(slots)) for row in rows]
        sums = np.zeros(len(slots))
        np.add.at(sums, index, [likelihood(row, lp) for row, lp in zip(rows, learner.logprobs(rows), strict=True)])
        given = torch.from_numpy(sums).requires_grad_()
        total, metrics = self._value(table, given, slots, dict.fromkeys(int(u) for u in units), count)
        (slopes,) = torch.autograd.grad(total, given)
        out = [
            replace(row, advantage=np.full(len(row), float(slopes[i]), dtype=np.float32))
            for row, i in zip(rows, index, strict=True)
        ]
        return out, {name: float(value) for name, value in metrics.items()}

    def _value(
        self, table: Table, sums: torch.Tensor, slots: Mapping[int, int], units: Iterable[int], count: float
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | float]]:
        """Loss and metrics, shares of a whole of `count` pairs.

        Args:
            table: what is fitted.
            sums: log-likelihoods of some trajectories, [K].
            slots: their places by trajectory number.
            units: whose pairs to take.
            count: what the sum over pairs is divided by.
        """
        numbers = list(slots)
        h = (sums - torch.from_numpy(table.reference[numbers]).to(sums.dtype)) / torch.from_numpy(
            table.lengths[numbers]
        ).to(sums.dtype)
        pairs = np.concatenate([table.pairs[unit] for unit in units])
        places = torch.tensor([[slots[i], slots[j]] for i, j in pairs.tolist()])
        better, worse = h[places[:, 0]], h[places[:, 1]]
        total = preference_loss(self.rule, better, worse, self.beta, self.penalty).sum() / count
        with torch.no_grad():
            metrics: dict[str, torch.Tensor | float] = {
                "loss/pair": total.detach(),
                "pair/accuracy": (better > worse).sum() / count,
                "pair/margin": (better - worse).sum() / count,
                "pair/chosen": better.sum() / count,
                "pair/rejected": worse.sum() / count,
            }
        return total, metrics


@dataclass(frozen=True)
class IPO(DPO):
    """Identity preference optimisation: the margin has a target, 1 / (2 beta), and does not grow for ever."""

    paper: ClassVar[str] = "2310.12036"
    when: ClassVar[str] = "pairs judged with certainty, which DPO would drive apart for ever"
    assigns: ClassVar[str] = "squared error of a pair's margin"

    rule: Rule = "ipo"


@dataclass(frozen=True)
class DPOP(DPO):
    """DPO-positive, with its paper's beta 0.3 and lambda 50 (arXiv 2402.13228; from memory)."""

    paper: ClassVar[str] = "2402.13228"
    when: ClassVar[str] = "pairs that hardly differ, where DPO makes both less likely"
    assigns: ClassVar[str] = "DPO + a charge for less likely better answers"

    rule: Rule = "dpop"
    beta: float = 0.3
    penalty: float = 50.0


def _said(trajectory: Trajectory) -> bool:
    """Whether it has a token to learn from."""
    return any(turn.trainable and turn.length for turn in trajectory.turns)


def _mean(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([step[name] for step in history])) for name in (history[0] if history else ())}
