"""Named methods: each is a combination of `PolicyGradient`'s fields, and its docstring says which paper's.

Where a paper's own number is meant for billions of weights (a learning rate, a batch size) it is not here. None drops
groups without signal, as DAPO and Magistral do: that is a gate of the curriculum, and such groups cost nothing anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlready.algorithms.base import Average
from rlready.algorithms.credit import Advantage
from rlready.algorithms.kl import Estimator
from rlready.algorithms.policy_gradient import PolicyGradient, Ratio, Trust


@dataclass(frozen=True)
class Reinforce(PolicyGradient):
    """REINFORCE with importance weights; its baseline is the update's mean reward.

    Williams 1992; 2512.01374 and 2603.18756 for one update per batch. A sample's own reward is in its baseline, which
    shrinks the gradient by 1 / n and changes nothing else. `advantage="running"` is the baseline of earlier updates,
    "mean" that of the group. Left out: reward-to-go by turn (PPO splits rewards over turns).
    """

    paper: ClassVar[str] = "Williams 1992; 2512.01374"
    when: ClassVar[str] = "the simplest there is; with one update per batch also the most stable"

    advantage: Advantage = "batch"


@dataclass(frozen=True)
class RLOO(PolicyGradient):
    """Each trajectory against the mean of the others in its group (2402.14740), which leaves the gradient unbiased.

    Left out: division by a leave-one-out deviation. With binary rewards the others of a lone success have deviation 0,
    and the quotient spikes.
    """

    paper: ClassVar[str] = "2402.14740"
    when: ClassVar[str] = "groups of a few answers, one update per batch, nothing biased"

    advantage: Advantage = "loo"


@dataclass(frozen=True)
class GRPO(PolicyGradient):
    """A trajectory's reward against its group's mean, by its deviation; clipped ratio, mean per answer (2402.03300).

    For reference: the division favours very easy and very hard tasks, and the mean per answer favours long wrong
    answers (2503.20783). The paper's KL (0.04, k3, naive) is off, as verifiable rewards do not need it; with it:
    `GRPO(kl=0.04, kl_gradient="naive")`.
    """

    paper: ClassVar[str] = "2402.03300"
    when: ClassVar[str] = "to compare with what others report; it favours extreme tasks and long wrong answers"

    advantage: Advantage = "std"
    trust: Trust = "clip"
    average: Average = "trajectory"


@dataclass(frozen=True)
class DrGRPO(PolicyGradient):
    """GRPO without its two biases: no division, and a sum over tokens by a constant (2503.20783).

    `constant` should be the length cap of completions; at 1 the loss is as many times larger, which Adam does not mind
    but a gradient's clip does.
    """

    paper: ClassVar[str] = "2503.20783"
    when: ClassVar[str] = "GRPO's clip without its biases; a safe first choice with several updates per batch"

    trust: Trust = "clip"
    average: Average = "constant"


@dataclass(frozen=True)
class DAPO(PolicyGradient):
    """GRPO with clip-higher (0.2 / 0.28) and a mean over all tokens (2503.14476), for entropy that falls.

    Its overlong filter is `truncated="mask"`, off here: dialects without an end token always stop by length. Its soft
    length penalty is `rewards.length`. Its dynamic sampling leaves uniform groups out; `curriculum.ZeroSignal` refills.
    """

    paper: ClassVar[str] = "2503.14476"
    when: ClassVar[str] = "entropy falls and exploration dries up under a symmetric clip"

    advantage: Advantage = "std"
    trust: Trust = "clip"
    clip_high: float | None = 0.28
    average: Average = "token"
    drop_uniform: bool = True


@dataclass(frozen=True)
class GSPO(PolicyGradient):
    """One ratio per answer, normalised by its length, clipped to 1 - 3e-4, 1 + 4e-4 (2507.18071)."""

    paper: ClassVar[str] = "2507.18071"
    when: ClassVar[str] = "token ratios are unreliable: mixtures of experts, long answers"

    advantage: Advantage = "std"
    ratio: Ratio = "sequence"
    trust: Trust = "clip"
    clip_low: float | None = 3e-4
    clip_high: float | None = 4e-4
    average: Average = "trajectory"


@dataclass(frozen=True)
class LUSPO(GSPO):
    """GSPO with each answer's loss times its length, against the bias to short answers (2602.05261).

    That is GSPO with `average="constant"`, `constant=1`: the sum over an answer's tokens, a mean over answers. A larger
    constant scales it all down.
    """

    paper: ClassVar[str] = "2602.05261"
    when: ClassVar[str] = "as GSPO, where answers get shorter though they should not"

    average: Average = "constant"


@dataclass(frozen=True)
class GMPO(PolicyGradient):
    """The geometric mean of an answer's ratios, each clipped to e^-0.4, e^0.4 (2507.20673), robust to outliers."""

    paper: ClassVar[str] = "2507.20673"
    when: ClassVar[str] = "single tokens have outlier ratios that a clip lets through on one side"

    advantage: Advantage = "std"
    ratio: Ratio = "geometric"
    trust: Trust = "clip"
    clip_low: float | None = 0.4
    clip_high: float | None = 0.4
    average: Average = "trajectory"


