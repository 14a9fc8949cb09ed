"""Where the answer stands in whole responses, and what must not be taken for it."""

from __future__ import annotations

import pytest

from rlready import Verdict
from rlready.errors import UserError
from rlready.rewards import verify_math

R, W, N, F = Verdict.RIGHT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.GRADER_FAILED
_RESPONSES = [
    (r"So the share is \boxed{42 \text{ percent}}.", "42\\%", R),
    ("Final answer: **58**", "58", R),
    ("**Final answer:** 58", "58", R),
    ("**Answer: 58**", "58", R),
    ("The answer is **58**.", "58", R),
    ("The answer is 58 because 2*29=58.", "58", R),
    ("The answer is $\\frac{1}{2}$.", "0.5", R),
    ("The answer is $\\frac{1}{2}$ and that is final", "0.5", R),
    ("The answer is \\(\\frac{3}{4}\\).", "3/4", R),
    ("Thus the result is $\\frac{3}{4}$.", "3/4", R),
    ("Thus the result is $\\frac{3}{4}$.", "4", W),
    ("Thus the result is \\frac{3}{4}.", "4", N),
    ("First \\boxed{3}. Wait, the answer is 4.", "4", R),
    ("First \\boxed{3}. Wait, the answer is 4.", "3", W),
    ("The answer is 3. Wait, no.\nThe answer is 4.", "4", R),
    ("\\boxed{4}\n\nThe answer is given in cm.", "4", R),
    ("<think>\\boxed{3}</think>\\boxed{4}", "4", R),
    ("<think>\\boxed{3}</think>\\boxed{4}", "3", W),
    ("<think>\\boxed{3}</think>", "3", N),
    ("<think>\\boxed{3}", "3", N),
    ("hmm \\boxed{3}</think> So \\boxed{4}", "4", R),
    ("\\boxed{4", "4", N),
    ("\\boxed{}", "4", N),
    ("\\boxed{4} and \\boxed{}", "4", R),
    ("x = \\boxed{3} and y = \\boxed{5}", "3, 5", R),
    ("\\boxed{3} or \\boxed{5}", "5", W),
    ("\\boxed{3} or \\boxed{5}", "3", W),
    ("\\boxed{3}, \\boxed{5}", "5", W),
    ("#### 18\n\nQuestion: Next one?\nAnswer: 2+5=7\n#### 7", "18", R),
    ("#### 18\n\nQuestion: Next one?\nAnswer: 2+5=7\n#### 7", "7", W),
    ("#### 17\nNo, I made a slip.\n#### 18", "18", R),
    ("#### Step 1: add 3\n2+2\n#### 4", "4", R),
    ("#### 1,250", "1250", R),
    ("#### $5", "5", R),
    ("####-12", "-12", R),
    ("Antwort: 58", "58", R),
    ("Die Antwort ist 58.", "58", R),
    ("La réponse est 58.", "58", R),
    ("答案是58。", "58", R),
    ("答案\uff1a58", "58", R),
    ("答え: 58", "58", R),
    ("Ответ: 58", "58", R),
    ("La respuesta es $\\frac12$", "1/2", R),
    ("Answer seems unclear at first.\n\nAnswer: 58", "58", R),
    ("Answer:\n\n58", "58", R),
    ("<answer>58</answer>", "58", R),
    ("<answer>57</answer> no <answer>58</answer>", "58", R),
    ("Adding the tip, the order costs $31.00.", "31", R),
    ("It costs $5 and then $6.", "6", R),
    ("I am not sure.", "31", N),
    ("", "31", N),
    ("Halving 34 gives \\boxed{17}", "17", R),
    ("Therefore the value is \\[ \\boxed{88} \\]", "88", R),
    ("$\\boxed{88}$", "88", R),
    ("I should mark with \\boxed as asked. The result is \\boxed{23}.", "23", R),
    ("The values are x=3 and x=5, so the answer is {3, 5}.", "3,5", R),
    ("The answer is x = 5.", "5", R),
    ("The answer is: $x=5$", "5", R),
    ("Answer: \\boxed{5}", "5", R),
    ("So the answer is 5 apples.", "5", R),
    ("The final answer is $\\boxed{5}$. I hope it is correct.", "5", R),
    ("The answer is no solution.", "\\emptyset", R),
    ("The solution is (-2, 3).", "(-2,3)", R),
    ("The final answer is (-2, 3).", "(-2,3)", R),
    ("The probability is 1/3.", "1/3", R),
    ("\\boxed{\\text{quadrant III}}", "quadrant III", R),
    ("\\boxed{7}", "the shape is a kite", F),
    ("The answer is kite.", "kite", R),
    ("\\boxed{7\\sqrt(}", "7", W),
    ("The answer is 7\\sqrt{", "7", W),
    ("So 3+4=7", "7", R),
    ("So x = 7.", "7", R),
    ("the answer is 3.5. Done", "3.5", R),
    ("the answer is 3.5.", "3.5", R),
    ("the answer is 3. Then", "3", R),
    ("The answer is 12 or 13.", "13", W),
    ("The answer is 12 or 13.", "12", W),
    ("Possible answers: 1, 2, 3, 4", "4", W),
    ("\\boxed{\\frac{1}{\\boxed{2}}}", "1/2", W),
    ("\\fbox{7}", "7", R),
    ("\\boxed 7", "7", R),
    ("The answer is $5$ or $6$", "5", W),
    ("So the answer is $3$, which is odd.", "3", R),
    ("**Step 1**\nAdd.\n\n**58**", "58", R),
    ("The answer is 1,234.", "1234", R),
    ("The answer is \\$1,234.50.", "1234.5", R),
    ("The answer is 5%.", "5%", R),
    ("x^2+1", "x^2+1", R),
    ("So $a=1$, $b=2$, and the answer is $a+b=3$.", "3", R),
    ("So the answer is $a+b=3$.", "4", W),
    ("The answer is B", "B", R),
    ("The correct answer is (C).", "C", R),
    ("The answer is C. Many people pick D.", "C", R),
    ("The answer is C. Many people pick D.", "D", W),
    ("Natalia sold 48/2 = 24 clips in May. Altogether 48+24 = 72 clips.", "72", R),
    ("She has 3 dogs and 2 cats.", "3", W),
    ("58 is the number", "58", R),
    ("The answer is\n\\[\n\\frac{1}{2}\n\\]", "1/2", R),
    ("The answer is: \\[ x = \\frac{1}{2} \\]", "1/2", R),
    ("Thus\n$$x=\\frac{1}{2}$$", "1/2", R),
    ("Thus\n\\[x=\\frac{1}{2}.\\]", "1/2", R),
]


