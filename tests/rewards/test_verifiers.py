"""Published right answers for every verifier, and answers that must not be paid."""

from __future__ import annotations

import asyncio
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready import Score, Task, Trajectory, Turn, Verdict, rewards
from rlready.errors import UserError
from rlready.rewards.answers import boxed
from rlready.scoring import as_scorer
from rlready.types import Stop

R, W, N, F = Verdict.RIGHT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.GRADER_FAILED


def judge(fn: Any, text: str, stop: Stop = "end", **data: Any) -> Score:
    task = Task.of("?", **data)
    return asyncio.run(as_scorer(fn)(task, Trajectory(task, [Turn([1], [2], text=text, stop=stop)])))


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        ("4", "4", R),
        ("4", 4, R),
        ("4.0", 4, R),
        ("0.5", "1/2", R),
        (r"\boxed{\frac{1}{2}}", "0.5", R),
        (r"\boxed{\dfrac12}", "1/2", R),
        (r"It is \boxed{\frac{-3}{4}}.", "-0.75", R),
        (r"\boxed{-\frac{3}{4}}", "-3/4", R),
        ("1 1/2", "3/2", R),
        (r"2\frac{1}{4}", "9/4", R),
        ("1,234,567", 1234567, R),
        ("1,2", 12, W),
        (r"\boxed{1,2}", 12, W),
        ("$5", 5, R),
        (r"\boxed{\$5.00}", 5, R),
        ("5 apples", 5, R),
        (r"\boxed{5\text{ cm}}", "5", R),
        (r"\boxed{4 million}", "4", W),
        ("The answer is 72.", "72", R),
        ("so 8*9=72\n#### 72", "Natalia sold 72 clips.\n#### 72", R),
        ("<answer>72</answer> and 3", "72", R),
        ("first 71, no, 72", "72", R),
        ("50%", "0.5", R),
        ("50%", "50", R),
        ("0.5%", "50%", W),
        ("0.5", "50%", R),
        ("1e3", 1000, R),
        (r"\boxed{2.5 \times 10^{-3}}", "0.0025", R),
        ("0.333", "1/3", W),
        ("\u22127", "-7", R),
        ("- 7", "-7", R),
        ("7", "-7", W),
        (r"\boxed{x+1}", "4", W),
        (r"\boxed{4} or \boxed{5}", "4", W),
        ("I cannot say", "4", N),
        ("", "4", N),
        ("   ", "4", N),
        ("<think>4</think>", "4", N),
        ("<think>it is 4", "4", N),
        ('<tool_call>{"name": "add", "arguments": {"a": 0, "b": 4}}</tool_call>', "4", N),
        ('<tool_call>{"name": "add", "arguments": {"b": 4', "4", N),
        ("it is 5</think>4", "4", R),
        ("4", "", F),
        ("", "", F),
        ("4", None, F),
        ("4", "x^2+1", W),
        ("1+x^2", "x^2+1", R),
        ("4", "the shape is a kite", F),
        ("4", True, F),
        ("nan", float("nan"), F),
        ("inf", float("inf"), F),
        ("1e999999999", 4, N),
        ("1/0", "4", W),
    ],
)
def test_math(text: str, gold: Any, verdict: Verdict) -> None:
    score = judge(rewards.math("answer"), text, answer=gold)
    assert score.verdict is verdict
    assert (score.value > 0) == (verdict is R)


def test_a_cut_off_completion_has_no_last_number() -> None:
    assert judge(rewards.math(), "we add 3 and 4", stop="length", answer=4).verdict is N
    assert judge(rewards.math(), "4", stop="length", answer=4).verdict is R
    assert judge(rewards.math(), "we add 3 and 4", answer=4).verdict is R
    assert judge(rewards.number(last_number=False), "we add 3 and 4", answer=4).verdict is N


@pytest.mark.parametrize(
    ("text", "tolerances", "verdict"),
    [
        ("3.14", {"abs_tol": 0.01}, R),
        ("3.14", {"abs_tol": 0.001}, W),
        ("3.2", {"rel_tol": 0.02}, R),
        ("3.3", {"rel_tol": 0.02}, W),
    ],
)
def test_number_tolerance(text: str, tolerances: dict[str, float], verdict: Verdict) -> None:
    assert judge(rewards.number(**tolerances), text, answer=3.14159).verdict is verdict


