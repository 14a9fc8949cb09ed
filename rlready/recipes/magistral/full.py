"""The full preset: the RL of `small`, with the paper's settings, on a local checkpoint and local problems.

Answers are graded by `rewards.math` in the box behind the thoughts; the system prompt asks for the form. The data pass
the difficulty filter before RL, and again after it, when it names references that it takes to be wrong.

Left out, and why: code (its answers need tests to be run), the asynchronous generator (a Hugging Face model samples in
this process), and the schedule of growing limits: a stage of it is a run of its own, from the last one's checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan

from rlready.curriculum.difficulty import REFERENCE, first_pass, second_pass
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError, did_you_mean
from rlready.policy.base import OptimizerConfig, Policy
from rlready.recipes.local import Local, Start, check, policy_of, splits_of
from rlready.recipes.magistral.lab import Trainer, Training, Way
from rlready.recipes.magistral.measure import Names, course, draw_curves
from rlready.recipes.magistral.tasks import reward
from rlready.recipes.study import Study
from rlready.rewards import Classifier, ThinkFormat, answer_of, verify_math
from rlready.rewards.language import Classify
from rlready.run import Run
from rlready.run_files import read_jsonl
from rlready.run_report import Report, Table, percent
from rlready.scoring import RewardFn, declare
from rlready.tasks.base import TaskSet
from rlready.types import Score, Task, Trajectory

NAMES = Names(base="start")
LANGUAGES = ("en", "fr", "es", "it", "de", "zh", "ru")


@dataclass(frozen=True)
class Full(Training, Local):
    """The full preset's: the paper's last stage of RL, on a local checkpoint and local problems.

    Attributes:
        arms: which ones to train, one after the other.
        languages: that texts are told apart among; empty: the language is not looked at. Problems in other languages
            than English are the data's to bring, a tenth of them in the paper.
        form: tags and kind of answers; `form.opened=true` where the chat template writes the opening tag itself.
        system: the system prompt; empty: the form's own instruction.
        eval_samples, eval_temperature: answers per held-out problem, and the temperature they are sampled at.
    """

    arms: tuple[str, ...] = (NAMES.rl,)
    languages: tuple[str, ...] = LANGUAGES
    form: ThinkFormat = field(default_factory=ThinkFormat)
    system: str = ""
    eval_samples: int = 16
    eval_temperature: float = 0.7
    groups: int = 128
    group_size: int = 16
    steps: int = 300
    lr: float = 1e-6
    l_max: int = 33_024
    l_cache: int = 1024
    max_tokens: int = 33_024
    looks: int = 15
    look_tasks: int = 200
    checkpoints: int = 60
    dev_tasks: int = 200
    test_tasks: int = 1000


FULL = Full()


class Files(Trainer):
    """The trainer on problems of a file."""

    def __init__(self, run: Run, config: Full) -> None:
        """Load the classifier, so that a missing package is told at once, then the problems.

        Raises:
            UserError: `py3langid` is missing, the form asks for code, or the data cannot be used.
        """
        self.config = config
        if config.form.answer == "code":
            raise UserError(
                "magistral, preset full: form.answer=code needs tests to be run; answers here are mathematics "
                "(form.answer=boxed)."
            )
        self.tell: Classify | None = Classifier(config.languages) if config.languages else None
        if self.tell is not None:
            self.tell("Is everything here that is needed?")
        self.system = config.system or config.form.instruction()
        splits = splits_of(run, config, self.reward(config.bonus), system=self.system)
        super().__init__(run, config, splits, deadline=config.deadline)

    def reward(self, bonus: float) -> RewardFn:
        """The paper's, mathematics being right where `rewards.math` proves it."""
        c = self.config
        return reward(
            c.l_max, c.l_cache, bonus, self.tell, languages=c.languages, form=c.form, right=proved(c.form, c.answer)
        )

    def answer(self, trajectory: Trajectory) -> str:
        """What stands in the box, blanks taken out."""
        return "".join(answer_of(self.config.form, trajectory).split())


def proved(form: ThinkFormat, column: str) -> RewardFn:
    """1 where the answer behind the thoughts is the gold, by `rewards.math`, else 0."""

    def correct(task: Task, trajectory: Trajectory) -> Score:
        return verify_math(answer_of(form, trajectory), task.data[column], response=form.answer != "boxed")

    return declare(correct, name="correct", columns=[column])


def ways(config: Full) -> dict[str, Way]:
    """The arms that can be trained."""
    many = config.minibatches
    return {
        NAMES.rl: Way(),
        NAMES.free: Way(bonus=0.0),
        NAMES.many: Way(minibatches=many),
        NAMES.symmetric: Way(minibatches=many, clip_high=config.clip_low),
    }


