"""Any text is graded: no exception escapes, time is bounded, and the empty is never paid."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlready import Verdict
from rlready.rewards import verify_math

_WORDS = r"""\frac{ \sqrt{ \sqrt[ ] { } ( ) [ [ ] \{ \} | < > = \le \ge \in \cup \cap \setminus , ; : . !
^ ^{ _ _{ + - * / %
\pm \mp \infty \pi e i x y z n 0 1 2 3 7 12 0.5 1,000 10^{ \log \ln \sin \cos \tan \arcsin \binom \gcd( \text{ cm }
\mathrm{ ^\circ \emptyset \mathbb{R} \begin{pmatrix} & \\ \end{pmatrix} \boxed{ #### answer is: **  $ \$ \( \) \[ \]
or and \ldots ' \left \right \, 1:30 413_8 \overline{3} percent million \pmod{ \equiv \approx \lfloor \rfloor ½ √
≤ ∞ π ² ° <think> </think> Question: \neq abs sqrt( log_2 x_1 f(x) \displaystyle \quad ~ # ` " @ é 是 ٣"""
_PIECES = st.sampled_from([*_WORDS.split(), "\u00d7", "\u222a", "\u2212"])
_MATHS = st.lists(_PIECES, max_size=25).map(" ".join) | st.lists(_PIECES, max_size=25).map("".join)
_TEXTS = _MATHS | st.text(max_size=80) | st.text("0123456789.,+-*/^()x{}\\frac! ", max_size=60)
_SLOWEST = 30.0  # seconds, two questions to SymPy at most


def _grade(text: str, gold: str) -> None:
    began = time.perf_counter()
    for response in (True, False):
        score = verify_math(text, gold, response=response)
        assert score.note
        assert (score.value == 1.0) == (score.verdict is Verdict.RIGHT)
        assert verify_math(" ", gold, response=response).verdict in (Verdict.NO_ANSWER, Verdict.GRADER_FAILED)
        assert verify_math(text, "", response=response).verdict is Verdict.GRADER_FAILED
    if gold.strip():
        same = verify_math(gold, gold, response=False)
        assert same.verdict is not Verdict.WRONG, same.note
    assert time.perf_counter() - began < _SLOWEST


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(_TEXTS, _TEXTS)
def test_any_text(text: str, gold: str) -> None:
    _grade(text, gold)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_any_text_for_ten_minutes() -> None:
    """RLREADY_FUZZ_SECONDS sets another time."""
    end = time.monotonic() + float(os.environ.get("RLREADY_FUZZ_SECONDS", "600"))
    count = 0

    @settings(max_examples=2_000, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(_TEXTS, _TEXTS)
    def round_of(text: str, gold: str) -> None:
        nonlocal count
        count += 1
        if time.monotonic() < end:
            _grade(text, gold)

    while time.monotonic() < end:
        round_of()
    assert count