def test_bad_tolerance_is_refused() -> None:
    with pytest.raises(UserError, match="abs_tol must be a number of at least 0"):
        rewards.number(abs_tol=float("nan"))


@given(st.fractions(max_denominator=10**6).filter(lambda f: abs(f) < 10**12))
def test_every_fraction_is_read_back(value: Fraction) -> None:
    top, bottom = value.numerator, value.denominator
    for text in (f"{top}/{bottom}", rf"\frac{{{top}}}{{{bottom}}}", rf"\boxed{{{top}/{bottom}}}"):
        assert rewards.verify_number(text, f"{top}/{bottom}").verdict is R
        assert rewards.verify_number(text, str(value + 1)).verdict is W


@given(st.integers(-(10**15), 10**15))
def test_thousands_commas_are_read_back(value: int) -> None:
    assert rewards.parse_number(f"{value:,}") == (Fraction(value), False)


@given(st.text(max_size=40), st.text(max_size=40))
def test_verifiers_never_raise_and_never_pay_the_empty(text: str, gold: str) -> None:
    for verify in (
        rewards.verify_exact,
        rewards.verify_choice,
        rewards.verify_number,
        rewards.verify_pattern,
    ):
        score = verify(text, gold)
        assert score.value in (0.0, 1.0) or score.verdict is F
        empty = verify(" ", gold)
        assert empty.verdict in (N, F)
        assert verify(text, "").verdict is F or verify is rewards.verify_pattern


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        ("B", "B", R),
        ("b", "B", R),
        ("(B)", "B", R),
        ("B.", "(B)", R),
        ("B", 1, R),
        ("The answer is (B).", "B", R),
        ("The answer is B. It has a big tail", "B", R),
        (r"\boxed{B}", "B", R),
        ("A cat is an animal, so **B**", "B", R),
        ("Answer: option B", "B", R),
        ("A", "B", W),
        ("(A) (B) (C) (D)", "B", W),
        ("The answer is A or B", "B", W),
        ("A, B, C, D", "B", W),
        ("<answer>A B C D</answer>", "B", W),
        ("The answer is the big one", "B", W),
        ("Answer: A cat", "A", W),
        ("The answer is A because of that", "A", R),
        ("B. A long reason with C in it", "B", R),
        ("Answer: B. A long reason with C in it", "B", R),
        ("A cat", "A", N),
        ("", "B", N),
        ("<think>B</think>", "B", N),
        ("B", "E", F),
        ("B", 4, F),
        ("B", "", F),
        ("B", None, F),
        ("B", True, F),
    ],
)
def test_choice(text: str, gold: Any, verdict: Verdict) -> None:
    assert judge(rewards.choice("answer"), text, answer=gold).verdict is verdict


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        ("Paris", "paris", R),
        ("  Par\u0069s \n", "Paris", R),
        ("Cafe\u0301", "Caf\u00e9", R),
        ("Paris", ["London", "Paris"], R),
        ("Paris, London", ["London", "Paris"], W),
        ("7", 7, R),
        ("<think>London?</think>Paris", "Paris", R),
        ("", "Paris", N),
        ("", "", F),
        ("Paris", [], F),
        ("Paris", None, F),
        ("Paris", {"a": 1}, F),
    ],
)
def test_exact(text: str, gold: Any, verdict: Verdict) -> None:
    assert judge(rewards.exact("answer"), text, answer=gold).verdict is verdict


def test_exact_options() -> None:
    assert judge(rewards.exact(case=True), "paris", answer="Paris").verdict is W
    assert judge(rewards.exact(marked=True), "Paris", answer="Paris").verdict is N
    assert judge(rewards.exact(marked=True), "Surely <answer>Paris</answer>", answer="Paris").verdict is R


