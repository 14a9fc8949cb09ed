"""Sizes and settings, and what all arms share: problems, tokenizer, reward, and the way they are trained."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from rlready.aio import run_sync
from rlready.algorithms import Magistral
from rlready.curriculum.difficulty import Filtered, grade
from rlready.curriculum.gates import Gated, ZeroSignal
from rlready.curriculum.samplers import Uniform
from rlready.envs.chat import ChatEnv
from rlready.policy.base import OptimizerConfig, Policy, SamplingParams
from rlready.policy.process import in_process
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy, clone_policy
from rlready.policy.tokenize import word_tokenizer
from rlready.recipes.logs import Logs, clone
from rlready.recipes.magistral.measure import Look, clone_until, look, rows_of
from rlready.recipes.magistral.tasks import CODES, demonstrations, normal, problems, reward, vocabulary
from rlready.rewards import Classifier
from rlready.rollout.collect import Collector
from rlready.run import Run
from rlready.scoring import RewardFn
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.train import train
from rlready.types import Trajectory


@dataclass(frozen=True)
class Training:
    """What RL in `small` and in `full` is set by; where it is the paper's, `paper.toml` says so.

    Attributes:
        samples: answers per task by which the difficulty filter judges.
        groups, group_size, steps: prompts per batch, answers per prompt, updates.
        lr, warmup: learning rate, and updates over which it rises; the optimizer starts afresh.
        minibatches: optimizer steps per batch in the two arms that compare clips; one everywhere else.
        clip_low, clip_high: of the ratio; the symmetric arm has `clip_low` on both sides.
        refill: groups without signal that are replaced, per group of a batch.
        l_max, l_cache, max_tokens: limits of the soft length penalty, and where answers are cut off.
        bonus: for one language throughout.
        temperature: of rollouts.
        max_lag: updates that the asynchronous generator may run ahead.
        looks, look_tasks: looks at so many dev tasks during RL, in all.
        checkpoints: written during RL, in all.
        dev_tasks, test_tasks: held-out tasks measured.
    """

    samples: int = 16
    groups: int = 16
    group_size: int = 8
    steps: int = 100
    lr: float = 5e-4
    warmup: int = 10
    minibatches: int = 8
    clip_low: float = 0.2
    clip_high: float = 0.3
    refill: float = 0.5
    l_max: int = 96
    l_cache: int = 16
    max_tokens: int = 112
    bonus: float = 0.1
    temperature: float = 1.0
    max_lag: int = 1
    looks: int = 10
    look_tasks: int = 100
    checkpoints: int = 4
    dev_tasks: int = 150
    test_tasks: int = 600


@dataclass(frozen=True)
class Config(Training):
    """The small preset's sizes and settings, ours.

    Attributes:
        problems: drawn in all, before they are split.
        demonstrations: answers that the policy is cloned from.
        english: share of thoughts on problems in other languages that are in English in the demonstrations.
        wordy: share of demonstrations that check themselves at length.
        start_accuracy: cloning stops where sampled accuracy on dev tasks reaches this, so that every seed starts alike.
        clone_epochs, clone_lr, clone_steps: passes over the demonstrations at most; learning rate, which falls to a
            tenth over so many steps.
        look_every: steps of cloning between two looks at dev tasks.
        own_logs, filter_epochs: episodes of the cloned policy, and passes over the right ones, of filtered cloning.
        pool, planted: tasks that the difficulty filter judges, and the share of them that was given a wrong reference.
    """

    problems: int = 16000
    demonstrations: int = 9000
    english: float = 0.4
    wordy: float = 0.15
    start_accuracy: float = 0.55
    clone_epochs: int = 5
    clone_lr: float = 2e-3
    clone_steps: int = 2400
    batch_tokens: int = 1024
    look_every: int = 50
    own_logs: int = 3000
    filter_epochs: int = 2
    filter_lr: float = 3e-4
    pool: int = 480
    planted: float = 0.1
    model: TinyConfig = field(
        default_factory=lambda: TinyConfig(dim=128, layers=3, heads=4, kv_heads=1, max_len=320, value_head=False)
    )


SMOKE = Config(
    problems=1200,
    demonstrations=300,
    start_accuracy=0.9,
    clone_epochs=1,
    look_every=7,
    look_tasks=4,
    own_logs=12,
    filter_epochs=1,
    pool=10,
    samples=4,
    planted=0.2,
    groups=2,
    group_size=4,
    steps=2,
    minibatches=2,
    l_max=32,
    l_cache=8,
    max_tokens=40,
    dev_tasks=6,
    test_tasks=8,
    model=TinyConfig(dim=64, layers=2, heads=4, kv_heads=1, max_len=320, value_head=False),
)


# What the doctor looks at: a policy that mostly keeps the form, so that a batch has something to teach, within seconds.
DOCTOR = replace(
    SMOKE, demonstrations=1500, clone_epochs=3, clone_lr=4e-3, wordy=0.0, look_every=1000, l_max=96, l_cache=16,
    max_tokens=112,
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """What an arm does in its own way; None is as in the configuration.

    Attributes:
        bonus: paid for one language throughout.
        minibatches: optimizer steps per batch.
        clip_high: of the ratio.
        apart: whether the generator works in a process of its own.
    """

    bonus: float | None = None
    minibatches: int = 1
    clip_high: float | None = None
    apart: bool = False


class Trainer:
    """RL as the paper has it, for tiny and for large policies alike.

    Attributes:
        run: keeps all.
        config: settings.
        sets: problems by split, paid with the bonus; "dev" is looked at during RL.
        params: of rollouts.
        deadline: seconds per answer.
    """

    def __init__(self, run: Run, config: Training, sets: Mapping[str, TaskSet], *, deadline: float = 60.0) -> None:
        """Take problems; `paid` rewards them."""
        self.run, self.training, self.deadline = run, config, deadline
        self.params = SamplingParams(temperature=config.temperature, max_tokens=config.max_tokens, entropy=True)
        self.sets = {name: self.paid(each, config.bonus) for name, each in sets.items()}

    def reward(self, bonus: float) -> RewardFn:
        """The reward with this bonus for one language."""
        raise NotImplementedError

    def answer(self, trajectory: Trajectory) -> str:
        """An answer in normal form, by which the difficulty filter tells which ones agree."""
        raise NotImplementedError

    def paid(self, tasks: TaskSet, bonus: float) -> TaskSet:
        """The same tasks under the reward with this bonus."""
        return TaskSet(tasks, self.reward(bonus), name=tasks.name)

    def algorithm(self, way: Way | None = None) -> Magistral:
        """The paper's loss: deviation over the update, mean over a group's tokens, clip-higher, no KL."""
        c, way = self.training, way or Way()
        return Magistral(
            clip_low=c.clip_low,
            clip_high=c.clip_high if way.clip_high is None else way.clip_high,
            minibatches=way.minibatches,
            seed=self.run.seed,
        )

    def rl(self, policy: Policy, tasks: TaskSet, way: Way | None = None) -> None:
        """One arm: the same code in one process, or with the generator in a process of its own."""
        c, run, way = self.training, self.run, way or Way()
        paid = self.paid(tasks, c.bonus if way.bonus is None else way.bonus)
        dev = self.sets["dev"].head(c.look_tasks)

        async def watch(watched: Policy) -> Look:
            return await look(watched, dev, self.params, run.seed, self.deadline)

        with in_process(policy, in_flight="keep") if way.apart else contextlib.nullcontext(policy) as acting:
            collector = Collector(
                acting,
                ChatEnv,
                paid,
                Gated(Uniform(paid, derive(run.seed, "prompts")), ZeroSignal(refill=c.refill)),
                group_size=c.group_size,
                params=self.params,
                seed=derive(run.seed, "rl"),
                deadline=self.deadline,
                max_refills=c.refill,
                max_lag=c.max_lag if way.apart else 0,
            )
            train(
                acting,
                collector,
                self.algorithm(way),
                run,
                steps=c.steps,
                groups_per_step=c.groups,
                evaluator=watch,
                eval_every=0 if way.apart else max(1, c.steps // c.looks),
                save_every=max(1, c.steps // c.checkpoints),
            )

    def graded(self, name: str, policy: Policy, pool: TaskSet, decide: Callable[..., Filtered]) -> Filtered:
        """A pass of the difficulty filter, in a stage."""
        with self.run.stage(name) as stage:
            if not stage.done:
                work = grade(policy, pool, ChatEnv, answer=self.answer, samples=self.training.samples,
                             params=self.params, seed=derive(self.run.seed, name), deadline=self.deadline)  # fmt: skip
                stage.result["filtered"] = decide(run_sync(work)).to_json()
        return Filtered.from_json(stage.result["filtered"])


class Lab(Trainer):
    """What all arms of the small preset share: problems, tokenizer, reward, and the way they are trained."""

    def __init__(self, run: Run, config: Config) -> None:
        """Draw the problems and load the classifier, so that a missing package is told at once."""
        self.config = config
        self.tell = Classifier(CODES)
        self.tell("Is everything here that is needed?")
        super().__init__(run, config, problems(config.problems, derive(run.seed, "problems")))
        self.test = self.sets["test"].head(config.test_tasks)
        self.renderer = ChatRenderer(word_tokenizer(vocabulary(), specials=("<s>", ">", "<end>")), end="<end>")

    def reward(self, bonus: float) -> RewardFn:
        """With numbers written by place."""
        return reward(self.config.l_max, self.config.l_cache, bonus, self.tell)

    def answer(self, trajectory: Trajectory) -> str:
        """The number in the box, as digits."""
        return normal(trajectory)

    def policy(self) -> TinyPolicy:
        """A policy that knows nothing."""
        shape = replace(self.config.model, vocab_size=len(self.renderer.tokenizer))
        c = self.config
        optimizer = OptimizerConfig(lr=c.clone_lr, warmup=20, schedule="linear", total=c.clone_steps, final=0.1)
        return TinyPolicy.create(self.renderer, shape, self.run.seed, optimizer)

    def cloning(self, policy: TinyPolicy) -> None:
        """Clone demonstrations until sampled accuracy is where RL is to start from."""
        c = self.config
        shown = demonstrations(self.sets["sft"], c.demonstrations, self.run.seed, english=c.english, wordy=c.wordy)
        clone_until(
            self.run, policy, rows_of(self.renderer, shown), self.sets["dev"].head(2 * c.look_tasks), self.params,
            accuracy=c.start_accuracy, epochs=c.clone_epochs, batch_tokens=c.batch_tokens, every=c.look_every,
        )  # fmt: skip

    def filtered(self, policy: Policy, own: Logs) -> None:
        """Clone the policy's own right answers."""
        c, right = self.config, own.successes.rows
        if right:
            clone(self.run, policy, right, epochs=c.filter_epochs, batch_tokens=c.batch_tokens, label="clone")

    def start(self, base: Policy) -> TinyPolicy:
        """A copy of the cloned policy, with a fresh optimizer for RL."""
        return clone_policy(base, OptimizerConfig(lr=self.config.lr, warmup=self.config.warmup))
