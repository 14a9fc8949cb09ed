"""`rlready dream train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

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
from rlready.errors import UserError

if TYPE_CHECKING:
    from rlready.dream.gym import Gym
    from rlready.dreaming.outcome import Outcome
    from rlready.dreaming.rounds import RealSide
    from rlready.run import Run
    from rlready.tasks.base import TaskSet
    from rlready.tasks.scoring import RewardFn

RealOption = Annotated[
    str | None,
    typer.Option("--real", help="The real environment, such as my_env.py:Desk.", show_default=False),
]
TasksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks",
        help="Real tasks, such as my_env.py:tasks; may be given again. Those that the gym does not train on are held "
        "out. Not given: the logged tasks.",
        show_default=False,
    ),
]


def train(
    gym: Annotated[Path, typer.Argument(metavar="GYM", help="The folder that `rlready dream fit` made.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as steps=60 grpo.kl=0.01.", show_default=False),
    ] = None,
    policy: Annotated[
        str,
        typer.Option("--policy", "-p", help="tiny (from scratch), hf:NAME with LoRA, or the folder of a saved policy."),
    ] = "tiny",
    algorithm: Annotated[str, typer.Option("--algorithm", "-a", help="See `rlready algorithms`.")] = "grpo",
    real: RealOption = None,
    tasks: TasksOption = None,
    real_budget: Annotated[
        int | None,
        typer.Option("--real-budget", min=0, help="Most real transitions, all purposes together.", show_default=False),
    ] = None,
    verifier: Annotated[
        str | None,
        typer.Option("--verifier", help="Your own score, such as my_task.py:score.", show_default=False),
    ] = None,
    reward_source: Annotated[
        str | None,
        typer.Option(
            "--reward-source", help="model, criteria, verifier or both; the gym's own if not given.", show_default=False
        ),
    ] = None,
    min_confidence: Annotated[
        float | None,
        typer.Option("--min-confidence", help="Replies below this end or mask an episode.", show_default=False),
    ] = None,
    perturb: Annotated[
        list[str] | None,
        typer.Option("--perturb", help="Trouble on purpose, such as error=0.05; again for more.", show_default=False),
    ] = None,
    simulator: Annotated[
        str | None, typer.Option("--simulator", help="Another simulator than the gym's own.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Train although the gate is closed; recorded.")] = False,
    config: ConfigOption = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    resume: ResumeOption = None,
    show_config: ShowConfigOption = False,
    root: RootOption = "runs",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train an agent in a gym, and check it in the real environment.

    First the gate: the dream must be deterministic, speak the deployment's own form and refuse invalid actions. Then
    filtered cloning on the recorded successes; where that alone is enough, there is no RL. Then RL in groups in the
    dream, measured against reality as it goes. Real transitions are a counted budget: the check on the full held-out
    set before and after is paid first, the rest goes to checks on the way, to real rounds and to repairing the
    simulator. The last line is the real, paired difference, or says that there is none.

    Try:

    - `rlready dream train gym --real my_env.py:Desk --tasks my_env.py:test_tasks --real-budget 3000`
    - `rlready dream train gym --policy hf:my-model-folder steps=20 groups=8`
    - `rlready dream train gym --resume gym-1`
    - `rlready dream train gym --show-config > my.toml`, then `--config my.toml`
    """
    from dataclasses import field, make_dataclass

    from rlready.algorithms import ALGORITHMS
    from rlready.cli import build
    from rlready.config import load, to_dict, to_toml
    from rlready.dream.gym import Gym
    from rlready.dream.perturb import Perturb
    from rlready.dreaming.agent import check_policy, policy_of
    from rlready.dreaming.train import DreamTrainConfig, train_in_dream
    from rlready.run import Run
    from rlready.seeds import derive

    algorithm = algorithm.lower()
    build.check_algorithm(algorithm)
    kind = ALGORITHMS[algorithm]
    own: Any = kind() if algorithm == "ppo" else kind(minibatches=2)
    settings_type = make_dataclass(
        "DreamTrainConfig",
        [(build.table_of(algorithm), kind, field(default_factory=lambda: own))],
        bases=(DreamTrainConfig,),
        frozen=True,
    )
    settings: Any = load(settings_type, config, build.spelled(algorithm, overrides or []), table=_stored(resume, root))
    if show_config:
        print_json(to_dict(settings)) if as_json else typer.echo(to_toml(settings), nl=False)
        return
    options: dict[str, Any] = {"reward_source": reward_source, "min_confidence": min_confidence}
    options = {name: value for name, value in options.items() if value is not None}
    if perturb:
        options["perturb"] = [Perturb.parse(text) for text in perturb]
    check_policy(policy)
    loaded = Gym.load(gym, simulator=simulator, **options)
    score = _verifier(verifier)
    loaded.tasks("train", verifier=score)  # whether the reward source has what it needs
    side = real_side(loaded, real, tasks or [])
    about: dict[str, Any] = {
        "gym": str(gym), "policy": policy, "algorithm": algorithm, "real": real, "simulator": loaded.simulator.name,
        "reward_source": loaded.reward_source, "fingerprint": loaded.domain.fingerprint,
        "recordings": f"{derive(*loaded.library):016x}", "tasks": tasks or None, "verifier": verifier,
        "real_budget": real_budget, "min_confidence": loaded.min_confidence or None,
        "perturb": [str(p) for p in loaded.perturb] or None,
    }  # fmt: skip
    with Run.create(
        Path(gym).resolve().name, settings, seed, root=root, resume=resume, progress="quiet" if quiet else "auto",
        **{k: v for k, v in about.items() if v is not None},
    ) as run:  # fmt: skip
        if resume is not None:
            _same(run, about)
        use_threads(run)
        agent, cloned = policy_of(policy, loaded, settings, run.seed, run.dir)
        run.say(
            f"{run.dir}: {algorithm} in {gym} ({loaded.simulator.name}, reward by {loaded.reward_source}), "
            f"seed {run.seed}"
        )
        outcome = train_in_dream(
            loaded, agent, build.algorithm_of(settings, algorithm), run, settings, real=side, budget=real_budget,
            verifier=score, force=force, cloned=cloned,
        )  # fmt: skip
        if hasattr(agent, "save"):
            agent.save(run.dir / "model")
        report = _report(run, outcome)
    if as_json:
        print_json({"run": str(run.dir), **report})
        return
    console = out()
    for line in report["notes"]:
        console.print(line, markup=False)
    where = "" if root == "runs" else f" --root {root}"
    console.print(
        f"See what it does:    rlready runs show {run.name} --trajectory worst{where}", markup=False, soft_wrap=True
    )
    console.print(outcome.last_line, markup=False, soft_wrap=True)


