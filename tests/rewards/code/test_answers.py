"""Outputs, values and programs in responses: kinds of right and wrong answers, each with its twin; the public cases."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready import Verdict
from rlready.errors import UserError
from rlready.rewards.code import (
    CodePool,
    Test,
    code,
    difference,
    find_program,
    grade_code_stdout,
    grade_code_tests,
    grade_code_value,
    read_tests,
    verify_code,
    verify_output,
    verify_value,
)
from rlready.rewards.code.values import read_value
from rlready.types import Task, Trajectory, Turn
from tests.rewards.public_cases import each_case

_GRADERS = {"code_stdout": grade_code_stdout, "code_value": grade_code_value, "code_tests": grade_code_tests}


@each_case("code")
def test_case(case: dict[str, Any], request: pytest.FixtureRequest) -> None:
    if case["kind"] == "code_tests":
        request.getfixturevalue("isolation")
        case = {**case, "timeout_s": 2.0}
    found = _GRADERS[case["kind"]](case)
    assert (found.verdict is Verdict.RIGHT) == case["correct"], (case["note"], found.reason)
    assert found.reason and found.verdict is not Verdict.GRADER_FAILED


# (printed, expected, the ways to compare under which it is right)
OUTPUTS = [
    ("3 4", "3 4\n", "text lines tokens floats"),
    ("3 4\n\n \n", "3 4", "text lines tokens floats"),
    ("\n3 4", "3 4", "lines tokens floats"),
    (" 3 4", "3 4", "tokens floats"),
    ("3  4", "3 4", "tokens floats"),
    ("3\t4", "3 4", "tokens floats"),
    ("3\n4", "3 4", "tokens"),
    ("3 4", "3\n4", "tokens"),
    ("2 4 \n8 \n", "2 4\n8\n", "lines tokens floats"),
    ("7\r\n8\r\n", "7\n8\n", "lines tokens floats"),
    ("7\n8\n", "7\r\n8\r\n", "lines tokens floats"),
    ("a\n\nb", "a\n\nb", "text lines tokens floats"),
    ("a\n\nb", "a\nb", "tokens"),
    ("12 3", "1 23", ""),
    ("123", "12 3", ""),
    ("1\n2", "1\n2\n3", ""),
    ("1\n2\n3\n4", "1\n2\n3", ""),
    ("", "0", ""),
    ("", "", "text lines tokens floats"),
    ("\n", "", "text lines tokens floats"),
    ("x", "", ""),
    ("yes", "YES", ""),
    ("2 1", "1 2", ""),
    ("0.142857", "0.142857142857", "floats"),
    ("12.0000004", "12.0000000", "floats"),
    ("12.00002", "12.0", ""),
    ("1000000.5", "1000000.0", "floats"),
    ("0.0000004", "0.0", "floats"),
    ("0.5", ".5", "floats"),
    ("5e-1", "0.5", "floats"),
    ("-0.0", "0.0", "floats"),
    ("12", "12.0", "floats"),
    ("12.0", "12", "floats"),
    ("4.0000001 7.9999999", "4 8", "floats"),
    ("4.001", "4", ""),
    ("499999.5", "500000", ""),
    ("9007199254740993", "9007199254740992", ""),
    ("9007199254740992.0", "9007199254740993", ""),
    ("9007199254740993.0", "9007199254740993", "floats"),
    ("1e16", "10000000000000001", ""),
    ("007", "7", ""),
    ("+7", "7", "floats"),
    ("1_000", "1000", ""),
    ("0x10", "16", ""),
    ("nan", "0.5", ""),
    ("inf", "0.5", ""),
    ("nan", "nan", "text lines tokens floats"),
    ("1e99999", "1.0", ""),
    ("\u0663.0", "3.0", ""),
    ("[0.1, 0.30000000000000004]", "[0.1, 0.3]", "floats"),
    ("[0.1, 0.4]", "[0.1, 0.3]", ""),
    ("(0.1)", "[0.1]", ""),
    ("Case #1: 0.3333333", "Case #1: 0.33333333", "floats"),
    ("Case #2: 0.3333333", "Case #1: 0.33333333", ""),
    ("a\u00a0b", "a b", "tokens floats"),
    ("\ufeff3", "3", ""),
]


@pytest.mark.parametrize("row", range(len(OUTPUTS)))
@pytest.mark.parametrize("compare", ["text", "lines", "tokens", "floats"])
def test_outputs(row: int, compare: Any) -> None:
    printed, expected, ways = OUTPUTS[row]
    found = verify_output(printed, expected, compare=compare)
    assert (found.verdict is Verdict.RIGHT) == (compare in ways.split()), found.reason
    assert found.score == float(found.verdict is Verdict.RIGHT)


VALUES = [
    ("[0.1, 0.30000000000000004]", "[0.1, 0.3]", True),
    ("[0.1, 0.4]", "[0.1, 0.3]", False),
    ("[1, 2, 4]", "[1, 2, 3]", False),
    ("[1, 2]", "[1, 2, 3]", False),
    ("[1, 2]", "(1, 2)", True),
    ("(1, 2)", "[1, 2]", True),
    ("[[1], [2.0000001]]", "[[1], [2.0]]", True),
    ("[2, 1]", "[1, 2]", False),
    ("{2, 1}", "{1, 2}", True),
    ("[1, 2]", "{1, 2}", False),
    ("{'a': 1, 'b': 2.0}", "{'b': 2.0000001, 'a': 1}", True),
    ("{'a': 1}", "{'a': 2}", False),
    ("{'a': 1, 'b': 2}", "{'a': 1}", False),
    ('{"a": true, "b": null}', "{'a': True, 'b': None}", True),
    ("{1: 2}", "{'1': 2}", False),
    ("{True: 2}", "{1: 2}", False),
    ("True", "1", False),
    ("1", "True", False),
    ("true", "True", True),
    ("0", "False", False),
    ("None", "null", True),
    ("None", "0", False),
    ("1.0", "1", True),
    ("1", "1.0", True),
    ("0.9999", "1", False),
    ("9007199254740993", "9007199254740992", False),
    ("9007199254740992.0", "9007199254740993", False),
    ("'a'", "'a'", True),
    ("'A'", "'a'", False),
    ("a", "a", True),
    ("'a'", "a", True),
    ("b", "a", False),
    ("'1'", "1", False),
    ("1", "'1'", False),
    ("b'a'", "'a'", False),
    ("'3.0000001'", "'3.0'", False),
    ("nan", "1.0", False),
    ("nan", "nan", True),
    ("[inf, -inf]", "[inf, -inf]", True),
    ("inf", "-inf", False),
    ("set()", "set()", True),
    ("set()", "[]", False),
    ("frozenset({1})", "{1}", True),
    ("exit()", "0", False),
    ("-True", "-1", False),
    ("1 - 1", "0", False),
    ("float('nan')", "1.0", False),
    ("NaN", "NaN", True),
    ("[]", "[]", True),
    ("[]", "None", False),
    ("[]", "{}", False),
    ("__import__('os').system('true')", "0", False),
    ("1 + 1", "2", False),
    ("[1 for _ in range(1)]", "[1]", False),
    ("(" * 5000, "1", False),
    ("-" * 100000 + "1", "1", False),
    ("not " * 100000 + "1", "1", False),
    ("[" * 500 + "]" * 500, "1", False),
    ("9" * 20000, "1", False),
    ("1e400", "1.0", False),
    ("(1+2j)", "(1+2j)", True),
    ("(1+3j)", "(1+2j)", False),
]


@pytest.mark.parametrize("row", range(len(VALUES)))
def test_values(row: int) -> None:
    prediction, expected, same = VALUES[row]
    began = time.monotonic()
    found = verify_value(prediction, expected)
    assert (found.verdict is Verdict.RIGHT) == same, found.reason
    assert found.verdict is not Verdict.GRADER_FAILED
    assert time.monotonic() - began < 5


def test_values_that_are_given_as_such() -> None:
    assert verify_value("[1, 2]", [1, 2]).verdict is Verdict.RIGHT
    assert verify_value("[1, 2]", [1, 3]).verdict is Verdict.WRONG
    assert verify_value(" ", [1]).verdict is Verdict.NO_ANSWER
    for broken in ("[1, 2", "", "{'a': }"):
        assert verify_value("[1, 2]", broken).verdict is Verdict.GRADER_FAILED


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(value=plain, other=plain)
@settings(max_examples=200, deadline=None)
def test_values_are_read_back_and_are_themselves(value: Any, other: Any) -> None:
    assert verify_value(repr([value]), [value]).verdict is Verdict.RIGHT
    assert verify_value(json.dumps(value), [value]).verdict is Verdict.WRONG or value == [value]
    if value != other and not any(isinstance(v, float) for v in (value, other)):
        assert verify_value(repr([other, 0]), [value, 1]).verdict is Verdict.WRONG


@given(text=st.text(alphabet="[](){}\"'0123456789.,:eE+-_ \n\\x{}Tnrueabc#", max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_them_raise(text: str) -> None:
    verify_value(text, "[1, 2.0]")
    verify_value("[1]", text)
    find_program(text)
    for compare in ("text", "lines", "tokens", "floats"):
        assert difference(text, text, compare) == ""  # type: ignore[arg-type]
        difference(text, "1 2.0\n3", compare)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        read_value("(" + text.replace(")", ""))


RESPONSES = [
    ("```python\nx = 1\n```", "x = 1\n"),
    ("a\n```\nx = 1\n```\nb\n```\ny = 2\n```\nc", "y = 2\n"),
    ("```python\nx = 1\n```\nOutput:\n```\n5\n```", "x = 1\n"),
    ("```lua\nx\n```\n```python\ny\n```\n", "y\n"),
    ("~~~\nx = '```'\n~~~", "x = '```'\n"),
    ("````\n```\ninner\n```\n````", "```\ninner\n```\n"),
    ("<think>\n```\nwrong\n```\n</think>\n```\nright\n```", "right\n"),
    ("<think>\n```\nwrong\n```\n</think>\nI do not know", ""),
    ("```python\ncut off", ""),
    ("x = 1", ""),
    ("", ""),
    ("- a\n  ```py\n  x = 1\n  ```", "  x = 1\n"),
    ("inline ```x``` is no block", ""),
]


@pytest.mark.parametrize("row", range(len(RESPONSES)))
def test_programs_in_responses(row: int) -> None:
    text, program = RESPONSES[row]
    assert find_program(text, "python") == program


def test_forms_of_tests() -> None:
    one = [Test("1", "2")]
    for form in (
        one,
        [{"input": "1", "output": "2"}],
        {"input": "1", "output": "2"},
        {"inputs": ["1"], "outputs": ["2"]},
        '[{"input": "1", "output": "2", "note": "x"}]',
        [{"stdin": "1", "stdout": "2"}],
    ):
        assert read_tests(form) == one
    assert read_tests(["assert f(1)", "assert g(2)"]) == "assert f(1)\nassert g(2)"
    assert read_tests("[x] = f(1)\nassert x") == "[x] = f(1)\nassert x"
    for form in ([], "", None, 5, {}, [{}], [{"input": 1, "output": "2"}], {"inputs": ["1"], "outputs": []}, "[]"):
        with pytest.raises(ValueError):
            read_tests(form)


@pytest.fixture(scope="module")
def python(isolation: str) -> Iterator[CodePool]:
    with CodePool("python", workers=2) as pool:
        yield pool


def test_verify_code(python: CodePool) -> None:
    pairs = [{"input": f"{n}", "output": f"{n * n}"} for n in range(4)]
    right = verify_code("print(int(input()) ** 2)", pairs, pool=python)
    assert (right.verdict, right.score, right.parts) == (Verdict.RIGHT, 1.0, {"tests passed": 1.0})
    half = verify_code("print(int(input()) % 2)", pairs, pool=python)
    assert (half.verdict, half.score) == (Verdict.WRONG, 0.0) and "test 3 of 4" in half.reason
    paid = verify_code("print(int(input()) % 2)", pairs, pool=python, partial=True)
    assert (paid.verdict, paid.score) == (Verdict.WRONG, 0.5)
    assert verify_code("x", [], pool=python).verdict is Verdict.GRADER_FAILED
    assert verify_code(" ", pairs, pool=python).verdict is Verdict.NO_ANSWER
    assert verify_code("x = 1", "assert (", pool=python).verdict is Verdict.GRADER_FAILED
    assert verify_code("def f(): return 1", ["assert f() == 1"], pool=python).verdict is Verdict.RIGHT


def test_the_reward_in_a_task_set(python: CodePool) -> None:
    reward = code("tests", pool=python, timeout_s=5)
    assert reward.columns == ("tests",)

    def say(text: str, tests: Any) -> Any:
        task = Task.of("Add.", tests=tests)
        return reward(task, Trajectory(task, [Turn([1], [2], [0.0], text=text)]))

    async def main() -> list[Any]:
        io_tests = [{"input": "1", "output": "2"}]
        return await asyncio.gather(
            say("Here:\n```python\nprint(int(input()) + 1)\n```", io_tests),
            say("```python\nprint(3)\n```", io_tests),
            say("print(int(input()) + 1)", io_tests),
            say("```python\nprint(1)\n```", None),
            say("```python\ndef f(x): return x\n```", "assert f(1) == 1"),
            say("```python\ndef f(x): return x\nimport os; os._exit(0)\n```", "assert f(1) == 1"),
        )

    verdicts = [score.verdict for score in asyncio.run(main())]
    right, wrong, none, failed = Verdict.RIGHT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.GRADER_FAILED
    assert verdicts == [right, wrong, none, failed, right, wrong]


def test_records(isolation: str) -> None:
    response = {"prediction": "```python\ndef f(x): return x\n```", "reference": ["assert f(1) == 1"]}
    assert grade_code_tests(response).verdict is Verdict.RIGHT
    pairs = {"prediction": "print(0.1 + 0.2)", "reference": [{"input": "", "output": "0.3"}]}
    assert grade_code_tests(pairs).verdict is Verdict.RIGHT
    assert grade_code_tests({**pairs, "compare": "text"}).verdict is Verdict.WRONG
    assert grade_code_tests({"prediction": None, "reference": "assert f()"}).verdict is Verdict.NO_ANSWER
    assert grade_code_stdout({"prediction": "1 2", "reference": "1\n2", "compare": "tokens"}).verdict is Verdict.RIGHT
    for grade in _GRADERS.values():
        with pytest.raises(UserError):
            grade({"prediction": "x"})
        with pytest.raises(UserError):
            grade({"prediction": 5, "reference": "x"})
    with pytest.raises(UserError, match="compare"):
        grade_code_stdout({"prediction": "1", "reference": "2", "compare": "exactly"})
