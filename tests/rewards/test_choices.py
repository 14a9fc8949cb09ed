"""Choices: every kind of gold and answer beside its twins, options' texts, hostile texts, and what always holds."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready import Task, Trajectory, Turn, Verdict, rewards
from rlready.errors import UserError
from rlready.rewards.choices import grade_mcq_response, verify_choices
from rlready.scoring import as_scorer

R, W, N, F = Verdict.RIGHT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.GRADER_FAILED


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        ("Antwort:\n\nAntwort: D", "D", R),
        ("Antwort:\n\nAntwort: D", "A", W),
        ("B. A small boat near the pier", "B", R),
        ("B. A small boat near the pier", "A", W),
        ("C. A pretty girl", "C", R),
        ("Answer seems unclear at first.\n\nAnswer: B", "B", R),
        ("Answer seems to be A.\n\nAnswer: B", "B", R),
        ("The calculated answer is 11.\n\nAnswer seems to be A.\n\nAnswer: A\n", "A", R),
        ("The answer is C. Many people pick D by mistake.", "C", R),
        ("The answer is C. Many people pick D by mistake.", "D", W),
        ("ANSWER IS D. A is incorrect.", "D", R),
        ("ANSWER IS D. A is incorrect.", "A", W),
        ("The answer is B. Note that A is a common distractor.", "B", R),
        ("The answer is C because I computed the integral.", "C", R),
        ("The answer is C because I computed the integral.", "I", W),
        ("The correct choice is D since a wheel turns.", "D", R),
        ("The correct choice is D since a wheel turns.", "A", W),
        ("d", "D", R),
        ("b. 4", "B", R),
        ("I would pick B — a safe choice.", "B", R),
        ("I would pick B — a safe choice.", "A", W),
        ("The answer is B because a car moves.", "B", R),
        ("answer: (D)", "D", R),
        ("answer: (D)", "A", W),
        ("answer: d", "D", R),
        ("Answer: $B$", "B", R),
        ("Answer: $B", "B", R),
        ("**Answer:** $C", "C", R),
        ("Answer: $(D)", "D", R),
        ("answer - $a", "A", R),
        ("Answer: $5", "B", W),
        ("ANSWER: A, C.", "A,C", R),
        ("ANSWER: A, C", "A", W),
        ("ANSWER: A, C", "C", W),
        ("ANSWER: A", "A,C", W),
        ("ANSWER: A and C", "A,C", R),
        ("ANSWER: A, B, and C", "A,B,C", R),
        ("ANSWER: A,C,", "A,C", R),
        ("ANSWER: A,", "A", R),
        ("ANSWER: AC", "A,C", R),
        ("ANSWER: C, A", "A,C", R),
        ("ANSWER: C, A", "AC", R),
        ("ANSWER: A, B, C", "A,C", W),
        ("ANSWER: None of the above", "A", W),
        ("ANSWER: None of the above", "B", W),
        ("ANSWER: Don't know", "D", W),
        ("ANSWER: I don't know", "D", W),
        ("ANSWER: I don't know", "I", W),
        ("C", "A", W),
        ("A", "A", R),
        ("a", "A", R),
        ("The", "A", N),
        ("A", "C", W),
        ("Answer: Let's think step by step. The answer is B.", "B", R),
        ("Answer: Let's think step by step.", "L", W),
        ("**Answer: D** and \\boxed{\\langle H\\rangle \\ll \\Delta E}", "D", R),
        ("\\boxed{\\langle H\\rangle \\ll \\Delta E}\n\n**Answer: D**", "D", R),
        ("The codon is ATG (M).\n\nAnswer: $B", "B", R),
        ("After comparing the options, the answer is C.", "C", R),
        ("... both point to bearing wear...\n\nC", "C", R),
        ("Brak danych", "B", N),
        ("Czyli nie", "C", N),
        ("Decyzja", "D", N),
        ("\\boxed{B}", "B", R),
        ("\\boxed{\\text{(B)}}", "B", R),
        ("\\boxed{\\textbf{B}}", "B", R),
        ("\\boxed{B. Paris}", "B", R),
        ("\\boxed{A, C}", "A,C", R),
        ("\\boxed{A\\text{ and }C}", "A,C", R),
        ("First \\boxed{A}. No: \\boxed{B}", "B", R),
        ("First \\boxed{A}. No: \\boxed{B}", "A", W),
        ("\\boxed{B^2}", "B", W),
        ("\\boxed{A} or \\boxed{B}", "B", R),
        ("<answer>B</answer>", "B", R),
        ("<answer>A B C D</answer>", "B", W),
        ("<answer>\n(B)\n</answer>", "B", R),
        ("#### C", "C", R),
        ("The answer is (B).", "B", R),
        ("The answer is **B**.", "B", R),
        ("The answer is: **(B)** Paris", "B", R),
        ("The best answer is B", "B", R),
        ("Final Answer: B", "B", R),
        ("Therefore, the final answer is option (C): Paris.", "C", R),
        ("The correct answer is option B.", "B", R),
        ("Answer: option B", "B", R),
        ("The answer to the question is B.", "B", R),
        ("The correct answer to question 3 is (C).", "C", R),
        ("Correct option: D", "D", R),
        ("My choice is B", "B", R),
        ("The answer is:\n\n(B)", "B", R),
        ("Answer:\nB", "B", R),
        ("The answer is not A. The answer is B.", "B", R),
        ("The answer is not A.", "A", W),
        ("The answer is not A but B.", "B", R),
        ("B is not the answer.", "B", N),
        ("The answer is A? No, the answer is B.", "B", R),
        ("The answer is A or B", "B", W),
        ("The answer is either A or B", "A", W),
        ("Answer: A/B", "A", W),
        ("The answer is A, C is wrong.", "A", R),
        ("The answer is A, C and D are wrong.", "A", R),
        ("The answer is C, not D.", "C", R),
        ("The answer is C (not D)", "C", R),
        ("Answer: C. Many students think the answer is D.", "C", R),
        ("Answer: C. Many students think the answer is D.", "D", W),
        ("Some people would say the answer is D.", "D", N),
        ("The wrong answer is D. The answer is C.", "C", R),
        ("The answer is C. The wrong answer is D.", "C", R),
        ("That is wrong, so the answer is B", "B", R),
        ("I think the answer is B", "B", R),
        ("I guess the answer might be B.", "B", R),
        ("The answer might be A, but the answer is B", "B", R),
        ("A is the correct answer.", "A", R),
        ("I was right. B is the correct answer.", "B", R),
        ("B is correct.", "B", R),
        ("A is incorrect. B is correct. C is wrong.", "B", R),
        ("A and C are correct.", "A,C", R),
        ("A is correct, B is incorrect, C is correct.", "A,C", R),
        ("A is correct. B is correct.", "A", W),
        ("A is correct about the sky, but B is the answer", "B", R),
        ("Therefore, B.", "B", R),
        ("So it must be C.", "C", R),
        ("Thus (C)", "C", R),
        ("So I think about it.", "I", N),
        ("So A boat it is", "A", N),
        ("I'll go with B.", "B", R),
        ("People choose D. I choose B.", "B", R),
        ("A cat", "A", N),
        ("A", "B", W),
        ("A boat is on the sea", "A", N),
        ("The answer is a boat", "A", W),
        ("The answer is A boat", "A", W),
        ("The answer is A because of that", "A", R),
        ("Answer: A cat", "A", W),
        ("The answer is B vitamins", "B", W),
        ("The answer is C++", "C", W),
        ("The answer is C#", "C", W),
        ("The answer is D'Artagnan", "D", W),
        ("The answer is A-frame", "A", W),
        ("Answer: E = mc^2", "E", W),
        ("Answer: B12", "B", W),
        ("The answer is U.S. policy", "U", W),
        ("answer: e.g. the boat", "E", W),
        ("The answer is 5A", "A", W),
        ("Answer: Apple", "A", W),
        ("Answer: BAD", "A", W),
        ("(A) (B) (C) (D)", "B", W),
        ("A, B, C, D", "B", W),
        ("A) red\nB) green\nC) blue", "B", N),
        ("A) red\nB) green\n\nThe answer is B", "B", R),
        ("A. red\nB. green\nC. blue\n\nB", "B", R),
        ("A cat is an animal, so **B**", "B", R),
        ("The right one is (B), I believe", "B", R),
        ("<think>The answer is A</think>The answer is B", "B", R),
        ("<think>The answer is A</think>The answer is B", "A", W),
        ("<think>The answer is B", "B", N),
        ("The answer is A</think>B", "B", R),
        ("<reasoning>A</reasoning>\nB", "B", R),
        ("[THINK]A[/THINK]B", "B", R),
        ("<thinking>Answer: A", "A", N),
        ("<|channel|>analysis<|message|>The answer is A<|end|><|start|>assistant<|channel|>final<|message|>B", "B", R),
        ("Answer: B\n\nQuestion: next\nAnswer: C", "B", R),
        ("Answer: B\n\nQuestion: next\nAnswer: C", "C", W),
        ("答案是B", "B", R),
        ("答案：B", "B", R),
        ("正解は (C) です。答え: C", "C", R),
        ("정답: B", "B", R),
        ("الإجابة: B", "B", R),
        ("Ответ: Б", "Б", R),
        ("Ответ: А", "Б", W),
        ("La respuesta es B porque sí", "B", R),
        ("La respuesta correcta es la B.", "B", R),
        ("Die richtige Antwort ist B.", "B", R),
        ("Resposta: A", "A", R),
        ("Réponse : B", "B", R),
        ("选B", "B", R),
        ("答案选C。", "C", R),
        ("Ｂ", "B", R),
        ("（B）", "B", R),
        ("đáp án: D", "D", R),
        ("Jawaban: A", "A", R),
        ("The answer is 2", "2", R),
        ("2", "2", R),
        ("(3)", "3", R),
        ("Answer: 12", "2", W),
        ("The answer is 2.5", "2", W),
        ("B", "(B)", R),
        ("B", "B. Paris", R),
        ("Paris", "B. Paris", R),
        ("London", "B. Paris", N),
        ("The answer is Paris", "B) Paris", R),
        ("The answer is London", "B) Paris", W),
        ("Paris", "Paris", R),
        ("The answer is Paris.", "Paris", R),
        ("London", "Paris", N),
        ("", "B", N),
        ("   ", "B", N),
        ("B", "", F),
        ("B", None, F),
        ("B", True, F),
        ("B", 1, R),
        ("B", 0, W),
        ("A", -1, F),
        ("A,C", ["A", "C"], R),
        ("A", ["A", "C"], W),
        ("B", [], F),
        ("?", "B", N),
        ("I am not sure.", "B", N),
        ("I refuse", "I", N),
        ("I", "I", R),
        ("Correct options:\n- A\n- C", "A,C", R),
        ("The correct answers are:\nA. red\nC. blue", "A,C", R),
        ("The correct answers are A and C because B is wrong", "A,C", R),
        ("B\n\nExplanation: the pier is near A and C.", "B", R),
        ("B: because of it", "B", R),
        ("B - Paris", "B", R),
        ("B) Paris", "B", R),
        ("The answer is B I think", "B", R),
        ("The answer is definitely B!", "B", R),
        ("Answer → B", "B", R),
        ("Answer=B", "B", R),
        ("It is not A, it is not B, so C", "C", R),
        ("Option A is wrong. Option B is right.", "B", R),
        ("The answer is `B`", "B", R),
        ('The answer is "B"', "B", R),
        ("The answer is 'B'", "B", R),
        ("The answer is <B>", "B", R),
        ("The answer is [B]", "B", R),
        ("Answer: {B}", "B", R),
        ("Answer: _B_", "B", R),
        ("K", "B", N),
        ("Z", "B", N),
        ("ANSWER: B\nANSWER: C", "C", R),
        ("Let me think... A is plausible, but B fits better. Answer: B", "B", R),
        ("The answer is A) 5", "A", R),
        ("Answer: (B) because A is false", "B", R),
        ("I'd say D.", "D", R),
        ("I believe it's C.", "C", R),
        ("My answer is C", "C", R),
        ("Answer is C", "C", R),
        ("Ans: C", "C", R),
        ("Ans. (C)", "C", R),
        ("Answer C", "C", R),
        ("Correct Answer: C", "C", R),
        ("correct answer - C", "C", R),
        ("choose C", "C", R),
        ("Option C", "C", R),
        ("C is my answer", "C", R),
        ("C, obviously.", "C", R),
        ("Definitely C", "C", R),
        ("So, the answer would be option D.", "D", R),
        ("It's B", "B", R),
        ("B!", "B", R),
        ("**B**", "B", R),
        ("B)", "B", R),
        ("Final: B", "B", R),
        ("Final choice → C", "C", R),
        ("Answer (C)", "C", R),
        ("ANSWER:C", "C", R),
        ("Answer:C. x", "C", R),
        ("answer:c", "C", R),
        ("The answer is c", "C", R),
        ("the answer is option c", "C", R),
        ("C only", "C", R),
        ("Only C", "C", R),
        ("The answer should be D, as the others are wrong.", "D", R),
        ("The answer is D as in dog", "D", R),
        ("The answer is A for several reasons", "A", R),
        ("Answer: A.", "A", R),
        ("I would say the answer is A.", "A", R),
        ("The answer is A, a small boat", "A", R),
        ("The answer is A (a small boat)", "A", R),
        ("The answer is A: a small boat", "A", R),
        ("The answer is A - a boat", "A", R),
        ("Answer:A", "A", R),
        ("Answer: a) boat", "A", R),
        ("Answer: a boat", "A", W),
        ("D. None of the above", "D", R),
        ("D. None of the above", "A", W),
        ("E", "E", R),
        ("J", "J", R),
        ("The answer is J", "J", R),
        ("K", "K", R),
        ("The answer is P", "P", R),
        ("The answer cannot be A, so it must be B.", "B", R),
        ("The answer cannot be A.", "A", N),
        ("The answer isn't A. It's C.", "C", R),
        ("It isn't A", "A", N),
        ("Not A", "A", N),
        ("not B", "B", N),
        ("Neither A nor B", "A", N),
        ("I was torn between A and C but settled on C", "C", R),
        ("I was torn between A and C", "A", N),
        ("Between A and B, I choose B", "B", R),
        ("My final answer is: B) Because", "B", R),
        ("Hence, option B is correct.", "B", R),
        ("Hence option (B) is the correct one", "B", R),
        ("The correct one is B", "B", R),
        ("Statement A is false. Statement B is true.", "B", R),
        ("A is true but does not answer; the answer is B", "B", R),
        ("So the answer is\n\n$$\\boxed{\\mathbf{C}}$$", "C", R),
        ("$\\boxed{\\textrm{B) } 5}$", "B", R),
        ("\\(\\boxed{D}\\)", "D", R),
        ("\\boxed{\\text{B. The boat}}", "B", R),
        ("\\boxed{a}", "A", R),
        ("\\boxed{AC}", "A,C", R),
        ("\\boxed{AC}", "A", W),
        ("\\boxed{}", "A", N),
        ("\\boxed{Paris}", "A", W),
        ("Answer: A&C", "A,C", R),
        ("Answer: A; C", "A,C", R),
        ("Answer: A C", "A,C", R),
        ("Answer: [A, C]", "A,C", R),
        ("Answer: ['A', 'C']", "A,C", R),
        ('["A","C"]', "A,C", R),
        ("Answer: (A), (C)", "A,C", R),
        ("Answer: A, C and D", "A,C", W),
        ("Answers: A, C", "C,A", R),
        ("A, C", "A, C", R),
        ("Both A and C", "A,C", R),
        ("A,B,C,D", "A,B,C,D", R),
        ("The answer is A. The answer is C.", "A,C", W),
        ("ac", "A,C", N),
        ("a, c", "A,C", R),
        ("a and c", "A,C", R),
        ("The sky is blue. A", "A", R),
        ("I think A", "A", R),
        ("I think it's A", "A", R),
        ("maybe A", "A", R),
        ("Is it A?", "A", N),
        ("Answer:\n", "B", N),
        ("Answer: ", "B", N),
        ("Answer: None", "A", W),
        ("None", "A", N),
        ("N/A", "A", N),
        ("All of the above", "A", N),
        ("Answer: B\n\nA common error is choosing D.", "B", R),
        ("B\nA", "A", R),
        ("The answer is C. This is because D is wrong and A is not correct.", "C", R),
        ("The answer is C. D is correct in another context", "C", R),
        ("The correct answer is D. Vitamin A is not correct.", "D", R),
        ("Vitamin C", "C", N),
        ("Plan B", "B", N),
        ("Vitamin C is best", "C", N),
        ("Hepatitis B", "B", N),
        ("Group A", "A", N),
        ("The answer is vitamin C", "C", W),
        ("Answer: Vitamin C", "C", W),
        ("Answer: Plan B", "B", W),
    ],
)
def test_labels(text: str, gold: Any, verdict: Verdict) -> None:
    graded = verify_choices(text, gold)
    assert graded.verdict is verdict, graded.reason
    assert graded.reason
    assert (graded.score == 1.0) == (verdict is R)


_OPTIONS = ["Paris", "London", "New York", "New York City"]


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        ("London", "B", R),
        ("The answer is London.", "B", R),
        ("The answer is New York City", "C", W),
        ("The answer is New York City", "D", R),
        ("I believe it is New York City, of course", "D", R),
        ("I believe it is New York City, of course", "C", W),
        ("It is Paris or London", "A", W),
        ("A. London", "A", W),
        ("A. London", "B", W),
        ("B. London", "B", R),
        ("B", "London", R),
        ("The answer is B. London", "London", R),
        ("The answer is B. Paris", "B", W),
        ("the answer is Berlin", "A", W),
        ("London", "London", R),
        ("Hmm", "A", N),
        ("<think>Paris</think>London", "A", W),
        ("London", 1, R),
    ],
)
def test_option_texts(text: str, gold: Any, verdict: Verdict) -> None:
    for options in (_OPTIONS, dict(zip("ABCD", _OPTIONS, strict=True))):
        if isinstance(gold, str) or isinstance(options, list):
            graded = verify_choices(text, gold, options=options)
            assert graded.verdict is verdict, graded.reason


def test_labels_of_ones_own() -> None:
    options = {"i": "red", "ii": "green", "iii": "blue"}
    assert verify_choices("The answer is (ii).", "ii", options=options).verdict is R
    assert verify_choices("The answer is (ii).", "i", options=options).verdict is W
    assert verify_choices("blue", "iii", options=options).verdict is R
    assert verify_choices("die Lösung lautet B", "B", cue_words=["Lösung"]).verdict is R
    assert verify_choices("E", "B", letters="ABCD").verdict is N
    assert verify_choices("B", "E", letters="ABCD").verdict is F


@pytest.mark.parametrize("options", [[], "abc", ["a", 3], ["a", ""], {}, {"A": None}, ["x"] * 27])
def test_options_that_cannot_be_read(options: Any) -> None:
    with pytest.raises(UserError, match="options"):
        verify_choices("A", "A", options=options)
    with pytest.raises(UserError, match="letters"):
        verify_choices("A", "A", letters=" ")


def test_parts_of_several() -> None:
    graded = verify_choices("A, B", "A,C")
    assert graded.parts == {"recall": 0.5, "precision": 0.5}
    assert graded.score == 0.0
    assert verify_choices("none of these", "A,C").parts == {}


def test_record_and_reward() -> None:
    assert grade_mcq_response({"prediction": "London", "reference": "B", "options": _OPTIONS}).verdict is R
    with pytest.raises(UserError, match='"reference"'):
        grade_mcq_response({"prediction": "B"})
    with pytest.raises(UserError, match='"options" must be a list'):
        grade_mcq_response({"prediction": "B", "reference": "B", "options": "B"})
    task = Task.of("?", answer="B", options=_OPTIONS)
    score = as_scorer(rewards.choice("answer", options="options"))
    for text, verdict in (("London", R), ("C", W), ("", N)):
        assert asyncio.run(score(task, Trajectory(task, [Turn([1], [2], text=text)]))).verdict is verdict
    broken = Task.of("?", answer="B", options="London")
    assert asyncio.run(score(broken, Trajectory(broken, [Turn([1], [2], text="B")]))).verdict is F


@pytest.mark.parametrize(
    "text",
    ["x" * 200_000, "A " * 50_000, "answer is " * 20_000, "(" * 100_000, "\\boxed{" * 30_000, "A, " * 60_000,
     "so " * 60_000, "**A** " * 40_000, "A is the answer " * 10_000, "\n" * 200_000,
     "{" * 100_000, "Answer: not A but " * 10_000, "answer to " * 20_000, "many think " * 20_000, "<answer>" * 20_000,
     "A\n" * 80_000, "\\text{" * 40_000],
)  # fmt: skip
def test_hostile_texts_take_bounded_time(text: str) -> None:
    begun = time.process_time()
    verify_choices(text, "B")
    verify_choices(text, "A,C", options=_OPTIONS)
    assert time.process_time() - begun < 8


@given(
    st.text(max_size=60), st.one_of(st.text(max_size=8), st.integers(-3, 12), st.none(), st.lists(st.text(max_size=2)))
)
@settings(deadline=None)
def test_never_raises_and_repeats(text: str, gold: Any) -> None:
    graded = verify_choices(text, gold)
    assert graded.verdict in (R, W, N, F)
    assert graded.score in (0.0, 1.0) or graded.verdict is F
    assert verify_choices(text, gold) == graded or graded.verdict is F
    assert verify_choices("", gold).verdict in (N, F)


@given(st.sampled_from("ABCDEFGHIJ"), st.sampled_from("ABCDEFGHIJ"), st.sampled_from([
    "{}", "({})", "{}.", "Answer: {}", "The answer is {}.", "**{}**", "\\boxed{{{}}}", "ANSWER: ({})", "#### {}",
    "{}) it is so", "We try A, then B.\n\nThe correct option is {}", "<think>A B C</think>{}",
    "I think it is B, no.\nFinal answer: {}",
]))  # fmt: skip
def test_only_the_gold_is_paid(named: str, gold: str, form: str) -> None:
    assert verify_choices(form.format(named), gold).verdict is (R if named == gold else W)


@given(st.sets(st.sampled_from("ABCDE"), min_size=1), st.sets(st.sampled_from("ABCDE"), min_size=1), st.sampled_from([
    ", ", " and ", ",", " & ", "; ", "/",
]))  # fmt: skip
def test_sets_are_compared_as_sets(named: set[str], gold: set[str], joint: str) -> None:
    text = "The answer is " + joint.join(sorted(named, reverse=True)) + "."
    assert verify_choices(text, sorted(gold)).verdict is (R if named == gold else W)
