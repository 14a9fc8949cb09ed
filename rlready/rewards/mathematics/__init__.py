r"""The verifier of mathematics: is this answer, or the answer in this response, the gold?

What is read, and by which rules:

- where the answer stands in a response                            `find`
- LaTeX and plain text; mixed numbers, precedence, refusals         `parse`
- lists, sets, pairs, intervals, equations, names                   `compare`
- units and percent signs                                           `quantities`
- what proves that two expressions are equal, or different          `decide`

Verdicts. Right: the same text, or equality that is proved. Wrong: a difference that is proved, an answer of another
kind, an answer that is no mathematics. No answer: nothing is given. Grader failed: the gold is empty or cannot be read
(and the answer is not the same text), or the bound on the work was met, or SymPy was silent, before anything was
decided; such a verdict never pays and is never counted as wrong. Every verdict has its reason as the score's note.

Work is bounded by counting steps, not by a clock, so verdicts repeat and the bound holds in threads and event loops;
only SymPy, the last resort, has a clock (5 seconds a question, in a process of its own). Model text is never evaluated.
"""

from __future__ import annotations

import math as _math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from rlready.errors import UserError, did_you_mean
from rlready.rewards.mathematics.compare import Comparer
from rlready.rewards.mathematics.find import Found, find
from rlready.rewards.mathematics.quantities import PERCENT_RULES, UNIT_RULES, PercentRule, Rules, UnitRule
from rlready.rewards.mathematics.reading import Reading, read
from rlready.rewards.mathematics.slow import prove
from rlready.rewards.mathematics.tokens import same_text
from rlready.rewards.mathematics.tree import EMPTY, Budget, Node, TooMuchError, Undefined, Unreadable
from rlready.scoring import RewardFn, answer_text, declare, last_turn
from rlready.types import Score, Task, Trajectory, Verdict

__all__ = ["Found", "Rules", "find", "math", "verify_math"]

_STEPS = 200_000
_MAX_QUESTIONS = 2  # of SymPy, for one verdict


def verify_math(
    prediction: str,
    gold: Any,
    *,
    response: bool = True,
    units: UnitRule = "given",
    percent: PercentRule = "either",
    cue_words: Sequence[str] = (),
    cut: bool = False,
) -> Score:
    r"""Right where the prediction is the gold; see the module for the rules.

    Args:
        prediction: a response, in which the answer is looked for, or (`response=False`) an answer.
        gold: an answer as text, a number, a solution that marks its answer by `\boxed{}` or `####`, or a list of
            accepted answers.
        response: whether the prediction is a whole response.
        units: "given", "needed" or "ignored"; see `quantities`.
        percent: "either", "value" or "sign"; see `quantities`.
        cue_words: words for "answer" in other languages, besides those of `words.CUES`.
        cut: whether the response was cut off by its length cap; then only marks and whole texts are answers.

    Returns:
        The score; its note says why.

    Raises:
        UserError: a rule is not known.
    """
    rules = _rules(units, percent, cue_words)
    golds = list(gold) if isinstance(gold, (list, tuple)) else [gold]
    if not golds:
        return Score.failed("there is no gold answer")
    found = find(prediction, cue_words=cue_words, cut=cut) if response else _bare(prediction)
    results = [_judge(found, one, rules) for one in golds]
    right = next((s for s in results if s.verdict is Verdict.RIGHT), None)
    failed = next((s for s in results if s.verdict is Verdict.GRADER_FAILED), None)
    return right or failed or results[0]


def _bare(prediction: str) -> Found:
    """An answer that is given as such; a mark in it is read as in a gold."""
    return Found(_gold_text(prediction) or "", "whole")


def _rules(units: str, percent: str, cue_words: Sequence[str]) -> Rules:
    for name, value, known in (("units", units, UNIT_RULES), ("percent", percent, PERCENT_RULES)):
        if value not in known:
            raise did_you_mean(f"value of {name}", str(value), known)
    if isinstance(cue_words, str):
        raise UserError(f"cue_words must be a list of words, not the text {cue_words!r}.")
    return Rules(units, percent)  # type: ignore[arg-type]


def _gold_text(gold: Any) -> str | None:
    """The gold's text; None where it is none."""
    if isinstance(gold, bool):
        return None
    if isinstance(gold, float):
        return repr(gold) if _math.isfinite(gold) else None
    if isinstance(gold, (int, Fraction)):
        number = Fraction(gold)
        return str(gold) if abs(number) < 10**4000 else None
    if not isinstance(gold, str):
        return None
    if "\\boxed" in gold or "\\fbox" in gold or "####" in gold:
        found = find(gold)
        if found.how in ("box", "hashes"):
            return found.text
    return gold.strip()


