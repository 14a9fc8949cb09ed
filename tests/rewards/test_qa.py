"""Short answers: what is the same, what is not, where the answer stands, F1, and what always holds."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlready import Task, Trajectory, Turn, Verdict, rewards
from rlready.errors import UserError
from rlready.rewards.qa import f1, grade_qa_em, grade_qa_f1, verify_em, verify_f1
from rlready.rewards.words import Answer, words
from rlready.scoring import as_scorer

R, W, N, F = Verdict.RIGHT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.GRADER_FAILED


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The Alps", "Alps"),
        ("early-life training", "early- life training"),
        ("Lyon", "lyon"),
        ("IFN-signature", "IFN signature"),
        ("e-mail", "email"),
        ("U.S.", "US"),
        ("U.S.A.", "usa"),
        ("don't", "dont"),
        ("don’t", "don't"),
        ("1,000", "1000"),
        ("1,000,000", "1000000"),
        ("12,34,567", "1234567"),
        ("3.0", "3"),
        ("(3.14)", "3.14"),
        ("3.14.", "3.14"),
        ("−5", "-5"),
        ("–5", "-5"),
        ("$20", "20"),
        ("20 dollars", "$20"),
        ("20%", "20 percent"),
        ("20%", "20 per cent"),
        ("20%", "20"),
        ("A", "A"),
        ("A", "a"),
        ("The", "the"),
        ("The Who", "Who"),
        ("Simon & Garfunkel", "Simon and Garfunkel"),
        ("F#", "f#"),
        ("C♯", "C#"),
        ("C++", "c++"),
        ("N/A", "n/a"),
        ("Jeopardy!", "Jeopardy"),
        ("“Paris”", "Paris"),
        ("Ｐａｒｉｓ", "Paris"),
        ("H₂O", "H2O"),
        ("m²", "m^2"),
        ("٢٠", "20"),
        ("東京都。", "東京都"),
        ("東京 都", "東京都"),
        ("สวัสดี", "สวัสดี"),
        ("क्षत्रिय", "क्षत्रिय"),
        ("Café", "Café"),
        ("Straße", "STRASSE"),
        ("2010–2012", "2010-2012"),
        ("10:30", "10:30."),
        ("5km", "5 km"),
        ("**Paris**", "Paris"),
        ("*Paris*", "Paris"),
        ("?", "?"),
        ("Paris.", "paris"),
        (" Paris \n", "Paris"),
        ("Once Upon A Time", "Once upon a time"),
        ("a cat and the dog", "cat and dog"),
        ("COVID-19", "COVID 19"),
        ("COVID-19", "covid19"),
        ("🙂", "🙂"),
        ("+5", "5"),
        (".5", "0.5"),
        ("#1", "1"),
        ("O'Brien", "OBrien"),
        ("Yahoo! Inc.", "Yahoo Inc"),
        ("New York, NY", "New York NY"),
        ("THE ALPS", "Alps"),
        ("½", "1/2"),
        ("-$5", "-5 dollars"),
        ("Python 3.10", "python 3.10"),
        ("v1.2", "V1.2"),
        ("Ph.D.", "PhD"),
        ("rock 'n' roll", "rock n roll"),
        ("Γειά", "γειά"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("naïve", "naïve"),
        ("A-", "a-"),
        ("A*", "A*"),
        ("0", "0.0"),
    ],
)
def test_the_same(one: str, other: str) -> None:
    assert Answer(one).same(Answer(other)), (Answer(one).words, Answer(other).words)
    assert Answer(other).same(Answer(one))
    assert verify_em(one, other).verdict is R
    assert f1(one, other)[0] == 1.0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("120", "20"),
        ("The total is 120 dollars", "20"),
        ("we sat in a ring", "N/A"),
        ("fish", "F#"),
        ("F", "F#"),
        ("C", "C++"),
        ("C", "C#"),
        ("C++", "C#"),
        ("NA", "N/A"),
        ("Na", "N/A"),
        ("-5", "5"),
        ("3.14", "314"),
        ("1.5", "15"),
        ("1/2", "12"),
        ("1-2", "12"),
        ("1-0", "10"),
        ("10:30", "1030"),
        ("$5", "£5"),
        ("5%", "$5"),
        ("A+", "A"),
        ("A-", "A"),
        ("A", "B"),
        ("A", "The"),
        ("A", "an"),
        ("Vitamin A", "Vitamin"),
        ("Vitamin A", "Vitamin C"),
        ("Group A", "Group"),
        ("hepatitis A virus", "hepatitis virus"),
        ("A, B", "B"),
        ("A B", "B"),
        ("?", "!"),
        ("...", "?"),
        ("", ""),
        ("", "?"),
        ("10²", "102"),
        ("Python 3.10", "Python 3.1"),
        ("007", "7"),
        ("2,5", "25"),
        ("Paris", "London"),
        ("Pari", "Paris"),
        ("café", "cafe"),
        ("ano", "año"),
        ("AB", "A B"),
        ("東京", "京東"),
        ("हिन्दी", "हन्द"),
        ("กา", "กี"),
        (".NET", "net"),
        ("-1", "1"),
        ("5 - 3", "53"),
        ("🙂", "🙁"),
        ("x", "×"),
        ("0", "O"),
        ("20+", "20"),
        ("no", "not"),
        ("1,2", "12"),
        ("1.0.0", "1"),
        ("٢٠", "٢١"),
        ("google", "goo gle"),
    ],
)
def test_not_the_same(one: str, other: str) -> None:
    assert not Answer(one).same(Answer(other)), (Answer(one).words, Answer(other).words)
    assert not Answer(other).same(Answer(one))
    for answer, gold in ((one, other), (other, one)):
        assert verify_em(answer, gold).verdict is not R


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        ("The total is 120 dollars", "20", W),
        ("The total is 20 dollars", "20", R),
        ("The total is $20.", "20", R),
        ("The total is not 20 dollars", "20", W),
        ("The total is 20 dollars less than before", "20", W),
        ("The total is 20 or 30", "20", W),
        ("I paid 20", "20", W),
        ("we sat in a ring", "N/A", W),
        ("fish", "F#", W),
        ("The Alps", "Alps", R),
        ("early-life training", "early- life training", R),
        ("Lyon", "lyon", R),
        ("The answer is Paris.", "Paris", R),
        ("The answer is Paris, because of it.", "Paris", R),
        ("Answer: Paris\n\nI am sure.", "Paris", R),
        ("The answer is not Paris", "Paris", W),
        ("The answer is London. Not Paris", "Paris", W),
        ("<answer>Paris</answer>", "Paris", R),
        ("<answer>Paris or London</answer>", "Paris", W),
        ("\\boxed{Paris}", "Paris", R),
        ("#### 42", "42", R),
        ("<think>Paris</think>London", "Paris", W),
        ("<think>London</think>Paris", "Paris", R),
        ("<think>Paris", "Paris", N),
        ("", "Paris", N),
        ("Paris", "", F),
        ("Paris", [], F),
        ("Paris", None, F),
        ("Paris", ["London", "Paris"], R),
        ("Paris", ["London", ""], F),
        ("Paris, London", ["London", "Paris"], W),
        ("7", 7, R),
        ("7.0", 7, R),
        ("yes", True, R),
        ("Yes.", "yes", R),
        ("no", "yes", W),
        ("The capital of France is Paris.", "Paris", R),
        ("The capital of France is Paris, I think", "Paris", W),
        ("It is unlikely that the capital is Paris.", "Paris", W),
        ("Everything else is Paris", "Paris", W),
        ("A", "A", R),
        ("C", "A", W),
        ("The", "A", W),
        ("?", "?", R),
        ("...", "Paris", W),
        ("Thinking about it. The capital is Paris.", "Paris", R),
        ("Answer: Paris\nQuestion: next?\nAnswer: Rome", "Paris", R),
        ("Answer: Paris\nQuestion: next?\nAnswer: Rome", "Rome", W),
        ("Many people think the answer is Rome. The answer is Paris.", "Paris", R),
        ("The answer is Paris. Many people think the answer is Rome.", "Rome", W),
        ("答案是巴黎。", "巴黎", R),
        ("Die Antwort ist Berlin.", "Berlin", R),
        ("Final answer: **Paris**", "Paris", R),
        ('The answer is "The Alps".', "Alps", R),
        ("The Answer Is Blowin' in the Wind", "The Answer Is Blowin' in the Wind", R),
        ("Answer: 3.14", "314", W),
        ("Answer: U.S.", "US", R),
        ("The answer is Dr. Who", "Dr. Who", R),
    ],
)
def test_where_the_answer_stands(text: str, gold: Any, verdict: Verdict) -> None:
    graded = verify_em(text, gold)
    assert graded.verdict is verdict, graded.reason
    assert graded.reason
    assert math.isnan(graded.score) if verdict is F else graded.score == float(verdict is R)


def test_stated_answers_can_be_left_out() -> None:
    assert verify_em("The capital is Paris.", "Paris", stated=False).verdict is W
    assert verify_em("Lösung: Paris", "Paris", cue_words=["Lösung"]).verdict is R
    assert verify_em("Lösung: Paris", "Paris").verdict is W


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("the cat sat", "a cat sat down", 4 / 5),  # 2 words in common of 2 and of 3
        ("Paris France", "Paris", 2 / 3),
        ("cat cat", "cat", 2 / 3),  # a bag of words: the second one is not in the gold
        ("cat", "cat cat", 2 / 3),
        ("dog", "cat", 0.0),
        ("yes it is", "yes", 0.0),
        ("yes", "yes", 1.0),
        ("no", "no way", 0.0),
        ("東京タワー", "東京", 4 / 7),
        ("20 dollars", "20", 1.0),
        ("120", "20", 0.0),
    ],
)
def test_f1(answer: str, gold: str, value: float) -> None:
    assert f1(answer, gold)[0] == pytest.approx(value)
    graded = verify_f1(answer, gold)
    assert graded.score == pytest.approx(value)
    assert graded.verdict is (R if value == 1.0 else W)


def test_f1_takes_the_best_alias_and_a_threshold() -> None:
    graded = verify_f1("Paris France", ["London", "Paris"], threshold=0.6)
    assert graded.verdict is R
    assert graded.parts == pytest.approx({"f1": 2 / 3, "precision": 0.5, "recall": 1.0})
    assert verify_f1("The answer is Paris. I am sure of it.", "Paris").score == 1.0
    assert verify_f1("", "Paris").verdict is N
    assert verify_f1("Paris", " ").verdict is F
    for bad in (0, -1, 1.5, math.nan):
        with pytest.raises(UserError, match="threshold"):
            verify_f1("a", "b", threshold=bad)


def test_words_of_every_script() -> None:
    assert words("今日 は 雨です, it's Ümlaut") == ["今", "日", "は", "雨", "で", "す", "its", "ümlaut"]
    assert words("हिन्दी и русский") == ["हिन्दी", "и", "русский"]
    assert words("ที่นี่") == ["ที่", "นี่"]
    assert words("... !?") == []


def test_records_and_reward() -> None:
    assert grade_qa_em({"prediction": "It is Paris.", "reference": ["Rome", "Paris"]}).verdict is R
    assert grade_qa_em({"prediction": "It is Paris.", "reference": "Paris", "stated": False}).verdict is W
    assert grade_qa_f1({"prediction": "Paris France", "reference": "Paris", "threshold": 0.5}).verdict is R
    with pytest.raises(UserError, match='"stated" must be true or false'):
        grade_qa_em({"prediction": "a", "reference": "a", "stated": "no"})
    with pytest.raises(UserError, match='"prediction" must be a text'):
        grade_qa_em({"prediction": 3, "reference": "3"})
    task = Task.of("?", answer="Paris")
    for metric, value in (("em", 0.0), ("f1", 2 / 3)):
        score = asyncio.run(
            as_scorer(rewards.qa("answer", metric=metric))(
                task, Trajectory(task, [Turn([1], [2], text="Paris France")])
            )
        )
        assert score.value == pytest.approx(value)
    with pytest.raises(UserError, match="metric"):
        rewards.qa("answer", metric="rouge")


@pytest.mark.parametrize(
    "text",
    ["x" * 200_000, "- " * 100_000, "* " * 100_000, "**" * 100_000, "1," * 100_000, "1,111" * 40_000, "is " * 60_000,
     "answer is " * 20_000, "U." * 100_000, "+" * 200_000,
     "今" * 200_000, "\u0301" * 200_000, "$" * 200_000, "\n" * 200_000],
)  # fmt: skip
def test_hostile_texts_take_bounded_time(text: str) -> None:
    begun = time.process_time()
    verify_em(text, "20")
    verify_f1(text, text)
    assert time.process_time() - begun < 5


_TEXT = st.one_of(st.text(max_size=30), st.text(alphabet="aA1 .,-+#$%'theIN/*", max_size=20))


@given(_TEXT, _TEXT)
@example("A* ", "A")
@settings(deadline=None, max_examples=300)
def test_what_always_holds(one: str, other: str) -> None:
    a, b = Answer(one), Answer(other)
    assert a.same(b) == b.same(a)
    assert a.same(a) == bool(a)
    value, precision, recall = f1(one, other)
    assert 0 <= value <= 1
    assert (f1(other, one)) == (pytest.approx(value), pytest.approx(recall), pytest.approx(precision))
    if a.same(b):
        assert value == 1.0
        assert verify_em(one, other).verdict is R
    assert verify_em("", other).verdict in (N, F)
    assert verify_em(one, "").verdict is F
    one = one.translate({ord(c): None for c in "®™©"})  # a mark of trade is no answer
    assert bool(a) == any(not c.isspace() for c in one) or not any(c.isprintable() and not c.isspace() for c in one)


@given(st.integers(-(10**12), 10**12))
def test_numbers_in_other_forms(value: int) -> None:
    for text in (f"{value:,}", f"{value}.0", f"${value}" if value >= 0 else f"-${-value}", f"The total is {value:,}."):
        assert verify_em(text, str(value)).verdict is R, text
        assert verify_em(text, str(value + 1)).verdict is W, text
