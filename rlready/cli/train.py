"""`rlready train` and `rlready eval`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", "-a", help="See `rlready algorithms`; grpo if not given.")
    ] = None,
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
    every task has a list under "choices", answers are limited to it. Without `--env` a task is a question and its
    answer; with it, the environment poses the tasks, gives the reward, and is played at random a little first, to learn
    what words it uses. Ctrl-C once finishes the step and saves; `--resume` goes on.

    Try:

    - `rlready train my_task.py:tasks`
    - `rlready train my_task.py:tasks --algorithm rloo steps=50 optimizer.lr=3e-4`
    - `rlready train my_task.py:tasks --env my_env.py:Thermostat`
    - `rlready train my_task.py:tasks max_lag=2 sampler=process`
    - `rlready train my_task.py:tasks --show-config > my.toml`, then `--config my.toml`
    - `rlready train my_task.py:tasks --resume my_task-1`
    """
    from rlready.cli import build
    from rlready.config import to_dict, to_toml

    build.check_model(model)
    stored = None
    if resume is not None:
        stored, algorithm, env = _resumed(resume, root, tasks, algorithm, env)
    algorithm = (algorithm or "grpo").lower()
    build.check_algorithm(algorithm)
    settings = build.settings_of(algorithm, config, overrides or [], stored)
    build.check_settings(settings, algorithm)
    if show_config:
        print_json(to_dict(settings)) if as_json else typer.echo(to_toml(settings), nl=False)
        return
    subject = build.subject(tasks, env)

    from rlready.run import Run
    from rlready.start import fit

    about: dict[str, Any] = {"tasks": tasks, "algorithm": algorithm, "model": model}
    if env is not None:
        about["env"] = env
    with Run.create(
        subject.name, settings, seed, root=root, resume=resume, progress="quiet" if quiet else "auto",
        **about,
    ) as run:  # fmt: skip
        use_threads(run)
        policy = build.policy_of(subject, settings, run.seed, run.dir)
        build.check_lengths(subject, policy, settings.max_tokens)
        sizes = ", ".join(f"{len(t)} {name}" for name, t in subject.splits.items())
        split = sizes if subject.cut else f"{len(subject.splits['train'])} tasks, too few to split: dev is train"
        run.say(f"{run.dir}: {algorithm} on {tasks} ({split}), {policy.config.vocab_size} tokens, seed {run.seed}")
        fit(
            subject.splits["train"], subject.env, build.algorithm_of(settings, algorithm), policy=policy,
            dev=subject.splits["dev"], run=run, steps=settings.steps, groups=settings.groups,
            group_size=settings.group_size, temperature=settings.temperature, max_tokens=settings.max_tokens,
            max_steps=settings.max_steps, deadline=settings.deadline, max_failures=settings.max_failures,
            eval_every=settings.eval_every, save_every=settings.save_every, max_lag=settings.max_lag,
            sampler=settings.sampler,
        )  # fmt: skip
        policy.save(run.dir / "model")
        report = _report(run)
    if as_json:
        print_json({"run": str(run.dir), **report})
        return
    console = out()
    for name, value in report["metrics"].items():
        console.print(f"{_SAID.get(name, name)}: {value:.3g}", markup=False)
    for note in report["notes"]:
        console.print(note, markup=False)
    where = "" if root == "runs" else f" --root {root}"
    console.print(f"Evaluate it:         rlready eval {run.name}{where}", markup=False, soft_wrap=True)
    console.print(
        f"See what it does:    rlready runs show {run.name} --trajectory worst{where}", markup=False, soft_wrap=True
    )


_SAID = {
    "reward": "mean reward of the last step",
    "success": "success in the last step",
    "eval/success": "success on dev, greedy",
    "eval/reward": "mean reward on dev, greedy",
}


def _resumed(
    resume: str, root: str, tasks: str, algorithm: str | None, env: str | None
) -> tuple[dict[str, Any], str, str | None]:
    """Settings, algorithm and environment of a run that is gone on with; what is given must be what it was.

    Raises:
        UserError: the run is another's.
    """
    from rlready.cli import build
    from rlready.config import read_toml
    from rlready.run_folder import find_run, read_header

    folder = find_run(resume, root)
    header = read_header(folder)
    if "tasks" not in header or "algorithm" not in header:
        how = (
            f"rlready run {header['recipe']} --resume {folder.name}"
            if "recipe" in header
            else "the script that made it"
        )
        raise UserError(f"Run {folder.name} was not made by rlready train. Go on with it by {how}.")
    then = {"tasks": header["tasks"], "--algorithm": header["algorithm"], "--env": header.get("env")}
    given = {"tasks": tasks, "--algorithm": algorithm and algorithm.lower(), "--env": env}
    for key, value in given.items():
        if value is not None and not build.same_target(str(then[key]), value):
            raise UserError(
                f"Run {folder.name} was made with {key} {then[key] or 'not given'}, and now it is {value}. Resume with "
                "the same, or start a new run."
            )
    return read_toml(folder / "config.toml").get("config", {}), header["algorithm"], header.get("env")


def _report(run: Any) -> dict[str, Any]:
    from rlready.run_read import load_run

    metrics = load_run(run.dir).metrics
    last = {k: float(metrics[k][-1]) for k in ("reward", "success", "eval/success", "eval/reward") if k in metrics}
    notes = []
    if run.noted("algorithm") in ("grpo", "rloo") and "uniform" in metrics and (metrics["uniform"] == 1).all():
        notes.append(
            "Nothing was learned: in no group did two episodes earn different rewards. rlready doctor says what "
            "trivial answers earn; easier tasks, or a larger group_size, give something to compare."
        )
    report: dict[str, Any] = run.report(f"{run.name}: {run.noted('algorithm')}", metrics=last, notes=notes).to_json()
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
    from rlready.aio import run_sync
    from rlready.cli import build
    from rlready.evaluate import evaluate as evaluate_policy
    from rlready.policy.base import SamplingParams

    restored = build.restore(name, root)
    settings, subject, policy = restored.settings, restored.subject, restored.policy
    if split not in subject.splits:
        raise did_you_mean("split", split, subject.splits)
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
            deadline=settings.deadline,
        )
    )
    if as_json:
        print_json({"run": restored.name, "step": restored.step, "split": split, **result.to_json()})
        return
    how = "greedy" if temperature == 0 else f"temperature {temperature:g}"
    shared = "" if subject.cut else " (too few tasks to split: these are the training tasks)"
    out().print(f"{restored.name}, step {restored.step}, {split}{shared}, {how}: {result}", markup=False)
