"""From unit tests to tasks by input and output: a language model rewrites, a reference solution judges the rewrite.

A record of unit tests has a description (`text`), a solution in Python (`code`) and assertions (`test_list`), as MBPP
has. The model gives the task's record, and an adapter: Python lines that read standard input, call the solution and
print. A rewrite is kept only if

- the solution passes the assertions it came with, so that the record itself is sound;
- the task says all that pins its output down: no Python notation, no decimals or truth values that it does not name;
- solution and adapter pass the task's tests, in the sandbox;
- they fail where the solution's functions are replaced by ones that only raise: an adapter with the answers in it is
  found out.

What is not kept is counted with its reason.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlready.endpoint import Writer
from rlready.errors import UserError
from rlready.policy.base import Policy, SampleRequest, SamplingParams
from rlready.recipes.agnostics.prompts import Problem
from rlready.rewards import strip_thoughts
from rlready.rewards.code import CodePool, run_function_tests
from rlready.rewards.jsons import find_json
from rlready.seeds import derive
from rlready.types import Message

PROMPT = """\
Rewrite a programming task that is tested by calling a function, so that it is tested by input and output instead.

The program will read standard input and print its answer, in a language that is not known yet. So the task must say
everything that decides what is printed: what separates values, in which order they stand, how many decimals a number
has, how truth and falsehood are written, what is printed where there is no answer. For one input there must be exactly
one right output. Do not mention functions, arguments, return values or Python, and use no notation of Python: write
lists as values with a separator.

The task:
{text}

Its solution in Python:
```python
{code}
```

Its tests:
```python
{tests}
```

