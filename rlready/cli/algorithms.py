"""`rlready algorithms`."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from rlready.cli.common import JsonOption, out, print_json
from rlready.errors import did_you_mean

_COLUMNS = {
    "name": "name", "credit": "credit", "ratio": "ratio", "clip": "clip", "average": "average", "kl": "KL",
    "paper": "paper", "when": "when to use it",
}  # fmt: skip
_WIDE = 140


def algorithms(
    name: Annotated[str | None, typer.Argument(help="Show one algorithm's settings.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """List the algorithms, or the settings of one with their sources.

    Each is a combination: credit x ratio x clip x average x KL. Numbers of papers are arXiv ids. With `r` a reward, `m`
    and `s` are mean and deviation of its group. Measured learning curves of all are in docs/algorithms.md.

    Try:

    - `rlready algorithms`
    - `rlready algorithms grpo`
    - `rlready train my_task.py:tasks --algorithm rloo rloo.epochs=2`
    """
    from rlready.algorithms import ALGORITHMS
    from rlready.algorithms.about import facts, settings

    if name is not None and name.lower() not in ALGORITHMS:
        raise did_you_mean("algorithm", name, ALGORITHMS)
    chosen = [name.lower()] if name else list(ALGORITHMS)
    rows = {each: facts(each) for each in chosen}
    if as_json:
        print_json({
            each: {
                "about": _about(ALGORITHMS[each]), **rows[each],
                "settings": {key: setting["default"] for key, setting in settings(each).items()},
                "sources": {key: setting["about"] for key, setting in settings(each).items()},
            }
            for each in chosen
        })  # fmt: skip
        return
    console = out()
    if name is None:
        console.print(_table(list(rows.values()), console.width))
        console.print("\nThe settings of one, with their sources: rlready algorithms grpo")
        return
    _show(chosen[0], rows[chosen[0]], settings(chosen[0]))


def _table(rows: list[dict[str, Any]], width: int) -> Table:
    """One line an algorithm; on a narrow terminal the combination is one column and papers are left out."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    parts = ("credit", "ratio", "clip", "average", "kl")
    narrow = width < _WIDE
    titles = ["name", " x ".join(_COLUMNS[part] for part in parts), "when to use it"] if narrow else _COLUMNS.values()
    for title in titles:
        table.add_column(title, style="cyan" if title == "name" else "", overflow="fold", no_wrap=title == "name")
    for row in rows:
        every = [row["name"], "; ".join(row[part] for part in parts), row["when"]]
        table.add_row(*(every if narrow else (str(row[key]) for key in _COLUMNS)))
    return table


def _show(name: str, row: dict[str, Any], settings: dict[str, dict[str, Any]]) -> None:
    from rlready.algorithms import ALGORITHMS

    console = out()
    console.print(_about(ALGORITHMS[name]), markup=False, soft_wrap=True)
    for key, title in list(_COLUMNS.items())[1:]:
        console.print(f"{title + ':':16}{row[key]}", markup=False, soft_wrap=True)
    own = {key: setting for key, setting in settings.items() if setting["own"]}
    for title, some in (
        ("Settings of its own, with their defaults:", own),
        ("Settings that it shares with others:", {k: s for k, s in settings.items() if k not in own}),
    ):
        if some:
            console.print(f"\n{title}", style="bold")
        for key, setting in some.items():
            value = setting["default"]
            shown = f'"{value}"' if isinstance(value, str) else "none" if value is None else value
            console.print(Text(f"  {name}.{key} = {shown}", style="cyan"), soft_wrap=True)
            if setting["about"]:
                console.print(f"      {setting['about']}", markup=False, soft_wrap=True)


def _about(kind: type) -> str:
    """The first paragraph of a class's own docstring; of its module's where that only speaks of attributes."""
    said = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:")[0].strip()
    if said.startswith("Attributes beyond") or not said:
        module = inspect.getmodule(kind)
        said = ((module.__doc__ if module else "") or "").strip().partition("\n\n")[0]
    return said
