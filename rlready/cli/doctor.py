"""`rlready doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from rlready.cli.common import JsonOption, out, print_json


def doctor(
    tasks: Annotated[str, typer.Argument(help="A task set: my_task.py:tasks.")],
    env: Annotated[
        str | None, typer.Option("--env", help="An environment, such as my_env.py:Thermostat.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many tasks to look at.")] = 64,
    as_json: JsonOption = False,
) -> None:
    """Check a task set before training: template, mask, reward, and what trivial answers would earn.

    Errors must be mended (exit code 2), warnings deserve a look, notes are measured facts.

    Try:

    - `rlready doctor my_task.py:tasks`
    - `rlready doctor my_task.py:tasks --env my_env.py:Thermostat`
    """
    from rlready.cli import build
    from rlready.doctor import check_mask, check_template
    from rlready.start import dialect
    from rlready.tasks.check import check_taskset

    subject = build.subject(tasks, env)
    some = subject.splits["train"].head(limit)
    renderer = dialect(build.tokenizer(subject))
    default = build.TrainConfig()
    room = None if subject.played else default.tiny.max_len - default.max_tokens
    template = check_template(some.tasks, renderer, room=room)
    reports = [template, check_mask(some.tasks, renderer), check_taskset(some)]
    if env is not None:
        from rlready.envs.check import check_env

        reports.append(check_env(subject.env, some))
    ok = all(report.ok for report in reports)
    if as_json:
        print_json({"tasks": tasks, "ok": ok, "checks": [report.to_json() for report in reports]})
    else:
        console = out()
        for report in reports:
            console.print(str(report), markup=False)
        console.print("Ready to train." if ok else "Mend the errors first.", style="bold green" if ok else "bold red")
    if not ok:
        raise typer.Exit(2)