Answer with one JSON object that has these keys:
- "description": what is to be computed
- "input_format": what stands on which line of the input
- "output_format": what is printed
- "notes": anything else that decides the output, or ""
- "tests": a list with one {{"input": ..., "output": ...}} for every test above, in their order
- "adapter": Python lines that read standard input, call the solution's function and print as you have said
"""

_PYTHONIC = re.compile(r"^\s*[\[({].*[\])}]\s*$|\b(?:None|True|False|nan|inf)\b|^\s*(['\"]).*\1\s*$", re.MULTILINE)
_DECIMAL = re.compile(r"(?<![\w.])-?\d+\.\d+(?![\w.])")
_FUNCTION = re.compile(r"\b(?:functions?|returns?|returned|arguments?|parameters?|python|method)\b", re.IGNORECASE)
_PINNED = re.compile(r"decimal|digit|round|\.\d|place", re.IGNORECASE)
_COLUMNS = (("text", "prompt", "description"), ("code", "solution"), ("test_list", "tests"))


@dataclass(frozen=True)
class UnitTested:
    """A record of unit tests."""

    id: str
    text: str
    code: str
    tests: tuple[str, ...]

    @classmethod
    def of(cls, record: Mapping[str, Any], where: str) -> UnitTested:
        """From a record with MBPP's columns: `text` (or `prompt`), `code`, `test_list`, and perhaps `task_id`.

        Raises:
            UserError: a column is missing or of the wrong kind; it is named.
        """
        found = []
        for names in _COLUMNS:
            name = next((n for n in names if n in record), None)
            if name is None:
                raise UserError(f'{where}: the column "{names[0]}" is missing (there are: {", ".join(record)}).')
            found.append(record[name])
        text, code, tests = found
        if not isinstance(text, str) or not isinstance(code, str):
            raise UserError(f"{where}: description and solution must be texts.")
        if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
            raise UserError(f"{where}: the tests must be a list of assertions, as texts.")
        return cls(str(record.get("task_id", record.get("id", ""))), text, code, tuple(tests))


@dataclass
class Rewritten:
    """What came of rewriting.

    Attributes:
        kept: the tasks.
        reasons: why the others were not kept, with counts.
        rejected: the reason by record id.
    """

    kept: list[Problem] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    rejected: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """In one line."""
        why = "".join(f"; {n} {reason}" for reason, n in self.reasons.most_common())
        return f"{len(self.kept)} of {len(self.kept) + self.reasons.total()} kept{why}"


class Rejected(Exception):
    """A rewrite that is not kept; its text is the reason that is counted."""


@dataclass
class PolicyWriter:
    """A policy as a writer: any sampler can rewrite.

    Attributes:
        policy: writes; its renderer poses the prompt.
        params: how it is decoded.
    """

    policy: Policy
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0, max_tokens=2048))

    async def write(self, prompt: str, *, seed: int = 0) -> str:
        """The completion."""
        renderer = self.policy.renderer
        request = SampleRequest(renderer.render([Message.user(prompt)]), self.params, seed)
        (sample,) = await self.policy.sampler.sample([request])
        return renderer.decode(sample.completion_ids)


async def rewrite(
    records: Iterable[Mapping[str, Any]],
    writer: Writer,
    *,
    pool: CodePool | None = None,
    tries: int = 1,
    seed: int = 0,
    timeout_s: float = 5.0,
) -> Rewritten:
    """Rewrite records of unit tests, and keep what a reference solution proves.

    Args:
        records: with MBPP's columns.
        writer: a model behind an endpoint (`endpoint.Endpoint`), or a `PolicyWriter`.
        pool: where Python runs; one of its own where it is None.
        tries: times that a record may be written, each with a seed of its own; the last reason counts.
        seed: of the writer's seeds.
        timeout_s: seconds of one test.

    Raises:
        UserError: a record lacks a column, the endpoint refuses, or nothing isolates programs here.
    """
    sources = [UnitTested.of(record, f"record {i}") for i, record in enumerate(records, 1)]
    owned = pool is None
    pool = pool or CodePool("python").start()

    async def one(place: int, source: UnitTested) -> Problem | str:
        why = await _unsound(source, pool, timeout_s)
        for attempt in range(0 if why else tries):
            text = await writer.write(ask(source), seed=derive(seed, "rewrite", place, attempt))
            try:
                return await check(text, source, pool, timeout_s)
            except Rejected as error:
                why = str(error)
        return why

    try:
        outcomes = await asyncio.gather(*(one(i, source) for i, source in enumerate(sources)))
    finally:
        if owned:
            pool.close()
    out = Rewritten()
    for place, (source, outcome) in enumerate(zip(sources, outcomes, strict=True), 1):
        if isinstance(outcome, str):
            out.reasons[outcome] += 1
            out.rejected[source.id or f"record {place}"] = outcome
        else:
            out.kept.append(outcome)
    return out


def ask(source: UnitTested) -> str:
    """What the model is asked."""
    return PROMPT.format(text=source.text.strip(), code=source.code.strip(), tests="\n".join(source.tests))


async def check(text: str, source: UnitTested, pool: CodePool, timeout_s: float = 5.0) -> Problem:
    """The task in a model's reply, if the reference solution proves it.

    Raises:
        Rejected: it is not kept, and why.
    """
    found = find_json(strip_thoughts(text), "object")
    if found.found != "value" or not isinstance(found.value, dict):
        raise Rejected("no JSON object in the reply")
    record = dict(found.value)
    adapter = record.pop("adapter", None)
    if not isinstance(adapter, str) or not adapter.strip():
        raise Rejected("no adapter")
    try:
        problem = Problem.of({"id": source.id, **record})
    except UserError as error:
        raise Rejected("the record is malformed") from error
    _pinned(problem, source)
    program = f"{source.code}\n\n{adapter}\n"
    result = await pool.run(program, problem.tests, timeout_s)
    if result.sandbox_failed:
        raise Rejected("the sandbox failed")
    if result.result != "success":
        raise Rejected(f"the reference solution does not pass: {result.result}")
    hollow = await pool.run(f"{_hollow(source.code)}\n\n{adapter}\n", problem.tests, timeout_s, all_tests=True)
    if any(test.passed for test in hollow.tests):
        raise Rejected("the adapter answers without the solution")
    return problem


async def _unsound(source: UnitTested, pool: CodePool, timeout_s: float) -> str:
    """Why a record is not worth a rewrite; empty where it is."""
    try:
        ast.parse(source.code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "the record's solution is no Python"
    result = await run_function_tests(pool, source.code, "\n".join(source.tests), timeout_s)
    if result.sandbox_failed:
        return "the sandbox failed"
    return "" if result.result == "success" else "the record's own assertions fail"


def _pinned(problem: Problem, source: UnitTested) -> None:
    """Refuse a task whose words leave its output open.

    Raises:
        Rejected: what is open.
    """
    told = f"{problem.description}\n{problem.input_format}\n{problem.output_format}\n{problem.notes}"
    outputs = [test.output for test in problem.tests]
    if len(problem.tests) != len(source.tests):
        raise Rejected("tests were added or left out")
    answers: dict[str, str] = {}
    for test in problem.tests:
        if answers.setdefault(test.input.strip(), test.output.strip()) != test.output.strip():
            raise Rejected("one input has two outputs")
    if not all(output.strip() for output in outputs):
        raise Rejected("an output is empty")
    if any(_PYTHONIC.search(output) for output in outputs):
        raise Rejected("outputs are in Python's notation")
    if _FUNCTION.search(told):
        raise Rejected("it still speaks of functions")
    if any(_DECIMAL.search(output) for output in outputs) and not _PINNED.search(told):
        raise Rejected("decimals are not pinned down")


def _hollow(code: str) -> str:
    """The solution with every function raising in place of its work."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = ast.parse("raise SystemExit(1)").body
        elif isinstance(node, ast.Lambda):
            node.body = ast.parse("1 // 0", mode="eval").body
    return ast.unparse(tree)