def full_of(run: Run, config: Full) -> Report:
    """Filter, train and measure.

    Raises:
        UserError: what `check`, `splits_of` and the trainer refuse, or there is no such arm.
    """
    known = ways(config)
    if NAMES.apart in config.arms:
        config = replace(config, sampler="process")  # which `check` refuses, with the reason
    check(config, "magistral")
    for name in config.arms:
        if name not in known:
            raise did_you_mean("arm", name, known)
    lab = Files(run, config)
    pool = lab.sets["train"]
    policy = policy_of(run, config, OptimizerConfig(lr=config.lr))
    held_out = {n: tasks.head(config.test_tasks) for n, tasks in lab.sets.items() if n not in ("train", "dev")}
    study = Study(
        run, ChatEnv, lab.sets["dev"].head(config.dev_tasks), held_out, temperatures=(config.eval_temperature,),
        params=lab.params, samples=config.eval_samples, deadline=config.deadline,
    )  # fmt: skip
    study.arm(NAMES.base, policy)
    optimizer = OptimizerConfig(lr=config.lr, warmup=config.warmup)
    start = Start.of(policy, optimizer)

    tasks, notes, metrics = _first(run, lab, policy, pool)
    for name in config.arms:
        start.again(optimizer)
        study.arm(name, policy, partial(lab.rl, policy, tasks, known[name]))
        if name == NAMES.rl and config.samples:
            second = lab.graded("second pass", policy, pool, second_pass)
            metrics |= {f"filter/second/{why}": float(n) for why, n in second.counts().items()}
            wrong = second.dropped_for(REFERENCE)
            notes.append(f"The second pass takes {len(wrong)} references to be wrong: see stages/second-pass.")
    looks = _looks(run, config)
    return run.report(
        f"Magistral on {pool.name}: held-out accuracy and language",
        tables=[*study.tables(), *_tables(run, config, looks)],
        metrics=study.metrics() | metrics | looks,
        notes=[
            f"Model {config.model}; {len(tasks):,} of {len(pool):,} problems to train on. System prompt: {lab.system}",
            *(f"{name} against {NAMES.base}, tuned T: {study.difference(name, NAMES.base, mode='tuned')}."
              for name in config.arms),
            *notes,
        ],
        plot="eval/success",
        plots=[study.draw(run.dir / "arms.png"), draw_curves(run, run.dir / "curves.png", config.arms)],
    )  # fmt: skip


def _first(run: Run, lab: Files, policy: Policy, pool: TaskSet) -> tuple[TaskSet, list[str], dict[str, float]]:
    """The first pass of the difficulty filter, where one is asked for: tasks to train on, notes, numbers."""
    if not lab.config.samples:
        return pool, [], {}
    first = lab.graded("first pass", policy, pool, first_pass)
    counts = first.counts()
    tasks = pool.filter(lambda task: task.id in first.kept)
    said = ", ".join(f"{n} {why}" for why, n in counts.items() if n)
    notes = [f"Difficulty, first pass: {said}."]
    if not len(tasks):
        tasks = pool
        notes.append("It would have left nothing to train on, so RL had all problems.")
        run.say(" ".join(notes))
    return tasks, notes, {f"filter/first/{why}": float(n) for why, n in counts.items()}


def _looks(run: Run, config: Full) -> dict[str, float]:
    """The last look at dev tasks of each arm, from the run's log."""
    out: dict[str, float] = {}
    for line in read_jsonl(run.dir / "metrics.jsonl"):
        if line["stage"] in config.arms:
            found = {name: value for name, value in line.items() if name.startswith("eval/") and value is not None}
            out |= {f"dev/{line['stage']}/{name.removeprefix('eval/')}": float(x) for name, x in found.items()}
    return out


def _tables(run: Run, config: Full, looks: dict[str, float]) -> list[Table]:
    courses = {name: course(run, name, config.steps) for name in config.arms}
    shares = ("success", "consistency", "formed", "long")
    return [
        Table(
            f"Dev problems at the end, at T={config.temperature:g}",
            ("arm", "accuracy", "one language", "in form", "long", "tokens"),
            [
                [name, *(percent(looks[f"dev/{name}/{key}"]) for key in shares), round(looks[f"dev/{name}/length"], 1)]
                for name in config.arms
            ],
        ),
        Table(
            "Training",
            ("arm", "entropy", "clipped", "no signal", "seconds a step"),
            [
                [name, round(c.entropy, 3), _share(c.clipped), percent(c.uniform), round(c.step_seconds, 2)]
                for name, c in courses.items()
            ],
        ),
    ]


def _share(value: float) -> str:
    """As a percentage; a dash where nothing was measured, as no group had signal."""
    return "-" if isnan(value) else percent(value)