@pytest.mark.parametrize(("response", "gold", "verdict"), _RESPONSES)
def test_response(response: str, gold: str, verdict: Verdict) -> None:
    score = verify_math(response, gold)
    assert score.verdict is verdict, score.note
    assert score.note


def test_cue_words_by_configuration() -> None:
    text = "Zuerst dachte ich an 3. Lösung: 58, das ist klar. Also 3 + 55."
    assert verify_math(text, "58").verdict is not R
    assert verify_math("Lösung: 58", "58", cue_words=["Lösung"]).verdict is R
    assert verify_math("Lösung ist 58.\nDas war 7", "58", cue_words=["Lösung"]).verdict is R
    with pytest.raises(UserError, match="list of words"):
        verify_math("x", "x", cue_words="Lösung")


def test_a_long_tail_does_not_hide_the_mark() -> None:
    assert verify_math("#### 55\n" + "The working above is consistent. " * 400, "55").verdict is R


def test_marked_golds_and_lists_of_golds() -> None:
    assert verify_math("72", "48 + 24 = 72\n#### 72").verdict is R
    assert verify_math("72", r"So it is \boxed{72}.").verdict is R
    assert verify_math("1/2", ["0.5", "kite"]).verdict is R
    assert verify_math("3", ["0.5", "kite"]).verdict is F
    assert verify_math("3", []).verdict is F


@pytest.mark.parametrize("gold", ["", "  ", None, True, float("nan"), {}, "$$", r"\boxed{}"])
def test_golds_that_are_none(gold: object) -> None:
    for answer in ("", "5", "nan", "$$"):
        score = verify_math(answer, gold)
        assert score.verdict is F and score.note


def test_rules() -> None:
    assert verify_math("18", "18 cm", units="needed").verdict is W
    assert verify_math("18 cm", "18", units="needed").verdict is R
    assert verify_math("18 m", "18 cm", units="ignored").verdict is R
    assert verify_math("50%", "50", percent="value").verdict is W
    assert verify_math("50%", "0.5", percent="value").verdict is R
    assert verify_math("50%", "50", percent="sign").verdict is R
    assert verify_math("50%", "0.5", percent="sign").verdict is W
    with pytest.raises(UserError, match='Unknown value of units "lax"'):
        verify_math("1", "1", units="lax")  # type: ignore[arg-type]
