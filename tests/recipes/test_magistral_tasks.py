"""The problems in four languages, their demonstrations, and the reward put together of the paper's parts."""

from __future__ import annotations

import asyncio
import string
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.policy.tokenize import word_tokenizer
from rlready.recipes.magistral.languages import KINDS, LANGUAGES
from rlready.recipes.magistral.tasks import (
    CODES,
    FORM,
    RANGES,
    Lexicon,
    demonstrations,
    done,
    formula,
    normal,
    number,
    places,
    plant,
    problems,
    reckoning,
    result,
    reward,
    vocabulary,
)
from rlready.rewards import Classifier, strip_marks
from rlready.rewards.language import letters
from rlready.scoring import as_scorer
from rlready.types import Score, Trajectory, Turn, Verdict

SETS = problems(2000, 3)
LEXICON = Lexicon()


@given(st.integers(0, 999))
def test_numbers_by_place(n: int) -> None:
    assert number(places(n)) == str(n)


@pytest.mark.parametrize("text", ["", "2 40", "40 40", "42", "300 0", "forty", "-3", "1000", "40  2"])
def test_what_is_no_number_by_place(text: str) -> None:
    assert number(text) == ""


def test_reckoning_leads_to_results_and_every_number_can_be_written() -> None:
    for kind in KINDS:
        (a0, a1), (b0, b1) = RANGES[kind]
        for a, b in product(range(a0, a1 + 1), range(b0, b1 + 1)):
            reckoned = [done(*step) for step in reckoning(kind, a, b)]
            assert reckoned[-1] == result(kind, a, b)
            assert all(0 <= x < 1000 for x in reckoned)
            assert places(result(kind, a, b)) in formula(kind, a, b)
    assert formula("add", 47, 5) == r"\( 7 + 5 = 10 2 , 40 + 10 2 = 50 2 \)"
    assert formula("hours", 4, 29) == r"\( 4 * 60 = 200 40 , 200 40 + 20 9 = 200 60 9 \)"


def test_splits_share_no_numbers_and_hold_all_languages() -> None:
    keys = {name: {(t.data["kind"], t.data["a"], t.data["b"]) for t in each} for name, each in SETS.items()}
    for a, b in product(keys, keys):
        assert a == b or not keys[a] & keys[b]
    for each in SETS.values():
        assert {t.data["language"] for t in each} == set(CODES)
    again = problems(2000, 3)
    assert {n: [t.id for t in s] for n, s in again.items()} == {n: [t.id for t in s] for n, s in SETS.items()}
    assert {t.id for t in problems(2000, 4)["rl"]} != {t.id for t in SETS["rl"]}


def judge(text: str, task=SETS["sft"][0], bonus: float = 0.1) -> Score:
    trajectory = Trajectory(task, [Turn([1], list(range(len(text.split()))), text=text)])
    return asyncio.run(as_scorer(reward(96, 16, bonus, LEXICON))(task, trajectory))


def test_demonstrations_are_right_and_in_the_vocabulary() -> None:
    tokenizer = word_tokenizer(vocabulary(), specials=("<s>", ">", "<end>"))
    shown = demonstrations(SETS["sft"], 600, 1, english=0.4, wordy=0.3)
    for task, text in shown:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        tokenizer.encode(task.prompt[0].text)
        score = judge(text, task)
        assert score.verdict is Verdict.RIGHT and score.parts["language/short"] == 0.0
        n = len(text.split())
        assert score.value == pytest.approx(1 + 0.1 * score.parts["language"] - 0.1 * min(max(n - 80, 0) / 16, 1))
    foreign = [(t, FORM.read(x).thoughts) for t, x in shown if t.data["language"] != "en"]
    english = sum(LEXICON(thoughts) == "en" for _, thoughts in foreign) / len(foreign)
    assert 0.33 < english < 0.47
    assert 0.1 < sum(len(text.split()) > 80 for _, text in shown) / len(shown) < 0.35


def test_reward_by_hand() -> None:
    task = next(t for t in SETS["rl"] if t.data["language"] == "fr" and t.data["kind"] == "hours")
    right = task.data["answer"]
    good = rf"<think> Je change les heures en minutes . </think> La réponse finale est \boxed{{ {right} }} minutes ."
    assert judge(good, task).value == pytest.approx(1.1)
    assert judge(good, task, bonus=0.0).value == pytest.approx(1.0)
    assert judge(good, task, bonus=0.0).parts["language/same"] == 1.0
    assert judge(good.replace(right, "1 1"), task).value == pytest.approx(0.2)
    mixed = good.replace("Je change les heures en minutes .", "I turn the hours into minutes .")
    assert judge(mixed, task).value == pytest.approx(1.0)
    assert judge(good + " ." * (90 - len(good.split())), task).value == pytest.approx(1.1 - 0.0625)
    assert judge(good.removeprefix("<think> "), task).value == 0.0


def sentences() -> list[tuple[str, str]]:
    out = []
    for code, language in LANGUAGES.items():
        for kind, group in product(KINDS, (language.questions, language.steps)):
            out += [(code, text) for text in group[kind]]
        out += [(code, text) for text in language.answers]
    return out


@pytest.mark.parametrize(("code", "text"), sentences())
def test_lexicon_and_classifier_agree_on_every_sentence(code: str, text: str) -> None:
    pytest.importorskip("py3langid")
    fields = {name for _, name, _, _ in string.Formatter().parse(text) if name}
    for thing in LANGUAGES[code].things:
        known = {"n": thing, "p": "Anna", "x": r"\boxed{ 40 2 }", "f": formula("add", 47, 5)}
        said = strip_marks(text.format(**{f: known.get(f, "20 3") for f in fields}))
        assert letters(said) >= 12
        assert (LEXICON(said), LEXICON.purity(said), TELL(said)) == (code, 1.0, code)


TELL = Classifier(CODES)


def test_planted_references_are_wrong_and_nothing_else_changes() -> None:
    tasks = SETS["rl"].head(50)
    planted, wrong = plant(tasks, 0.1, 7)
    assert len(wrong) == 5 and planted.scorer is tasks.scorer
    for before, after in zip(tasks, planted, strict=True):
        changed = before.data["answer"] != after.data["answer"]
        assert changed == (after.id in wrong) == (before.id != after.id)
        assert before.prompt == after.prompt
    assert plant(tasks, 0.1, 7)[1] == wrong
    assert len(plant(tasks, 0.0, 7)[1]) == 1


def test_the_answer_in_normal_form() -> None:
    def of(text: str) -> str:
        return normal(Trajectory(SETS["rl"][0], [Turn([1], [1], text=text)]))

    assert of(r"<think> a </think> \boxed{ 40  2 }") == "42"
    assert of(r"<think> a </think> \boxed{ 2 40 }") == ""
    assert of(r"a </think> \boxed{ 2 }") == ""
