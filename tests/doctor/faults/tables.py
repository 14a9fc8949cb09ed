"""The tables and the example of `docs/doctor.md`, made from the catalogue, the registry and a real run.

python -m tests.doctor.faults.tables    writes them; a test says when they are out of date.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from rlready.cli import app
from rlready.doctor import CHECKS
from tests.doctor.faults.world import all_faults

PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"
EXAMPLE = """# quiz.py
import rlready as rl

animals = {"barks": "dog", "meows": "cat", "moos": "cow", "neighs": "horse"}
records = [
    {"question": f"which animal {sound} in yard {yard}", "answer": animal}
    for sound, animal in animals.items()
    for yard in range(12)
]


def right(task, trajectory):
    return task.data["answer"] in trajectory.turns[-1].text


tasks = rl.TaskSet.from_records(records, prompt="question", score=right)
"""


def checks() -> str:
    """Every check, by area."""
    rows = ["| area | check | finds | why it matters | the mend |", "|---|---|---|---|---|"]
    rows += [f"| {c.area} | **{name}** | {c.finds} | {c.why} | {c.mend} |" for name, c in CHECKS.items()]
    return "\n".join(rows)


def _place(build: Any) -> tuple[str, int]:
    return build.__module__, build.__code__.co_firstlineno


def faults() -> str:
    """Every public fault that is planted in the tests, by check."""
    order = list(CHECKS)
    rows = ["| reported in | what went wrong | the doctor says |", "|---|---|---|"]
    for fault in sorted(all_faults(), key=lambda f: (order.index(f.check), *_place(f.build))):  # not by import order
        also = "" if fault.level == "error" else " (warning)"
        rows.append(f"| {fault.source} | {fault.says} | {fault.check}{also} |")
    return "\n".join(rows)


def example() -> str:
    """A run of the command on the example, as printed."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.chdir(folder)
            Path("quiz.py").write_text(EXAMPLE)
            result = CliRunner().invoke(app, ["doctor", "quiz.py:tasks", "max_tokens=6"])
        finally:
            os.chdir(here)
    lines = "\n".join(line.rstrip() for line in result.stdout.rstrip().split("\n"))
    return f"```\n$ rlready doctor quiz.py:tasks max_tokens=6\n{lines}\n$ echo $?\n{result.exit_code}\n```"


def replaced(page: str, name: str, text: str) -> str:
    """The page with another text between a pair of markers."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.S)
    assert pattern.search(page), f"{PAGE.name} lacks {begin}"
    return pattern.sub(lambda _: f"{begin}\n{text}\n{end}", page)


def main() -> None:
    """Write them."""
    page = PAGE.read_text(encoding="utf-8")
    source = f"```python\n{EXAMPLE.rstrip()}\n```"
    for name, text in (("checks", checks()), ("faults", faults()), ("source", source), ("example", example())):
        page = replaced(page, name, text)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
