"""The verifier of mathematics: the published cases, kinds with their twins, and what no text may do to it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.errors import UserError
from rlready.rewards import math
from rlready.rewards.mathematics import verify_math
from rlready.types import Task, Trajectory, Turn, Verdict

CASES = Path(os.environ.get("RLREADY_CASES", Path(__file__).parents[4] / "shared" / "cases")) / "graders.jsonl"


@pytest.mark.skipif(not CASES.exists(), reason="the published cases are not here")
def test_published_cases():
    lines = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    cases = [case for case in lines if case["kind"] in ("math_answer", "math_response")]
    assert len(cases) >= 70
    wrong = []
    for case in cases:
        score = verify_math(case["prediction"], case["reference"], response=case["kind"] == "math_response")
        if (score.verdict is Verdict.RIGHT) != case["correct"] or not score.note:
            wrong.append((case["id"], score))
    assert wrong == []


# An answer, what it is, and its twin, which it is not.
KINDS = [
    ("3/8", r"\frac{3}{8}", r"\frac{3}{80}"),
    ("0.375", r"\frac38", "0.3755"),
    ("2.5", r"2\frac{1}{2}", r"2\frac{1}{3}"),
    ("12,500", "12500", "125"),
    (r"\$4.50", "4.5", "45"),
    (r"4\sqrt{2}", r"\sqrt{32}", r"\sqrt{31}"),
    (r"\frac{3}{\sqrt{3}}", r"\sqrt{3}", r"-\sqrt{3}"),
    ("(x+1)^2", "x^2+2x+1", "x^2+x+1"),
    (r"\frac{x^2-1}{x-1}", "x+1", "x-1"),
    ("[2,5)", r"2 \le x < 5", r"2 < x < 5"),
    (r"(-\infty,0)\cup(1,\infty)", r"(1,\infty)\cup(-\infty,0)", r"(1,\infty)"),
    (r"\{4, 9\}", r"\{9,4\}", r"\{9,4,1\}"),
    ("(3,-1)", "(3,-1)", "(-1,3)"),
    ("1, 6", "6, 1", "6, -1"),
    ("6x-2y=8", "y=3x-4", "y=3x+4"),
    ("x^2+y^2=9", r"\frac{x^2}{9}+\frac{y^2}{9}=1", r"\frac{x^2}{3}+\frac{y^2}{3}=1"),
    (r"\log_3 81", "4", "5"),
    ("6!", "720", "719"),
    ("2^{64}", "18446744073709551616", "18446744073709551615"),
    ("1+2i", "2i+1", "1-2i"),
    (r"\begin{pmatrix}1&0\\0&2\end{pmatrix}", r"\begin{pmatrix}1&0\\0&\frac{4}{2}\end{pmatrix}",
     r"\begin{pmatrix}1&0\\0&3\end{pmatrix}"),
    ("101_2", "101_{2}", "101_{3}"),
    ("30 cm", "0.3 m", "30 m"),
    (r"\pm 3", r"3 \text{ or } -3", "3"),
    (r"1.5 \times 10^{3}", "1500", "15000"),
    (r"\text{no solution}", r"\text{no solution}", "0"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "same", "other"), KINDS)
def test_kinds_and_their_twins(gold, same, other):
    for text in (gold, same):
        assert verify_math(text, gold, response=False).verdict is Verdict.RIGHT
        assert verify_math(rf"So it is \boxed{{{text}}}.", gold).verdict is Verdict.RIGHT
    assert verify_math(other, gold, response=False).verdict is not Verdict.RIGHT
    assert verify_math(rf"It is \boxed{{{other}}}.", gold).verdict is not Verdict.RIGHT


@pytest.mark.parametrize(
    ("response", "gold", "verdict"),
    [
        (r"First \boxed{3}, no: \boxed{4}", "4", Verdict.RIGHT),
        ("<think>maybe 7</think> The answer is 8.", "8", Verdict.RIGHT),
        ("<think>The answer is 7.</think> The answer is 8.", "7", Verdict.WRONG),
        ("the answer is **12**", "12", Verdict.RIGHT),
        ("I do not know.", "12", Verdict.NO_ANSWER),
        ("", "12", Verdict.NO_ANSWER),
        (r"\boxed{12", "12", Verdict.NO_ANSWER),
        ("Die Lösung lautet 12.", "12", Verdict.RIGHT),
    ],
)
def test_where_the_answer_stands(response, gold, verdict):
    assert verify_math(response, gold).verdict is verdict


def test_a_cue_word_of_ones_own():
    response = "Then 5 and 6. Tulemus: 11. (That was for 2 of them)"
    assert verify_math(response, "11", cue_words=["tulemus"]).verdict is Verdict.RIGHT


@pytest.mark.parametrize("gold", ["", None, "the shape is a kite", float("nan"), "\\frac{1}{"])
def test_what_cannot_be_read_as_gold_pays_nobody(gold):
    for answer in ("7", "0", "the shape is a circle", "nan"):
        assert verify_math(answer, gold, response=False).verdict is Verdict.GRADER_FAILED


def test_rules_for_percent_and_units():
    assert verify_math("50%", "0.5", response=False).verdict is Verdict.RIGHT
    assert verify_math("50%", "50", response=False, percent="value").verdict is Verdict.WRONG
    assert verify_math("18", "18 cm", response=False).verdict is Verdict.RIGHT
    assert verify_math("18", "18 cm", response=False, units="needed").verdict is Verdict.WRONG
    with pytest.raises(UserError, match="units"):
        verify_math("1", "1", units="some")  # type: ignore[arg-type]


def test_the_factory_reads_its_column():
    score = math("gold")(Task.of("q", gold=r"\frac12"), Trajectory(Task.of("q"), [Turn([1], [2], text=r"\boxed{0.5}")]))
    assert score.verdict is Verdict.RIGHT and score.value == 1.0


HOSTILE = [
    "9" * 20_000, "9^9^9^9", r"\frac{" * 3000, "(" * 5000 + ")" * 5000, "x" + "^x" * 2000, "1/0", "10^{10^{10}}",
    "+".join(["x*y"] * 3000), "(x+y+z)^{500}", "100000!", r"\sqrt" * 2000 + "2", "__import__('os').system('id')",
    r"\boxed{" * 1000 + "1" + "}" * 1000, "\u0000\ud800", "nan", "1e999999999", r"\begin{pmatrix}" + "1&" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_end_and_never_pay(text):
    began = time.process_time()
    for prediction, gold in ((text, "7"), ("7", text)):
        assert verify_math(prediction, gold).verdict is not Verdict.RIGHT
        assert verify_math(prediction, gold, response=False).verdict is not Verdict.RIGHT
    assert time.process_time() - began < 10


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=r"0123456789xy+-*/^_=(){}[]\,.<>|!%& fracsqtboxedin" + "\n", max_size=60))
def test_any_text_has_a_verdict_and_is_itself(text):
    score = verify_math(text, "7", response=False)
    assert score.verdict in tuple(Verdict) and score.note
    assert verify_math(text, text, response=False).verdict is not Verdict.WRONG


@settings(max_examples=100, deadline=None)
@given(st.fractions(max_denominator=10_000), st.fractions(max_denominator=10_000))
def test_fractions_are_compared_exactly(a, b):
    written = rf"\frac{{{a.numerator}}}{{{a.denominator}}}"
    assert verify_math(written, f"{b.numerator}/{b.denominator}", response=False).verdict is (
        Verdict.RIGHT if a == b else Verdict.WRONG
    )


def test_in_threads_and_in_a_loop():
    pairs = [(rf"\frac{{{k}}}{{7}}", f"{2 * k}/14") for k in range(1, 40)]
    with ThreadPoolExecutor(4) as pool:
        assert all(s.verdict is Verdict.RIGHT for s in pool.map(lambda p: verify_math(*p, response=False), pairs))

    async def main() -> bool:
        return verify_math("2", "4/2", response=False).verdict is Verdict.RIGHT

    assert asyncio.run(main())
