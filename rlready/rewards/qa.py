"""Short answers to questions: exact match and F1 of words, with aliases.

Answers are compared in the normal form of `words.Answer`, which is SQuAD's with its traps mended; never as a part of
one another, so "120" does not hold the gold "20". Where the answer stands in a response:

- the whole response (outside its thoughts), else
- what its last mark points at: a box, `<answer>`, `####`, "the answer is Paris" (see `marks`), else
- what its last sentence states, for exact match only: "The total is 20 dollars." gives "20 dollars". A sentence with a
  negation, a doubt or a condition states nothing. `stated=False` leaves this out.

F1 is that of SQuAD: words in common over both bags of words, the best over the aliases. Where the gold is "yes", "no"
or the like, nothing but that word counts (as in HotpotQA), or a wrong sentence would earn a part of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rlready.errors import UserError
from rlready.rewards.marks import Mark, before_new_question, marks, visible
from rlready.rewards.records import Record, field, option, prediction
from rlready.rewards.verdict import Graded, failed, no_answer, right, short, wrong
from rlready.rewards.words import Answer
from rlready.scoring import RewardFn, answer_text, declare
from rlready.types import Score, Task, Trajectory

__all__ = ["f1", "grade_qa_em", "grade_qa_f1", "qa", "verify_em", "verify_f1"]

_CLOSED = frozenset({"yes", "no", "noanswer", "unanswerable", "true", "false"})
_STATES = re.compile(
    r"\b(?:is|are|was|were|equals|costs?|totals?|comes[ \t]+to|amounts[ \t]+to|will[ \t]+be|would[ \t]+be)\b"
    r"(?:[ \t]*:)?|=",
    re.IGNORECASE,
)
_DOUBTS = re.compile(
    r"\b(?:not|never|no|nor|neither|none|nothing|without|false|wrong|incorrect|doubt|unlikely|if|unless|whether|maybe"
    r"|perhaps|except|but|other|else|less|more|than|cannot)\b|n['’]t\b|\?",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_MAX_STATED = 300


def verify_em(response: str, gold: Any, *, stated: bool = True, cue_words: Sequence[str] = ()) -> Graded:
    """Right where the response's answer is the gold, or one of a list of accepted answers, in normal form.

    Args:
        response: all that the model wrote.
        gold: the answer as text or number, or a list of accepted ones.
        stated: whether a last sentence such as "The capital is Paris." gives an answer.
        cue_words: words for "answer" besides those of many languages.
    """
    golds, why = _golds(gold)
    if why:
        return failed(why)
    shown = before_new_question(visible(response), cue_words)
    whole = Answer(shown)
    if not whole:
        return no_answer("there is no answer outside the thoughts" if response.strip() else "nothing is given")
    wanted = [(text, Answer(text)) for text in golds]
    mark = _last_mark(shown, cue_words)
    given = [(shown, whole, "the whole response")]
    if mark is not None:
        given += [(text, Answer(text), "marked as the answer") for text in _contents(mark)]
    elif stated:
        given += [(text, Answer(text), "stated in the last sentence") for text in _stated(shown)]
    for text, answer, where in given:
        for gold_text, gold_answer in wanted:
            if answer.same(gold_answer):
                return right(f"{short(text.strip())} is {short(gold_text)} ({where})")
    answer_shown = short(_contents(mark)[0] if mark else shown)
    among = f"is not {short(golds[0])}" if len(golds) == 1 else f"is none of {len(golds)} accepted answers"
    return wrong(f"{answer_shown} {among}")


def verify_f1(response: str, gold: Any, *, threshold: float = 1.0, cue_words: Sequence[str] = ()) -> Graded:
    """The F1 of words in common with the gold, the best over accepted answers; right from `threshold` on.

    The parts hold `f1`, `precision` and `recall` of the gold that fits best.

    Raises:
        UserError: the threshold is not above 0 and at most 1.
    """
    if not 0 < threshold <= 1:
        raise UserError(f"threshold is {threshold}; it must be above 0 and at most 1.")
    golds, why = _golds(gold)
    if why:
        return failed(why)
    shown = before_new_question(visible(response), cue_words)
    mark = _last_mark(shown, cue_words)
    texts = [text for text in (_contents(mark) if mark else [shown]) if Answer(text)]
    if not texts:
        return no_answer("there is no answer outside the thoughts" if response.strip() else "nothing is given")
    scored = [(f1(text, one), text, one) for text in texts for one in golds]
    (value, precision, recall), text, one = max(scored, key=lambda s: s[0][0])
    parts = {"f1": value, "precision": precision, "recall": recall}
    reason = f"{short(text.strip())} and {short(one)} share words: F1 {value:.3f}"
    if value >= threshold - 1e-12:
        return right(reason, value, parts)
    return wrong(f"{reason}, below {threshold:g}", value, parts)


def f1(answer: str, gold: str) -> tuple[float, float, float]:
    """F1, precision and recall of the words of an answer against those of the gold; all 0 where one has none."""
    given, wanted = Answer(answer), Answer(gold)
    if given.same(wanted):
        return 1.0, 1.0, 1.0
    if _closed(given.words) or _closed(wanted.words):
        return 0.0, 0.0, 0.0
    common = sum((Counter(given.words) & Counter(wanted.words)).values())
    if not common:
        return 0.0, 0.0, 0.0
    precision, recall = common / len(given.words), common / len(wanted.words)
    return 2 * precision * recall / (precision + recall), precision, recall


def _closed(words: Sequence[str]) -> bool:
    return len(words) < 3 and "".join(words) in _CLOSED


def _golds(gold: Any) -> tuple[list[str], str]:
    """The accepted answers as texts, and why they cannot be read."""
    golds = list(gold) if isinstance(gold, (list, tuple)) else [gold]
    texts = []
    for one in golds:
        if isinstance(one, bool):
            texts.append("yes" if one else "no")
            one = str(one).lower()
        elif isinstance(one, (int, float)):
            one = repr(one) if abs(one) < 1e300 else ""
        if not isinstance(one, str) or not Answer(one):
            return [], f"the gold answer {short(one)} is empty or no text"
        texts.append(one)
    return texts, "" if texts else "there is no gold answer"


def _last_mark(text: str, cue_words: Sequence[str]) -> Mark | None:
    found = [m for m in marks(text, cue_words) if m.content.strip()]
    sure = [m for m in found if m.sure]
    return (sure or found)[-1] if found else None


def _contents(mark: Mark) -> list[str]:
    """What a mark points at: all of it, and of a cue the line, and its first sentence."""
    content = mark.content.strip()
    if mark.how != "cue":
        return [content]
    line = content.split("\n", 1)[0].strip()
    sentence = re.split(r"(?<=\w{2})[.!?]\s|[;]\s|,\s+(?:because|since|as|which|who)\b", line, maxsplit=1)[0]
    clause = re.split(r"\s+(?:because|since)\b|\s+\(", sentence, maxsplit=1)[0]
    return list(dict.fromkeys(t for t in (line, sentence, clause) if t.strip()))


def _stated(text: str) -> list[str]:
    """What the last sentence says that something is."""
    sentence = _SENTENCE.split(text[-4 * _MAX_STATED :].strip())[-1]
    if len(sentence) > _MAX_STATED or _DOUBTS.search(sentence):
        return []
    return [sentence[m.end() :].strip() for m in _STATES.finditer(sentence) if sentence[: m.start()].strip()]


def qa(column: str = "answer", *, metric: str = "em", threshold: float = 1.0) -> RewardFn:
    """Reward the short answer of `task.data[column]` (a text, a number, or a list of accepted ones).

    Args:
        column: where the gold is.
        metric: "em" for exact match, "f1" for the F1 of words.
        threshold: from which F1 on the verdict is right; the reward is F1 itself.

    Raises:
        UserError: the metric is not known.
    """
    if metric not in ("em", "f1"):
        raise UserError(f'qa: metric is {metric!r}; it must be "em" or "f1".')

    def qa(task: Task, trajectory: Trajectory) -> Score:
        text, gold = answer_text(trajectory), task.data.get(column)
        graded = verify_em(text, gold) if metric == "em" else verify_f1(text, gold, threshold=threshold)
        return graded.as_score()

    return declare(qa, name="qa", columns=[column])


def grade_qa_em(record: Record) -> Graded:
    """Exact match; fields `stated` (default true) and `cue_words` as in `verify_em`."""
    stated = option(record, "stated", True, bool)
    cue_words = option(record, "cue_words", (), list)
    return verify_em(prediction(record), field(record, "reference"), stated=stated, cue_words=cue_words)


def grade_qa_f1(record: Record) -> Graded:
    """F1 of words; fields `threshold` (default 1) and `cue_words` as in `verify_f1`."""
    threshold = option(record, "threshold", 1.0, int, float)
    cue_words = option(record, "cue_words", (), list)
    return verify_f1(prediction(record), field(record, "reference"), threshold=threshold, cue_words=cue_words)
