"""Form of a reasoned answer, soft length penalty, one language throughout, and the gate that stops grading."""

from __future__ import annotations

import asyncio
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready import rewards
from rlready.errors import UserError
from rlready.recipes.magistral.tables import FORMATS, LENGTHS
from rlready.rewards import Classifier, ThinkFormat, length_penalty, strip_marks
from rlready.rewards.language import letters
from rlready.types import Message, Score, Task, Trajectory, Turn, Verdict

FORM = ThinkFormat()
GOOD = r"<think>I add the two numbers and get four.</think> The answer is \boxed{4} apples."


def said(text: str, task: Task | None = None, tokens: int = 5) -> tuple[Task, Trajectory]:
    task = task or Task.of("How many apples are there on the table?", answer="4")
    return task, Trajectory(task, [Turn([1], list(range(tokens)), text=text)])


def judge(reward, text: str, task: Task | None = None, tokens: int = 5) -> Score:
    return asyncio.run(rewards.as_scorer(reward)(*said(text, task, tokens)))


@pytest.mark.parametrize(("form", "text", "passes"), FORMATS)
def test_format_gate(form: ThinkFormat, text: str, passes: bool) -> None:
    score = judge(rewards.think_format(form), text)
    assert (score.verdict is Verdict.RIGHT) == passes
    assert score.value == float(passes)
    assert bool(score.note) != passes


def test_a_completion_is_taken_apart() -> None:
    read = FORM.read("<think> a \\boxed{1} </think> so \\boxed{1}, no: \\boxed{2}. ")
    assert (read.thoughts, read.visible, read.answer) == ("a \\boxed{1}", "so \\boxed{1}, no: \\boxed{2}.", "2")
    code = ThinkFormat(answer="code").read("<think>a</think>\n```py\nx = 1\n```\n```py\nx = 2\n```")
    assert code.answer == "x = 1"
    assert ThinkFormat(answer="any").read("<think>a</think> four").answer == "four"


@given(st.text(alphabet="ab \n", min_size=1), st.sampled_from([FORM, ThinkFormat("[A]", "[/A]", opened=True)]))
def test_what_is_written_is_read(thoughts: str, form: ThinkFormat) -> None:
    read = form.read(form.write(thoughts, r"It is \boxed{7}."))
    assert (read.fault, read.thoughts, read.answer) == ("", thoughts.strip(), "7")
    assert form.open in form.instruction() and form.close in form.instruction()


@pytest.mark.parametrize("tags", [("", "x"), ("think", "think"), ("<t>", "</<t>>"), (" ", "b")])
def test_tags_that_cannot_be_told_apart_are_refused(tags: tuple[str, str]) -> None:
    with pytest.raises(UserError, match="ThinkFormat"):
        ThinkFormat(*tags)
    with pytest.raises(UserError, match="choose one of boxed, code, any"):
        ThinkFormat(answer="box")  # type: ignore[arg-type]


@pytest.mark.parametrize(("tokens", "l_max", "l_cache", "wanted"), LENGTHS)
def test_length_penalty(tokens: int, l_max: int, l_cache: int, wanted: float) -> None:
    assert length_penalty(tokens, l_max, l_cache) == pytest.approx(wanted, abs=1e-12)


@given(st.integers(0, 300), st.integers(1, 200), st.data(), st.floats(0, 2))
def test_length_penalty_is_bounded_and_only_grows(n: int, l_max: int, data: st.DataObject, p: float) -> None:
    l_cache = data.draw(st.integers(1, l_max))
    here, more = length_penalty(n, l_max, l_cache, p), length_penalty(n + 1, l_max, l_cache, p)
    assert -p <= more <= here <= 0
    assert here - more <= p / l_cache + 1e-12


def test_length_counts_completion_tokens_without_probes() -> None:
    task, trajectory = said("x", tokens=60)
    trajectory.turns.append(Turn([1], list(range(28)), text="y", parent=0))
    trajectory.turns.append(Turn([1], list(range(999)), text="z", tag="probe"))
    score = asyncio.run(rewards.as_scorer(rewards.soft_length(96, 16))(task, trajectory))
    assert score.value == pytest.approx(-0.05)
    assert score.parts == {"tokens": 88.0, "over": 1.0}


