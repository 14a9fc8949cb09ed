"""Overlap: figures of rouge-score on English, every script, twins, hostile sizes, and what always holds."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready import Task, Trajectory, Turn, Verdict, rewards
from rlready.errors import UserError
from rlready.rewards.overlap import (
    METRICS,
    ROUGES,
    bleu,
    chrf,
    grade_bleu,
    grade_chrf,
    grade_rouge,
    rouge,
    verify_overlap,
)
from rlready.scoring import as_scorer

R, W, N, F = Verdict.RIGHT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.GRADER_FAILED

# F1 of ROUGE-1, -2, -L and -Lsum by rouge-score 0.1.2 without its stemmer (1,500 such pairs agree to the last digit).
_PUBLISHED = [
    (
        "ran mat 42 home mat dog a\nran home slow the and tree 42 42 slow ran tree",
        "tree ran on and the dog 42 mat home\non ran and dog 42 mat and mat the",
        (0.611111, 0.0, 0.333333, 0.388889),
    ),
    (
        "slow ran fast and ran 42 on fast\nran dog on ran fast the and fast home tree mat fast",
        "slow\nsat on the a cat\na a\nsat and home a sat the ran 42 the home 42 on",
        (0.4, 0.105263, 0.3, 0.4),
    ),
    (
        "mat mat cat a on 42\ntree slow dog sat home ran tree cat mat the\ncat and 42 tree sat 42 sat",
        "home home\ncat home ran on home cat a\na home ran cat dog a",
        (0.421053, 0.111111, 0.263158, 0.368421),
    ),
    ("ran tree\ncat ran fast sat sat tree", "42 42 mat\ncat slow ran 42 home", (0.25, 0.0, 0.25, 0.25)),
    (
        "on sat ran\nthe tree mat 42 home tree fast ran 42 slow slow on\na and ran",
        "slow\non a tree cat fast dog tree and ran a ran",
        (0.6, 0.214286, 0.4, 0.533333),
    ),
    (
        "cat\nfast mat sat ran tree tree on a a",
        "mat sat slow slow slow dog home cat 42\nhome ran\nand sat sat a and on home slow tree tree",
        (0.516129, 0.137931, 0.322581, 0.387097),
    ),
    (
        "mat 42 home home slow slow slow\ndog slow\nfast fast a fast\nand",
        "tree and tree a 42 sat tree cat 42 tree home\nmat",
        (0.384615, 0.0, 0.153846, 0.384615),
    ),
    (
        "home slow on and ran and\ndog tree a\nmat slow on a home slow on 42 fast the",
        "and tree on tree a on\nfast slow\n42 home dog\nslow sat home a dog ran sat sat tree sat",
        (0.7, 0.052632, 0.3, 0.65),
    ),
    (
        "fast 42 a cat home slow\ncat on and\ndog dog and tree\non on 42",
        "ran home and on dog slow a mat\nhome cat on cat the the tree the\nmat and 42 home a on and sat",
        (0.65, 0.105263, 0.3, 0.5),
    ),
    ("and and a fast tree fast", "cat 42", (0.0, 0.0, 0.0, 0.0)),
    ("sat tree the mat sat sat a", "fast the dog cat tree tree home and", (0.266667, 0.0, 0.133333, 0.133333)),
    ("dog slow home mat ran mat sat slow", "on tree a home tree cat tree dog a", (0.235294, 0.0, 0.117647, 0.117647)),
    ("tree 42 a cat on cat and and sat", "dog 42 ran fast tree on sat on a mat 42", (0.5, 0.0, 0.3, 0.3)),
]


@pytest.mark.parametrize(("text", "reference", "values"), _PUBLISHED)
def test_as_rouge_score_has_it(text: str, reference: str, values: tuple[float, ...]) -> None:
    found = rouge(text, reference)
    assert [found[kind][0] for kind in ROUGES] == pytest.approx(values, abs=1e-6)


_SCRIPTS = [
    "今日 は 雨 です", "今日は雨です。", "ο καιρός είναι καλός", "แมว นอน", "สวัสดี", "क्षत्रिय हिन्दी", "привет мир",
    "مرحبا بالعالم",    "שלום עולם", "안녕하세요 여러분", "你好世界", "Cristóbal está ayudando", "வணக்கம்", "ສະບາຍດີ",
    "မင်္ဂလာပါ", "გამარჯობა",
    "Straße", "a",
    "don't stop", "42", "The cat.", "Hi\nthere",
]  # fmt: skip


@pytest.mark.parametrize("text", _SCRIPTS)
@pytest.mark.parametrize("metric", METRICS)
def test_the_same_text_scores_one_in_every_script(text: str, metric: str) -> None:
    graded = verify_overlap(text, text, metric=metric)
    assert (graded.verdict, graded.score) == (R, 1.0), graded.reason
    other = verify_overlap("qqq zzz", text, metric=metric)
    assert (other.verdict, other.score) == (W, 0.0), other.reason
    part = verify_overlap(text + " qqq zzz", text, metric=metric)
    assert part.verdict is W
    assert 0 < part.score < 1 or (part.score == 0 and metric == "rouge2")


@pytest.mark.parametrize(
    ("text", "reference", "metric", "value"),
    [
        ("the cat", "the cat sat", "rouge1", 0.8),
        ("the cat", "the cat sat", "rouge2", 2 / 3),
        ("sat cat the", "the cat sat", "rouge1", 1.0),
        ("sat cat the", "the cat sat", "rougeL", 1 / 3),
        ("the the the", "the cat sat", "rouge1", 1 / 3),
        ("the", "the", "rouge2", 1.0),
        ("THE CAT!", "the cat", "rougeL", 1.0),
        ("ΣΊΣΥΦΟΣ", "σίσυφος", "rougeL", 1.0),
        ("Cafe\u0301", "Caf\u00e9", "rougeL", 1.0),
        ("Cafe\u0301", "Caf\u00e9", "chrf", 1.0),
        ("Cafe\u0301", "Caf\u00e9", "bleu", 1.0),
        ("東京タワー", "東京", "rouge1", 4 / 7),
        ("कम", "काम", "rouge1", 0.0),
        ("กา", "กี", "rouge1", 0.0),
        ("B is here. A is here.", "A is here. B is here.", "rougeLsum", 1.0),
        ("B is here. A is here.", "A is here. B is here.", "rougeL", 2 / 3),
        ("A is here.\nB is here.", "A is here. B is here.", "rougeLsum", 1.0),
    ],
)
def test_values(text: str, reference: str, metric: str, value: float) -> None:
    assert verify_overlap(text, reference, metric=metric).score == pytest.approx(value)


def test_chrf_and_bleu_are_those_of_sacrebleu() -> None:
    from sacrebleu import sentence_bleu, sentence_chrf

    text, reference = "the cat sat on a mat today", "a cat sat on the mat yesterday"
    assert chrf(text, reference) == pytest.approx(sentence_chrf(text, [reference]).score / 100)
    assert chrf(text, reference, word_order=2) == pytest.approx(
        sentence_chrf(text, [reference], word_order=2).score / 100
    )
    assert bleu(text, reference) == pytest.approx(sentence_bleu(text, [reference]).score / 100)
    assert bleu("我喜欢猫。", "我喜欢狗。") == pytest.approx(
        sentence_bleu("我喜欢猫。", ["我喜欢狗。"], tokenize="zh").score / 100
    )
    assert 0 < bleu("猫が好きです", "犬が好きです") < 1


@pytest.mark.parametrize(
    ("text", "reference", "verdict"),
    [
        ("", "the gene activates growth", N),
        (" ... ", "the gene", N),
        ("<think>the gene</think>", "the gene", N),
        ("<think>no</think>the gene", "the gene", R),
        ("the gene", "", F),
        ("the gene", "!?", F),
        ("the gene", None, F),
        ("the gene", [], F),
        ("the gene", ["the gene", 3], F),
        ("the gene", ["a protein", "the gene"], R),
        ("a gene", ["a protein", "the gene"], W),
    ],
)
def test_verdicts(text: str, reference: Any, verdict: Verdict) -> None:
    for metric in METRICS:
        graded = verify_overlap(text, reference, metric=metric)
        assert graded.verdict is verdict, graded.reason
        assert graded.reason


def test_threshold_records_and_reward() -> None:
    assert verify_overlap("the cat", "the cat sat", metric="rouge1", threshold=0.8).verdict is R
    assert verify_overlap("the cat", "the cat sat", metric="rouge1", threshold=0.81).verdict is W
    record = {"prediction": "the cat", "reference": "the cat sat"}
    assert grade_rouge(record).parts == pytest.approx({"rouge1": 0.8, "rouge2": 2 / 3, "rougeL": 0.8})
    assert set(grade_rouge({**record, "metric": "rougeLsum"}).parts) == set(ROUGES)
    assert grade_rouge({**record, "metric": "rouge1", "threshold": 0.7}).verdict is R
    assert 0 < grade_chrf(record).score < 1
    assert 0 < grade_bleu(record).score < 1
    with pytest.raises(UserError, match='"metric"'):
        grade_rouge({**record, "metric": "bleu"})
    with pytest.raises(UserError, match="kind of ROUGE"):
        rouge("a", "a", ["rouge9"])
    for bad in ({"threshold": 0}, {"metric": "meteor"}):
        with pytest.raises(UserError):
            rewards.overlap("answer", **bad)  # type: ignore[arg-type]
    task = Task.of("?", answer="the cat sat")
    score = as_scorer(rewards.overlap("answer", metric="rouge1"))
    value = asyncio.run(score(task, Trajectory(task, [Turn([1], [2], text="the cat")])))
    assert (value.value, value.verdict) == (pytest.approx(0.8), W)


def test_without_sacrebleu_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(UserError, match="pip install"):
        chrf("a", "b")
    assert verify_overlap("a", "a").verdict is R


@pytest.mark.parametrize(
    "text", ["a b c d e " * 20_000, "今" * 200_000, "\n" * 200_000 + "a", "a\n" * 100_000, "." * 200_000 + "a"]
)
def test_hostile_texts_take_bounded_time(text: str) -> None:
    begun = time.process_time()
    for metric in ("rouge2", "rougeL", "rougeLsum"):
        assert verify_overlap(text, "the cat sat\non a mat", metric=metric).verdict in (W, N)
    assert time.process_time() - begun < 8
    long = verify_overlap("b " * 60_000, "a " * 60_000, metric="rougeLsum")
    assert long.verdict is F
    assert "too long" in long.reason
    assert verify_overlap("a", "a " * 150_000).verdict is F


def _longest(one: list[str], other: list[str]) -> int:
    """By its definition, one step at a time."""

    @functools.cache
    def best(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return 0
        return best(i + 1, j + 1) + 1 if one[i] == other[j] else max(best(i + 1, j), best(i, j + 1))

    return best(0, 0)


_WORDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


@given(_WORDS, _WORDS)
@settings(deadline=None)
def test_rouge_l_is_the_longest_common_subsequence(one: list[str], other: list[str]) -> None:
    value, precision, recall = rouge(" ".join(one), " ".join(other), ["rougeL"])["rougeL"]
    hits = _longest(one, other)
    assert precision == pytest.approx(hits / len(one))
    assert recall == pytest.approx(hits / len(other))
    assert rouge(" ".join(one), " ".join(other), ["rougeLsum"])["rougeLsum"][0] == pytest.approx(value)


@given(st.text(max_size=40), st.text(max_size=40))
@settings(deadline=None)
def test_never_raises_and_stays_in_bounds(one: str, other: str) -> None:
    for metric in METRICS:
        graded = verify_overlap(one, other, metric=metric)
        assert graded.verdict is F or 0 <= graded.score <= 1
        assert graded.verdict is not R or graded.score == 1.0
    same = verify_overlap(one, one)
    assert same.verdict in (R, F, N)