def test_pattern() -> None:
    fmt = rewards.pattern(r"<think>.+</think>\s*<answer>.+</answer>", thoughts=True)
    assert judge(fmt, "<think>a</think> <answer>4</answer>").verdict is R
    assert judge(fmt, "<answer>4</answer>").verdict is W
    assert judge(rewards.pattern(r".*"), "").verdict is N
    assert judge(rewards.pattern(r"\d+", whole=False), "a 7").verdict is R
    assert judge(rewards.pattern(r"\d+"), "a 7").verdict is W
    assert judge(rewards.pattern(column="p"), "a", p="a").verdict is R
    assert judge(rewards.pattern(column="p"), "a", p="(").verdict is F
    assert judge(rewards.pattern(column="p"), "a").verdict is F
    with pytest.raises(UserError, match="not a regular expression"):
        rewards.pattern("(")
    with pytest.raises(UserError, match="not both"):
        rewards.pattern()


def test_boxed_matches_braces() -> None:
    assert boxed(r"\boxed{\frac{1}{\sqrt{2}}} and more}") == r"\frac{1}{\sqrt{2}}"
    assert boxed(r"\boxed{1} \boxed{2} \boxed{3") == "2"
    assert boxed("none") is None
    assert boxed(r"\boxed{\{1, 2\}} }") == r"\{1, 2\}"
    assert boxed(r"} \boxed{a \fbox{b} c") == "b"
    assert boxed(r"\boxed {{x} {y}}") == "{x} {y}"


def test_marks_that_are_never_closed_take_no_long() -> None:
    began = time.process_time()
    for mark in (r"\boxed{", "<answer>", "#### ", "<think>", "</think>", "answer is ", "<tool_call>", r"\boxed{}"):
        rewards.find_answer(mark * 40_000)
        rewards.verify_number(mark * 40_000, 4)
    assert time.process_time() - began < 10


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), "1"])
def test_compose_refuses_bad_weights(weight: Any) -> None:
    with pytest.raises(UserError, match='the weight of "a"'):
        rewards.compose({"a": (weight, rewards.math())})


def test_compose_sums_and_keeps_parts() -> None:
    fmt = rewards.pattern(r".*\\boxed\{.*\}.*")
    reward = rewards.compose({"answer": rewards.math(), "format": (0.2, fmt)})
    assert reward.columns == ("answer",)  # type: ignore[attr-defined]
    both = judge(reward, r"\boxed{4}", answer=4)
    assert both.value == pytest.approx(1.2) and both.verdict is R
    assert both.parts == {"answer": 1.0, "format": 1.0}
    form_only = judge(reward, r"\boxed{5}", answer=4)
    assert form_only.value == pytest.approx(0.2) and form_only.verdict is W
    assert judge(reward, r"\boxed{5}", answer="a kite, surely").verdict is F


def test_compose_gates() -> None:
    fmt = rewards.pattern(r".*\\boxed\{.*\}.*")
    reward = rewards.compose({"answer": rewards.math(), "format": (0.2, fmt)}, gates=["format"])
    assert judge(reward, "4", answer=4).value == 0.0
    assert judge(reward, "4", answer=4).verdict is W
    penalty = rewards.compose(
        {"answer": rewards.math(), "long": (-1.0, lambda task, trajectory: 3.0)}, gates=["answer"]
    )
    assert judge(penalty, "5", answer=4).value == -3.0  # a gate never turns a penalty into nothing
    with pytest.raises(UserError, match=r'Unknown part of rewards.compose "form"'):
        rewards.compose({"answer": rewards.math()}, gates=["form"])


def test_compose_takes_trl_rewards_and_leaves_out_what_does_not_apply() -> None:
    def only_code(completions: Any, kind: Any, **kwargs: Any) -> list[float | None]:
        return [1.0 if k == "code" else None for k in kind]

    reward = rewards.compose({"code": (2.0, only_code), "answer": rewards.math()})
    code = judge(reward, "4", answer=4, kind="code")
    assert code.value == 3.0 and code.parts == {"code": 1.0, "answer": 1.0}
    other = judge(reward, "4", answer=4, kind="math")
    assert other.value == 1.0 and other.parts == {"answer": 1.0} and other.verdict is R
    alone = judge(rewards.compose({"code": only_code}), "4", kind="math")
    assert alone.verdict is F and "no reward applies" in alone.note
    nested = judge(rewards.compose({"all": reward}), "4", answer=4, kind="math")
    assert nested.parts == {"all": 1.0, "all/answer": 1.0}
