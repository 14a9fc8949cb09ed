"""`rlready values`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlready.cli.common import JsonOption, QuietOption, RootOption, out, print_json
from rlready.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from rlready.algorithms import Algorithm
    from rlready.cli.build import Restored
    from rlready.rollout.steps import StepRule


def values(
    name: Annotated[str, typer.Argument(metavar="RUN", help="A run made by `rlready train`, by name or path.")],
    split: Annotated[str, typer.Option(help="train, dev or test: the tasks whose states are looked at.")] = "dev",
    steps: Annotated[
        Literal["auto", "line", "math", "separator", "every"],
        typer.Option(help="How answers are cut. auto: as the run's vineppo, else by line, else every few tokens."),
    ] = "auto",
    separator: Annotated[str, typer.Option(help="The token that ends a step, for --steps separator.")] = "",
    answer: Annotated[str, typer.Option(help="What a final answer begins with; it is no step of its own.")] = "####",
    size: Annotated[int, typer.Option(min=1, help="Tokens per step, for --steps every.")] = 4,
    k: Annotated[str, typer.Option(help="Samples per estimate, several by comma.")] = "1,3,9",
    rollouts: Annotated[int, typer.Option(min=2, help="Samples per ground truth.")] = 256,
    states: Annotated[int, typer.Option(min=1, help="States whose value is predicted.")] = 64,
    choices: Annotated[int, typer.Option(min=0, help="States at which next steps are ranked; 0: none.")] = 32,
    batches: Annotated[int, typer.Option(min=0, help="Batches whose gradients are compared; 0: none.")] = 8,
    also: Annotated[
        str, typer.Option(help="Other algorithms whose gradient to compare with, by comma, such as rloo,vineppo.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Of all that is sampled.")] = 0,
    root: RootOption = "runs",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure how good a run's value estimates are, and what they do to its gradient.

    Estimators are fresh rollouts (k of them) and, where the run has one, its critic. They are compared with a ground
    truth of many rollouts: error by position, and which of two next steps is better. Then the gradient of the run's
    algorithm over several batches of the same policy: the less it varies, the better the credit. Nothing is learned;
    `values.json` and `values.png` are written into the run's folder.

    Try:

    - `rlready values my_task-1`
    - `rlready values my_task-1 --also rloo,vineppo`
    - `rlready values my_task-1 --steps separator --separator ";" --rollouts 1024`
    """
    from rlready.aio import run_sync
    from rlready.algorithms import PolicyGradient
    from rlready.cli import build
    from rlready.policy.base import SamplingParams
    from rlready.progress import ProgressBoard
    from rlready.rollout.probe import as_graded
    from rlready.run_files import dump_json, write_atomic
    from rlready.values import Sizes, analyse
    from rlready.values.draw import draw

    restored = build.restore(name, root)
    tasks = restored.subject.splits.get(split)
    if tasks is None:
        raise did_you_mean("split", split, restored.subject.splits)
    settings, policy = restored.settings, restored.policy
    params = SamplingParams(
        temperature=settings.temperature, max_tokens=settings.max_tokens, stop_ids=policy.renderer.stop_ids
    )
    board = ProgressBoard("quiet" if quiet else "auto")
    rule = _rule(restored, steps, separator, answer, size, params)
    board.say(f"{restored.name}, step {restored.step}: answers to {split} tasks are cut by the rule {rule.kind}.")
    sizes = Sizes(
        states=states, choices=choices, rollouts=rollouts, k=_numbers(k), batches=batches, groups=settings.groups,
        group_size=settings.group_size,
    )  # fmt: skip
    trained = restored.algorithm
    reward = trained.reward if isinstance(trained, PolicyGradient) else as_graded
    compared = _algorithms(restored, also, rule, params) if batches else {}
    try:
        found = run_sync(
            analyse(
                policy, tasks, restored.subject.env, compared, rule=rule, params=params, seed=seed, sizes=sizes,
                with_critic=restored.algorithm.needs_values, reward=reward,
                board=board,
            )
        )  # fmt: skip
    finally:
        board.close()
    record: dict[str, Any] = {
        "run": restored.name, "step": restored.step, "split": split, "seed": seed, "steps": rule, "sizes": sizes,
        **found.to_json(),
    }  # fmt: skip
    folder = restored.folder
    write_atomic(folder / "values.json", dump_json(_plain(record), indent=1))
    draw(folder / "values.png", found, title=f"{restored.name}, step {restored.step}")
    if as_json:
        print_json(_plain(record))
        return
    console = out()
    for table in found.tables():
        console.print(table.to_rich(console.width))
    for note in found.notes:
        console.print(note, markup=False)
    console.print(f"Written: {folder / 'values.json'}, {folder / 'values.png'}", markup=False, soft_wrap=True)


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    from rlready.config import to_dict

    return record | {"steps": to_dict(record["steps"]), "sizes": to_dict(record["sizes"])}


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise UserError(f'--k is "{text}"; give whole numbers of at least 1, such as 1,3,9.')
    return found


def _rule(restored: Restored, steps: str, separator: str, answer: str, size: int, params: Any) -> StepRule:
    """The rule asked for; for "auto" the run's own, else lines where answers have them, else every few tokens."""
    from rlready.aio import run_sync
    from rlready.algorithms.vine import VinePPO
    from rlready.rollout.steps import StepRule
    from rlready.values import visit

    if steps != "auto":
        return StepRule(steps, separator=separator, answer=answer, size=size)  # type: ignore[arg-type]
    if isinstance(restored.algorithm, VinePPO):
        return restored.algorithm.steps
    rule = StepRule("line", answer=answer)
    some, env = restored.subject.splits["train"].head(32), restored.subject.env
    try:
        run_sync(visit(restored.policy, some, env, rule=rule, params=params, seed=0, first=False))
    except UserError:
        return StepRule("every", size=size)
    return rule


def _algorithms(restored: Restored, also: str, rule: StepRule, params: Any) -> dict[str, Algorithm]:
    """The run's algorithm and those to compare with, bound to its tasks."""
    from dataclasses import replace

    from rlready.algorithms import algorithm
    from rlready.algorithms.vine import VinePPO
    from rlready.policy.base import require_learner

    chosen = {restored.algorithm_name: restored.algorithm}
    chosen |= {name.strip(): algorithm(name.strip()) for name in also.split(",") if name.strip()}
    out: dict[str, Algorithm] = {}
    for name, each in chosen.items():
        if isinstance(each, VinePPO) and each is not restored.algorithm:
            each = replace(each, steps=rule)
        out[name] = each.bind(restored.subject.splits["train"], restored.subject.env, params)
    if any(each.needs_reference for each in out.values()) and not restored.algorithm.needs_reference:
        # Only for an algorithm to compare with: its penalty's gradient is not counted, but its formula is run.
        require_learner(restored.policy).freeze_reference()
    return out
