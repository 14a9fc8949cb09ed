"""One-step errors of an experience model, and the bound on policy improvement that follows from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlready.dream.format import Annotation, Unparsable
from rlready.dream.model import ExperienceModel
from rlready.dream.samples import prompts_of
from rlready.experience.episode import LoggedEpisode
from rlready.policy.base import SampleRequest
from rlready.seeds import derive

Dynamics = Callable[[LoggedEpisode, int], Mapping[str, float]]
"""Known probabilities of the replies to a recorded step."""


@dataclass(frozen=True)
class ModelErrorReport:
    """One-step errors on held-out transitions, and what they allow.

    Our derivation (DreamGym's own constants could not be confirmed), for rewards within [0, r_max]:

        model error = eps_R / (1 - gamma) + gamma * r_max * eps_P / (1 - gamma)^2
        penalty     = 2 * gamma * max|A| * delta / (1 - gamma)^2
        real improvement >= surrogate gain / (1 - gamma) - penalty - 2 * model error

    The suprema are replaced by what was seen, so this is an estimate, not a certificate; with a long horizon it is
    loose.

    Attributes:
        transitions, verdicts: how many were measured.
        reward_mean, reward_max: eps_R, |R - expected R of the model|, over closing steps.
        reply_mean, reply_max: eps_P, total variation between the reply's distribution and the model's.
        gamma, r_max: of the task.
    """

    transitions: int
    verdicts: int
    reward_mean: float
    reward_max: float
    reply_mean: float
    reply_max: float
    gamma: float
    r_max: float = 1.0

    def error(self, *, worst: bool = False) -> float:
        """The model error, from the mean (default) or the largest one-step errors."""
        reward, reply = (self.reward_max, self.reply_max) if worst else (self.reward_mean, self.reply_mean)
        return reward / (1 - self.gamma) + self.gamma * self.r_max * reply / (1 - self.gamma) ** 2

    def improvement(self, surrogate: float, *, max_advantage: float, delta: float, worst: bool = False) -> float:
        """The bound on improvement in reality.

        Args:
            surrogate: E[A] in the dream, by the new policy's steps.
            max_advantage: max |A|.
            delta: sup over states of KL(new, old), nats.
            worst: take the largest one-step errors.
        """
        rest = 1 - self.gamma
        penalty = 2 * self.gamma * max_advantage * delta / rest**2
        return surrogate / rest - penalty - 2 * self.error(worst=worst)


async def model_error_report(
    model: ExperienceModel,
    episodes: Sequence[LoggedEpisode],
    annotations: Sequence[Annotation],
    *,
    samples: int = 8,
    gamma: float = 0.95,
    dynamics: Dynamics | None = None,
    seed: int = 0,
) -> ModelErrorReport:
    """Estimate the one-step errors from samples of the model under recorded histories.

    Args:
        model: the simulator.
        episodes: held-out logs.
        annotations: theirs.
        samples: answers drawn per step; the resolution is 1 / samples.
        gamma: discount, for the bound. The reciprocal of 1 - gamma is the horizon it speaks of.
        dynamics: the true distribution of replies. Without it the recorded reply is taken for certain, which
            over-estimates eps_P wherever the history leaves the reply open.
        seed: of the draws.
    """
    form = model.form
    params = replace(model.config.answer, temperature=model.config.temperature, stop_ids=form.stop_ids)
    demos = model.memory.demos_for(episodes, annotations)
    requests: list[SampleRequest] = []
    steps: list[tuple[Mapping[str, float] | None, float]] = []
    for episode, annotation, shown in zip(episodes, annotations, demos, strict=True):
        prompts = prompts_of(form, episode, annotation, shown)
        for (t, action, truth), prompt in zip(form.steps(episode, annotation), prompts, strict=True):
            wanted = None
            if action != form.closing:
                wanted = dynamics(episode, t) if dynamics else {truth.reply: 1.0}
            steps.append((wanted, float(bool(truth.verdict))))
            requests += [
                SampleRequest(prompt, params, derive(seed, "error", len(steps), i), session=("error", len(steps)))
                for i in range(samples)
            ]
    reward: list[float] = []
    reply: list[float] = []
    for start in range(0, len(steps), 32):
        drawn = await model.policy.sampler.sample(requests[start * samples : (start + 32) * samples])
        for i, (wanted, paid) in enumerate(steps[start : start + 32]):
            said: Counter[str] = Counter()
            for sample in drawn[i * samples : (i + 1) * samples]:
                try:
                    answer = form.parse_answer(sample.completion_ids, closing=wanted is None)
                except Unparsable:
                    said["(unparsable)"] += 1
                else:
                    said[answer.reply if wanted is not None else str(answer.verdict)] += 1
            if wanted is None:
                reward.append(abs(paid - said["True"] / samples))
            else:
                reply.append(total_variation(wanted, said))
    for step in range(1, len(steps) + 1):
        model.policy.sampler.release(("error", step))
    return summed_up(reward, reply, gamma=gamma)


def total_variation(wanted: Mapping[str, float], said: Mapping[str, int]) -> float:
    """Half the L1 distance between a distribution and what was drawn, given as counts of at least one draw."""
    n = sum(said.values())
    return 0.5 * sum(abs(wanted.get(w, 0.0) - said.get(w, 0) / n) for w in said.keys() | wanted.keys())


def summed_up(reward: Sequence[float], reply: Sequence[float], *, gamma: float) -> ModelErrorReport:
    """The report on one-step errors of rewards (at closing steps) and of replies (total variation)."""
    many = len(reward) + len(reply)
    return ModelErrorReport(many, len(reward), *_mean_max(reward), *_mean_max(reply), gamma=gamma)


def _mean_max(values: Sequence[float]) -> tuple[float, float]:
    return (float(np.mean(values)), float(np.max(values))) if values else (0.0, 0.0)
