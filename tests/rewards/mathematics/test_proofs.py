"""What is equal, what is different, and that nothing is paid without a proof."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready import Verdict
from rlready.rewards import verify_math
from rlready.rewards.mathematics.decide import equal
from rlready.rewards.mathematics.reading import read
from rlready.rewards.mathematics.slow import Prover
from rlready.rewards.mathematics.tree import Budget, Node, num

R, W, F = Verdict.RIGHT, Verdict.WRONG, Verdict.GRADER_FAILED


def tree(text: str) -> Node:
    node = read(text).node
    assert node is not None, read(text).why
    return node


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\sqrt{2+\sqrt{3}}", r"\frac{\sqrt6+\sqrt2}{2}"),
        (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"),
        (r"\sqrt[3]{2+\sqrt5}", r"\frac{1+\sqrt5}{2}"),
        (r"\cos\frac{\pi}{5}", r"\frac{1+\sqrt5}{4}"),
        (r"\cos 36^\circ - \cos 72^\circ", "0.5"),
        (r"\sqrt{10-2\sqrt{5}}", r"4\sin 36^\circ"),
    ],
)
def test_algebraic_numbers_are_decided_by_a_bound(one: str, other: str) -> None:
    verdict = equal(tree(one), tree(other), Budget())
    assert verdict.equal and "binary digits" in verdict.why
    near = equal(tree(one), Node("add", (tree(other), num(Fraction(1, 10**40)))), Budget())
    assert near.equal is False, near.why


def test_agreement_at_points_or_in_digits_is_no_proof() -> None:
    for one, other in ((r"\arcsin x + \arccos x", r"\frac{\pi}{2}"), (r"\arctan 2 + \arctan 3", r"\frac{3\pi}{4}")):
        verdict = equal(tree(one), tree(other), Budget())
        assert verdict.equal is None and "no proof" in verdict.why


def test_what_is_equal_only_for_positive_symbols_is_not_equal() -> None:
    assert equal(tree(r"\sqrt{xy}"), tree(r"x\sqrt{y/x}"), Budget()).equal is False
    assert equal(tree(r"\sqrt{xy}"), tree(r"\sqrt{x}\sqrt{y}"), Budget()).equal


def test_sympy_is_the_last_resort() -> None:
    prover = Prover(deadline=20)
    try:
        verdict = equal(tree(r"\ln(2+\sqrt3)"), tree(r"-\ln(2-\sqrt3)"), Budget(), prover)
        assert verdict.equal and "SymPy" in verdict.why
    finally:
        prover.close()


def test_sympy_past_its_deadline_decides_nothing() -> None:
    prover = Prover(deadline=0.0)
    try:
        assert prover(tree(r"\arcsin x + \arccos x"), tree(r"\frac{\pi}{2}")) is None
    finally:
        prover.close()


def test_what_is_too_large_is_a_failure_of_the_grader() -> None:
    score = verify_math("10^{10^{100}}", "5", response=False)
    assert score.verdict is F and "too large" in score.note
    assert verify_math("10^{10^{100}}", "10^{10^{100}}", response=False).verdict is R


_NUMBERS = st.fractions(max_denominator=10**6).filter(lambda f: abs(f) < 10**12)


@given(_NUMBERS)
def test_every_fraction_is_read_back(value: Fraction) -> None:
    top, bottom = value.numerator, value.denominator
    for text in (f"{top}/{bottom}", rf"\frac{{{top}}}{{{bottom}}}", rf"$\dfrac{{{top}}}{{{bottom}}}$"):
        assert verify_math(text, f"{top}/{bottom}", response=False).verdict is R
        assert verify_math(text, str(value + Fraction(1, 10**9)), response=False).verdict is W


@given(st.integers(-(10**30), 10**30))
def test_whole_numbers_are_exact(value: int) -> None:
    assert verify_math(f"{value:,}", str(value)).verdict is R
    assert verify_math(rf"\boxed{{{value}}}", value).verdict is R
    assert verify_math(str(value), str(value + 1)).verdict is W


_POLYNOMIALS = st.lists(st.integers(-9, 9), min_size=2, max_size=5).filter(lambda c: any(c[1:]))


def _written(coefficients: list[int]) -> str:
    return "+".join(f"({c})x^{{{k}}}" for k, c in enumerate(coefficients))


@settings(max_examples=50)
@given(_POLYNOMIALS, _POLYNOMIALS, st.integers(1, 5))
def test_products_of_polynomials_are_multiplied_out(a: list[int], b: list[int], gap: int) -> None:
    product = [0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product[i + j] += x * y
    factored = f"({_written(a)})({_written(b)})"
    assert verify_math(factored, _written(product), response=False).verdict is R
    quotient = rf"\frac{{{_written(product)}}}{{{_written(b)}}}"
    assert verify_math(quotient, _written(a), response=False).verdict is R
    product[0] += gap
    assert verify_math(factored, _written(product), response=False).verdict is W


@settings(max_examples=50)
@given(st.integers(1, 200), st.integers(1, 200))
def test_surds(a: int, b: int) -> None:
    assert verify_math(rf"\sqrt{{{a}}}\sqrt{{{b}}}", rf"\sqrt{{{a * b}}}", response=False).verdict is R
    assert (
        verify_math(rf"\frac{{{a}}}{{\sqrt{{{b}}}}}", rf"\frac{{{a}\sqrt{{{b}}}}}{{{b}}}", response=False).verdict is R
    )
    same = verify_math(rf"\sqrt{{{a}}}+\sqrt{{{b}}}", rf"\sqrt{{{a + b}}}", response=False)
    assert same.verdict is W


@settings(max_examples=50)
@given(st.lists(st.integers(-20, 20), min_size=1, max_size=6, unique=True), st.randoms())
def test_sets_and_lists_have_no_order_and_tuples_have_one(items: list[int], random: object) -> None:
    mixed = list(items)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    one, other = ", ".join(map(str, items)), ", ".join(map(str, mixed))
    assert verify_math(other, one, response=False).verdict is R
    assert verify_math(rf"\{{{other}\}}", rf"\{{{one}\}}", response=False).verdict is R
    if len(items) > 1:
        paired = verify_math(f"({other})", f"({one})", response=False)
        assert (paired.verdict is R) == (items == mixed)
        assert verify_math(", ".join(map(str, mixed[1:])), one, response=False).verdict is W


def test_threads_and_loops_give_the_same_verdicts() -> None:
    pairs = [
        (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"),
        ("6.25\\%", "6.25\\%"),
        (r"\sin 2x", r"2\sin x\cos x"),
        ("1", "2"),
    ]
    wanted = [verify_math(a, g, response=False).verdict for a, g in pairs]
    got: list[list[Verdict]] = []

    def work() -> None:
        got.append([verify_math(a, g, response=False).verdict for a, g in pairs * 5])

    async def loop() -> None:
        work()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(loop())
    assert got == [wanted * 5] * 5


_HOSTILE = [
    "\\boxed{" * 20_000, "answer: " * 20_000, "answer: 7\nQuestion:\n" * 8_000, "<answer>" * 20_000, "$" * 50_000,
    "1 " * 50_000, "\\text{" * 10_000, "(x+1)^60*(x+y+z)^60", "(x+y+z+w)^{50}", "((((x+1)^9)^9)^9)^9", "5000!*4999!",
    "2^{99999}/3^{77777}+5^{9999}/7^{8888}", "+".join(f"\\sqrt{{{n}}}" for n in range(2, 100)), "x" * 1999, "(" * 300,
    "*".join(f"(1+\\sqrt{{{n}}})" for n in (2, 3, 5, 7, 11, 13, 17, 19)), "\\frac" * 300, "e^{e^{e^{e^{9}}}}",
    "+".join(f"\\cos({n}\\pi/{n + 7})" for n in range(1, 30)), "x^{" * 35 + "x" + "}" * 35, "1/" * 290 + "1",
    ",".join(f"\\sqrt{{{n}+\\sqrt{{{n + 1}}}}}" for n in range(2, 50)), "\\pm" * 200 + "1", "9" * 1999, "|" * 500,
]  # fmt: skip


@pytest.mark.parametrize("text", _HOSTILE, ids=range(len(_HOSTILE)))
def test_hostile_texts_take_bounded_time(text: str) -> None:
    began = time.process_time()
    for gold in ("5", r"\sqrt{2+\sqrt3}", "(1,2)", "x>3"):
        assert verify_math(text, gold).verdict is not R
        verify_math(gold, text[:1900])
    assert time.process_time() - began < 10


def test_a_hundred_thousand_grades_do_not_fill_memory() -> None:
    import tracemalloc

    def grades(start: int, count: int) -> None:
        for n in range(start, start + count):
            verify_math(rf"so it is \boxed{{\frac{{{n}}}{{7}}}}", f"{n}/7")

    grades(0, 5_000)
    tracemalloc.start()
    grades(10_000, 5_000)
    first = tracemalloc.get_traced_memory()[0]
    grades(20_000, 5_000)
    second = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert second - first < 500_000


def test_importing_rewards_loads_neither_torch_nor_sympy() -> None:
    code = "import sys, rlready.rewards; print({'torch', 'sympy', 'mpmath', 'transformers'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