def _judge(found: Found, gold: Any, rules: Rules) -> Score:
    text = _gold_text(gold)
    if not text or not same_text(text):
        return Score.failed(f"the gold answer {_short(gold)} is empty, or neither text nor a number")
    wanted = read(text)
    if wanted.why == EMPTY:
        return Score.failed(f"the gold answer {_short(gold)} is empty")
    if not found.text or not found.text.strip():
        return _say(Score.no_answer(), "the response has no answer")
    given_text = found.text
    if wanted.text == same_text(given_text) and (wanted.node is None or text.strip() == given_text.strip()):
        return _say(Score.right(), "the same text")
    given = read(given_text)
    if wanted.node is None:
        return Score.failed(f"the gold answer {_short(text)} cannot be read as mathematics: {wanted.why}")
    if given.node is None:
        why = f"the answer {_short(given_text)} cannot be read as mathematics: {given.why}"
        return _say(Score.wrong() if found.marked or found.how == "whole" else Score.no_answer(), why)
    return _compare(wanted, given, rules, text, given_text)


def _compare(wanted: Reading, given: Reading, rules: Rules, text: str, given_text: str) -> Score:
    asked = 0

    def ask(one: Node, other: Node) -> bool | None:
        nonlocal asked
        asked += 1
        return prove(one, other) if asked <= _MAX_QUESTIONS else None

    comparer = Comparer(rules, Budget(_STEPS), ask)
    pairs: list[tuple[Node | None, Node | None]] = [(wanted.node, given.node)]
    if wanted.listed is not None or given.listed is not None:
        pairs.append((wanted.listed or wanted.node, given.listed or given.node))
    failure = ""
    for index, (gold, answer) in enumerate(pairs):
        if gold is None or answer is None:
            continue
        if index and (gold.op != "list" or answer.op != "list"):
            continue
        try:
            if index:  # "100,200" read as a list: then in its order
                verdict = comparer.all(zip(gold.args, answer.args, strict=False), "the list in its order")
                if len(gold.args) != len(answer.args):
                    continue
            else:
                verdict = comparer.same(gold, answer)
        except Unreadable as error:
            if index == 0:
                return _malformed(comparer, gold, text, given_text, error)
            continue
        except TooMuchError as error:
            failure = f"it was not decided whether {_short(given_text)} is {_short(text)}: {error}"
            continue
        except (Undefined, ZeroDivisionError, OverflowError, ValueError, RecursionError) as error:
            failure = f"it was not decided whether {_short(given_text)} is {_short(text)}: {error}"
            continue
        if verdict.equal:
            return _say(Score.right(), f"{_short(given_text)} is {_short(text)}: {verdict.why}")
        if verdict.equal is None:
            failure = f"it was not decided whether {_short(given_text)} is {_short(text)}: {verdict.why}"
        elif index == 0:
            reason = f"{_short(given_text)} is not {_short(text)}: {verdict.why}"
    if failure:
        return Score.failed(failure)
    return _say(Score.wrong(), reason)


def _malformed(comparer: Comparer, gold: Node, text: str, given_text: str, error: Unreadable) -> Score:
    """Something that was read means nothing: in the gold it is the grader's failure, in the answer a wrong answer."""
    try:
        comparer.same(gold, gold)
    except (Unreadable, TooMuchError, Undefined, ArithmeticError, ValueError) as own:
        if text.strip() == given_text.strip():
            return _say(Score.right(), "the same text")
        return Score.failed(f"the gold answer {_short(text)} cannot be read as mathematics: {own}")
    return _say(Score.wrong(), f"the answer {_short(given_text)} means nothing: {error}")


def _say(score: Score, why: str) -> Score:
    return Score(score.value, score.verdict, score.parts, why)


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**60 else "a huge number"
    return text if len(text) <= 80 else text[:77] + "..."


def math(
    column: str = "answer",
    *,
    units: UnitRule = "given",
    percent: PercentRule = "either",
    cue_words: Sequence[str] = (),
) -> RewardFn:
    """Reward the mathematical answer of `task.data[column]`; see `verify_math`.

    Raises:
        UserError: a rule is not known.
    """
    _rules(units, percent, cue_words)

    def math(task: Task, trajectory: Trajectory) -> Score:
        turn = last_turn(trajectory)
        return verify_math(
            answer_text(trajectory),
            task.data.get(column),
            units=units,
            percent=percent,
            cue_words=cue_words,
            cut=turn is not None and turn.stop == "length",
        )

    return declare(math, name="math", columns=[column])
