"""Sizes and settings of the presets; where they come from stands in `paper.toml`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rlready.policy.tiny import TinyConfig
from rlready.recipes.local import Local
from rlready.recipes.vineppo.chain import LENGTHS
from rlready.recipes.vineppo.measure import Sizes
from rlready.rollout.steps import StepRule


@dataclass(frozen=True)
class Rates:
    """Learning rates, each tuned on seed 10."""

    vine: float = 1e-4
    ppo: float = 1e-4
    critic: float = 3e-4
    grpo: float = 1e-4
    rloo: float = 1e-4
    restem: float = 3e-4


@dataclass(frozen=True)
class Arms:
    """What the comparison of `small` and that of `full` share; where it is the paper's, `paper.toml` says so.

    Attributes:
        stop_at: accuracy at T=1 on dev tasks, as RL samples, at which SFT ends; None for all epochs.
        check_every, check_tasks: SFT steps between two looks at it, and tasks.
        sft_epochs: passes at most.
        groups, group_size: prompts and answers per prompt of an iteration.
        iterations: of every arm but RestEM, which has the same prompts in `rounds` batches.
        restem_minibatches: optimizer steps per pass of RestEM.
        warmup: optimizer steps of warm-up of the policy gradients.
        k, max_states: samples per value of VinePPO; states valued per answer at most.
        eval_every, eval_tasks: iterations between two points of a curve; dev tasks, sampled as in training.
        value_clip, critic_epochs: of PPO's critic.
        test_tasks, dev_tasks: held-out tasks measured; None takes all.
    """

    sft_lr: float = 2e-3
    sft_tokens: int = 1024
    sft_epochs: int = 6
    stop_at: float | None = 0.35
    check_every: int = 20
    check_tasks: int = 200
    groups: int = 16
    group_size: int = 8
    iterations: int = 40
    epochs: int = 2
    minibatches: int = 4
    rounds: int = 4
    restem_minibatches: int = 4
    warmup: int = 0
    k: int = 9
    max_states: int | None = None
    clip: float = 0.2
    kl: float = 1e-4
    value_clip: float | None = 0.2
    critic_epochs: int = 2
    lr: Rates = field(default_factory=Rates)
    eval_every: int = 5
    eval_tasks: int = 300
    test_tasks: int | None = 400
    dev_tasks: int | None = 200


@dataclass(frozen=True)
class Config(Arms):
    """The small preset's.

    Attributes:
        problems: drawn, then cut into train, dev and test.
        lengths: operations of a problem, at least and at most.
        batches: of the same policy, whose gradients are compared where there are at least two.
    """

    problems: int = 8000
    lengths: tuple[int, int] = LENGTHS
    model: TinyConfig = field(default_factory=lambda: TinyConfig(dim=128, layers=4, heads=4, kv_heads=1, max_len=96))
    batches: int = 1
    values: Sizes = field(default_factory=Sizes)


@dataclass(frozen=True)
class Full(Arms, Local):
    """The full preset's: the paper's settings, on a local checkpoint that has been through SFT, and local problems.

    Attributes:
        arms: which ones to train, one after the other; PPO is left out, as a Hugging Face policy has no value head.
        sft_epochs: passes over the column `solution` before RL starts; 0 where the checkpoint has been through SFT.
        solution: column of the worked solutions.
        steps: how answers are cut into steps; "line" suits GSM8K.
        temperature, top_p, max_tokens: of training; top-p holds in evaluation, too.
        eval_samples, eval_temperature: answers per held-out problem, and the temperature they are sampled at.
    """

    arms: tuple[str, ...] = ("VinePPO", "GRPO", "RLOO", "RestEM")
    solution: str = "solution"
    steps: StepRule = field(default_factory=lambda: StepRule(kind="math"))
    temperature: float = 0.6
    top_p: float = 0.9
    max_tokens: int = 1024
    eval_samples: int = 16
    eval_temperature: float = 0.35
    sft_lr: float = 1e-5
    sft_tokens: int = 32_768
    sft_epochs: int = 0
    stop_at: float | None = None
    check_every: int = 200
    groups: int = 64
    iterations: int = 1000
    minibatches: int = 8
    restem_minibatches: int = 800
    warmup: int = 480
    lr: Rates = field(default_factory=lambda: Rates(1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 1e-5))
    eval_every: int = 25
    test_tasks: int | None = None


SMOKE = Config(
    problems=2000, lengths=(3, 3), model=TinyConfig(dim=48, layers=2, heads=4, kv_heads=1, max_len=64), sft_lr=4e-3,
    sft_tokens=800, sft_epochs=6, stop_at=0.04, check_every=20, check_tasks=100, groups=4, group_size=4, iterations=2,
    minibatches=1, rounds=1, eval_every=1, eval_tasks=24, batches=2, test_tasks=24, dev_tasks=8,
    values=Sizes(states=12, choices=8, tried=60, rollouts=12, repeats=2, bias_states=4,
                  bias_rollouts=24, bias_repeats=2),
)  # fmt: skip

# What the doctor looks at: a policy that is sometimes right, so that a batch has something to teach, within seconds.
DOCTOR = replace(SMOKE, problems=1500, lengths=(1, 2), stop_at=0.25, sft_epochs=30, check_tasks=50)
