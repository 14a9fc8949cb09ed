"""`rlready train`, `rlready eval` and `rlready algorithms`."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.text import Text

from rlready.cli.common import (
    ConfigOption,
    JsonOption,
    QuietOption,
    ResumeOption,
    RootOption,
    ShowConfigOption,
    out,
    print_json,
    use_threads,
)
from rlready.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from rlready.evaluate import Evaluation

EnvOption = Annotated[
    str | None, typer.Option("--env", help="An environment, such as my_env.py:Thermostat.", show_default=False)
]


def train(
    tasks: Annotated[str, typer.Argument(help="A task set: my_task.py:tasks.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as steps=50 grpo.kl=0.01.", show_default=False),
    ] = None,
    algorithm: Annotated[str, typer.Option("--algorithm", "-a", help="See `rlready algorithms`.")] = "grpo",
    model: Annotated[
        str, typer.Option("--model", "-m", help="tiny: a small transformer from scratch, on the CPU.")
    ] = "tiny",
    env: EnvOption = None,
    config: ConfigOption = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    resume: ResumeOption = None,
    show_config: ShowConfigOption = False,
    root: RootOption = "runs",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a model on a task of your own.

    The task set is a Python object: `rlready.TaskSet.from_jsonl("questions.jsonl", prompt="question", score=...)`. It
    is cut into train, dev and test by a hash of each task; the model learns on train and is evaluated on dev. Where
    every task has a list under "choices", answers are limited to it.

    Try:

    - `rlready train my_task.py:tasks`
    - `rlready train my_task.py:tasks --algorithm rloo steps=50 optimizer.lr=3e-4`
    - `rlready train my_task.py:tasks --env my_env.py:Thermostat`
    - `rlready train my_task.py:tasks --show-config > my.toml`
    """
    from rlready.cli import build
    from rlready.config import load, read_toml, to_dict, to_toml
    from rlready.run_folder import find_run

    build.check_model(model)
    build.check_algorithm(algorithm)
    kind = build.config_type(algorithm)
    stored = None if resume is None else read_toml(find_run(resume, root) / "config.toml").get("config", {})
    settings = load(kind, config, overrides or [], table=stored)
    if show_config:
        print_json(to_dict(settings)) if as_json else typer.echo(to_toml(settings), nl=False)
        return
    subject = build.subject(tasks, env)

    from rlready.curriculum.samplers import Uniform
    from rlready.evaluate import evaluate as evaluate_policy
    from rlready.policy.base import SamplingParams
    from rlready.rollout.collect import Collector
    from rlready.run import Run
    from rlready.train import train as train_policy

    about: dict[str, Any] = {"tasks": tasks, "algorithm": algorithm.lower(), "model": model}
    if env is not None:
        about["env"] = env
    with Run.create(
        subject.name, settings, seed, root=root, resume=resume, progress="quiet" if quiet else "auto",
        **about,
    ) as run:  # fmt: skip
        use_threads(run)
        policy = build.tiny_policy(subject, settings, run.seed)
        sizes = ", ".join(f"{len(t)} {name}" for name, t in subject.splits.items())
        split = sizes if subject.cut else f"{len(subject.splits['train'])} tasks, too few to split: dev is train"
        run.say(
            f"{run.dir}: {algorithm.lower()} on {tasks} ({split}), {policy.config.vocab_size} tokens, seed {run.seed}"
        )
        params = SamplingParams(
            temperature=settings.temperature, max_tokens=settings.max_tokens, stop_ids=policy.renderer.stop_ids
        )
        collector = Collector(
            policy, subject.env, subject.splits["train"], Uniform(subject.splits["train"], run.seed),
            group_size=settings.group_size, params=params, max_steps=settings.max_steps, seed=run.seed,
        )  # fmt: skip
        greedy = dataclasses.replace(params, temperature=0.0)
        train_policy(
            policy, collector, build.algorithm_of(settings, algorithm), run,
            steps=settings.steps, groups_per_step=settings.groups, eval_every=settings.eval_every,
            save_every=settings.save_every,
            evaluator=lambda p: evaluate_policy(
                p, subject.splits["dev"], subject.env, params=greedy, max_steps=settings.max_steps, seed=run.seed
            ),
        )  # fmt: skip
        policy.save(run.dir / "model")
        report = _report(run)
    if as_json:
        print_json({"run": str(run.dir), **report})
        return
    console = out()
    for name, value in report["metrics"].items():
        console.print(f"{name}: {value:.3g}", markup=False)
    console.print(
        f"Evaluate it: rlready eval {run.name}. See what it does: rlready runs show {run.name} --trajectory worst"
    )


