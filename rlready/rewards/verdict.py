"""What a verifier says of one answer: a verdict, a number, one sentence of reason, and named parts of the number.

`Graded` is what the `verify_*` functions of the later kinds return, and what the registry `kinds` hands on; `as_score`
turns it into the `Score` that a task set wants. A grader that failed has no number: its score is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rlready.types import Score, Verdict

__all__ = ["Graded", "Verdict", "failed", "no_answer", "right", "short", "wrong"]


@dataclass(frozen=True)
class Graded:
    """A verdict with its reason.

    Attributes:
        verdict: right, wrong, no answer, or grader failed (an accident, never counted as wrong).
        score: the number, usually 0 to 1; NaN where the grader failed.
        reason: one sentence that says why.
        parts: named numbers behind the score.
    """

    verdict: Verdict
    score: float
    reason: str
    parts: Mapping[str, float] = field(default_factory=dict)

    def as_score(self) -> Score:
        """The same as a `Score`, the reason as its note."""
        if self.verdict is Verdict.GRADER_FAILED:
            return Score.failed(self.reason)
        return Score(self.score, self.verdict, self.parts, self.reason)

    @classmethod
    def of(cls, score: Score) -> Graded:
        """A `Score` as a `Graded`; the note is the reason."""
        reason = score.note or _PLAIN[score.verdict]
        return cls(score.verdict, float(score.value), reason, dict(score.parts))


_PLAIN = {
    Verdict.RIGHT: "the answer is right",
    Verdict.WRONG: "the answer is wrong",
    Verdict.NO_ANSWER: "there is no answer",
    Verdict.GRADER_FAILED: "the grader failed",
}


def right(reason: str, score: float = 1.0, parts: Mapping[str, float] | None = None) -> Graded:
    """A right answer."""
    return Graded(Verdict.RIGHT, score, reason, parts or {})


def wrong(reason: str, score: float = 0.0, parts: Mapping[str, float] | None = None) -> Graded:
    """A wrong answer."""
    return Graded(Verdict.WRONG, score, reason, parts or {})


def no_answer(reason: str, score: float = 0.0, parts: Mapping[str, float] | None = None) -> Graded:
    """Nothing that could be judged was given."""
    return Graded(Verdict.NO_ANSWER, score, reason, parts or {})


def failed(reason: str, parts: Mapping[str, float] | None = None) -> Graded:
    """The grader itself failed: a gold that cannot be read, a bound that was met."""
    return Graded(Verdict.GRADER_FAILED, math.nan, reason, parts or {})


def short(value: object, most: int = 60) -> str:
    """A value quoted for a reason, cut where it is long."""
    if isinstance(value, str):  # a long text is cut before it is quoted
        text = repr(value[: most + 1])
        return text if len(value) <= most else text[: most - 3] + "...'"
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a huge number"
    return text if len(text) <= most else text[: most - 3] + "..."
