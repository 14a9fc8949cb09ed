"""Programs as answers: right where they pass their tests.

Tests come in two forms. Pairs of input and output are for programs in any language, which read standard input and print
(`pool`); texts are function tests in Python, such as assertions (`functions`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlready.errors import UserError
from rlready.rewards.code.answers import find_program
from rlready.rewards.code.functions import run_function_tests, run_function_tests_sync
from rlready.rewards.code.languages import Language, language
from rlready.rewards.code.outputs import TOLERANCE, Compare, check
from rlready.rewards.code.pool import CodePool, shared_pool
from rlready.rewards.code.results import CodeResult, Test
from rlready.rewards.verdict import Graded, failed, no_answer, right, short, wrong
from rlready.scoring import RewardFn, answer_text, declare
from rlready.types import Score, Task, Trajectory

_PAIRS = (("input", "output"), ("inputs", "outputs"), ("stdin", "stdout"))


def read_tests(tests: Any) -> list[Test] | str:
    """Tests as they stand in data: pairs of input and output, or the text of function tests.

    Args:
        tests: `Test`s; mappings with `input` and `output`; one mapping with lists of `inputs` and `outputs`; the JSON
            of such; Python text, or a list of texts such as assertions.

    Raises:
        ValueError: there are none, or their form is another.
    """
    if isinstance(tests, str):
        stripped = tests.strip()
        if stripped[:1] in ("[", "{"):
            try:
                return read_tests(json.loads(stripped))
            except json.JSONDecodeError:
                pass
        if not stripped:
            raise ValueError("there are no tests")
        return tests
    if isinstance(tests, Mapping):
        for one, other in _PAIRS:
            inputs, outputs = tests.get(one), tests.get(other)
            if isinstance(inputs, str) and isinstance(outputs, str):
                return [Test(inputs, outputs)]
            if isinstance(inputs, Sequence) and isinstance(outputs, Sequence) and len(inputs) == len(outputs):
                return read_tests([{one: a, other: b} for a, b in zip(inputs, outputs, strict=True)])
        raise ValueError(f"the tests have no input and output but {short(sorted(map(str, tests)))}")
    if not isinstance(tests, Sequence) or not tests:
        raise ValueError(f"there are no tests but {short(tests)}")
    if all(isinstance(test, str) for test in tests):
        return read_tests("\n".join(tests))
    found: list[Test] = []
    for test in tests:
        if isinstance(test, Test):
            found.append(test)
            continue
        pair = test if isinstance(test, Mapping) else {}
        match = next(((pair[a], pair[b]) for a, b in _PAIRS if a in pair and b in pair), None)
        if match is None or not all(isinstance(part, str) for part in match):
            raise ValueError(f"test {len(found) + 1} has no input and output as texts but is {short(test)}")
        found.append(Test(*match))
    return found


def graded(result: CodeResult, partial: bool = False) -> Graded:
    """What a result means: right where every test was passed, and nothing else paid unless `partial`."""
    if result.sandbox_failed:
        return failed(result.reason)
    parts = {"tests passed": result.fraction}
    if result.result == "success":
        return right(result.reason, parts=parts)
    return wrong(f"{result.result}: {result.reason}", result.fraction if partial else 0.0, parts)


def verify_code(
    program: str,
    tests: Any,
    *,
    timeout_s: float = 10.0,
    compare: Compare = "lines",
    tolerance: float = TOLERANCE,
    partial: bool = False,
    pool: CodePool | None = None,
) -> Graded:
    """Right where a program passes its tests.

    Args:
        program: its text.
        tests: see `read_tests`.
        timeout_s: wall-clock seconds of one pair, or of all function tests together.
        compare: how outputs are compared; see `outputs`.
        tolerance: of "floats".
        partial: the score is the share of tests passed. Programs learn to be empty or to print constants from that;
            the default pays for all tests or nothing.
        pool: where it runs; the process's own for Python where it is None.

    Raises:
        UserError: programs cannot be isolated here, or a setting is wrong.
    """
    pool, wanted = pool or shared_pool(), _tests(tests)
    if isinstance(wanted, Graded):
        return wanted
    if not program.strip():
        return no_answer("there is no program")
    if isinstance(wanted, str):
        return graded(run_function_tests_sync(pool, program, wanted, timeout_s), partial)
    result = pool.run_sync(program, wanted, timeout_s, compare, tolerance=tolerance, all_tests=partial)
    return graded(result, partial)


def _tests(tests: Any) -> list[Test] | str | Graded:
    try:
        return read_tests(tests)
    except ValueError as error:
        return failed(str(error))


def code(
    column: str = "tests",
    *,
    language: str | Path | Language = "python",
    timeout_s: float = 10.0,
    compare: Compare = "lines",
    tolerance: float = TOLERANCE,
    partial: bool = False,
    pool: CodePool | None = None,
) -> RewardFn:
    """Reward the program in a response, its last fenced block, for passing the tests of `task.data[column]`.

    It does not hold up other episodes. The sandbox is started here, so that one that cannot be had is known at once.

    Args:
        column: where the tests are; see `read_tests`.
        language: of the programs.
        timeout_s: see `verify_code`.
        compare: see `verify_code`.
        tolerance: see `verify_code`.
        partial: see `verify_code`.
        pool: where programs run; the process's own for the language where it is None.

    Raises:
        UserError: programs cannot be isolated here, the language cannot run, or a setting is wrong.
    """
    check(compare, tolerance)
    chosen = (pool or shared_pool(language)).start()

    async def code(task: Task, trajectory: Trajectory) -> Score:
        wanted = _tests(task.data.get(column))
        if isinstance(wanted, Graded):
            return wanted.as_score()
        program = find_program(answer_text(trajectory), chosen.language.name)
        if not program.strip():
            return no_answer("the response holds no program: no fenced block that is closed").as_score()
        if isinstance(wanted, str):
            return graded(await run_function_tests(chosen, program, wanted, timeout_s), partial).as_score()
        result = await chosen.run(program, wanted, timeout_s, compare, tolerance=tolerance, all_tests=partial)
        return graded(result, partial).as_score()

    return declare(code, name="code", columns=[column])


def grade_code_tests(record: Mapping[str, Any]) -> Graded:
    """Grade a program: `prediction` (a program, or a response with one) against the tests in `reference`.

    Further keys: `language` ("python"), `timeout_s` (10), `compare` ("floats") and `tolerance` of outputs, `partial`.

    Raises:
        UserError: a key is missing or of another kind, or programs cannot be isolated here.
    """
    said = record.get("prediction")
    if "reference" not in record or not isinstance(said, str | None):
        raise UserError('A record of the kind code_tests needs a text as "prediction", and tests as "reference".')
    chosen = language(record.get("language", "python"))
    return verify_code(
        find_program(said or "", chosen.name, bare=True),
        record["reference"],
        timeout_s=record.get("timeout_s", 10.0),
        compare=record.get("compare", "floats"),
        tolerance=record.get("tolerance", TOLERANCE),
        partial=bool(record.get("partial", False)),
        pool=shared_pool(chosen),
    )