def _report(run: Any) -> dict[str, Any]:
    from rlready.run_read import load_run

    metrics = load_run(run.dir).metrics
    last = {k: float(metrics[k][-1]) for k in ("reward", "success", "eval/success", "eval/reward") if k in metrics}
    report: dict[str, Any] = run.report(f"{run.name}: {run._header['algorithm']}", metrics=last).to_json()
    return report


def evaluate(
    name: Annotated[str, typer.Argument(metavar="RUN", help="A run made by `rlready train`, by name or path.")],
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "test",
    samples: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 decodes greedily.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the environment and of sampling.")] = 0,
    root: RootOption = "runs",
    as_json: JsonOption = False,
) -> None:
    """Evaluate a trained model: success with its 95% interval.

    Episodes whose environment or grader failed are left out and counted, never taken for wrong answers.

    Try:

    - `rlready eval my_task-1`
    - `rlready eval my_task-1 --split test --samples 8 --temperature 1`
    """
    from rlready.run_read import load_run

    loaded = load_run(name, root)
    if "tasks" not in loaded.header:
        raise UserError(
            f"Run {loaded.name} was made by a recipe, which measures itself: rlready runs show {loaded.name}."
        )
    folders = sorted(loaded.dir.glob("checkpoints/run/step-*"))
    if not folders:
        raise UserError(f"Run {loaded.name} has no checkpoint yet.")

    from rlready.aio import run_sync
    from rlready.checkpoint import Stateful, load_checkpoint
    from rlready.cli import build
    from rlready.config import load
    from rlready.evaluate import evaluate as evaluate_policy
    from rlready.policy.base import SamplingParams, require_learner

    header = loaded.header
    settings = load(build.config_type(header["algorithm"]), table=loaded.config)
    subject = build.subject(header["tasks"], header.get("env"))
    if split not in subject.splits:
        raise did_you_mean("split", split, subject.splits)
    policy = build.tiny_policy(subject, settings, int(header["seed"]))
    record = load_checkpoint(folders[-1], {"learner": cast(Stateful, require_learner(policy))})
    policy.sync()
    params = SamplingParams(temperature=temperature, max_tokens=settings.max_tokens, stop_ids=policy.renderer.stop_ids)
    result: Evaluation = run_sync(
        evaluate_policy(
            policy,
            subject.splits[split],
            subject.env,
            samples=samples,
            params=params,
            seed=seed,
            max_steps=settings.max_steps,
        )
    )
    if as_json:
        print_json({"run": loaded.name, "step": record["step"], "split": split, **result.to_json()})
        return
    how = "greedy" if temperature == 0 else f"temperature {temperature:g}"
    shared = "" if subject.cut else " (too few tasks to split: these are the training tasks)"
    out().print(f"{loaded.name}, step {record['step']}, {split}{shared}, {how}: {result}", markup=False)


def algorithms(
    name: Annotated[str | None, typer.Argument(help="Show one algorithm's settings.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """List the algorithms, or the settings of one.

    Try:

    - `rlready algorithms`
    - `rlready algorithms grpo`
    """
    from rlready.algorithms import ALGORITHMS

    if name is not None and name.lower() not in ALGORITHMS:
        raise did_you_mean("algorithm", name, ALGORITHMS)
    chosen = {name.lower(): ALGORITHMS[name.lower()]} if name else ALGORITHMS
    described: dict[str, dict[str, Any]] = {
        n: {"about": _about(kind), "settings": _fields(kind)} for n, kind in chosen.items()
    }
    if as_json:
        print_json(described)
        return
    console = out()
    for n, facts in described.items():
        console.print(Text.assemble((f"{n:12}", "bold cyan"), "" if name else facts["about"]))
    if name:
        module = inspect.getmodule(ALGORITHMS[name.lower()])
        console.print((module.__doc__ or "").strip() if module else "", markup=False, soft_wrap=True)
        console.print("\nSettings, with their defaults:")
        for key, value in described[name.lower()]["settings"].items():
            shown = f'"{value}"' if isinstance(value, str) else "none" if value is None else value
            console.print(f"  {name.lower()}.{key} = {shown}", markup=False)
    else:
        console.print("\nThe settings of one: rlready algorithms grpo")


def _about(kind: type) -> str:
    module = inspect.getmodule(kind)
    line = ((module.__doc__ if module else kind.__doc__) or "").strip().split("\n")[0]
    name, _, rest = line.partition(": ")
    return rest[:1].upper() + rest[1:] if rest and " " not in name else line


def _fields(kind: type[Any]) -> dict[str, Any]:
    built = kind()
    return {f.name: getattr(built, f.name) for f in dataclasses.fields(built)}
