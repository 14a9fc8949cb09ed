"""The rewriter: a scripted endpoint answers, a reference solution judges, and what is not kept is counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlready.cli import app
from rlready.endpoint import Endpoint
from rlready.errors import UserError
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import bpe_tokenizer
from rlready.recipes.agnostics.full import read_tasks
from rlready.recipes.agnostics.rewrite import PolicyWriter, Rejected, UnitTested, ask, check, rewrite
from rlready.rewards.code import CodePool
from tests.dream.endpoint_fixtures import Served, chat

AREA = {
    "task_id": 7,
    "text": "Write a function to find the area of a rectangle.",
    "code": "def area(a, b):\n    return a * b",
    "test_list": ["assert area(3, 4) == 12", "assert area(2, 5) == 10"],
}
MEAN = {
    "task_id": 8,
    "text": "Write a python function to find the mean of a list.",
    "code": "def mean(xs):\n    return sum(xs) / len(xs)",
    "test_list": ["assert mean([1, 2]) == 1.5", "assert mean([3, 4]) == 3.5"],
}
EVEN = {
    "task_id": 9,
    "text": "Write a function to keep the even numbers.",
    "code": "keep = lambda xs: [x for x in xs if x % 2 == 0]",
    "test_list": ["assert keep([1, 2, 4]) == [2, 4]", "assert keep([6, 7]) == [6]"],
}
REPLIES: dict[str, dict[str, Any]] = {
    "area": {
        "description": "Compute the area of a rectangle with whole sides.",
        "input_format": "One line with both sides, separated by a blank.",
        "output_format": "The area, a whole number.",
        "notes": "",
        "tests": [{"input": "3 4", "output": "12"}, {"input": "2 5", "output": "10"}],
        "adapter": "a, b = map(int, input().split())\nprint(area(a, b))",
    },
    "mean": {
        "description": "Compute the mean of whole numbers.",
        "input_format": "One line with the numbers, separated by blanks.",
        "output_format": "The mean with exactly one decimal.",
        "tests": [{"input": "1 2", "output": "1.5"}, {"input": "3 4", "output": "3.5"}],
        "adapter": "print(f'{mean([int(x) for x in input().split()]):.1f}')",
    },
    "keep": {
        "description": "Keep the even numbers, in their order.",
        "input_format": "One line with whole numbers, separated by blanks.",
        "output_format": "The even numbers on one line, separated by blanks.",
        "tests": [{"input": "1 2 4", "output": "2 4"}, {"input": "6 7", "output": "6"}],
        "adapter": "print(*keep([int(x) for x in input().split()]))",
    },
}


def which(prompt: str) -> str:
    return next(name for name in REPLIES if f"assert {name}(" in prompt)


@pytest.fixture(scope="module")
def pool() -> Iterator[CodePool]:
    try:
        made = CodePool("python", 2).start()
    except UserError as error:
        pytest.skip(str(error))
    with made:
        yield made


def changed(name: str, **changes: Any) -> str:
    return json.dumps({k: v for k, v in (REPLIES[name] | changes).items() if v is not None})


def judge(pool: CodePool, text: str, record: dict[str, Any] = AREA) -> str:
    try:
        asyncio.run(check(text, UnitTested.of(record, "record"), pool))
    except Rejected as error:
        return str(error)
    return "kept"


def test_records_are_rewritten_through_an_endpoint(pool: CodePool) -> None:
    def answer(number: int, body: dict[str, Any]) -> Any:
        name = which(body["messages"][0]["content"])
        return chat(f"Here it is.\n```json\n{json.dumps(REPLIES[name])}\n```")

    served = Served(answer)
    try:
        out = asyncio.run(rewrite([AREA, MEAN, EVEN], Endpoint(served.url, "scripted"), pool=pool))
    finally:
        served.close()
    assert not out.reasons and [p.id for p in out.kept] == ["7", "8", "9"] and str(out) == "3 of 3 kept"
    assert out.kept[0].tests[0].input == "3 4" and out.kept[2].shown == out.kept[2].tests[:1]
    asked = served.bodies[0]["messages"][0]["content"]
    assert all(word in asked for word in ("decimals", "order", "separates", "truth", "adapter"))


def test_a_second_try_may_do_better_and_reasons_are_counted(pool: CodePool) -> None:
    seen: dict[str, int] = {}

    def answer(number: int, body: dict[str, Any]) -> Any:
        name = which(body["messages"][0]["content"])
        seen[name] = seen.get(name, 0) + 1
        bad = name == "mean" or seen[name] == 1
        return chat("I would rather not." if bad else json.dumps(REPLIES[name]))

    broken = AREA | {"task_id": 10, "test_list": ["assert area(3, 4) == 13"]}
    nonsense = AREA | {"task_id": 11, "code": "def area(a, b:"}
    served = Served(answer)
    try:
        endpoint = Endpoint(served.url, "scripted", concurrency=1)
        out = asyncio.run(rewrite([AREA, MEAN, broken, nonsense], endpoint, pool=pool, tries=2))
    finally:
        served.close()
    assert [p.id for p in out.kept] == ["7"] and seen == {"area": 2, "mean": 2}, (
        "a record that is broken is not asked for"
    )
    assert out.rejected == {
        "8": "no JSON object in the reply",
        "10": "the record's own assertions fail",
        "11": "the record's solution is no Python",
    }
    assert out.reasons.total() == 3 and str(out).startswith("1 of 4 kept; 1 ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (changed("area"), "kept"),
        ("", "no JSON object in the reply"),
        (changed("area")[:-40], "no JSON object in the reply"),
        ("[1]", "no JSON object in the reply"),
        (changed("area", adapter=None), "no adapter"),
        (changed("area", adapter="  "), "no adapter"),
        (changed("area", output_format=None), "the record is malformed"),
        (changed("area", extra="x"), "the record is malformed"),
        (changed("area", tests=[]), "the record is malformed"),
        (changed("area", tests=[{"input": "3 4", "output": 12}]), "the record is malformed"),
        (changed("area", tests=REPLIES["area"]["tests"][:1]), "tests were added or left out"),
        (changed("area", tests=[{"input": "3 4", "output": "12"}, {"input": "3 4 ", "output": "13"}]),
         "one input has two outputs"),
        (changed("area", tests=[{"input": "3 4", "output": "12"}, {"input": "0 4", "output": " "}]),
         "an output is empty"),
        (changed("area", tests=[{"input": "3 4", "output": "[12]"}, {"input": "2 5", "output": "10"}]),
         "outputs are in Python's notation"),
        (changed("area", tests=[{"input": "3 4", "output": "True"}, {"input": "2 5", "output": "10"}]),
         "outputs are in Python's notation"),
        (changed("area", tests=[{"input": "3 4", "output": "'12'"}, {"input": "2 5", "output": "10"}]),
         "outputs are in Python's notation"),
        (changed("area", description="Write a function that computes the area."), "it still speaks of functions"),
        (changed("area", output_format="Return the area."), "it still speaks of functions"),
        (changed("area", tests=[{"input": "3 4", "output": "12.0"}, {"input": "2 5", "output": "10.0"}]),
         "decimals are not pinned down"),
        (changed("area", tests=[{"input": "3 4", "output": "12"}, {"input": "2 5", "output": "11"}]),
         "the reference solution does not pass: fail:wrong-output"),
        (changed("area", adapter="print(area(*input()))"), "the reference solution does not pass: fail:error"),
        (changed("area", adapter="while True: pass"), "the reference solution does not pass: fail:timeout"),
        (changed("area", adapter="print({'3 4': 12, '2 5': 10}[input()])"), "the adapter answers without the solution"),
        (changed("area", adapter="a, b = map(int, input().split())\nprint(a * b)"),
         "the adapter answers without the solution"),
        (changed("area", adapter="import os\na, b = map(int, input().split())\ntry:\n    print(area(a, b))\n"
                                 "except BaseException:\n    print(a * b)"),
         "the adapter answers without the solution"),
    ],
)  # fmt: skip
def test_what_is_kept_and_what_is_not(pool: CodePool, text: str, reason: str) -> None:
    if "while True" in text:
        source = UnitTested.of(AREA, "record")
        with pytest.raises(Rejected, match=reason):
            asyncio.run(check(text, source, pool, timeout_s=0.5))
        return
    assert judge(pool, text) == reason


def test_a_lambda_is_a_solution_too(pool: CodePool) -> None:
    assert judge(pool, changed("keep"), EVEN) == "kept"
    cheat = changed("keep", adapter="print(*[x for x in input().split() if int(x) % 2 == 0])")
    assert judge(pool, cheat, EVEN) == "the adapter answers without the solution"


def test_any_policy_can_write(pool: CodePool) -> None:
    record = AREA | {"text": "Area."}
    tokenizer = bpe_tokenizer([ask(UnitTested.of(record, "record"))], 300)
    renderer = ChatRenderer(tokenizer, turn="<turn>", end="<end>")
    policy = TinyPolicy.create(renderer, TinyConfig(dim=16, layers=1, heads=2, max_len=4096), 0)
    writer = PolicyWriter(policy)
    writer.params = writer.params.__class__(temperature=1.0, max_tokens=8)
    out = asyncio.run(rewrite([record], writer, pool=pool))
    assert out.reasons == {"no JSON object in the reply": 1}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.pop("code"), 'record 1: the column "code" is missing'),
        (lambda r: r.update(test_list="assert x"), "a list of assertions"),
        (lambda r: r.update(test_list=[]), "a list of assertions"),
        (lambda r: r.update(text=3), "must be texts"),
    ],
)
def test_a_record_of_another_form_is_named(change: Callable[[dict[str, Any]], Any], said: str) -> None:
    record = dict(AREA)
    change(record)
    with pytest.raises(UserError, match=said):
        asyncio.run(rewrite([record], PolicyWriter(None)))  # type: ignore[arg-type]


def test_the_command_writes_what_full_reads(pool: CodePool, tmp_path: Path) -> None:
    def answer(number: int, body: dict[str, Any]) -> Any:
        name = which(body["messages"][0]["content"])
        return chat("No." if name == "mean" else json.dumps(REPLIES[name]))

    source, to = tmp_path / "mbpp.jsonl", tmp_path / "tasks.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in (AREA, MEAN, EVEN)))
    run = CliRunner()
    served = Served(answer)
    try:
        arguments = ["rewrite", str(source), "--model", f"{served.url}#scripted", "--out", str(to)]
        result = run.invoke(app, [*arguments, "--json"])
        said = run.invoke(app, arguments)
    finally:
        served.close()
    report = json.loads(result.stdout)
    assert report["kept"] == 2, report
    assert report["rejected"] == {"8": "no JSON object in the reply"}
    assert "1 not kept: no JSON object in the reply" in said.stdout
    assert [problem.id for problem in read_tasks(str(to), 8000)] == ["7", "9"]
    for wrong, told in (
        (["--model", "my-model"], "URL#MODEL"),
        (["--model", "http://127.0.0.1:9/v1#a", "--key-variable", "NO_SUCH_KEY_HERE"], "NO_SUCH_KEY_HERE"),
    ):
        refused = run.invoke(app, ["rewrite", str(source), *wrong])
        assert refused.exit_code == 2 and told in refused.stderr
