"""`rlready grade`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from rlready.cli.common import QuietOption, complain, out
from rlready.errors import UserError

if TYPE_CHECKING:
    from rlready.rewards.grading import Line, Totals

_STYLE = {"right": "bold green", "wrong": "red", "no_answer": "yellow", "grader_failed": "bold magenta"}
_WORDS = {"right": "right", "wrong": "wrong", "no_answer": "no answer", "grader_failed": "grader failed"}
_SHOWN = 200
_PROBLEMS = 20


def grade(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Records as JSONL; - for standard input.")],
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="Grade the records of this kind, and those that name none.",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help=f"Show every record, not {_SHOWN} of a long file.")] = False,
    unsafe: Annotated[
        bool,
        typer.Option("--unsafe-no-sandbox", help="Run programs with no isolation at all, where none is available."),
    ] = False,
    quiet: QuietOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A line of JSON a record: id, verdict, score, reason.")
    ] = False,
) -> None:
    """Grade a file of answers, and say why each is right, wrong, no answer, or not gradable.

    A record is a line of JSON with `kind`, `prediction` (what the model wrote) and `reference` (the gold); `id` is
    optional. For example:

        {"id": "a", "kind": "math_answer", "prediction": "0.5", "reference": "1/2"}

        {"id": "b", "kind": "mcq_response", "prediction": "The answer is C.", "reference": "C"}

        {"id": "c", "kind": "qa_em", "prediction": "Bonn", "reference": ["Bonn", "Bonn, Germany"]}

    Kinds: math_answer, math_response, mcq_response, qa_em, qa_f1, rouge, chrf, bleu, readability, language, tool_call,
    json_extract, code_stdout, code_value, code_tests, teds, teds_structure, judge_score, aggregate. What each accepts
    is told in docs/verifiers.md. *Grader failed* means that the gold cannot be read or the work met its bound; it is
    never counted as wrong. Where records say `correct`, it is told how often the verdicts agree.

    Lines that cannot be read are named on stderr, and the status is then 2; the others are graded all the same.

    Try:

    - `rlready grade answers.jsonl`
    - `rlready grade answers.jsonl --kind qa_em`
    - `rlready grade answers.jsonl --json > verdicts.jsonl`
    """
    from rlready.progress import ProgressBoard
    from rlready.rewards.grading import Totals, grade_lines
    from rlready.rewards.kinds import kind as kind_of

    if kind is not None:
        kind_of(kind)  # a slip is told before a file is read
    if unsafe:
        from rlready.rewards.code import allow_unsafe

        allow_unsafe()
    totals = Totals()
    shown: list[Line] = []
    problems: dict[str, list[int]] = {}
    board = ProgressBoard("quiet" if quiet else "auto")
    with _opened(file) as (stream, count):
        with board.track("grading", count) as bar:
            for line in grade_lines(_counted(stream, bar), kind):
                if line.problem:
                    problems.setdefault(line.problem, []).append(line.number)
                elif line.graded is not None and as_json:
                    sys.stdout.write(_json_line(line) + "\n")
                elif line.graded is not None and (everything or len(shown) < _SHOWN or _differs(line, shown)):
                    shown.append(line)
                totals.add(line)
        board.close()
    for problem, numbers in list(problems.items())[:_PROBLEMS]:
        complain(f"{file}:{_lines(numbers)}: {problem}")
    if len(problems) > _PROBLEMS:
        complain(f"{file}: {len(problems) - _PROBLEMS} more kinds of problems in other lines.")
    if not as_json:
        _show(file, shown, totals, everything)
    if problems:
        raise typer.Exit(2)
    if not totals.verdicts and not totals.left_out:
        raise UserError(f"{file} holds no record; write one JSON object a line.")
    if not totals.verdicts:
        raise UserError(f'{file} has no record of the kind "{kind}"; its {totals.left_out} are of other kinds.')


@contextmanager
def _opened(file: str) -> Iterator[tuple[IO[bytes] | list[bytes], int]]:
    """The lines of a file, and how many there are."""
    if file == "-":
        lines = sys.stdin.buffer.read().split(b"\n")
        yield lines, len(lines)
        return
    path = Path(file)
    if not path.is_file():
        raise UserError(f"{file} is {'a folder' if path.is_dir() else 'not there'}; name a JSONL file of records.")
    try:
        with path.open("rb") as stream:
            head = stream.read(200).removeprefix(b"\xef\xbb\xbf").lstrip()
            if head.startswith(b"["):
                raise UserError(f"{file} holds one JSON list; write its records one a line, without the brackets.")
            stream.seek(0)
            count = sum(1 for _ in stream)
            stream.seek(0)
            yield stream, count
    except PermissionError:
        raise UserError(f"{file} cannot be read; its permissions do not allow it.") from None


def _counted(lines: IO[bytes] | list[bytes], bar: Any) -> Iterator[bytes]:
    for line in lines:
        yield line
        bar.advance()


def _differs(line: Line, shown: list[Line]) -> bool:
    """Whether a record of a long file is shown, too: its verdict is not what the record says."""
    if line.graded is None or line.correct is None or len(shown) >= 2 * _SHOWN:
        return False
    return line.correct != (line.graded.verdict == "right")


def _json_line(line: Line) -> str:
    graded = line.graded
    assert graded is not None
    score = graded.score if math.isfinite(graded.score) else None
    value = {"id": line.id, "verdict": str(graded.verdict), "score": score, "reason": graded.reason}
    return json.dumps(value)  # in ASCII, so that no reader takes a separator inside a text for a line's end


def _lines(numbers: list[int]) -> str:
    """Some line numbers: 3, or 3, 7, 9 and 4 more."""
    if len(numbers) <= 5:
        return ", ".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[:4]))} and {len(numbers) - 4} more"


def _plain(value: Any) -> str:
    """A text that a terminal shows on one line."""
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(c if c.isprintable() else " " for c in text.encode("utf-8", "replace").decode("utf-8"))


def _show(file: str, shown: list[Line], totals: Totals, everything: bool) -> None:
    console = out()
    if shown:
        table = Table(header_style="bold", expand=True)
        table.add_column("id", overflow="fold", max_width=24)
        table.add_column("kind", overflow="fold", max_width=14)
        table.add_column("verdict", no_wrap=True)
        table.add_column("score", justify="right", no_wrap=True)
        table.add_column("why", overflow="fold", ratio=1)
        for line in shown:
            assert line.graded is not None
            verdict = str(line.graded.verdict)
            score = "-" if math.isnan(line.graded.score) else f"{line.graded.score:.3g}"
            table.add_row(
                Text(_plain(line.id)),
                Text(line.kind),
                Text(_WORDS[verdict], style=_STYLE[verdict]),
                score,
                Text(_plain(line.graded.reason)),
            )
        console.print(table)
    count = sum(sum(v.values()) for v in totals.verdicts.values())
    if count > len(shown) and not everything:
        console.print(
            f"{len(shown):,} of {count:,} records are shown; --all shows all, --json writes them.", style="dim"
        )
    if totals.verdicts:
        console.print(_totals_table(totals))
    if totals.left_out:
        console.print(f"{totals.left_out:,} of other kinds left out.", markup=False, style="dim")
    judged = totals.agree + len(totals.differ)
    if judged:
        said = f"The records say whether they are correct: {totals.agree:,} of {judged:,} verdicts agree"
        differ = ", ".join(_plain(i) for i in totals.differ[:20])
        more = f" and {len(totals.differ) - 20:,} more" if len(totals.differ) > 20 else ""
        console.print(f"{said}{f'; not {differ}{more}' if differ else ''}.", markup=False)


def _totals_table(totals: Totals) -> Table:
    table = Table(header_style="bold")
    table.add_column("total", overflow="fold")
    for word in ("records", *_WORDS.values(), "mean score"):
        table.add_column(word, justify="right", no_wrap=word != "grader failed")
    rows = [(name, [name]) for name in totals.verdicts]
    if len(rows) > 1:
        rows.append(("all", list(totals.verdicts)))
    for name, kinds in rows:
        counts = [sum(totals.verdicts[k].get(v, 0) for k in kinds) for v in _STYLE]  # type: ignore[call-overload]
        mean = totals.mean(kinds)
        cells = [f"{n:,}" for n in (sum(counts), *counts)]
        table.add_row(Text(name), *cells, "-" if mean is None else f"{mean:.3f}", end_section=name == rows[-2:][0][0])
    return table