@pytest.mark.parametrize(
    ("l_max", "l_cache", "penalty"), [(10, 0, 0.1), (10, 11, 0.1), (10, 5, -1), (9, 3, float("nan"))]
)
def test_length_limits_that_cannot_work(l_max: int, l_cache: int, penalty: float) -> None:
    with pytest.raises(UserError, match="Length penalty"):
        rewards.soft_length(l_max, l_cache, penalty)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a $x^2$ b", "a b"),
        ("it costs $5 and $7 today", "it costs $5 and $7 today"),
        ("so \\(a+b\\) and \\[c\\] are", "so and are"),
        ("take \\frac{a}{b} and \\boxed{ 4 2 } now", "take and now"),
        ("see\n```python\nfor x in y: pass\n```\nhere", "see here"),
        ("open ```python\nfor x", "open"),
        ("call `f(x)` twice", "call twice"),
        ("<think> hello </think> [THINK]you[/THINK]", "hello you"),
        ("\\begin{align} x &= y \\end{align} fine", "fine"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
    ],
)
def test_marks_are_taken_out(text: str, words: str) -> None:
    assert strip_marks(text) == words


def test_letters_of_any_script() -> None:
    assert letters("ab 12 é 日本 ?") == 5


def spoken(text: str) -> str:
    return "fr" if "le " in text else "en"


def test_one_language_throughout() -> None:
    reward = rewards.same_language(["en", "fr"], classify=spoken)
    assert judge(reward, GOOD).parts == {"same": 1.0, "short": 0.0}
    mixed = GOOD.replace("I add the two", "J'ajoute le deux")
    assert (judge(reward, mixed).value, judge(reward, mixed).parts["same"]) == (0.0, 0.0)
    short = judge(reward, r"<think>I add the two numbers and get four.</think> \boxed{4}")
    assert (short.value, short.parts) == (0.0, {"short": 1.0})
    broken = judge(reward, "no tags, but plenty of words")
    assert (broken.value, broken.parts) == (0.0, {})
    loose = rewards.same_language(["en", "fr"], least=0, classify=spoken)
    assert judge(loose, r"<think>a</think> \boxed{4}").value == 1.0


def test_the_system_prompt_is_not_what_was_asked() -> None:
    task = Task((Message("system", "le le le le le le"), Message.user("How many apples are there?")), {"answer": "4"})
    assert judge(rewards.same_language(["en", "fr"], classify=spoken), GOOD, task).value == 1.0


def test_bad_settings_of_the_language_reward() -> None:
    with pytest.raises(UserError, match="two languages"):
        rewards.same_language(["en"])
    with pytest.raises(UserError, match="least"):
        rewards.same_language(["en", "fr"], least=-1)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(UserError, match=r"rlready\[language\]"):
        Classifier(["en", "fr"])("hello")


def test_py3langid_tells_four_languages_apart() -> None:
    pytest.importorskip("py3langid")
    tell = Classifier(["en", "fr", "de", "es"])
    texts = {
        "en": "I turn the hours into minutes and add the rest",
        "fr": "Je change les heures en minutes et j'ajoute le reste",
        "de": "Ich rechne die Stunden in Minuten um und zähle den Rest dazu",
        "es": "Paso las horas a minutos y sumo el resto",
    }
    assert {code: tell(text) for code, text in texts.items()} == {code: code for code in texts}
    with pytest.raises(UserError, match='knows no language "qq"'):
        Classifier(["en", "qq"])("hello")


class Counted:
    """A reward that counts how often it was asked."""

    def __init__(self, score: Score) -> None:
        self.score, self.calls = score, 0

    def __call__(self, task: Task, trajectory: Trajectory) -> Score:
        self.calls += 1
        return self.score


def test_a_stop_ends_all_grading() -> None:
    costly = Counted(Score.right())
    reward = rewards.compose(
        {"correct": (0.9, costly), "format": (0.1, rewards.think_format(FORM)), "length": rewards.soft_length(4, 4)},
        stops=["format"],
        verdict="correct",
    )
    score = judge(reward, "no tags", tokens=2)
    assert (score.value, score.verdict, score.parts) == (0.0, Verdict.NO_ANSWER, {"format": 0.0})
    assert "does not start with <think>" in score.note
    assert costly.calls == 0
    score = judge(reward, GOOD, tokens=2)
    assert score.value == pytest.approx(0.9 + 0.1 - 0.05)
    assert (score.verdict, costly.calls) == (Verdict.RIGHT, 1)
    assert score.parts["format"] == 1.0 and score.parts["length/tokens"] == 2.0
    costly.score = Score.wrong()
    assert judge(reward, GOOD, tokens=2).value == pytest.approx(0.1 - 0.05)


def test_stops_in_order_failing_and_unknown() -> None:
    later = Counted(Score.right())
    chain = rewards.compose(
        {"a": Counted(Score.right()), "b": Counted(Score.failed("broke")), "c": later}, stops=["a", "b"]
    )
    assert judge(chain, "x").verdict is Verdict.GRADER_FAILED
    assert later.calls == 0
    absent = rewards.compose({"a": lambda task, trajectory: None, "c": later}, stops=["a"])
    assert judge(absent, "x").value == 1.0  # a part that does not apply stops nothing
    with pytest.raises(UserError, match="formt"):
        rewards.compose({"format": later}, stops=["formt"])
