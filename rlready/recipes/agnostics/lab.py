"""Sizes and settings, and what all arms share: tasks, tokenizer, judges, and the way a policy is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean

from rlready.algorithms import GRPO, SFT, Algorithm, RestEM
from rlready.curriculum.gates import Gated, ZeroSignal
from rlready.curriculum.samplers import Uniform
from rlready.envs.chat import ChatEnv
from rlready.evaluate import Evaluation, evaluate, evaluate_sync
from rlready.policy.base import OptimizerConfig, Policy, SamplingParams, require_learner
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy, clone_policy
from rlready.policy.tokenize import bpe_tokenizer
from rlready.recipes.agnostics.judge import Judge
from rlready.recipes.agnostics.tasks import cut, tasks
from rlready.rewards.code import language
from rlready.rollout.collect import Collector
from rlready.run import Run
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.train import train
from rlready.types import Row, Task

KNOWN = "python"


@dataclass(frozen=True)
class Config:
    """Sizes and settings; those of the paper have their source in `paper.toml`, the others are ours.

    Attributes:
        first, second: the languages that are learnt: names, or paths of YAML files. The second shows that nothing but
            the YAML changes.
        known, few: programs in Python, and in each of the two languages, that the policy is cloned from.
        vocabulary: tokens of the byte-level BPE over these.
        start: cloning stops where the mean success of the two languages on dev tasks, sampled at 1, reaches this.
        clone_epochs, clone_lr, batch_tokens: of cloning, at most.
        look_every, look_after, look_tasks: steps of cloning between two looks, after the first so many, and tasks.
        groups, group_size, steps: prompts per batch, programs per prompt, updates.
        lr, warmup: of RL.
        clip: of the ratio, on both sides.
        refill: groups without signal that are replaced, per group of a batch.
        rounds, filter_lr: iterations of rejection sampling, and its learning rate.
        max_tokens: of a response.
        train_tasks, dev_tasks, test_tasks: of each language.
        eval_temperature, eval_samples: as the paper evaluates; it has 20 samples.
        timeout: seconds of one test.
        looks: of RL at dev tasks.
        probes: programs that the probe for hacking samples per arm.
        checked: languages in which the conformance programs are run.
    """

    first: str = "lua"
    second: str = "ocaml"
    known: int = 4000
    few: int = 400
    vocabulary: int = 640
    start: float = 0.16
    clone_epochs: int = 4
    clone_lr: float = 2e-3
    batch_tokens: int = 1024
    look_every: int = 60
    look_after: int = 600
    look_tasks: int = 78
    groups: int = 8
    group_size: int = 16
    steps: int = 60
    lr: float = 5e-4
    warmup: int = 8
    clip: float = 0.1
    refill: float = 0.5
    rounds: int = 4
    filter_lr: float = 5e-4
    max_tokens: int = 128
    train_tasks: int = 1040
    dev_tasks: int = 52
    test_tasks: int = 156
    eval_temperature: float = 0.2
    eval_samples: int = 2
    timeout: float = 3.0
    looks: int = 4
    probes: int = 312
    checked: tuple[str, ...] = ("python", "lua", "ocaml", "fortran", "r")
    model: TinyConfig = field(
        default_factory=lambda: TinyConfig(dim=128, layers=3, heads=4, kv_heads=1, max_len=320, value_head=False)
    )


SMOKE = Config(
    known=208,
    few=156,
    start=1.0,
    clone_epochs=2,
    clone_lr=5e-3,
    look_after=0,
    look_every=60,
    look_tasks=2,
    vocabulary=400,
    groups=2,
    group_size=4,
    steps=2,
    rounds=1,
    max_tokens=96,
    train_tasks=26,
    dev_tasks=4,
    test_tasks=6,
    eval_samples=1,
    timeout=1.0,
    looks=1,
    probes=12,
    checked=("lua",),
    model=TinyConfig(dim=48, layers=2, heads=4, kv_heads=1, max_len=320, value_head=False),
)

# What the doctor looks at: a policy that is right now and then, so that a batch has something to teach, within seconds.
DOCTOR = replace(
    SMOKE, known=26, few=1040, second="lua", look_every=1000, clone_epochs=4, group_size=8, vocabulary=512,
    max_tokens=128,
    model=TinyConfig(dim=96, layers=2, heads=4, kv_heads=1, max_len=320, value_head=False),
)  # fmt: skip


@dataclass
class Lab:
    """What all arms share."""

    run: Run
    config: Config

    def __post_init__(self) -> None:
        """Read the languages, start their sandboxes and draw the tasks, so that what is missing is told at once."""
        c, seed = self.config, self.run.seed
        self.languages = {name: language(name) for name in (c.first, c.second)}
        combos = cut(seed)
        self.judges = {name: Judge(each, timeout_s=c.timeout) for name, each in self.languages.items()}
        sizes = {"train": c.train_tasks, "dev": c.dev_tasks, "test": c.test_tasks}
        self.sets = {
            name: {part: self.paid(name, tasks(combos[part], each, n, derive(seed, part), f"{each.name} {part}"))
                   for part, n in sizes.items()}
            for name, each in self.languages.items()
        }  # fmt: skip
        self.shown: list[tuple[Task, str]] = []
        for name, n in {KNOWN: c.known, c.first: c.few, c.second: c.few}.items():
            drawn = tasks(combos["train"], language(name), n, derive(seed, "shown", name), f"shown {name}")
            self.shown += [(task, str(task.data["solution"])) for task in drawn]
        texts = [text for task, program in self.shown for text in (task.prompt[0].text, program)]
        tokenizer = bpe_tokenizer(texts, c.vocabulary, ("<s>", "<turn>", "<end>"))
        self.renderer = ChatRenderer(tokenizer, bos="<s>", turn="<turn>", end="<end>")
        self.params = SamplingParams(temperature=1.0, max_tokens=c.max_tokens, entropy=True)

    def paid(self, name: str, drawn: TaskSet, partial: float = 0.0) -> TaskSet:
        """The same tasks under the reward of a language's judge."""
        return TaskSet(drawn, self.judges[name].reward(partial), name=drawn.name)

    def policy(self) -> TinyPolicy:
        """A policy that knows nothing."""
        shape = replace(self.config.model, vocab_size=len(self.renderer.tokenizer))
        optimizer = OptimizerConfig(lr=self.config.clone_lr, warmup=20)
        return TinyPolicy.create(self.renderer, shape, self.run.seed, optimizer)

    def warm_up(self, policy: Policy) -> str | None:
        """Clone many programs in Python and few in the languages to learn; why it stopped short, if it did."""
        c, run = self.config, self.run
        render = self.renderer
        rows = [
            Row.from_segments([(render.render(task.prompt), 0.0), (render.encode_completion(program), 1.0)])
            for task, program in self.shown
        ]
        reached = 0.0
        with run.progress.track("warm-up", 1) as bar:

            def on_step(step: int, total: int, metrics: dict[str, float]) -> bool:
                nonlocal reached
                bar.total = total
                bar.advance()
                if step < c.look_after or step % c.look_every:
                    return False
                policy.sync()
                seen = {name: self._glance(policy, name) for name in self.languages}
                reached = fmean(seen.values())
                run.log(step, metrics | {"eval/success": reached} | {f"eval/{n}": x for n, x in seen.items()})
                return reached >= c.start

            SFT(seed=run.seed).fit_rows(
                policy, rows, epochs=c.clone_epochs, batch_tokens=c.batch_tokens, on_step=on_step
            )
        if reached < c.start:
            return f"{c.clone_epochs} epochs brought {reached:.0%} at T=1, and {c.start:.0%} were wanted"
        return None

    def _glance(self, policy: Policy, name: str) -> float:
        some = self.sets[name]["dev"].head(self.config.look_tasks)
        found = evaluate_sync(policy, some, ChatEnv, params=self.params, seed=derive(self.run.seed, "warm-up", name))
        return found.success

    def start(self, base: Policy, lr: float) -> TinyPolicy:
        """A copy of the warmed-up policy, with a fresh optimizer."""
        return clone_policy(base, OptimizerConfig(lr=lr, warmup=self.config.warmup))

    def grpo(self, policy: Policy, name: str, partial: float = 0.0) -> Callable[[], None]:
        """The work of an arm that learns a language by GRPO."""
        c = self.config
        return lambda: self._train(policy, name, self.algorithm(), partial, c.steps, c.groups, c.refill)

    def algorithm(self) -> GRPO:
        """The paper's loss; see `grpo`."""
        return grpo(self.config.clip, self.run.seed)

    def rejection(self, policy: Policy, name: str, programs: int) -> Callable[[], None]:
        """The work of an arm that learns by cloning its own right programs, from so many programs in all."""
        c = self.config
        groups = max(1, round(programs / (c.rounds * c.group_size)))
        return lambda: self._train(policy, name, RestEM(seed=self.run.seed), 0.0, c.rounds, groups, 0.0)

    def _train(
        self, policy: Policy, name: str, algorithm: Algorithm, partial: float, steps: int, groups: int, refill: float
    ) -> None:
        c, run = self.config, self.run
        paid, dev = self.paid(name, self.sets[name]["train"], partial), self.sets[name]["dev"]

        async def look(watched: Policy) -> Evaluation:
            return await evaluate(watched, dev, ChatEnv, params=self.params, seed=derive(run.seed, "look"))

        require_learner(policy).freeze_reference()
        uniform = Uniform(paid, derive(run.seed, "prompts"))
        collector = Collector(
            policy, ChatEnv, paid, Gated(uniform, ZeroSignal(refill=refill)) if refill else uniform,
            group_size=c.group_size, params=self.params, seed=derive(run.seed, "rl"), max_refills=refill,
        )  # fmt: skip
        train(
            policy, collector, algorithm, run, steps=steps, groups_per_step=groups, evaluator=look,
            eval_every=max(1, steps // c.looks), save_every=max(1, steps // 4),
        )  # fmt: skip

    def close(self) -> None:
        """End the sandboxes."""
        for judge in self.judges.values():
            judge.close()


def grpo(clip: float, seed: int) -> GRPO:
    """The paper's loss: deviation within the group, mean per program, no KL, a symmetric clip, one update a batch.

    The released code computes its ratio against the present weights, so that it is always 1 and no clip acts; here it
    is against the log-probabilities that were sampled.
    """
    return GRPO(clip_low=clip, clip_high=clip, seed=seed)
