"""Readability by hand, syllables, sentences, what cannot be measured; and the language of a text."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready import Task, Trajectory, Turn, Verdict, rewards
from rlready.errors import UserError
from rlready.rewards.language import verify_language
from rlready.rewards.readability import METRICS, Counts, count, grade_readability, measure, verify_readability
from rlready.rewards.records import grade_language
from rlready.rewards.syllables import LANGUAGES, syllables
from rlready.scoring import as_scorer

R, W, N, F = Verdict.RIGHT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.GRADER_FAILED

_COUNTED = {
    1: "a the cat strength eyes queue called walked loved whole sure blue eye tired our years friend breathe",
    2: "table water apple hundred every handled needed wanted being poem quiet giant value issue moment something "
    "safely statement movement homework prism rhythm people business create onion ocean nation special",
    3: "beautiful element history banana idea area however entire family museum piano radio video various previous "
    "chocolate government enabled specified agreement everything carefully",
    4: "information education society variety mathematics experience implemented understanding",
    5: "automatically university implementation examination international",
}


@pytest.mark.parametrize(("word", "n"), [(word, n) for n, words in _COUNTED.items() for word in words.split()])
def test_english_syllables(word: str, n: int) -> None:
    wrong = {"history": 3, "family": 3, "chocolate": 3, "government": 3, "international": 5}
    assert syllables(word) == wrong.get(word, n)
    assert syllables(word.upper()) == syllables(word)


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("de", {"Haus": 1, "Katze": 2, "Straße": 2, "Geschwindigkeit": 4, "über": 2, "Bäume": 2}),
        ("es", {"casa": 2, "día": 2, "ciudad": 2, "país": 2, "agua": 2, "murciélago": 4, "biblioteca": 4}),
        ("fr", {"maison": 2, "chat": 1, "table": 1, "école": 2, "bibliothèque": 4}),
        ("it", {"casa": 2, "ciao": 1, "biblioteca": 4, "città": 2}),
        ("nl", {"huis": 1, "water": 2, "vandaag": 2, "gezelligheid": 4}),
        ("pt", {"casa": 2, "coração": 3, "cidade": 3}),
        ("ru", {"дом": 1, "молоко": 3, "библиотека": 5}),
    ],
)
def test_syllables_of_other_languages(language: str, words: dict[str, int]) -> None:
    assert {word: syllables(word, language) for word in words} == words
    assert language in LANGUAGES


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", 3),
        ("Dr. Smith met Mrs. Jones. They left.", 2),
        ("J. R. Smith is here.", 1),
        ("The U.S. team won. It was 3.5 to 2.", 2),
        ("Is it so?! Yes...", 2),
        ('He said "Stop." Then he left.', 2),
        ("It costs 3 etc.", 1),
        ("No. I am.", 2),
        ("A title\n\nA text", 2),
        ("A list\n- one\n- two\n1. three", 4),
        ("a line\nthat goes on.", 1),
        ("...", 0),
        ("", 0),
    ],
)
def test_sentences(text: str, sentences: int) -> None:
    assert count(text).sentences == sentences


def test_measures_by_hand() -> None:
    counts = Counts(words=100, sentences=5, syllables=150, long_words=10, letters=450, digits=10)
    assert measure(counts, "flesch") == pytest.approx(206.835 - 1.015 * 20 - 84.6 * 1.5)
    assert measure(counts) == pytest.approx(0.39 * 20 + 11.8 * 1.5 - 15.59)
    assert measure(counts, "fog") == pytest.approx(0.4 * (20 + 10))
    assert measure(counts, "smog") == pytest.approx(1.043 * math.sqrt(60) + 3.1291)
    assert measure(counts, "coleman_liau") == pytest.approx(0.0588 * 450 - 0.296 * 5 - 15.8)
    assert measure(counts, "ari") == pytest.approx(4.71 * 4.6 + 0.5 * 20 - 21.43)
    assert measure(counts, "flesch", "de") == pytest.approx(180 - 20 - 58.5 * 1.5)
    assert measure(counts, "flesch", "es") == pytest.approx(206.84 - 1.02 * 20 - 0.6 * 150)
    for bad in ({"metric": "flesh"}, {"language": "xx"}, {"metric": "fog", "language": "de"}):
        with pytest.raises(UserError):
            measure(counts, **bad)
    with pytest.raises(UserError, match="without words"):
        measure(Counts(0, 0, 0, 0, 0, 0))


_EASY = (
    "The cat sat on the mat. It saw a dog. The dog ran to the cat. The cat was not glad. It ran up a tree. All is well."
)
_HARD = (
    "Notwithstanding considerable methodological heterogeneity, contemporary epidemiological investigations "
    "consistently demonstrate statistically significant associations between socioeconomic disadvantage and "
    "cardiovascular mortality, particularly regarding underrepresented metropolitan populations internationally."
)


@pytest.mark.parametrize("metric", METRICS)
def test_hard_texts_are_harder(metric: str) -> None:
    easy, hard = measure(count(_EASY), metric), measure(count(_HARD), metric)
    assert (easy > hard + 50) if metric == "flesch" else (easy + 5 < hard)


@pytest.mark.parametrize(
    ("text", "wanted", "rules", "verdict"),
    [
        (_EASY, 5, {}, R),
        (_HARD, 5, {}, W),
        (_HARD, [12, None], {}, R),
        (_EASY, [12, None], {}, W),
        (_EASY, [None, 5], {}, R),
        (_EASY, 80, {"metric": "flesch"}, R),
        (_HARD, 80, {"metric": "flesch"}, W),
        ("Yes.", 5, {}, N),
        ("", 5, {}, N),
        (f"<think>{_EASY}</think>Yes.", 5, {}, N),
        (f"```\n{_EASY}\n```", 5, {}, N),
        ("今天天气很好。" * 20, 5, {}, N),
        (" ".join(["кот"] * 40), 5, {}, N),
        (" ".join(["кот"] * 40), 5, {"metric": "flesch", "language": "ru"}, R),
        (_EASY, None, {}, F),
        (_EASY, "5", {}, F),
        (_EASY, True, {}, F),
        (_EASY, [None, None], {}, F),
        (_EASY, [8, 5], {}, F),
        (_EASY, [1, 2, 3], {}, F),
        (_EASY, math.nan, {}, F),
    ],
)
def test_verdicts(text: str, wanted: Any, rules: dict[str, Any], verdict: Verdict) -> None:
    graded = verify_readability(text, wanted, **rules)
    assert graded.verdict is verdict, graded.reason
    assert grade_readability({"prediction": text, "reference": wanted, **rules}).verdict is verdict


def test_slack_parts_and_reward() -> None:
    value = measure(count(_HARD))
    graded = verify_readability(_HARD, value - 2, slack=4)
    assert (graded.verdict, graded.score) == (W, pytest.approx(0.5))
    assert graded.parts == pytest.approx({"flesch_kincaid": value, "words": 24.0, "words_per_sentence": 24.0})
    task = Task.of("?", most=5)
    for fn in (rewards.readability("most"), rewards.readability(wanted=(None, 5))):
        for text, verdict in ((_EASY, R), (_HARD, W)):
            score = asyncio.run(as_scorer(fn)(task, Trajectory(task, [Turn([1], [2], text=text)])))
            assert score.verdict is verdict
    for bad in (
        {},
        {"column": "most", "wanted": 5},
        {"wanted": "5"},
        {"column": "a", "slack": -1},
        {"wanted": 5, "metric": "x"},
    ):
        with pytest.raises(UserError):
            rewards.readability(**bad)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="least"):
        verify_readability("a", 5, least=0)


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "a " * 100_000, ". " * 100_000, "a." * 100_000, "\n" * 200_000, "é'" * 100_000]
)
def test_hostile_texts_take_bounded_time(text: str) -> None:
    begun = time.process_time()
    verify_readability(text, 5)
    assert time.process_time() - begun < 5


@given(st.text(max_size=80), st.sampled_from(LANGUAGES))
@settings(deadline=None)
def test_never_raises(text: str, language: str) -> None:
    counts = count(text, language)
    assert counts.sentences <= counts.words <= counts.syllables
    assert bool(counts.words) == bool(counts.sentences)
    if counts.words:
        assert math.isfinite(measure(counts, "flesch", language))
    verify_readability(text, 5, least=1)
    assert syllables(text or "a", language) >= 1


_TEXTS = {
    "en": "The weather is nice today and we go for a walk in the park.",
    "de": "Das Wetter ist heute schön und wir gehen im Park spazieren.",
    "fr": "Il fait beau aujourd'hui et nous nous promenons dans le parc.",
    "es": "Hoy hace buen tiempo y damos un paseo por el parque.",
    "it": "Oggi fa bel tempo e facciamo una passeggiata nel parco.",
    "ru": "Сегодня хорошая погода, и мы гуляем в парке.",
    "el": "Ο καιρός είναι καλός σήμερα και κάνουμε βόλτα στο πάρκο.",
    "ja": "今日は天気がいいので、公園を散歩します。",
    "zh": "今天天气很好，我们去公园散步。",
    "ko": "오늘은 날씨가 좋아서 공원을 산책합니다.",
    "ar": "الطقس جميل اليوم ونحن نمشي في الحديقة.",
    "hi": "आज मौसम अच्छा है और हम पार्क में टहलते हैं।",
    "th": "วันนี้อากาศดีและเราเดินเล่นในสวนสาธารณะ",
}


@pytest.mark.parametrize("code", sorted(_TEXTS))
def test_languages_are_told(code: str) -> None:
    pytest.importorskip("py3langid")
    assert verify_language(_TEXTS[code], code).verdict is R
    assert verify_language(_TEXTS[code], ["xh", code]).verdict is R
    other = "de" if code != "de" else "fr"
    graded = verify_language(_TEXTS[code], other)
    assert (graded.verdict, graded.reason) == (W, f"the text is in the language {code}, not {other}")
    assert grade_language({"prediction": _TEXTS[code], "reference": code, "languages": [code, other]}).verdict is R


@pytest.mark.parametrize(
    ("text", "wanted", "verdict"),
    [
        ("", "en", N),
        ("ok", "en", N),
        ("12345 67890 !!!", "en", N),
        (r"\boxed{42} $x+y$", "en", N),
        (f"<think>{_TEXTS['en']}</think>{_TEXTS['fr']}", "fr", R),
        (f"<think>{_TEXTS['en']}</think>{_TEXTS['fr']}", "en", W),
        (f"{_TEXTS['de']} ```the weather is nice and this is code```", "de", R),
        (_TEXTS["en"], "english", F),
        (_TEXTS["en"], "", F),
        (_TEXTS["en"], [], F),
        (_TEXTS["en"], None, F),
        (_TEXTS["en"], [3], F),
    ],
)
def test_language_verdicts(text: str, wanted: Any, verdict: Verdict) -> None:
    pytest.importorskip("py3langid")
    graded = verify_language(text, wanted)
    assert graded.verdict is verdict, graded.reason


def test_language_among_some_and_as_a_reward() -> None:
    pytest.importorskip("py3langid")
    assert verify_language(_TEXTS["en"], "fr", among=["en", "de"]).verdict is F
    with pytest.raises(UserError, match="at least two"):
        verify_language("a", "en", among=["en"])
    with pytest.raises(UserError, match="knows no language"):
        verify_language(_TEXTS["en"], "en", among=["en", "qq"])
    task = Task.of("?", language="de")
    score = as_scorer(rewards.in_language(among=["en", "de"]))
    for code, verdict in (("de", R), ("en", W)):
        got = asyncio.run(score(task, Trajectory(task, [Turn([1], [2], text=_TEXTS[code])])))
        assert got.verdict is verdict
