"""What is fuzzed: every parser of `rlready.rewards`, the texts it is tried on, and what must hold of what it says.

A parser is a function of two texts (what the model wrote, what it is held against) that raises nothing but what it
documents. `check` of a target calls it and asserts the rest: a verdict with a reason, no pay for an empty answer, the
same verdict twice.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlready.errors import UserError
from rlready.rewards.kinds import KINDS
from rlready.types import Verdict


@dataclass(frozen=True)
class Target:
    """A parser.

    Attributes:
        name: its name on the command line.
        check: tries it on a prediction and a reference.
        pieces: texts that its inputs are put together from.
        golds: references that it is meant for.
    """

    name: str
    check: Callable[[str, str], None]
    pieces: Sequence[str]
    golds: Sequence[str]


COMMON = [
    "<think>", "</think>", "\\boxed{", "}", "{", "(", ")", "[", "]", '"', "'", "\\", "$", "```\n", "```json\n", "**",
    "####", "Answer:", "The answer is ", "\n", " ", ",", ".", ":", "-", "/", "<", ">", "&", "%", "0", "1", "9" * 20,
    "e", "NaN", "\x00", "\ud800", "\u2028", "\u00e9", "e\u0301", "\u202e", "\U0001f600", "\u0663", "\u4e00",
]  # fmt: skip
MATH = [
    "\\frac{", "\\sqrt[", "\\left(", "\\right)", "^{", "_", "\\text{", "\\pm", "\\cup", "\\in", "\\begin{pmatrix}",
    "\\end{pmatrix}", "&", "\\\\", "x", "=", "\\le", "\\infty", "\\%", "\\pi", "1.5", "2/3", "1,000", "\\cdot",
    "^\\circ",
]  # fmt: skip
HTML = [
    "<table>", "</table>", "<tr>", "</tr>", "<td>", "</td>", "<th>", "<thead>", "<tbody>", "</tbody>", "<td colspan=",
    "rowspan='2'", ">", "<!--", "-->", "<!", "<?", "<b>", "</b>", "<br/>", "<p>", "<script>", "</script>", "&amp;",
    "&#x", "&#99999999;", "<caption>", "<table", "</td", "<div><i></i>", "<div>", "</div>",
]  # fmt: skip
JSON = [
    '{"a": 1}', '{"name": "f", "arguments": {}}', '{"score": 4}', "<tool_call>", "</tool_call>", '{"name":',
    '"arguments":', "null", "true", "1e999", "//", "/*", "[1", '{"', '":', "\\u00", "\\ud800", "0x1", "[[", "]]",
    "9/10", "Score:", "out of", "or maybe", "<score>", "</score>", "[true, false]", "all of ", "checks passed",
    "at least ", "f(",
]  # fmt: skip
WORDS = [
    "(A)", "A.", "B)", "Option C", "A, B and C", "None of the above", "the", "The", "a cat", "42", "\u2019", "-LRB-",
    "ha ha ", "word ", "\u0e01\u0e32\u0e23 ", "\u3042", "\u0627\u0644", "U.S.", "e.g. ", "?!", "\tx",
]  # fmt: skip

GOLDS = {
    "math_answer": [
        "1/2",
        "\\frac{1}{2}",
        "x^2+1",
        "(1, 2)",
        "[0, \\infty)",
        "\\{1,2\\}",
        "5 cm",
        "50\\%",
        "y = 2x + 1",
    ],
    "math_response": ["1/2", "\\boxed{3}", "#### 72", "2\\sqrt{3}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"],
    "mcq_response": ["A", "B", "(C)", "AB", "A, C"],
    "qa_em": ["Paris", "the cat", "42", "U.S."],
    "qa_f1": ["Paris in France", "the cat"],
    "rouge": ["the cat sat on the mat", "\u732b"],
    "chrf": ["the cat sat on the mat"],
    "bleu": ["the cat sat on the mat"],
    "readability": ["6", "8"],
    "language": ["en", "de"],
    "tool_call": ['{"name": "f", "arguments": {}}', "null", '[{"name": "f", "arguments": {"a": 1}}]'],
    "json_extract": ['{"score": 62}', '{"a": 1}', "[1, 2]", "null"],
    "code_stdout": ["1 2\n", "0.5"],
    "code_value": ["[1, 2]", "0.5", "{'a': 1}"],
    "teds": [
        "<table><tr><td>a</td><td>b</td></tr></table>",
        "<table><thead><tr><td colspan=2>a</td></tr></thead></table>",
    ],
    "teds_structure": ["<table><tr><td>a</td><td>b</td></tr></table>"],
    "judge_score": ["4", "[[4]]", "null"],
    "aggregate": ["all of 3 checks passed", "at least 2 of 3 checks pass", "any of 2 checks passed"],
}
PIECES = {
    "math_answer": MATH, "math_response": MATH, "teds": HTML, "teds_structure": HTML, "tool_call": JSON,
    "json_extract": JSON, "judge_score": JSON, "aggregate": JSON, "code_value": JSON,
}  # fmt: skip
RUNS_PROGRAMS = {"code_tests"}
"""Kinds that run what the model wrote: the sandbox has attacks of its own."""


def _kind(name: str) -> Callable[[str, str], None]:
    grade = KINDS[name].grade

    def check(prediction: str, reference: str) -> None:
        record = {"id": "x", "kind": name, "prediction": prediction, "reference": reference}
        try:
            graded = grade(record)
        except UserError as error:  # a reference in a form that the kind does not take
            assert str(error)
            return
        assert graded.reason, "a verdict without a reason"
        assert graded.verdict in Verdict
        assert math.isnan(graded.score) == (graded.verdict is Verdict.GRADER_FAILED), graded
        assert math.isnan(graded.score) or math.isfinite(graded.score), graded
        assert repr(grade(record)) == repr(graded), "two verdicts on one record"
        if not prediction.strip():
            assert graded.verdict is not Verdict.RIGHT or name == "code_stdout", "an empty answer is paid"

    return check


def _json(prediction: str, reference: str) -> None:
    from rlready.jsontext import BadJsonError, read_json, same_value, why_not_json
    from rlready.rewards.jsons import find_json
    from rlready.toolcalls import parse_calls, render_call

    for call in parse_calls(prediction):
        assert (call.arguments is None) == bool(call.problem)
        if call.arguments is not None:
            again = parse_calls(render_call(call.name, call.arguments))
            assert "think>" in str(call) or [c.arguments for c in again] == [call.arguments]
    for want in ("object", "list", "any"):
        found = find_json(prediction, want)  # type: ignore[arg-type]
        assert found.found != "value" or why_not_json(found.value) is None
    try:
        value = read_json(prediction)
    except BadJsonError as error:
        assert error.at is None or 0 <= error.at <= len(prediction)
        return
    assert same_value(value, value) and why_not_json(value) is None


def _schemas(prediction: str, reference: str) -> None:
    from rlready.jsontext import BadJsonError, read_json
    from rlready.schemas import longest_text, schema_problem, violation

    longest_text(prediction)
    violation({"pattern": prediction}, reference)
    values = []
    for text in (prediction, reference):
        try:
            values.append(read_json(text))
        except BadJsonError:
            values.append(text)
    for schema, value in (values, values[::-1]):
        if schema_problem(schema) is None:
            violation(schema, value)


def _tables(prediction: str, reference: str) -> None:
    from rlready.rewards.table import read_table, teds
    from rlready.rewards.table_html import TableError
    from rlready.rewards.treedistance import TooLargeError

    try:
        one, other = read_table(prediction), read_table(reference)
    except TableError:
        return
    for found in (one, other):
        assert found.nodes.sizes[-1] == len(found) == len(found.nodes.labels)
    try:
        value = teds(one, other)
        assert abs(value - teds(other, one)) < 1e-9 and 0 <= value <= 1 and teds(one, one) == 1
        assert (value == 1) == (one.nodes == other.nodes)
    except TooLargeError:
        return


def _judges(prediction: str, reference: str) -> None:
    from rlready.rewards.judge import JudgeError, Part, read_score, read_scores

    rubric = {"score": Part("x", high=5), "a": Part("y", low=-1, high=1)}
    for read in (lambda: read_score(prediction, low=0, high=10), lambda: read_scores(prediction, rubric)):
        try:
            read()
        except JudgeError as error:
            assert str(error)


def _texts(prediction: str, reference: str) -> None:
    """Verifiers that are no kind of record, and readers of parts of a response."""
    from rlready import rewards
    from rlready.rewards.answers import boxed, find_answer, strip_thoughts

    for verify in (rewards.verify_exact, rewards.verify_choice, rewards.verify_number, rewards.verify_match):
        score = verify(prediction, reference)
        assert prediction.strip() or not reference.strip() or score.verdict is not Verdict.RIGHT
    rewards.parse_number(prediction)
    rewards.strip_marks(prediction)
    find_answer(prediction)
    boxed(prediction)
    strip_thoughts(prediction)
    rewards.ThinkFormat().read(prediction)


def targets() -> list[Target]:
    """Every parser that is there; kinds whose module is not are left out."""
    found = []
    for name, kind in KINDS.items():
        if name in RUNS_PROGRAMS:
            continue
        module = f"rlready.rewards.{kind.where.partition(':')[0]}"
        if importlib.util.find_spec(module) is None:
            continue
        found.append(Target(name, _kind(name), [*COMMON, *PIECES.get(name, WORDS)], GOLDS.get(name, ["x"])))
    schema = ['{"type": ', '"object"', '"properties": {"a": ', '"pattern": "', '"$ref": "#', '/properties/a"',
              '"anyOf": [', '"enum": [', "(a|b)*", "a+", "{2,}", "[^", "\\1", "(?:", '"minLength": 1', "}", "]",
              ", "]  # fmt: skip
    found += [
        Target("json", _json, [*COMMON, *JSON], GOLDS["json_extract"]),
        Target(
            "schemas",
            _schemas,
            [*COMMON, *schema],
            ['{"type": "object", "properties": {"a": {"pattern": "^a+$"}}}', "a" * 40],
        ),
        Target("tables", _tables, [*COMMON, *HTML], GOLDS["teds"]),
        Target("judges", _judges, [*COMMON, *JSON], GOLDS["judge_score"]),
        Target("texts", _texts, [*COMMON, *WORDS, *MATH[:8], *JSON[:6]], ["A", "42", "{'a': 1}", '{"a": 1}']),
    ]
    return found
