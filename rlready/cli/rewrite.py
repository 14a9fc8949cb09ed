"""`rlready rewrite`: unit tests become tasks by input and output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rlready.cli.common import JsonOption, out, print_json
from rlready.errors import UserError


def rewrite(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Records as JSONL, with text, code and test_list (as MBPP has).")
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="Who rewrites: URL#MODEL, OpenAI-compatible.")],
    to: Annotated[Path, typer.Option("--out", "-o", help="The tasks, as JSONL.")] = Path("tasks.jsonl"),
    key: Annotated[
        str | None, typer.Option("--key-variable", help="Environment variable with the key.", show_default=False)
    ] = None,
    tries: Annotated[int, typer.Option(min=1, help="Times that a record may be written.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the writer's seeds.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Rewrite tasks that are tested by calling a function, so that programs in any language can be judged.

    A language model writes the task, its tests and an adapter to the reference solution. What the solution does not
    prove in the sandbox is not kept, and counted with its reason.

    Try:

    - `rlready rewrite mbpp.jsonl --model http://localhost:8000/v1#my-model --out tasks.jsonl`
    - `rlready run agnostics --preset full model=PATH data=tasks.jsonl language=lua`
    """
    from rlready.aio import run_sync
    from rlready.endpoint import Endpoint
    from rlready.recipes.agnostics.rewrite import Rewritten
    from rlready.recipes.agnostics.rewrite import rewrite as work
    from rlready.run_files import read_jsonl

    base, _, name = model.partition("#")
    if not base.startswith(("http://", "https://")) or not name:
        raise UserError(f"--model {model} names no model behind an endpoint. Write URL#MODEL.")
    if not file.is_file():
        raise UserError(f"There is no file {file}.")
    records = read_jsonl(file)

    async def main() -> Rewritten:
        endpoint = Endpoint(base, name, key_variable=key, max_tokens=4096)
        try:
            return await work(records, endpoint, tries=tries, seed=seed)
        finally:
            await endpoint.close()

    found = run_sync(main())
    lines = [json.dumps(problem.to_json(), ensure_ascii=False) + "\n" for problem in found.kept]
    to.write_text("".join(lines), encoding="utf-8")
    if as_json:
        print_json(
            {"kept": len(found.kept), "reasons": dict(found.reasons), "rejected": found.rejected, "out": str(to)}
        )
        return
    out().print(f"{to}: {len(found.kept)} of {len(records)} records became tasks.", markup=False)
    for reason, n in found.reasons.most_common():
        out().print(f"  {n} not kept: {reason}", markup=False)