def real_side(gym: Gym, real: str | None, tasks: list[str]) -> RealSide | None:
    """The real environment with its tasks, from what the command line names.

    Raises:
        UserError: tasks without an environment, or one of them cannot be loaded.
    """
    if real is None:
        if tasks:
            raise UserError("--tasks names real tasks, but there is no --real environment to play them in.")
        return None
    from rlready.cli import build
    from rlready.dreaming.rounds import RealSide

    found = build.load_object(real, default="env")
    if not callable(found):
        raise UserError(
            f"{real} is no environment: a subclass of rlready.Env, or a function that makes one, is wanted."
        )
    return RealSide.of(gym, found, _all(tasks))


def _all(targets: list[str]) -> TaskSet | None:
    """The tasks of several task sets as one; the first one's score grades them all."""
    from rlready.cli import build
    from rlready.tasks.base import TaskSet

    if not targets:
        return None
    sets: list[TaskSet] = []
    for target in targets:
        found = build.load_object(target, default="tasks")
        if not isinstance(found, TaskSet):
            raise UserError(f"{target} is of type {type(found).__name__}; a TaskSet is wanted.")
        sets.append(found)
    whole = TaskSet({t.id: t for s in sets for t in s}.values(), name="+".join(s.name for s in sets))
    whole.scorer = sets[0].scorer
    return whole


def _verifier(target: str | None) -> RewardFn | None:
    if target is None:
        return None
    from rlready.cli import build

    found = build.load_object(target, default="score")
    if not callable(found):
        raise UserError(f"{target} is no score: a function of (task, trajectory) is wanted.")
    return cast("RewardFn", found)


def _stored(resume: str | None, root: str) -> dict[str, Any] | None:
    if resume is None:
        return None
    from rlready.config import read_toml
    from rlready.run_folder import find_run

    found: dict[str, Any] = read_toml(find_run(resume, root) / "config.toml").get("config", {})
    return found


def _same(run: Run, about: dict[str, Any]) -> None:
    """Refuse to go on in another gym, with another policy or against another reality.

    Raises:
        UserError: names what differs.
    """
    for key, value in about.items():
        then = run.noted(key)
        if then == value:
            continue
        if key == "recordings":
            raise UserError(f"The gym holds other recordings than when run {run.name} began. Start a new run.")
        before, now = (_said(v) for v in (then, value))
        raise UserError(f"Run {run.name} was made with {key} {before}, and now it is {now}. Resume with the same.")


def _said(value: Any) -> str:
    """A fact in words."""
    if value is None:
        return "not given"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _report(run: Run, outcome: Outcome) -> dict[str, Any]:
    """Write the run's report; returns it JSON-ready."""
    metrics: dict[str, float] = {f"dream/{name}": value for name, value in outcome.dream.items()}
    notes = []
    if outcome.forced:
        notes.append(f"The gate was forced past: {', '.join(outcome.forced)}.")
    if outcome.skipped:
        notes.append(outcome.skipped)
    if outcome.halted:
        notes.append(f"Training halted: {outcome.halted.rstrip('.')}. The last healthy checkpoint was kept.")
    checks = [("filtered cloning, greedy", outcome.clone), ("after RL in the dream, greedy", outcome.trained)]
    if outcome.sampled is not None:
        way = f"sampled at {outcome.sampled.temperature:g}"
        checks += [(f"filtered cloning, {way}", outcome.sampled.clone)]
        checks += [(f"after RL in the dream, {way}", outcome.sampled.trained)]
    for name, found in checks:
        if found is not None:
            metrics[f"real/{name}"] = found.success
            notes.append(f"Real, held out, {name}: {found}")
    said = {"clone": "filtered cloning", "trained": "after RL"}
    notes += [f"In the dream, {said[k]}: {v:.1%} (no evidence by itself)" for k, v in outcome.dream.items()]
    notes.append(f"Spent: {outcome.budget}.")
    if outcome.difference is not None:
        metrics["real/difference, greedy"] = outcome.difference.difference
    if outcome.sampled is not None and outcome.sampled.difference is not None:
        metrics[f"real/difference, sampled at {outcome.sampled.temperature:g}"] = outcome.sampled.difference.difference
    report: dict[str, Any] = run.report(
        f"{run.name}: RL in a dream", metrics=metrics, notes=[*notes, outcome.last_line]
    ).to_json()
    if outcome.difference is not None:
        report["difference"] = {"greedy": outcome.difference.to_json()}
        if outcome.sampled is not None and outcome.sampled.difference is not None:
            report["difference"]["sampled"] = outcome.sampled.difference.to_json()
    report["notes"] = notes
    report["result"] = outcome.last_line
    return report
