"""The match of a predicted reply with the recorded one: similarities by hand, exact facts, the binary reward."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.aio import run_sync
from rlready.errors import UserError
from rlready.experience.retrieve import HashedEncoder
from rlready.rewards import match, verify_match
from rlready.rewards.match import cosine, rouge_l, token_f1
from rlready.scoring import as_scorer
from rlready.types import Task, Trajectory, Turn, Verdict

SENTENCE = "Your parcel left the north warehouse on the third day"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text("ab c1", max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_similarities_by_hand() -> None:
    a, b = "the red lamp", "the red red rug"
    # words: the 1/1, red 1/2, lamp, rug; pairs: "the red" 1/1, "red lamp", "red red", "red rug"
    assert cosine(a, b) == pytest.approx((1 + 2 + 1) / math.sqrt((3 + 2) * (1 + 4 + 1 + 3)))
    assert token_f1(a, b) == pytest.approx(2 * 2 / (3 + 4))
    assert rouge_l(a, b) == pytest.approx(2 * 2 / (3 + 4))
    assert rouge_l("a b c d", "d c b a") == pytest.approx(2 * 1 / 8) and token_f1("a b c d", "d c b a") == 1.0
    assert rouge_l("a x b y c", "a b c") == pytest.approx(2 * 3 / 8)


@pytest.mark.parametrize("similarity", [cosine, token_f1, rouge_l])
def test_the_ends_of_the_scale(similarity) -> None:
    assert similarity("Red lamp!", "red LAMP!") == pytest.approx(1.0)
    assert similarity("red lamp", "blue rug") == 0.0
    assert similarity("", "") == 1.0 and similarity("", "lamp") == 0.0 == similarity("lamp", "")


@given(st.text("ab ", max_size=20), st.text("ab ", max_size=20))
def test_similarities_are_symmetric_and_bounded(a: str, b: str) -> None:
    for similarity in (cosine, token_f1, rouge_l):
        assert similarity(a, b) == pytest.approx(similarity(b, a))
        assert 0.0 <= similarity(a, b) <= 1.0 + 1e-12


@given(VALUES)
def test_a_json_reply_matches_itself_in_any_order_and_no_other(value: object) -> None:
    gold = json.dumps({"v": value, "id": "B-7"})
    assert verify_match(json.dumps({"id": "B-7", "v": value}), gold).verdict is Verdict.RIGHT
    assert verify_match(json.dumps({"id": "B-8", "v": value}), gold).verdict is Verdict.WRONG
    assert verify_match(json.dumps({"id": "B-7"}), gold).verdict is Verdict.WRONG
    assert verify_match(json.dumps({"id": "B-7", "v": value, "w": 1}), gold).verdict is Verdict.WRONG


GOLD = {"order": "B-40213", "paid": 12.5, "open": True, "lines": [1, 2], "note": SENTENCE}


@pytest.mark.parametrize(
    "change",
    [{"order": "B-40231"}, {"paid": 12.4}, {"paid": "12.5"}, {"open": 1}, {"open": False}, {"lines": [1]},
     {"lines": [2, 1]}, {"note": None}, {"note": SENTENCE + " 4"}],
    ids=str,
)  # fmt: skip
def test_one_wrong_fact_is_wrong_however_alike_the_texts_are(change: dict[str, object]) -> None:
    gold, wrong = json.dumps(GOLD), json.dumps({**GOLD, **change})
    assert cosine(gold, wrong) > 0.75
    assert verify_match(wrong, gold, threshold=0.5).verdict is Verdict.WRONG


def test_free_text_in_json_is_judged_by_similarity() -> None:
    near = {**GOLD, "note": SENTENCE.replace("third", "third or next")}
    far = {**GOLD, "note": "Nothing is known of it"}
    assert verify_match(json.dumps(near), json.dumps(GOLD)).verdict is Verdict.RIGHT
    score = verify_match(json.dumps(far), json.dumps(GOLD))
    assert score.verdict is Verdict.WRONG and score.parts["exact"] == 1.0 and score.parts["similarity"] < 0.3


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("Order B-12 of 3 May was sent.", "Order B-12 of 3 May was shipped.", True),
        ("Order B-21 of 3 May was sent.", "Order B-12 of 3 May was shipped.", False),
        ("Order B-12 was sent.", "Order B-12 of 3 May was shipped.", False),
        ("Order B-12, B-12 of 3 May was sent.", "Order B-12 of 3 May was shipped.", False),
        ('{"order": 3}', "the order 3", False),
        ("the order", '{"order": 3}', False),
    ],
)
def test_numbers_and_ids_of_free_text_are_exact(answer: str, gold: str, right: bool) -> None:
    assert (verify_match(answer, gold, threshold=0.6).verdict is Verdict.RIGHT) is right


def test_without_the_exact_check_similarity_alone_pays_for_a_wrong_fact() -> None:
    gold, wrong = json.dumps(GOLD), json.dumps({**GOLD, "paid": 99})
    assert verify_match(wrong, gold, exact=False).verdict is Verdict.RIGHT
    assert verify_match(wrong, gold).verdict is Verdict.WRONG


def test_no_reply_is_no_answer_but_where_nothing_was_recorded() -> None:
    assert verify_match(" ", "x").verdict is Verdict.NO_ANSWER
    assert verify_match("", "").verdict is Verdict.RIGHT
    assert verify_match("x", "").verdict is Verdict.WRONG


def score(reward, text: str, **data):
    task = Task.of("what comes back", **data)
    return run_sync(as_scorer(reward)(task, Trajectory(task, [Turn([1], [2], text=text)])))


def test_the_reward_is_binary_and_the_encoder_is_asked() -> None:
    class Always:
        def encode(self, texts):
            import numpy as np

            return np.ones((len(texts), 2), dtype=np.float32)

    near = SENTENCE.replace("third", "other")
    for encoder in (None, HashedEncoder(1024)):
        assert score(match(encoder=encoder, threshold=0.6), near, answer=SENTENCE).value == 1.0
        assert score(match(encoder=encoder, threshold=0.99), near, answer=SENTENCE).value == 0.0
    assert score(match(encoder=Always(), threshold=0.99), "quite another text", answer=SENTENCE).value == 1.0
    assert score(match(by="rouge_l", threshold=0.85), near, answer=SENTENCE).value == 1.0


def test_the_readers_mark_and_the_graders_failure() -> None:
    def strip(text: str) -> str:
        if "<end>" not in text:
            raise ValueError("not closed")
        return text.replace("<end>", "")

    assert score(match(read=strip), "lamp <end>", answer="lamp<end>").verdict is Verdict.RIGHT
    assert score(match(read=strip), "lamp", answer="lamp<end>").verdict is Verdict.NO_ANSWER
    assert score(match(), "lamp", answer=3).verdict is Verdict.GRADER_FAILED


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(UserError, match=r"choose cosine, token_f1, rouge_l"):
        match(by="bleu")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="threshold=0 must be above 0"):
        match(threshold=0)