@dataclass(frozen=True)
class ReinforcePlusPlus(PolicyGradient):
    """REINFORCE++-baseline: less the group's mean, by the batch's deviation; for mixed reward scales (2501.03262).

    Clip 0.2 / 0.27 and a KL of 1e-4 with k2 in the loss are ProRLv2's (NeMo-RL); the learner needs a reference.
    """

    paper: ClassVar[str] = "2501.03262; ProRLv2"
    when: ClassVar[str] = "rewards of mixed scales; long runs held by a weak KL"

    advantage: Advantage = "batch_std"
    trust: Trust = "clip"
    clip_high: float | None = 0.27
    kl: float = 1e-4
    kl_estimator: Estimator = "k2"


@dataclass(frozen=True)
class MaxRL(PolicyGradient):
    """(r - m) / m: in expectation the gradient of log pass rate and beyond, for hard tasks and pass@k (2602.02710)."""

    paper: ClassVar[str] = "2602.02710"
    when: ClassVar[str] = "hard prompts that are solved now and then, and pass@k"

    advantage: Advantage = "maxrl"


@dataclass(frozen=True)
class NGRPO(PolicyGradient):
    """GRPO whose groups hold one virtual best reward, so that all-wrong groups teach, too (2509.18851).

    Bad tokens have the tighter clip; 0.16 / 0.24 from memory.
    """

    paper: ClassVar[str] = "2509.18851"
    when: ClassVar[str] = "many groups are all wrong and should still push away from what was tried"

    advantage: Advantage = "ngrpo"
    trust: Trust = "clip"
    clip_low: float | None = 0.16
    clip_high: float | None = 0.24
    average: Average = "trajectory"


@dataclass(frozen=True)
class PassK(PolicyGradient):
    """Pass@k with k the group's size: the best answer earns its lead over the second (2503.19595), to explore."""

    paper: ClassVar[str] = "2503.19595"
    when: ClassVar[str] = "a phase of exploring, where one right answer in a group is enough"

    advantage: Advantage = "best"


@dataclass(frozen=True)
class CISPO(PolicyGradient):
    """-sg(min(ratio, 5)) A log pi: no token loses its gradient, its weight is capped (2506.13585; 5: 2510.13786)."""

    paper: ClassVar[str] = "2506.13585; 2510.13786"
    when: ClassVar[str] = "rare tokens matter and must not lose their gradient; data up to 8 updates old"

    advantage: Advantage = "std"
    trust: Trust = "cispo"


@dataclass(frozen=True)
class SAPO(PolicyGradient):
    """A soft gate instead of a clip, steeper for bad tokens (2511.20347)."""

    paper: ClassVar[str] = "2511.20347"
    when: ClassVar[str] = "a soft bound in place of a clip; not with anchor=start"

    advantage: Advantage = "std"
    trust: Trust = "sapo"
    average: Average = "trajectory"


@dataclass(frozen=True)
class DPPO(PolicyGradient):
    """Tokens whose probability moved by more than 0.2 in their direction are dropped (2602.04879), for stale data.

    With 1e-3 log^2 of the ratio, as in prime-rl, whose default it is.
    """

    paper: ClassVar[str] = "2602.04879"
    when: ClassVar[str] = "stale data, up to 8 updates: the bound is on the sampler itself"

    trust: Trust = "tv"
    behaviour: float = 1e-3


@dataclass(frozen=True)
class Magistral(PolicyGradient):
    """GRPO less its KL, batch-normed, with clip-higher and a mean over each group's tokens (2506.10910).

    0.2 / 0.28; their small model, whose entropy is lower after fine-tuning, has 0.3 above. Groups without spread are
    removed.
    """

    paper: ClassVar[str] = "2506.10910"
    when: ClassVar[str] = "answers of very different lengths, and tasks that should weigh the same"

    advantage: Advantage = "batch_std"
    trust: Trust = "clip"
    clip_high: float | None = 0.28
    average: Average = "group"
    drop_uniform: bool = True
