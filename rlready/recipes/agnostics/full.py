"""The full preset: GRPO with the paper's settings, on a local checkpoint and local tasks.

    rlready run agnostics --preset full model=PATH data=TASKS.jsonl language=lua

A task is a record with `description`, `input_format`, `output_format`, perhaps `notes`, and `tests`; `rewrite.py` makes
such records from unit tests. In training a prompt's form is drawn and the language's tips stand in it; in evaluation
the form is the standard one and the tips are dropped.

Left out, and why: generation beside training (a Hugging Face model samples in this process, so no token is stale) and
executors on other machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rlready.curriculum.samplers import Uniform
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError
from rlready.evaluate import Evaluation, evaluate
from rlready.policy.base import OptimizerConfig, Policy, SamplingParams, require_learner
from rlready.recipes.agnostics.judge import PARTIAL, Judge
from rlready.recipes.agnostics.lab import grpo
from rlready.recipes.agnostics.prompts import KEYS, Problem, draw_form, write_prompt
from rlready.recipes.local import Local, Start, check, none_empty, policy_of
from rlready.recipes.study import Study
from rlready.rewards.code import Language, language
from rlready.rollout.collect import Collector
from rlready.run import Run
from rlready.run_files import read_jsonl
from rlready.run_report import Report
from rlready.seeds import derive, rng
from rlready.tasks.base import TaskSet
from rlready.train import train
from rlready.types import Task

ARMS = ("GRPO", "GRPO, partial reward")


@dataclass(frozen=True)
class Full(Local):
    """The full preset's settings: the paper's, on a local checkpoint and local tasks.

    Attributes:
        language: a name, or the path of a YAML file.
        arms: which ones to train.
        groups, group_size, temperature, max_tokens, max_len: prompts per batch, programs per prompt, how they are
            sampled, and the most characters of a prompt (the paper cuts prompt and answer at 3000 tokens).
        steps: updates; 0: one pass over the tasks.
        lr, warmup, grad_clip, clip: of RL; warm-up as a share of the updates, then a cosine.
        eval_samples, eval_temperature: of pass@1.
        timeout: seconds of one test.
        workers: programs run at a time; 0: as many as there are cores.
        looks: at dev tasks.
    """

    language: str = "lua"
    arms: tuple[str, ...] = ARMS[:1]
    problem: str = "description"
    answer: str = "tests"
    groups: int = 4
    group_size: int = 32
    temperature: float = 0.7
    max_tokens: int = 1024
    max_len: int = 8000
    steps: int = 0
    lr: float = 5e-6
    warmup: float = 0.1
    grad_clip: float = 0.1
    clip: float = 0.1
    eval_samples: int = 20
    eval_temperature: float = 0.2
    timeout: float = 30.0
    workers: int = 0
    looks: int = 10
    dev_tasks: int = 100
    test_tasks: int = 500


FULL = Full()


def full_of(run: Run, config: Full) -> Report:
    """Train and measure.

    Raises:
        UserError: what `check` refuses, a record that is no task, or there is no such arm.
    """
    c = config
    for name in c.arms:
        if name not in ARMS:
            raise UserError(f"agnostics, preset full: there is no arm {name}; there are {' and '.join(ARMS)}.")
    check(c, "agnostics")
    chosen = language(c.language)
    judge = Judge(chosen, workers=c.workers or None, timeout_s=c.timeout)
    try:
        return _compared(run, c, chosen, judge)
    finally:
        judge.close()


def _compared(run: Run, c: Full, chosen: Language, judge: Judge) -> Report:
    sets = splits_of(run, c, chosen, judge)
    steps = c.steps or max(1, len(sets["train"]) // c.groups)
    optimizer = OptimizerConfig(
        lr=c.lr, warmup=round(c.warmup * steps), schedule="cosine", total=steps, clip=c.grad_clip
    )
    policy = policy_of(run, c, optimizer)
    params = SamplingParams(temperature=c.temperature, max_tokens=c.max_tokens)
    study = Study(
        run, ChatEnv, sets["dev"].head(c.dev_tasks), {"test": sets["test"].head(c.test_tasks)},
        temperatures=(c.eval_temperature,), params=params, samples=c.eval_samples, deadline=c.deadline,
    )  # fmt: skip
    study.arm("start", policy)
    start = Start.of(policy, optimizer)
    for name in c.arms:
        start.again(optimizer)
        paid = TaskSet(sets["train"], judge.reward(PARTIAL if name == ARMS[1] else 0.0), name=sets["train"].name)
        study.arm(name, policy, partial(_train, run, c, policy, paid, sets["dev"], params, steps))
    return run.report(
        f"Agnostics on {sets['train'].name}: {chosen.name}",
        tables=study.tables(),
        metrics=study.metrics() | {f"executed/{chosen.name}": float(judge.executed)},
        notes=[
            f"Model {c.model}; {len(sets['train']):,} tasks to train on, {steps:,} updates. The tuned temperature is "
            f"that of pass@1, {c.eval_temperature:g}, with {c.eval_samples} samples a task.",
            *(f"{name} against the start, pass@1: {study.difference(name, 'start', mode='tuned')}." for name in c.arms),
        ],
        plot="eval/success",
        plots=[study.draw(run.dir / "arms.png")],
    )


def _train(
    run: Run, c: Full, policy: Policy, paid: TaskSet, dev: TaskSet, params: SamplingParams, steps: int
) -> str | None:
    some = dev.head(c.dev_tasks)

    async def look(watched: Policy) -> Evaluation:
        return await evaluate(watched, some, ChatEnv, params=params, seed=run.seed, deadline=c.deadline)

    require_learner(policy)
    collector = Collector(
        policy, ChatEnv, paid, Uniform(paid, derive(run.seed, "prompts")), group_size=c.group_size, params=params,
        seed=derive(run.seed, "rl"), deadline=c.deadline,
    )  # fmt: skip
    train(
        policy, collector, grpo(c.clip, run.seed), run, steps=steps, groups_per_step=c.groups, evaluator=look,
        eval_every=max(1, steps // c.looks), save_every=max(1, steps // c.looks),
    )  # fmt: skip
    return None


def splits_of(run: Run, config: Full, chosen: Language, judge: Judge) -> dict[str, TaskSet]:
    """The tasks: "train", "dev" and "test"; a task of the test file is left out of the data.

    Raises:
        UserError: a record is no task, or nothing is left to train on or to measure; file and line are named.
    """
    known = read_tasks(config.data, config.max_len)
    held = [problem for file in config.test[:1] for problem in read_tasks(file, config.max_len)]
    asked = {problem.description for problem in held}
    known = [problem for problem in known if problem.description not in asked]

    def posed(problems: list[Problem], *, drawn: bool) -> TaskSet:
        tasks = [_posed(problem, chosen, run.seed, drawn=drawn) for problem in problems]
        unique = list({task.id: task for task in tasks}.values())
        return TaskSet(unique, judge.reward(), name=Path(config.data).stem)

    shares = {"dev": config.held_out, "test": 0.0 if held else config.held_out}
    plain = posed(known, drawn=False).split({"train": 1 - sum(shares.values()), **shares}, key=_asked)
    training = {_asked(task) for task in plain["train"]}
    out = {
        "train": posed([problem for problem in known if problem.description in training], drawn=True),
        "dev": plain["dev"],
        "test": posed(held, drawn=False) if held else plain["test"],
    }
    none_empty(out, config, len(known))
    return out


def read_tasks(file: str, longest: int) -> list[Problem]:
    """The tasks of a JSONL file whose prompts are not too long; further columns are left aside.

    Raises:
        UserError: a record is no task; file and line are named.
    """
    out = []
    for i, record in enumerate(read_jsonl(Path(file)), 1):
        problem = Problem.of({key: record[key] for key in KEYS if key in record}, f"{file}, line {i}")
        if len(write_prompt(problem, "")) <= longest:
            out.append(problem)
    return out


def _posed(problem: Problem, chosen: Language, seed: int, *, drawn: bool) -> Task:
    """A record as a task: in training in a form that is drawn, with the language's tips."""
    form, samples = draw_form(rng(seed, "form", problem.description)) if drawn else ("standard", True)
    prompt = write_prompt(problem, chosen.prompt, form, samples=samples, tips=drawn)
    return Task.of(prompt, **problem.to_json() | {"lang": chosen.name})


def _asked(task: Task) -> str:
    return str(task.data["description"])
